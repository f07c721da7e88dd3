"""Every call of the HTTP API, from the table that peers dispatch with."""

from __future__ import annotations

from typing import Final

from avow.cli.reference.markdown import code, table
from avow.peer.http.openapi import document
from avow.peer.http.routes import ROUTES

_HEAD: Final = """# Calls of the HTTP API

Every call that a peer answers, from the table it dispatches with. What the answers hold and how they behave is on
[the HTTP API](http-api.md); `GET /v1/openapi.json` of any peer has all shapes for machines. *Right*: what the token
needs, where a peer has a tokens file; "use" is any right on that queue, "any" any token, "none" no token at all.

"""


def routes_page() -> str:
    paths = document(version="0")["paths"]
    rows = [
        (
            code(f"{route.method} {route.path}"),
            route.summary,
            {"": "any", None: "none"}.get(route.right, route.right or ""),
            ", ".join(code(one["name"]) for one in _parameters(paths, route.path, route.method)),
            ", ".join(str(status) for status in route.statuses),
        )
        for route in ROUTES
    ]
    return _HEAD + table(("call", "", "right", "parameters", "done is"), rows)


def _parameters(
    paths: dict[str, dict[str, dict[str, list[dict[str, str]]]]], path: str, method: str
) -> list[dict[str, str]]:
    return [one for one in paths[path][method.lower()]["parameters"] if one["in"] == "query"]

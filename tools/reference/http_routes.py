"""The page of all HTTP calls, generated from the peers' routing table."""

from __future__ import annotations

from typing import Final

from avow.server.http.openapi import document
from avow.server.http.routes import ROUTES
from tools.reference.markdown import code, table

_HEAD: Final = """# Calls of the HTTP API

All calls that a peer answers, from its routing table. [The HTTP API](http-api.md) explains the answers;
`GET /v1/openapi.json` of any peer has all schemas. *Right*: the right that the token needs if the peer has a tokens
file; "use" is any right on that queue, "any" any token, "none" no token.

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

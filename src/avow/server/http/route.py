"""A route: one call of the API, with its path, rights, parameters, body and answer.

The routes are listed in routes.py. Everything about a call is in its route: dispatch, rights, parsing of parameters and
the OpenAPI document use it, and none of them depends on a particular call.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

from msgspec import Struct

from avow.errors import AvowError
from avow.server.access import Right
from avow.server.http import schemas

JSON: Final = "application/json"
TEXT: Final = "text/plain; charset=utf-8"
SCRIPT: Final = "text/javascript; charset=utf-8"
NDJSON: Final = "application/x-ndjson"
BATCH: Final = "application/vnd.avow.batch"
METRICS: Final = "text/plain; version=0.0.4; charset=utf-8"

Errors: TypeAlias = tuple[type[AvowError], ...]


class Route(Struct, frozen=True):
    """`right` empty: any token; None: no token needed. `answer` Any: JSON without a schema.

    `queue`: the queue whose rights count, if the request names none. `raw`: the handler parses query and body itself.
    `body_later`: the handler decodes the body if it needs it. `upgrades`: the answer is an upgrade, or 426.
    """

    operation: str
    method: str
    path: str
    summary: str
    parameters: type[Struct] = schemas.NoParameters
    right: Right | str | None = ""
    queue: str = ""
    body: Any = None
    body_types: tuple[str, ...] = (JSON,)
    body_needed: bool = True
    body_later: bool = False
    answer: Any = None
    answer_types: tuple[str, ...] = (JSON,)
    statuses: tuple[int, ...] = (200,)
    errors: Errors = ()
    headers: tuple[tuple[str, str], ...] = ()
    raw: bool = False
    upgrades: bool = False

    @property
    def waits(self) -> bool:
        """It may be answered BUSY. Health checks and metrics are not."""
        return self.path.startswith("/v1/")

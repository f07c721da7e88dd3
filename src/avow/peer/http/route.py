"""What one row of the API's table says: the call, who may make it, what it takes, what it answers.

The rows stand in routes.py and routes_pledges.py. Everything that is known of a call is in its row: dispatch, rights,
the parsing of parameters and the OpenAPI document read it, and none of them names a call.
"""

from __future__ import annotations

from typing import Any, Final

from msgspec import Struct

from avow.errors import AvowError
from avow.peer.access import Right
from avow.peer.http import shapes

JSON: Final = "application/json"
TEXT: Final = "text/plain; charset=utf-8"
SCRIPT: Final = "text/javascript; charset=utf-8"
NDJSON: Final = "application/x-ndjson"
BATCH: Final = "application/vnd.avow.batch"
METRICS: Final = "text/plain; version=0.0.4; charset=utf-8"

Errors = tuple[type[AvowError], ...]


class Route(Struct, frozen=True):
    """`right` empty: anybody with a token; None: anybody. `answer` Any: JSON without a fixed shape.

    `queue`: the one whose rights count, where a request names none. `raw`: its handler reads query and body itself.
    `body_later`: its handler decodes the body, if that is needed. `upgrades`: it is answered with another protocol, or
    with 426.
    """

    operation: str
    method: str
    path: str
    summary: str
    parameters: type[Struct] = shapes.NoParameters
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
        """It may be told BUSY: everything but the calls with which somebody looks whether the peer is well."""
        return self.path.startswith("/v1/")

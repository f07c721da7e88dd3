"""A call that a pledge needs: one branch's delivery, or its checkback. The same for every way of calling.

The names that a service sees are dtm's: gid, trans_type, branch_id, op. A checkback is branch "00" with op "msg".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Protocol

from msgspec import Struct

from avow.pledge.verdicts import Verdict

TRANS_TYPE: Final = "msg"


class Call(Struct, frozen=True, gc=False, kw_only=True):
    url: str
    gid: str
    branch_id: str
    timeout_s: float
    payload: bytes = b""
    key: bytes = b""
    headers: Mapping[str, str] = {}
    protocol: str = ""
    checkback: bool = False
    since_ms: int = 0  # it was not called before
    prepared_ms: int = 0  # of a checkback: tells the barrier whether a row that is missing may have been cleaned up

    @property
    def op(self) -> str:
        return "msg" if self.checkback else "action"


class Caller(Protocol):
    """Makes a call and says what the answer means. Raises nothing but CancelledError."""

    async def __call__(self, call: Call) -> Verdict: ...

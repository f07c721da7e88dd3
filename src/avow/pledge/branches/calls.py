"""A call of a pledge: the delivery of a branch, or the checkback. The same for all protocols.

The parameter names that a service gets are dtm's: gid, trans_type, branch_id, op. A checkback is branch "00", op "msg".
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
    since_ms: int = 0  # the branch was not called before this time
    prepared_ms: int = 0  # of a checkback: from it the barrier knows whether a missing row may have been cleaned up

    @property
    def op(self) -> str:
        return "msg" if self.checkback else "action"


class Caller(Protocol):
    """Makes a call and returns the verdict. Raises only CancelledError."""

    async def __call__(self, call: Call) -> Verdict: ...

"""The key of a barrier row, the call for which it is written, and how long it must be kept.

The key is (gid, branch_id, op, barrier_id), as in dtm. A pledge's own transaction and its checkback compete for one
row:

    gid · 00 · msg · 01        reason `msg`: the transaction committed;  reason `rollback`: a checkback was first

Each delivery to a branch has its own row: gid · 01 · action · 01. `barrier_id` counts within one request, so that a
handler can protect several pieces of work.

A row is a proof, so removing it removes the proof. Three durations keep that safe:

    HORIZON_MIN_S   no clean-up and no expiry removes a younger row
    MARGIN_S        tolerated difference of clocks and of the servers' time zones
    START_S         maximum time between prepare and the insert of the row: a later insert is refused, because the
                    tombstone of a checkback might have been removed. Much less than the other two together

A removed row is not the same as a row that never existed: see avow.barrier.cleanup.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Self

from avow.errors import InvalidRequest, Malformed, Trimmed

HORIZON_MIN_S: Final = 7 * 24 * 3600
MARGIN_S: Final = 2 * 24 * 3600
START_S: Final = 24 * 3600
LOCK_TIMEOUT_S: Final = 0.3  # how long a checkback waits for an open transaction

CHARS_MAX: Final[Mapping[str, int]] = {"trans_type": 45, "gid": 128, "branch_id": 128, "op": 45, "barrier_id": 45}

OWN_BRANCH: Final = "00"
OWN_OP: Final = "msg"
FIRST: Final = "01"
COMMITTED: Final = "msg"
ROLLED_BACK: Final = "rollback"


class Verdict(StrEnum):
    """The answer of a checkback, with dtm's values."""

    SUCCESS = "SUCCESS"  # committed
    FAILURE = "FAILURE"  # rolled back or never started; it cannot commit any more
    ONGOING = "ONGOING"  # its transaction is still open: ask again


def verdict_of(reason: str) -> Verdict:
    if reason == COMMITTED:
        return Verdict.SUCCESS
    if reason == ROLLED_BACK:
        return Verdict.FAILURE
    raise Malformed("the reason of a barrier row", expected=f"{COMMITTED} or {ROLLED_BACK}", found=repr(reason))


@dataclass(frozen=True, slots=True)
class Key:
    """The constructor checks the ids: a database that truncates a long id would confuse two pledges."""

    gid: str
    branch_id: str = OWN_BRANCH
    op: str = OWN_OP
    barrier_id: str = FIRST
    trans_type: str = "msg"

    def __post_init__(self) -> None:
        for name, chars_max in CHARS_MAX.items():
            _check_id(name, getattr(self, name), chars_max=chars_max)

    def columns(self, reason: str) -> dict[str, str]:
        return {
            "trans_type": self.trans_type,
            "gid": self.gid,
            "branch_id": self.branch_id,
            "op": self.op,
            "barrier_id": self.barrier_id,
            "reason": reason,
        }

    def exact(self) -> tuple[str, str, str, str]:
        return (self.gid, self.branch_id, self.op, self.barrier_id)


def _check_id(name: str, value: object, *, chars_max: int) -> None:
    if not isinstance(value, str) or not value:
        raise InvalidRequest(f"{name} must be non-empty text, not {value!r}; nothing was written")
    if len(value) > chars_max:
        raise InvalidRequest(
            f"{name} has {len(value)} characters, at most {chars_max} are allowed; nothing was written"
        )
    if "\0" in value or not _is_unicode(value):
        raise InvalidRequest(f"{name} {value!r} cannot be stored as text; nothing was written")


def _is_unicode(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:  # a lone surrogate
        return False
    return True


class Call:
    """The call for which rows are written: a pledge's own transaction, or one delivery to a branch.

    Create it before prepare, or pass `prepared_ms`, the coordinator's time of prepare in milliseconds since 1970.
    """

    def __init__(
        self,
        gid: str,
        branch_id: str = OWN_BRANCH,
        op: str = OWN_OP,
        *,
        trans_type: str = "msg",
        prepared_ms: int | None = None,
    ) -> None:
        self._first = Key(gid, branch_id, op, trans_type=trans_type)
        self.prepared_ms = prepared_ms
        self._made_ms = now_ms()
        self._used = 0

    @classmethod
    def from_query(cls, query: Mapping[str, str], **options: Any) -> Self:
        """From the query parameters of a branch's call, by Avow's or dtm's coordinator."""
        missing = [name for name in ("gid", "branch_id", "op") if not query.get(name)]
        if missing:
            raise InvalidRequest(
                f"the call has no {', '.join(missing)}, so it is not a delivery of a pledge; nothing was written"
            )
        trans_type = query.get("trans_type") or "msg"
        prepared_ms = read_prepared_ms(query)
        named = (query["gid"], query["branch_id"], query["op"])
        return cls(*named, trans_type=trans_type, prepared_ms=prepared_ms, **options)

    @property
    def gid(self) -> str:
        return self._first.gid

    @property
    def branch_id(self) -> str:
        return self._first.branch_id

    @property
    def op(self) -> str:
        return self._first.op

    def own_key(self) -> Key:
        """The key of the pledge's own transaction."""
        if (self.branch_id, self.op) != (OWN_BRANCH, OWN_OP):
            raise InvalidRequest(
                f"branch {self.branch_id!r}, op {self.op!r} is a delivery, not a pledge's own transaction; nothing was "
                "written. Call once() in a branch handler"
            )
        return self._first

    def key_to_commit(self) -> Key:
        """The same key, for an insert. Raises Trimmed later than START_S after prepare."""
        since_ms = self._made_ms if self.prepared_ms is None else self.prepared_ms
        if now_ms() - since_ms > START_S * 1000:
            raise Trimmed(
                f"pledge {self.gid} was prepared more than {START_S // 3600} hours ago and may have been rolled back "
                "since; nothing was written. Roll back, and prepare a new pledge"
            )
        return self.own_key()

    def next_key(self) -> Key:
        """The key of the next piece of work within this delivery: 01, 02 and so on."""
        if self.op == OWN_OP:
            raise InvalidRequest(
                "once() is for branch handlers; nothing was written. Call insert() in a pledge's own transaction"
            )
        self._used += 1
        return Key(self.gid, self.branch_id, self.op, f"{self._used:02d}", self._first.trans_type)


@dataclass(frozen=True, slots=True)
class Question:
    """A coordinator's request to the checkback. `prepared_ms`: dtm's server does not send it."""

    gid: str
    prepared_ms: int | None = None


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def is_surely_kept(prepared_ms: int | None) -> bool:
    """Whether it is so young that its row cannot have been removed, with any tolerated difference of clocks."""
    if prepared_ms is None:
        return False
    return -MARGIN_S * 1000 <= now_ms() - prepared_ms < (HORIZON_MIN_S - MARGIN_S) * 1000


def read_prepared_ms(query: Mapping[str, str]) -> int | None:
    given = query.get("prepared_ms", "")
    if not given:
        return None
    if not given.isascii() or not given.isdigit() or len(given) > 15:
        raise InvalidRequest(f"prepared_ms must be milliseconds since 1970, not {given!r}; nothing was written")
    return int(given)

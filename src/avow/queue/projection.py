"""The projected state of a lane: as it will be when everything its coordinator has appended is committed.

A coordinator answers some writes without appending anything: the write id is known, or the lane does not end at the
expected version. It may have hundreds of entries in flight, and "where the lane ends" must count them, or two writes
that expect the same end would both be accepted. The committed state must not contain them yet.

A separate implementation of the rules for entries in flight would have to repeat every limit and every refusal, and
each difference would show as a wrong NOT_EQUAL. So a fork of the ledger applies the entries in flight with the same
rules. The cost is a second application of each entry on the coordinator, and a copy of the windows at a take-over. A
take-over calls `rebuild`, because the entries after the committed ones may differ from before.

NOT_EQUAL is answered from the entries in flight, because appending would violate the condition. Anything else is
refused only if the committed state already says so: entries in flight may be lost, and then a refusal that depends on
them would have been wrong. In doubt an entry is appended and the answer is its outcome.

A refusal depends on the log of this peer. A coordinator that may have been deposed confirms its ballot first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from msgspec import Struct

from avow.queue.entry_outcome import Outcome
from avow.queue.ledger import Ledger, Writes
from avow.queue.state import NO_CONDITION, QueueState
from avow.wire.messages import Entry, Kind

_WITHOUT_COMMAND: Final = frozenset({Kind.NOOP, Kind.DATA})


class Known(Struct, frozen=True, gc=False):
    """Nothing to append. The answer is `outcome`; None: the outcome of the entry in flight at `position`."""

    outcome: Outcome | None = None
    position: int = 0


class EarlyRefusal(Struct, frozen=True, gc=False):
    """Nothing was appended. For NOT_EQUAL `last_version` is the end the lane will have; else as in `Outcome`."""

    code: str
    first_version: int = 0
    last_version: int = 0


def no_writes(entry: Entry) -> Writes:  # noqa: ARG001
    """For lanes whose entries are never merged."""
    return ()


class Projection:
    """Call `appended` for each entry that the coordinator appends, in order. It reads from the state what was
    applied."""

    def __init__(self, state: QueueState) -> None:
        self._state = state
        self._ahead: Ledger = state.fork()
        self._in_flight: dict[bytes, int] = {}
        self._order: deque[tuple[int, list[bytes]]] = deque()  # (position, write ids first appended there)

    @property
    def end(self) -> int:
        return self._ahead.end

    @property
    def position(self) -> int:
        """The last appended entry."""
        return self._ahead.position

    def appended(self, entry: Entry, writes: Writes = ()) -> None:
        self._forget_committed()
        self._ahead.apply(entry, writes)
        in_flight, position = self._in_flight, entry.position
        ids = [write[0] for write in writes] if writes else [entry.write_id]
        fresh = [write_id for write_id in ids if write_id and write_id not in in_flight]
        if fresh:
            in_flight.update(dict.fromkeys(fresh, position))
            self._order.append((position, fresh))

    def rebuild(self, entries: Iterable[Entry], writes_of: Callable[[Entry], Writes] = no_writes) -> None:
        """Start again from the committed state with the entries that follow it in the log now."""
        self._ahead = self._state.fork()
        self._in_flight.clear()
        self._order.clear()
        for entry in entries:
            self.appended(entry, writes_of(entry))

    def outcome_of(self, write_id: bytes) -> Outcome | int | None:
        """The outcome of a known write, the position of one in flight, or None: never seen, or forgotten."""
        known = self._state.outcome_of(write_id)
        if known is not None:
            return known
        self._forget_committed()
        return self._in_flight.get(write_id)

    def check(
        self, kind: int, *, write_id: bytes = b"", expected: int = NO_CONDITION, control: bytes = b""
    ) -> Known | EarlyRefusal | None:
        """None: append it. Otherwise the answer; the module's docstring says what is refused here."""
        found = self.outcome_of(write_id) if write_id else None
        if isinstance(found, Outcome):
            return Known(outcome=found)
        if found is not None:
            return Known(position=found)
        if expected not in (NO_CONDITION, self.end):
            return EarlyRefusal("NOT_EQUAL", last_version=self.end)
        return None if kind in _WITHOUT_COMMAND else self._check_command(kind, control)

    def _check_command(self, kind: int, control: bytes) -> Known | EarlyRefusal | None:
        outcome = self._state.early_outcome(kind, control)
        if outcome is None or outcome != self._ahead.early_outcome(kind, control):
            return None
        if outcome.code:
            return EarlyRefusal(outcome.code, outcome.first_version, outcome.last_version)
        return Known(outcome=outcome)

    def _forget_committed(self) -> None:
        """Forget the ids of applied entries: the state knows them now."""
        committed, order = self._state.position, self._order
        while order and order[0][0] <= committed:
            for write_id in order.popleft()[1]:
                self._in_flight.pop(write_id, None)  # None: one entry may name it twice

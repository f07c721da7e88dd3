"""What the lane will be once everything its coordinator has appended is committed.

A coordinator answers some writes before it stores anything: this write id is known, the lane does not end where you
expect. It has entries in flight by then, hundreds of them, and "where the lane ends" must count them, or two writes
that expect the same end would both be taken. The committed state does not know them yet and must not.

A shadow that imitates the rules for the entries in flight would have to imitate every bound and every refusal too, and
each difference would show as a wrong NOT_EQUAL. So there is no shadow: a fork of the ledger runs ahead with the rules
themselves. It costs a second application of each entry on the one peer that coordinates, and a copy of the windows at
a take-over. Take-over means `rebuild`: the entries after the committed ones may be others than before.

Two rules on what is refused. NOT_EQUAL is answered from the entries in flight, because appending would break the
condition. Anything else is refused only if the committed state already says so: what is in flight may yet be lost, and
then a refusal that quoted it would have been false. In doubt an entry is appended and its outcome is the answer.

A refusal speaks for the log this peer holds. A peer that may have been superseded confirms its ballot first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from msgspec import Struct

from avow.queue.ledger import Ledger, Writes
from avow.queue.outcomes import Outcome
from avow.queue.state import NO_CONDITION, QueueState
from avow.wire.messages import Entry, Kind

_WITHOUT_COMMAND = frozenset({Kind.NOOP, Kind.DATA})


class Known(Struct, frozen=True, gc=False):
    """Nothing to append. `outcome`: the answer. Without one: it is that of the entry in flight at `position`."""

    outcome: Outcome | None = None
    position: int = 0


class Refusal(Struct, frozen=True, gc=False):
    """Nothing was appended. For NOT_EQUAL `last_version` is the end the lane will have; else as in `Outcome`."""

    code: str
    first_version: int = 0
    last_version: int = 0


def no_writes(entry: Entry) -> Writes:  # noqa: ARG001
    """For lanes whose entries are never merged."""
    return ()


class Projection:
    """Tell it of each entry the coordinator appends, in order. It sees by itself what the state has applied."""

    def __init__(self, state: QueueState) -> None:
        self._state = state
        self._ahead: Ledger = state.fork()
        self._in_flight: dict[bytes, int] = {}
        self._order: deque[tuple[int, list[bytes]]] = deque()  # (position, ids that are in flight there first)

    @property
    def end(self) -> int:
        return self._ahead.end

    @property
    def position(self) -> int:
        """The last entry it was told of."""
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
    ) -> Known | Refusal | None:
        """None: append it. Otherwise the answer; see the head of the module for what is refused here."""
        found = self.outcome_of(write_id) if write_id else None
        if isinstance(found, Outcome):
            return Known(outcome=found)
        if found is not None:
            return Known(position=found)
        if expected not in (NO_CONDITION, self.end):
            return Refusal("NOT_EQUAL", last_version=self.end)
        return None if kind in _WITHOUT_COMMAND else self._check_command(kind, control)

    def _check_command(self, kind: int, control: bytes) -> Known | Refusal | None:
        settled = self._state.settled(kind, control)
        if settled is None or settled != self._ahead.settled(kind, control):
            return None
        if settled.code:
            return Refusal(settled.code, settled.first_version, settled.last_version)
        return Known(outcome=settled)

    def _forget_committed(self) -> None:
        """The state answers for what it has applied; the rest stays."""
        committed, order = self._state.position, self._order
        while order and order[0][0] <= committed:
            for write_id in order.popleft()[1]:
                self._in_flight.pop(write_id, None)  # None: one entry may name it twice

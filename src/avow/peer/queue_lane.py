"""A lane of a two-phase queue: versions, compare-and-append, staged writes with deadlines, three read levels."""

from __future__ import annotations

from avow.peer.answers import Done
from avow.peer.lane import TwoPhaseLane, Write
from avow.queue.commands import TransactionCommand, encode
from avow.queue.projection import Known, Projection, Refusal
from avow.queue.state import QueueState
from avow.wire.messages import Entry, Kind


class QueueLane(TwoPhaseLane):
    state: QueueState
    _projection: Projection | None = None  # only while coordinating

    def _restore(self, snapshot: bytes) -> None:
        self.state = QueueState.restore(snapshot) if snapshot else QueueState()

    @property
    def visible_end(self) -> int:
        return self.state.end

    def read_local(self, request: int) -> None:
        """Whatever this peer has applied; may lag."""
        self.answers.append((request, Done(1, self.state.end)))

    def read_at_least(self, request: int, version: int) -> None:
        """Answered once this peer shows `version`: a reader's own writes, and never less than it saw before."""
        if self.state.end >= version:
            self.read_local(request)
        else:
            self._at_least.append((request, version))

    def peek(self, position: int) -> tuple[Entry, bool, tuple[int, ...]] | None:
        """By naming it, an entry that may not be committed: (entry, committed, who stored it)."""
        log = self.core.log
        if not log.base < position <= log.end:
            return None
        return log.entry(position), position <= self.core.committed, self.core.stored_by(position)

    def discard_expired(self, now_ms: int) -> None:
        """Coordinator: transactions without a decision by their deadline are discarded by a logged entry."""
        if self._projection is None:
            return
        for txn in self.state.expired(now_ms):
            control = encode(TransactionCommand(txn, "deadline"))
            if self._projection.check(Kind.DISCARD, control=control) is None and txn not in self._expiring:
                self._expiring.add(txn)
                self.propose(Kind.DISCARD, control, created_ms=now_ms)

    def _foresee(self, write: Write) -> Known | Refusal | None:
        assert self._projection is not None, "asked while not coordinating"
        return self._projection.check(
            write.kind, write_id=write.write_id, expected=write.expected, control=write.control
        )

    def _track(self, entry: Entry) -> None:
        if self._projection is not None:
            self._projection.appended(entry)

    def _coordinating(self, uncommitted: tuple[Entry, ...] | None) -> None:
        self._expiring: set[bytes] = set()  # deadlines whose entry is in flight
        self._projection = None
        if uncommitted is not None:
            self._projection = Projection(self.state)
            self._projection.rebuild(uncommitted)

    def _after_apply(self) -> None:
        if self._at_least:
            end = self.state.end
            self.answers += [(request, Done(1, end)) for request, version in self._at_least if version <= end]
            self._at_least = [item for item in self._at_least if item[1] > end]
        super()._after_apply()

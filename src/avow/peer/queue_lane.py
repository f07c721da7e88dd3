"""A lane of a two-phase queue: versions, compare-and-append, staged writes with deadlines, three read levels."""

from __future__ import annotations

from avow.peer.answers import Done
from avow.peer.lane import TwoPhaseLane, Write
from avow.queue.commands import TransactionCommand, encode
from avow.queue.projection import Known, Projection, Refusal
from avow.queue.retention import log_deletable_to
from avow.queue.state import QueueState
from avow.wire.messages import Entry, Kind


class QueueLane(TwoPhaseLane):
    state: QueueState
    _projection: Projection | None = None  # only while coordinating
    _trimmed_log = 0  # entries up to here were given up for deletion in this run

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

    def peek_version(self, version: int) -> tuple[Entry, int, bool, tuple[int, ...]] | None:
        """By its version id, a message that may not be committed: (entry, offset in it, committed, who stored it).

        The version of an uncommitted message is the one it gets if the log here is committed as it stands.
        """
        found = self.state.locate(version) if version <= self.state.end else self._foreseen_place(version)
        if found is None:
            return None
        peeked = self.peek(found[0])
        return None if peeked is None else (peeked[0], found[1], version <= self.state.end, peeked[2])

    def _foreseen_place(self, version: int) -> tuple[int, int] | None:
        ahead = self.state.fork()
        log = self.core.log
        for entry in log.slice(self.applied, log.end - self.applied):
            opened = {txn: staged.copy() for txn, staged in ahead.transactions.opened.items()}
            before = ahead.end
            ahead.apply(entry)
            if ahead.end < version:
                continue
            if entry.kind == Kind.DATA:
                return entry.position, version - before - 1
            (txn,) = opened.keys() - ahead.transactions.opened.keys()
            for position, count in zip(opened[txn].positions, opened[txn].counts, strict=True):
                if before + count >= version:
                    return position, version - before - 1
                before += count
        return None

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

    def _take_snapshot(self) -> None:
        super()._take_snapshot()
        deletable = log_deletable_to(self.state, snapshot_position=self.applied)
        if deletable > self._trimmed_log:
            self._trimmed_log = deletable
            self.core.trim(deletable)

    def _after_apply(self) -> None:
        if self._at_least:
            end = self.state.end
            self.answers += [(request, Done(1, end)) for request, version in self._at_least if version <= end]
            self._at_least = [item for item in self._at_least if item[1] > end]
        super()._after_apply()

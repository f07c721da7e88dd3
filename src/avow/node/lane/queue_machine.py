"""The state machine of a two-phase queue's lane: versions, write ids, staged writes, subscribers.

Two things here are not replicated. The time since which no write id was forgotten decides whether an old retry can be
answered (`queue.write_ids.Coverage`). The age and number of files decide what the coordinator proposes to trim; the
entry it appends contains the version, so applying it needs neither clock nor files.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from avow.errors import TooMany
from avow.limits import VISIBLE_BATCHES_COUNT
from avow.node.answers import Refusal
from avow.node.lane.entries import LaneHistory
from avow.node.lane.requests import Write
from avow.queue.commands import DecisionCommand, RetentionRules, TransactionCommand, decode, encode
from avow.queue.entry_outcome import EarlyRefusal, Known, Outcome
from avow.queue.ledger import Projection, Writes
from avow.queue.records import Bounds, StoredFile
from avow.queue.retention import log_deletable_to, trim_proposal
from avow.queue.state import QueueState
from avow.queue.transactions import OpenTransaction
from avow.queue.write_ids import Coverage
from avow.replication.membership import Members
from avow.replication.two_phase.core import TwoPhaseCore
from avow.wire.merge import merged_writes
from avow.wire.messages import Entry, Kind, LaneFetch, LaneFetched


class QueueMachine:
    def __init__(
        self,
        core: TwoPhaseCore,
        *,
        snapshot: bytes,
        bounds: Bounds | None,
        coverage: Coverage,
        coverage_slack_s: float,
        history: Callable[..., LaneHistory],
    ) -> None:
        """`bounds` applies to a new lane; a snapshot contains its own. `history(needed_from=...)` makes the history."""
        self._core, self.lane = core, core.lane
        self._bounds, self._coverage, self._coverage_slack_s = bounds, coverage, coverage_slack_s
        self.state = self._state_of(snapshot)
        self.applied = core.log.base
        self.history: LaneHistory = history(needed_from=self._needed_from)
        self.visible_batches_max = VISIBLE_BATCHES_COUNT
        self._projection: Projection | None = None  # only while coordinating
        # Whose DISCARD is in flight: (transaction, deadline, where it began). The name may have been used again since.
        self._expiring: set[tuple[bytes, int, int]] = set()
        self._trim_at = 0  # position of this coordinator's last TRIM
        self._trimmed_log = 0  # entries up to here were released for deletion in this run

    @property
    def visible_end(self) -> int:
        return self.state.end

    def handlers(self) -> dict[type, Callable[..., None]]:
        return {LaneFetch: self.history.on_lane_fetch, LaneFetched: self.history.on_lane_fetched}

    def tick(self, now: float) -> None:
        if now >= self._coverage.due_s(self.state.write_ids):
            self._coverage.watch(self.state.write_ids, now)
        self.history.tick(now)

    def wake_at(self) -> float:
        return min(self._coverage.due_s(self.state.write_ids), self.history.wake_at())

    # ------------------------------------------------------------------ the state

    def apply(self, entry: Entry) -> Outcome:
        outcome = self.state.apply(entry) if entry.write_id else self.state.apply(entry, merged_writes(entry))
        self.applied = entry.position
        return outcome

    def outcome_of(self, write_id: bytes) -> Outcome | None:
        return self.state.outcome_of(write_id)

    def snapshot(self) -> bytes:
        return self.state.snapshot()

    def snapshot_taken(self) -> None:
        deletable = log_deletable_to(self.state, snapshot_position=self.applied)
        if deletable > self._trimmed_log:
            self._trimmed_log = deletable
            self._core.state.trim(deletable)
        self.history.trim()

    def restore(self, snapshot: bytes, position: int) -> None:
        self.state = self._state_of(snapshot)
        self.applied = position
        self.history.replaced()

    def position_of(self, snapshot: bytes) -> int:
        return QueueState.restore(snapshot).position

    def _state_of(self, snapshot: bytes) -> QueueState:
        self._coverage.restart()
        return QueueState.restore(snapshot) if snapshot else QueueState(bounds=self._bounds)

    def _needed_from(self) -> int:
        return self.state.log_needed_from()

    # ------------------------------------------------------------------ while this peer coordinates

    def lead(self, uncommitted: tuple[Entry, ...] | None) -> None:
        self._expiring, self._trim_at, self._projection = set(), 0, None
        if uncommitted is not None:
            self._projection = Projection(self.state)
            self._projection.rebuild(uncommitted, merged_writes)

    def track(self, entry: Entry, writes: Writes = ()) -> None:
        if self._projection is not None:
            self._projection.appended(entry, writes or merged_writes(entry))  # another peer may have merged them

    def check_write(self, write: Write) -> Known | EarlyRefusal | None:
        assert self._projection is not None, "asked while not coordinating"
        known = self._projection.check(
            write.kind, write_id=write.write_id, expected=write.expected, control=write.control
        )
        if known is None and write.count and len(self.state.visible.rows) >= self.visible_batches_max:
            return EarlyRefusal(TooMany.code)  # trim it, or use more lanes
        return known

    def would_know(self, write: Write, now: float) -> bool:
        first_sent = now - write.age_ms / 1000 - self._coverage_slack_s
        return self._coverage.since(self.state.write_ids) <= first_sent

    def refuse_members(self, current: Members, wanted: Members) -> Refusal | None:  # noqa: ARG002
        """A queue's state does not depend on the voters."""
        return None

    def trim_due(self, files: Sequence[StoredFile], rules: RetentionRules, now_ms: int) -> bytes | None:
        """The TRIM that the rules ask for, unless one is in flight. `files` as storage lists them."""
        if self._projection is None or self._trim_at > self.applied:
            return None
        snapshot = self._core.state.snapshot
        snapshot_at = snapshot.position if snapshot is not None else 0
        trim = trim_proposal(self.state, files, now_ms=now_ms, rules=rules, snapshot_position=snapshot_at)
        return None if trim is None else encode(trim)

    def trim_proposed(self, position: int) -> None:
        self._trim_at = position

    def discards_due(self, now_ms: int) -> list[bytes]:
        """A DISCARD for each transaction past its deadline, once. One that another lane decides has none."""
        if self._projection is None:
            return []
        opened, own = self.state.transactions.opened, (0, self.lane)
        late = [txn for txn in self.state.expired(now_ms) if opened[txn].home in own]
        found = [(txn, opened[txn].deadline_ms, opened[txn].began_at) for txn in late]
        self._expiring.intersection_update(found)
        due = []
        for expiring in found:
            control = encode(TransactionCommand(expiring[0], "deadline"))
            if expiring not in self._expiring and self._projection.check(Kind.DISCARD, control=control) is None:
                self._expiring.add(expiring)
                due.append(control)
        return due

    # ------------------------------------------------------------------ versions that are not committed

    def place_of(self, version: int) -> tuple[int, int] | None:
        """(position, offset in that batch). The version of an uncommitted message is the one it gets if this peer's
        log is committed unchanged."""
        return self.state.locate(version) if version <= self.state.end else self._uncommitted_place(version)

    def _uncommitted_place(self, version: int) -> tuple[int, int] | None:
        ahead = self.state.fork()
        log = self._core.log
        for entry in log.slice(self.applied, log.end - self.applied):
            opened = {txn: staged.copy() for txn, staged in ahead.transactions.opened.items()}
            before, writes = ahead.end, merged_writes(entry)
            shown = [write for write in writes if ahead.outcome_of(write[0]) is None]
            ahead.apply(entry, writes)
            if ahead.end < version:
                continue
            if entry.kind == Kind.DATA:
                return entry.position, _offset_in(shown or [(b"", 0, entry.count)], version - before - 1)
            shown_now = _published(entry, opened)
            for position, count in zip(shown_now.positions, shown_now.counts, strict=True):
                if before + count >= version:
                    return position, version - before - 1
                before += count
        return None


def _published(entry: Entry, opened: dict[bytes, OpenTransaction]) -> OpenTransaction:
    """The staged messages that this publish makes visible; `opened`: the transactions that were open before it."""
    command = decode(entry.kind, entry.control)
    assert isinstance(command, TransactionCommand), f"{entry} shows messages and is no publish"
    transaction, parts = opened[command.txn], dict(command.parts)
    if isinstance(command, DecisionCommand) and command.step == "follow":
        return transaction.batches_of(command.at)
    return transaction.only(parts.__contains__) if parts else transaction


def _offset_in(shown: Writes, number: int) -> int:
    """The offset in the batch of message `number` of those shown."""
    for _, offset, count in shown:
        if number < count:
            return offset + number
        number -= count
    raise IndexError(f"message {number} beyond the writes shown")

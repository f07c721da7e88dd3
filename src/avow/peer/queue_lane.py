"""A lane of a two-phase queue: versions, compare-and-append, staged writes with deadlines, three read levels.

Its entries are read by position, from wherever this peer has them: memory, the lane's storage, or the history that it
copies after another peer's snapshot (`backfill`). What it does not have yet it says; somebody else has it.

Two kinds of knowledge here are not replicated. Since when no write id was forgotten decides whether an old retry can be
judged (`queue.write_ids.Coverage`). Which files are old or too many decides what the coordinator proposes to trim; the
entry it then appends carries the version, so applying it needs neither clock nor files.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from avow.errors import AvowError, InvalidRequest, Offline, StorageDamaged, TooMany
from avow.limits import (
    ENQUEUE_SIZE_BYTES_MAX,
    LOG_MEMORY_ENTRIES_MAX,
    LOG_MEMORY_SIZE_BYTES_MAX,
    STAGE_DEADLINE_S_MAX,
    VISIBLE_BATCHES_COUNT,
    WAITING_REQUESTS_MAX,
)
from avow.peer.answers import Done
from avow.peer.answers import Refusal as Foreclosed
from avow.peer.backfill import HISTORY, Backfill
from avow.peer.lane import TwoPhaseLane, Write
from avow.queue.commands import RetentionRules, TransactionCommand, decode, encode
from avow.queue.ledger import Bounds, Writes
from avow.queue.outcomes import Outcome
from avow.queue.projection import Known, Projection, Refusal
from avow.queue.retention import StoredFile, log_deletable_to, trim_proposal
from avow.queue.state import QueueState
from avow.queue.transactions import OpenTransaction
from avow.queue.write_ids import Coverage
from avow.replication.effects import LaneImage
from avow.replication.pieces import one_frame, within
from avow.replication.tuning import Tuning
from avow.replication.two_phase.log import Read
from avow.wire.merge import merged_writes
from avow.wire.messages import Entry, Kind, LaneFetch, LaneFetched

__all__ = ["HISTORY", "QueueLane", "stage_deadline_ms"]

COVERAGE_SAMPLE_S: Final = 0.25  # how finely a lane knows since when no write id was forgotten
COVERAGE_SLACK_S: Final = 0.5  # a retry may have been on its way this long


class QueueLane(TwoPhaseLane):
    state: QueueState
    _projection: Projection | None = None  # only while coordinating
    _trimmed_log = 0  # entries up to here were given up for deletion in this run
    visible_batches_max = VISIBLE_BATCHES_COUNT
    _trim_at = 0  # the trim this coordinator proposed last

    def __init__(
        self,
        *,
        me: int,
        lane: int,
        image: LaneImage,
        rng: Callable[[], float],
        tuning: Tuning,
        now: float,
        snapshot_every: int = 0,
        snapshot_bytes: int = 0,
        memory_entries: int = LOG_MEMORY_ENTRIES_MAX,
        memory_bytes: int = LOG_MEMORY_SIZE_BYTES_MAX,
        read: Read | None = None,
        history: LaneImage | None = None,
        read_history: Read | None = None,
        bounds: Bounds | None = None,
        coverage_sample_s: float = COVERAGE_SAMPLE_S,
        coverage_slack_s: float = COVERAGE_SLACK_S,
    ) -> None:
        """`bounds` are those of a lane that begins; a snapshot brings its own."""
        self._bounds = bounds
        self._coverage = Coverage(every_s=coverage_sample_s)
        self._coverage_slack_s = coverage_slack_s
        super().__init__(
            me=me,
            lane=lane,
            image=image,
            rng=rng,
            tuning=tuning,
            now=now,
            snapshot_every=snapshot_every,
            snapshot_bytes=snapshot_bytes,
            memory_entries=memory_entries,
            memory_bytes=memory_bytes,
            read=read,
        )
        self._read = read
        self._backfill = Backfill(
            lane=lane,
            image=history,
            read=read_history if read is not None else None,
            main=read,
            snapshot_at=self.core.log.base,
            needed_from=self.state.log_needed_from(),
        )
        self._keep_history()

    def _handlers(self) -> dict[type, Callable[..., None]]:
        return super()._handlers() | {LaneFetch: self._on_lane_fetch, LaneFetched: self._on_lane_fetched}

    def tick(self, now: float) -> None:
        super().tick(now)
        if now >= self._coverage.next_s:
            self._coverage.watch(self.state.write_ids, now)
        if self._backfill.busy:
            self._ask_for_history(now)

    def _restore(self, snapshot: bytes) -> None:
        self.state = QueueState.restore(snapshot) if snapshot else QueueState(bounds=self._bounds)
        self._coverage.restart()

    def _would_know(self, write: Write, now: float) -> bool:
        first_sent = now - write.age_ms / 1000 - self._coverage_slack_s
        return self._coverage.since(self.state.write_ids) <= first_sent

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
        elif len(self._at_least) >= WAITING_REQUESTS_MAX:
            self.answers.append((request, Foreclosed(TooMany.code)))
        else:
            self._at_least.append((request, version))

    # ------------------------------------------------------------------ entries by position

    def entries(self, after: int, max_entries: int, max_bytes: int = ENQUEUE_SIZE_BYTES_MAX) -> tuple[Entry, ...]:
        """Committed entries that follow `after` without a gap: one at least if there is one, then within the bounds.

        Raises Offline for what is still being copied here, Trimmed for what was deleted, StorageDamaged.
        """
        log = self.core.log
        limit = min(max_entries, self.core.committed - after)
        if limit <= 0:
            return ()
        found = log.slice(after, limit) if after >= log.base else self._older(after, min(limit, log.base - after))
        return within(found, max_bytes)

    def read_entry(self, position: int) -> Entry:
        """A committed entry. Raises as `entries` does."""
        found = self.entries(position - 1, 1)
        if not found:
            raise InvalidRequest(
                f"position {position} is not committed here; the lane's cursor is {self.core.committed}"
            )
        return found[0]

    def _older(self, after: int, max_entries: int) -> tuple[Entry, ...]:
        """From storage: the lane's own, or its history."""
        history = self._backfill
        history.persisted(self.core.persisted_ticket)
        try:
            if self._read is not None and after >= history.main_base:
                return tuple(self._read(after, max_entries))
            if history.read is not None and history.holds(after + 1):
                return tuple(history.read(after, min(max_entries, history.durable_end - after)))
        except StorageDamaged:
            if after >= history.main_base:
                history.lost(after + 1)
            else:
                history.history_damaged(self.state.log_needed_from())
                self._keep_history()
            raise
        raise Offline(f"entry {after + 1} of lane {self.core.lane} is still being copied here; ask another peer")

    @property
    def whole(self) -> bool:
        """Whether every message that may be read can be read here."""
        history = self._backfill
        if history.read is None:
            return self.state.log_needed_from() > (history.main_base if self._read else self.core.log.base)
        if history.busy:
            history.persisted(self.core.persisted_ticket)
            history.busy = not history.is_whole(self.state.log_needed_from())
        return not history.busy

    def _ask_for_history(self, now: float) -> None:
        if self.whole or self.core.full:
            return
        core, fresh_s = self.core, self.core.tuning.heartbeat_fresh_s
        first = core.live_coordinator(now)
        heard = [peer for peer, at in sorted(core.heard.items()) if now - at < fresh_s and peer != first]
        peers = [peer for peer in (first, *heard) if peer not in (0, core.me)]
        question = self._backfill.ask(needed_from=self.state.log_needed_from(), peers=peers, now=now, wait_s=fresh_s)
        if question is not None:
            core.say(*question)

    def _on_lane_fetch(self, source: int, message: LaneFetch, _now: float) -> None:
        """Another peer copies history: what is committed here, one frame of it, or nothing."""
        try:
            found = one_frame(self.entries(message.after, self.core.tuning.piece_entries))
        except AvowError:
            found = ()
        self.core.say(source, LaneFetched(message.lane, message.after, found))

    def _on_lane_fetched(self, _source: int, message: LaneFetched, now: float) -> None:
        if self.core.full or not self._backfill.busy:
            return
        if self._backfill.take(message.after, message.entries, self.state.log_needed_from()):
            self._keep_history()
            self._ask_for_history(now)

    def _keep_history(self) -> None:
        for operation in self._backfill.take_saves(self.core.next_ticket):
            self.core.keep(operation)

    def _jumped(self) -> None:
        assert self.core.snapshot is not None
        if self.core.reset_at == self.core.snapshot.position:
            self._backfill.lost(self.core.reset_at)

    # ------------------------------------------------------------------ entries by name

    def peek(self, position: int) -> tuple[Entry, bool, tuple[int, ...]] | None:
        """By naming it, an entry that may not be committed: (entry, committed, who stored it)."""
        log, committed = self.core.log, self.core.committed
        if position > log.base:
            entry = log.find(position)
        else:
            entry = self.read_entry(position) if self._read is not None and position > 0 else None
        return None if entry is None else (entry, position <= committed, self.core.stored_by(position))

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

    def propose_trim(self, files: Sequence[StoredFile], rules: RetentionRules, now_ms: int) -> bool:
        """Coordinator: append a TRIM if the rules give something up; one at a time. `files` as storage lists them."""
        if self._projection is None or self._trim_at > self.applied:
            return False
        snapshot_at = self.core.snapshot.position if self.core.snapshot is not None else 0
        trim = trim_proposal(self.state, files, now_ms=now_ms, rules=rules, snapshot_position=snapshot_at)
        if trim is None or not self.propose(Kind.TRIM, encode(trim), created_ms=now_ms):
            return False
        self._trim_at = self.core.log.end
        return True

    def discard_expired(self, now_ms: int) -> None:
        """Coordinator: transactions without a decision by their deadline are discarded by a logged entry."""
        if self._projection is None:
            return
        found = [(txn, self.state.transactions.opened[txn].deadline_ms) for txn in self.state.expired(now_ms)]
        self._expiring.intersection_update(found)
        for txn, deadline_ms in found:
            control = encode(TransactionCommand(txn, "deadline"))
            in_flight = (txn, deadline_ms) in self._expiring
            if not in_flight and self._projection.check(Kind.DISCARD, control=control) is None:
                self._expiring.add((txn, deadline_ms))
                self.propose(Kind.DISCARD, control, created_ms=now_ms)

    def _foresee(self, write: Write) -> Known | Refusal | None:
        assert self._projection is not None, "asked while not coordinating"
        known = self._projection.check(
            write.kind, write_id=write.write_id, expected=write.expected, control=write.control
        )
        if known is None and write.count and len(self.state.visible.rows) >= self.visible_batches_max:
            return Refusal(TooMany.code)  # trim it, or spread the queue over more lanes
        return known

    def _track(self, entry: Entry, writes: Writes = ()) -> None:
        if self._projection is not None:
            self._projection.appended(entry, writes or merged_writes(entry))  # another peer may have merged them

    def _apply_entry(self, entry: Entry) -> Outcome:
        return self.state.apply(entry) if entry.write_id else self.state.apply(entry, merged_writes(entry))

    def _outcome_of(self, write_id: bytes) -> Outcome | None:
        return self.state.outcome_of(write_id)

    def _coordinating(self, uncommitted: tuple[Entry, ...] | None) -> None:
        self._expiring: set[tuple[bytes, int]] = set()  # deadlines whose entry is in flight
        self._trim_at = 0
        self._projection = None
        if uncommitted is not None:
            self._projection = Projection(self.state)
            self._projection.rebuild(uncommitted, merged_writes)

    def _take_snapshot(self) -> None:
        super()._take_snapshot()
        deletable = log_deletable_to(self.state, snapshot_position=self.applied)
        if deletable > self._trimmed_log:
            self._trimmed_log = deletable
            self.core.trim(deletable)
        self._backfill.trim(self.state.log_needed_from())
        self._keep_history()

    def _after_apply(self) -> None:
        if self._at_least:
            end = self.state.end
            self.answers += [(request, Done(1, end)) for request, version in self._at_least if version <= end]
            self._at_least = [item for item in self._at_least if item[1] > end]
        super()._after_apply()


def stage_deadline_ms(deadline_s: float, *, now_ms: int) -> int:
    """When a staged write without a decision is discarded. Raises InvalidRequest; to be called where requests enter."""
    if not 0 < deadline_s <= STAGE_DEADLINE_S_MAX:
        raise InvalidRequest(
            f"a deadline is more than 0 and at most {STAGE_DEADLINE_S_MAX:g} seconds away, not {deadline_s:g}; "
            "nothing was staged"
        )
    return now_ms + int(deadline_s * 1000)


def _published(entry: Entry, opened: dict[bytes, OpenTransaction]) -> OpenTransaction:
    """What a publish that takes effect shows of the transactions that were open before it."""
    command = decode(entry.kind, entry.control)
    assert isinstance(command, TransactionCommand), f"{entry} shows messages and is no publish"
    transaction, parts = opened[command.txn], dict(command.parts)
    return transaction.only(parts.__contains__) if parts else transaction


def _offset_in(shown: Writes, number: int) -> int:
    """Where in its batch the message lies that is number `number` of those shown."""
    for _, offset, count in shown:
        if number < count:
            return offset + number
        number -= count
    raise IndexError(f"message {number} beyond the writes shown")

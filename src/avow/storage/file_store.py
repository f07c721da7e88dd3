"""The store on disk: accepts operations, syncs them in groups, and applies them to lane files.

It has two threads besides the caller's:

    caller             write: check, encode, enqueue. read: lane files, and entries waiting in memory
    sync thread        takes everything that waits: one log write, one fdatasync, then the receipts. From time to time
                       it applies operations to lane files; when a log segment is full, it continues in the next one
    checkpoint thread  syncs lane files, writes checkpoints, fills log segments with zeros

Encoding happens in `write`, while the sync thread waits for the previous sync. Receipts are passed on before lane files
are changed, because the log alone makes an operation durable.

Handing a write to another thread and back costs about as much as the sync of a fast disk. With `in_place_below_s`, a
write that finds nothing else waiting is therefore synced by its caller, as long as recent syncs took less than that;
its callback runs before `write` returns. Requests that arrive meanwhile wait in the caller's sockets and share the next
sync.

With `background=False` there are no threads: `sync` does one round and writes checkpoints itself. Tests of power cuts
and tools that only read use that mode. It is the same code.

A `Queued` is one call of `write`, encoded for the log. An operation becomes one record of the log. A promise (state,
fence, run) becomes two records, and the log puts the second into another block, so that a single damaged block cannot
lose a promise. Entries are not copied here: their batches go from the caller's memory into the log's write and, the
same bytes, into the lane's file.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Sequence
from functools import partial
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Final, NoReturn, TypeAlias

import msgspec

from avow.errors import DiskFull, StorageDamaged, TooLarge
from avow.queue.records import StoredFile
from avow.replication.durable import Place, StoreImage, Synced, synced_receipt
from avow.replication.effects import (
    Persist,
    SaveCut,
    SaveEntries,
    SaveFence,
    SaveLossBound,
    SaveRun,
    SaveSnapshot,
    SaveState,
    SaveTrim,
)
from avow.storage.checkpointer import Checkpointer, CheckpointJob
from avow.storage.files import Files
from avow.storage.lane import Lane, Saved, Step
from avow.storage.lane_state import LaneState
from avow.storage.recovery import RecoveredLane, recover
from avow.storage.segments import LaneFiles
from avow.storage.space_reserve import SpaceReserve, is_no_space
from avow.storage.store import Sizes, StoreStatistics, Then
from avow.storage.sync_mark import SyncMark
from avow.storage.wal import Group, Wal, size_alone_bytes
from avow.storage.wal_records import OVERHEAD_BYTES, PROMISE, WalKind, encode
from avow.wire.messages import Entry
from avow.wire.record import Buffer, entry_parts


class Queued:
    """`parts` and `seconds` are records for the log, `steps` the operations to apply to lane files after the sync.

    `growth`: bytes by which lane files will grow. `has_entries`: refused on a full disk, unlike other growth.
    """

    __slots__ = ("growth", "has_entries", "last_lsn", "parts", "second_bytes", "seconds", "size", "steps", "then")

    def __init__(self, then: Then) -> None:
        self.then = then
        self.parts: list[Buffer] = []
        self.seconds: list[Buffer] = []
        self.steps: list[Step] = []
        self.has_entries = False
        self.size = self.second_bytes = self.growth = self.last_lsn = 0

    def add(self, op: Persist, lsn: int, epoch: int) -> None:
        if type(op) is SaveEntries:
            self._add_entries(op, lsn, epoch)
            return
        lane = 0 if isinstance(op, SaveRun | SaveLossBound) else op.lane
        kind, first, count, payload = _layout(op)
        record, size = encode(kind, lsn, epoch, lane, first, count, payload=payload)
        self.parts += record
        self.size += size
        if isinstance(op, SaveState | SaveFence | SaveRun | SaveLossBound):
            second, size = encode(kind, lsn, epoch, lane, first, count, copy=1, payload=payload)
            self.seconds += second
            self.second_bytes += size
        size = sum(map(len, payload))
        self.steps.append(Step(op, lsn, payload, size))
        if isinstance(op, SaveSnapshot):
            self.growth += size

    def _add_entries(self, op: SaveEntries, lsn: int, epoch: int) -> None:
        """Nearly all operations. The payload is the entries' records, end to end."""
        entries = op.entries
        payload = entry_parts(entries[0])
        for entry in entries[1:]:
            payload += entry_parts(entry)
        record, size = encode(WalKind.ENTRIES, lsn, epoch, op.lane, entries[0].position, len(entries), payload=payload)
        self.parts += record
        self.size += size
        size -= OVERHEAD_BYTES
        self.growth += size
        self.has_entries = True
        self.steps.append(Step(op, lsn, payload, size))


def _layout(op: Persist) -> tuple[int, int, int, Sequence[Buffer]]:
    """(kind, first, count, payload) of every operation but SaveEntries."""
    if isinstance(op, SaveState):
        return WalKind.STATE, 0, 0, (PROMISE.pack(op.promised, op.stamped),)
    if isinstance(op, SaveCut):
        return WalKind.CUT, op.end, 0, ()
    if isinstance(op, SaveSnapshot):
        return WalKind.SNAPSHOT, op.snapshot.position, int(op.reset), (msgspec.msgpack.encode(op.snapshot),)
    if isinstance(op, SaveTrim):
        return WalKind.TRIM, op.upto, 0, ()
    if isinstance(op, SaveFence):
        return WalKind.FENCE, op.end + 1, 0, ()
    if isinstance(op, SaveLossBound):
        return WalKind.BOUND, op.below, 0, ()
    assert isinstance(op, SaveRun)
    return WalKind.RUN, op.incarnation, 0, ()


_GROUP_BYTES_MAX: Final = 16 * 1024 * 1024
_APPLY_ABOVE_BYTES: Final = 1024 * 1024  # of log written; until then readers get the entries from memory
_IDLE_S: Final = 0.05  # after this long without writes, the mark is synced and operations are applied
_MARK_GROUPS: Final = 256  # under load, the mark is synced after this many groups
_FULL_S: Final = 0.25  # on a full disk: how often to check for free space
_SYNC_WEIGHT: Final = 0.1  # weight of the newest sync in the moving average of sync times
_DAMAGE_LISTED_MAX: Final = 10_000
_EXIT_STATUS: Final = 70  # EX_SOFTWARE of sysexits.h

CallSoon: TypeAlias = Callable[[Callable[[], None]], object]


def end_process(error: BaseException) -> NoReturn:
    """After a failed sync the content of the disk is unknown until a new start reads it again."""
    sys.stderr.write(
        f"avow: storage failed: {error!r}. The peer exits; what it acknowledged is on disk. Check the disk, then start "
        "it again\n"
    )
    sys.stderr.flush()
    os._exit(_EXIT_STATUS)


class FileStore:
    """Opens nothing before `load`. `call_soon` runs callbacks elsewhere, such as on an event loop."""

    def __init__(
        self,
        files: Files,
        *,
        sizes: Sizes = Sizes(),  # noqa: B008 - frozen
        background: bool = True,
        call_soon: CallSoon | None = None,
        fatal: Callable[[BaseException], NoReturn] = end_process,
        nonce: Callable[[], int] = lambda: int.from_bytes(os.urandom(4), "little"),
        in_place_below_s: float = 0.0,
        alone: bool = False,
    ) -> None:
        """`alone`: no other peer can repair this store, so `load` refuses a damaged one."""
        self._files, self._sizes, self._background, self._nonce = files, sizes, background, nonce
        self._call_soon, self._fatal = call_soon, fatal
        self._reserve = SpaceReserve(files, reserved_bytes=sizes.reserved_bytes)
        self._lanes: dict[int, Lane] = {}
        self._lock = threading.Lock()  # order of writes: lsn, lane states, queue
        self._committing = threading.Lock()  # held by the thread that writes the log and lane files
        self._in_place_below_s, self._alone = in_place_below_s, alone
        self._sync_s = 0.0  # moving average of sync times
        self._synced_at = self._woken_at = 0.0
        self._handed_over = self._taken_over = 0  # writes passed to the sync thread, and those it has finished
        self._queue: SimpleQueue[Queued | None] = SimpleQueue()
        self._jobs: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._lsn = self._incarnation = self._lost_below = 0
        self._writes = self._operations = self._syncs = 0
        self._changed: dict[int, Lane] = {}  # since the last checkpoint job
        self._stalled: dict[int, Lane] = {}
        self._unapplied: list[Queued] = []  # durable and not yet in lane files
        self._unapplied_bytes = 0
        self._apply_above_bytes = min(_APPLY_ABOVE_BYTES, sizes.wal_segment_bytes // 8)
        self._plain_size_bytes = sizes.wal_segment_bytes // 4  # smaller writes need no check of the log's limits
        self._epoch = 0
        self._wal: Wal | None = None
        self._mark: SyncMark | None = None
        self.damage: list[StorageDamaged] = []  # found at the start and since; each place once
        self._damaged_places: set[tuple[str, int]] = set()

    # -------------------------------------------------------------- opening

    def load(self) -> StoreImage:
        """Raises UnfitToVote if promises of this store are lost, Irreparable if it is damaged and alone."""
        if self._wal is not None:
            raise RuntimeError("this store is already loaded; load it only once")
        try:
            found = recover(self._files, self._sizes, alone=self._alone)
        except OSError as error:
            if not is_no_space(error):
                raise
            raise DiskFull(
                "the disk has no space for what a start writes; nothing was lost. Free disk space and start again"
            ) from error
        checkpoint = found.checkpoint
        for lane in found.lanes.values():
            lane.files.report = self._note_damage
        self._lanes = {number: Lane(number, self._files, lane) for number, lane in found.lanes.items()}
        self._metas = dict(checkpoint.lanes)
        self._lsn, self._incarnation, self._lost_below = checkpoint.lsn, checkpoint.incarnation, checkpoint.lost_below
        self._mark = found.mark
        for flaw in found.image.damage:
            self._note_damage(flaw)
        self._epoch = checkpoint.opening << 32 | self._nonce()
        self._wal = wal = Wal(
            self._files,
            segment_size_bytes=self._sizes.wal_segment_bytes,
            epoch=self._epoch,
            next_sequence=found.used_sequence + 1,
            synced_lsn=checkpoint.lsn,
            slots=found.slots,
            mark=found.mark,
        )
        self._checkpointer = Checkpointer(self._files, self._sizes, self._reserve, wal, checkpoint)
        self._reserve.restore()
        self._start(wal)
        return found.image

    def _start(self, wal: Wal) -> None:
        if not wal.slots:
            self._checkpointer.prepare_slots(at_most=1)
        if not wal.use_next(timeout_s=0):
            raise DiskFull(
                "the disk has no space for a write-ahead log; nothing was changed. Free disk space and start again"
            )
        if not self._background:
            self._checkpointer.prepare_slots()
            return
        self._jobs.put(self._checkpointer.prepare_slots)
        for name, target in (("avow-sync", self._run), ("avow-checkpoint", self._run_jobs)):
            thread = threading.Thread(target=self._guarded, args=(target,), name=name, daemon=True)
            self._threads.append(thread)
            thread.start()

    # -------------------------------------------------------------- writing

    def write(self, ops: Sequence[Persist], then: Then) -> None:
        queued = Queued(then)
        with self._lock:
            lsn = self._lsn
            for op in ops:
                lsn += 1
                queued.add(op, lsn, self._epoch)
            self._admit(queued)
            self._note(queued.steps, queued.growth)
            self._lsn = queued.last_lsn = lsn
            self._writes += 1
            self._operations += len(ops)
            if self._may_sync_here() and self._committing.acquire(blocking=False):
                try:
                    self._commit_waiting((queued,), call_soon=None)
                finally:
                    self._committing.release()
                return
            self._handed_over += 1
            self._queue.put(queued)

    def _may_sync_here(self) -> bool:
        """Whether no earlier write waits for the sync thread, and the disk is fast."""
        return self._taken_over == self._handed_over and self._sync_s < self._in_place_below_s and self._background

    def rest_if_idle(self, now: float) -> None:
        """For a caller that syncs in place: call it from time to time, so that the sync thread does its idle work."""
        due = self._unapplied or self.full or (self._mark is not None and self._mark.dirty)
        if due and now - max(self._synced_at, self._woken_at) > _IDLE_S and self._taken_over == self._handed_over:
            self._woken_at = now
            self._handed_over += 1
            self._queue.put(Queued(_nothing))

    def _admit(self, queued: Queued) -> None:
        """Check that the whole write can be accepted, before any of it is."""
        assert self._wal is not None, "call load first"
        if queued.size + queued.second_bytes > self._plain_size_bytes:
            alone = size_alone_bytes(queued.size, queued.second_bytes)
            if alone > self._wal.capacity_bytes:
                raise TooLarge(
                    f"a write of {alone} bytes does not fit into a log segment of {self._wal.capacity_bytes} bytes; "
                    "nothing was stored. Split it"
                )
        if self._stalled and (queued.growth or queued.size + queued.second_bytes > self._wal.room_bytes // 4):
            raise DiskFull("the disk is full, and so is the log; nothing was stored. Free disk space, then retry")
        claim = self._reserve.claim if queued.has_entries else self._reserve.claim_margin
        if queued.growth and not claim(queued.growth):
            raise DiskFull("the disk is full; nothing was stored. Reads still work. Free disk space, then retry")

    def _note(self, steps: Sequence[Step], growth: int) -> None:
        """Make the operations visible to readers. If one does not fit, none of this call is written."""
        before = self._saved(steps) if len(steps) > 1 else {}
        try:
            for op, lsn, _, _ in steps:
                if type(op) is SaveState or type(op) is SaveRun:
                    self._mark.saw(op)  # type: ignore[union-attr]
                if type(op) is not SaveRun and type(op) is not SaveLossBound:
                    lane = self._lanes.get(op.lane) or self._new_lane(op.lane)  # type: ignore[union-attr]
                    lane.write(op, lsn)
        except ValueError:
            for number, saved in before.items():
                self._lanes[number].restore(saved)
            self._reserve.give_back(growth)
            raise

    def _saved(self, steps: Sequence[Step]) -> dict[int, Saved]:
        numbers = {step.op.lane for step in steps if not isinstance(step.op, SaveRun | SaveLossBound)}
        return {number: (self._lanes.get(number) or self._new_lane(number)).save() for number in sorted(numbers)}

    def _new_lane(self, number: int) -> Lane:
        files = LaneFiles(
            self._files,
            number,
            segment_size_bytes=self._sizes.lane_segment_bytes,
            index_interval_bytes=self._sizes.index_interval_bytes,
            report=self._note_damage,
        )
        lane = self._lanes[number] = Lane(number, self._files, RecoveredLane(LaneState(), files, 0))
        return lane

    def _note_damage(self, flaw: StorageDamaged) -> None:
        place = flaw.file, flaw.position
        if place not in self._damaged_places and len(self._damaged_places) < _DAMAGE_LISTED_MAX:
            self._damaged_places.add(place)
            self.damage.append(flaw)

    # -------------------------------------------------------------- syncing

    def sync(self) -> None:
        """Without threads: make everything written so far durable and run its callbacks."""
        if self._background:
            raise RuntimeError("this store has a sync thread; use sync() only with background=False")
        self._commit_waiting([self._queue.get() for _ in range(self._queue.qsize())], call_soon=self._call_soon)

    @property
    def pending(self) -> int:
        """Writes whose sync has not begun."""
        return self._queue.qsize()

    def _run(self) -> None:
        timeout: float | None = None
        while True:
            try:
                waiting = [self._queue.get(timeout=timeout)]
            except Empty:
                self.rest()
                timeout = _FULL_S if self.full else None
                continue
            waiting += [self._queue.get() for _ in range(self._queue.qsize())]
            with self._committing:
                self._commit_waiting(waiting, call_soon=self._call_soon)
                self._taken_over += len(waiting)
            if waiting[-1] is None:
                return
            if all(queued is not None and queued.then is _nothing for queued in waiting):
                self.rest()
            timeout = _IDLE_S

    def rest(self) -> None:
        """When idle: sync the mark, and apply operations to lane files.

        The sync thread does this by itself; without threads the owner calls it.
        """
        assert self._wal is not None
        with self._committing:
            self._wal.rest()
            self._apply()
            self._retry_stalled()
            self._reserve.recheck()

    def _commit_waiting(self, waiting: Sequence[Queued | None], *, call_soon: CallSoon | None) -> None:
        group = Group()
        taken: list[Queued] = []
        for queued in waiting:
            if queued is None:
                break
            if queued.then is _nothing:
                continue  # it only wakes the thread
            if taken and group.size_with(queued.size, queued.second_bytes) > self._group_bytes_max:
                self._commit(group, taken, call_soon)
                group, taken = Group(), []
            group.add(queued.parts, queued.size, queued.seconds, queued.last_lsn)
            taken.append(queued)
        if taken:
            self._commit(group, taken, call_soon)

    @property
    def _group_bytes_max(self) -> int:
        assert self._wal is not None
        return min(_GROUP_BYTES_MAX, self._wal.capacity_bytes)

    def _commit(self, group: Group, taken: Sequence[Queued], call_soon: CallSoon | None) -> None:
        assert self._wal is not None
        if not self._wal.fits(group.size_bytes):
            self._roll()
        before = monotonic()
        try:
            self._wal.commit(group)
        except OSError as error:
            self._fatal(error)
        self._synced_at = monotonic()
        self._sync_s += _SYNC_WEIGHT * (self._synced_at - before - self._sync_s)
        self._syncs += 1
        receipt = synced_receipt(self._syncs)
        if call_soon is None:
            _hand_out(taken, receipt)
        else:
            call_soon(partial(_hand_out, taken, receipt))
        if not self._syncs % _MARK_GROUPS:
            self._guarded(self._wal.rest)
        self._unapplied += taken
        self._unapplied_bytes += group.size_bytes
        if self._unapplied_bytes >= self._apply_above_bytes:
            self._apply()

    def _apply(self) -> None:
        """Apply operations to lane files: one write for many operations of a lane."""
        taken, self._unapplied, self._unapplied_bytes = self._unapplied, [], 0
        by_lane: dict[int, list[Step]] = {}
        growth = 0
        for queued in taken:
            growth += queued.growth
            for step in queued.steps:
                if isinstance(step.op, SaveRun):
                    self._incarnation = step.op.incarnation
                elif isinstance(step.op, SaveLossBound):
                    self._lost_below = step.op.below
                else:
                    by_lane.setdefault(step.op.lane, []).append(step)
        for number, steps in by_lane.items():
            self._changed[number] = self._lanes[number]
            self._apply_lane(self._lanes[number], steps)
        if growth:
            self._reserve.applied(growth)

    def _apply_lane(self, lane: Lane, steps: Sequence[Step]) -> None:
        """On a full disk the steps are applied later: the log has them, so they are durable."""
        for attempt, pending in enumerate((steps, ())):
            try:
                lane.apply(pending)
            except OSError as error:
                if not is_no_space(error):
                    self._fatal(error)
                if not attempt:
                    self._reserve.release()
            else:
                self._stalled.pop(lane.number, None)
                return
        self._stalled[lane.number] = lane

    def _retry_stalled(self) -> None:
        for lane in list(self._stalled.values()):
            self._apply_lane(lane, ())

    # ------------------------------------------------------------- checkpoints

    def _roll(self) -> None:
        """Continue in another log segment, and let the checkpointer free the full ones."""
        assert self._wal is not None
        self._apply()
        self._retry_stalled()
        if not self._stalled:
            self._checkpoint_later(self._checkpoint_job())
        if not self._wal.use_next(timeout_s=None if self._threads and not self._stalled else 0):
            self._fatal(DiskFull("the write-ahead log is full, and no segment can be freed. Free disk space"))

    def _checkpoint_job(self) -> CheckpointJob:
        """The content of a checkpoint now: every operation up to the last synced lsn is in lane files."""
        assert self._wal is not None
        changed, self._changed = list(self._changed.values()), {}
        self._metas.update({lane.number: lane.meta() for lane in changed})
        return CheckpointJob(
            replay_from=self._wal.sequence + 1,
            lsn=self._wal.synced_lsn,
            incarnation=self._incarnation,
            lanes=dict(self._metas),
            lost_below=self._lost_below,
            changed=changed,
        )

    def _checkpoint_later(self, job: CheckpointJob) -> None:
        if self._threads:
            self._jobs.put(partial(self._checkpointer.checkpoint, job))
        else:
            self._guarded(partial(self._checkpointer.checkpoint, job))

    def _run_jobs(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()

    def _guarded(self, target: Callable[[], object]) -> None:
        """An error here is a failed sync, or a storage thread that stops while writers wait: the process ends."""
        try:
            target()
        except Exception as error:
            self._fatal(error)

    # -------------------------------------------------------------- reading

    def read(self, lane: int, *, after: int, max_entries: int, max_bytes: int) -> list[Entry]:
        held = self._lanes.get(lane)
        return [] if held is None else held.read(after=after, max_entries=max_entries, max_bytes=max_bytes)

    def places(self, lane: int, *, after: int, upto: int) -> list[Place]:
        """Places of entries from after+1 on, for readers that can open this machine's files."""
        held = self._lanes.get(lane)
        return [] if held is None else held.places(after=after, upto=upto)

    def stored_files(self, lane: int) -> list[StoredFile]:
        """The lane's files, oldest first, for retention. The last message of a file counts as its newest."""
        held = self._lanes.get(lane)
        return [] if held is None else held.stored_files()

    @property
    def full(self) -> bool:
        """The disk is full: no entries are accepted, promises still are."""
        return self._reserve.full or bool(self._stalled)

    def statistics(self) -> StoreStatistics:
        lanes = list(self._lanes.values())
        return StoreStatistics(
            writes=self._writes,
            operations=self._operations,
            syncs=self._syncs,
            pending_writes=self._queue.qsize(),
            lanes=len(lanes),
            entries_held=sum(lane.written.end - lane.written.base for lane in lanes),
            size_bytes=sum(lane.size_bytes for lane in lanes),
            full=self.full,
            damage_found=len(self.damage),
        )

    def close(self) -> None:
        if self._wal is None:
            return
        if self._threads:
            self._queue.put(None)
            self._threads[0].join()
            self._jobs.put(None)
            self._threads[1].join()
            self._threads = []
        else:
            self.sync()
        self._guarded(self._finish)
        self._wal.close()
        for lane in self._lanes.values():
            lane.files.release()

    def _finish(self) -> None:
        """Write a last checkpoint, so that the next start has no log to replay. On a full disk the log stays."""
        self.rest()
        if not self._stalled:
            self._checkpointer.checkpoint(self._checkpoint_job())


def _nothing(receipt: Synced) -> None:
    """The callback of a write that only wakes the sync thread."""


def _hand_out(taken: Sequence[Queued], receipt: Synced) -> None:
    for queued in taken:
        queued.then(receipt)

"""The store on a disk: takes operations, syncs them in groups, keeps lane files and log in step.

Two threads besides the caller's, and what each may do:

    caller        write: check, encode, put into the queue. read: lane files and what waits in memory
    sync thread   take all that waits, one log write and one fdatasync, hand out the receipts. Every so often bring lane
                  files up to date; when a log segment is full, go on in the next one
    settle thread sync lane files, write checkpoints, fill log segments with zeros

Encoding happens in `write`, while the sync thread sits in the sync before: that time is free. Receipts are handed out
before lane files are touched, because the log alone makes an operation durable.

Handing a write to another thread and hearing back costs about as much as a fast disk's sync. With `in_place_below_s`, a
write that finds nothing else waiting is therefore synced by its caller, as long as recent syncs took less than that;
its callback runs before `write` returns. What arrives meanwhile waits in the caller's sockets and shares the next one.

With `background=False` there are no threads: `sync` does one round, and settling happens inside it. Tests cut the power
in that mode, and tools that only read use it. It is the same code.
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

from avow.errors import DiskFull, StorageDamaged, TooLarge
from avow.queue.retention import StoredFile
from avow.replication.effects import Persist, SaveRun
from avow.storage.files import Files
from avow.storage.lane import Lane, Saved, Step
from avow.storage.queued import Queued
from avow.storage.recovery import RecoveredLane, Sizes, recover
from avow.storage.room import Room, is_no_space
from avow.storage.segments import LaneFiles, Place
from avow.storage.settle import Settlement, Settling
from avow.storage.state import LaneState
from avow.storage.store import StoreImage, StoreStatistics, Synced, Then, _receipt
from avow.storage.wal import Group, Wal, size_alone_bytes
from avow.wire.messages import Entry

_GROUP_BYTES_MAX: Final = 16 * 1024 * 1024
_APPLY_ABOVE_BYTES: Final = 1024 * 1024  # of log written; until then readers get the entries from memory
_IDLE_S: Final = 0.05  # without writes for so long, the log says that it was synced to its end
_FULL_S: Final = 0.25  # on a full disk: how often to look whether space was freed
_SYNC_WEIGHT: Final = 0.1  # of the newest sync in what syncs are said to take
_EXIT_STATUS: Final = 70  # EX_SOFTWARE of sysexits.h

CallSoon: TypeAlias = Callable[[Callable[[], None]], object]


def end_process(error: BaseException) -> NoReturn:
    """After a failed sync nobody knows what the disk holds; only a new start, reading it again, finds out."""
    sys.stderr.write(f"avow: storage failed, the process ends so that nothing false is acknowledged: {error!r}\n")
    sys.stderr.flush()
    os._exit(_EXIT_STATUS)


class FileStore:
    """Opens nothing before `load`. `call_soon` runs callbacks elsewhere, for example on an event loop."""

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
    ) -> None:
        self._files, self._sizes, self._background, self._nonce = files, sizes, background, nonce
        self._call_soon, self._fatal = call_soon, fatal
        self._room = Room(files, reserved_bytes=sizes.reserved_bytes)
        self._lanes: dict[int, Lane] = {}
        self._lock = threading.Lock()  # order of writes: lsn, lane states, queue
        self._committing = threading.Lock()  # held by whichever thread writes the log and lane files
        self._in_place_below_s = in_place_below_s
        self._sync_s = 0.0  # what a sync takes, recently
        self._synced_at = self._woken_at = 0.0
        self._handed_over = self._taken_over = 0  # writes given to the sync thread, and those it is done with
        self._queue: SimpleQueue[Queued | None] = SimpleQueue()
        self._jobs: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._lsn = self._incarnation = 0
        self._writes = self._operations = self._syncs = 0
        self._changed: dict[int, Lane] = {}  # since the last checkpoint was noted
        self._stalled: dict[int, Lane] = {}
        self._unapplied: list[Queued] = []  # durable, and not yet in lane files
        self._unapplied_bytes = 0
        self._apply_above_bytes = min(_APPLY_ABOVE_BYTES, sizes.wal_segment_bytes // 8)
        self._plain_size_bytes = sizes.wal_segment_bytes // 4  # a write up to here needs no look at the log's bounds
        self._epoch = 0
        self._wal: Wal | None = None
        self.damage: list[StorageDamaged] = []

    # -------------------------------------------------------------- opening

    def load(self) -> StoreImage:
        """Raises UnfitToVote when what this store promised cannot be known at all."""
        if self._wal is not None:
            raise RuntimeError("a store is loaded once")
        found = recover(self._files, self._sizes)
        checkpoint = found.checkpoint
        self._lanes = {number: Lane(number, self._files, lane) for number, lane in found.lanes.items()}
        self._metas = dict(checkpoint.lanes)
        self._lsn, self._incarnation = checkpoint.lsn, checkpoint.incarnation
        self.damage += found.image.damage
        self._epoch = checkpoint.opening << 32 | self._nonce()
        self._wal = wal = Wal(
            self._files,
            segment_size_bytes=self._sizes.wal_segment_bytes,
            epoch=self._epoch,
            next_sequence=found.used_sequence + 1,
            synced_lsn=checkpoint.lsn,
            slots=found.slots,
        )
        self._settling = Settling(self._files, self._sizes, self._room, wal, checkpoint)
        self._room.restore()
        self._start(wal)
        return found.image

    def _start(self, wal: Wal) -> None:
        if not wal.slots:
            self._settling.prepare_slots(at_most=1)
        if not wal.use_next(timeout_s=0):
            raise DiskFull("there is no room for a write-ahead log; nothing was changed. Free space and start again")
        if not self._background:
            self._settling.prepare_slots()
            return
        self._jobs.put(self._settling.prepare_slots)
        for name, target in (("avow-sync", self._run), ("avow-settle", self._run_jobs)):
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
        """Nothing written before waits for the other thread, and the disk is quick."""
        return self._taken_over == self._handed_over and self._sync_s < self._in_place_below_s and self._background

    def rest_if_idle(self, now: float) -> None:
        """For a caller that syncs in place: call it now and then, so that the sync thread does what it does at rest."""
        due = self._unapplied or self.full
        if due and now - max(self._synced_at, self._woken_at) > _IDLE_S and self._taken_over == self._handed_over:
            self._woken_at = now
            self._handed_over += 1
            self._queue.put(Queued(_nothing))

    def _admit(self, queued: Queued) -> None:
        """All or nothing, before anything is taken."""
        assert self._wal is not None, "load comes first"
        if queued.size + queued.second_bytes > self._plain_size_bytes:
            alone = size_alone_bytes(queued.size, queued.second_bytes)
            if alone > self._wal.capacity_bytes:
                raise TooLarge(
                    f"a write of {alone} bytes is more than a log segment's {self._wal.capacity_bytes}; split it"
                )
        if self._stalled and (queued.growth or queued.size + queued.second_bytes > self._wal.room_bytes // 4):
            raise DiskFull("the disk is full and the log cannot be emptied; nothing was stored. Free space first")
        claim = self._room.claim if queued.has_entries else self._room.claim_margin
        if queued.growth and not claim(queued.growth):
            raise DiskFull("the disk is full; nothing was stored, reads and promises go on. Free space, then try again")

    def _note(self, steps: Sequence[Step], growth: int) -> None:
        """Let readers see the operations. When one does not fit, none of this call was written."""
        before = self._saved(steps) if len(steps) > 1 else {}
        try:
            for op, lsn, _, _ in steps:
                if type(op) is not SaveRun:
                    lane = self._lanes.get(op.lane) or self._new_lane(op.lane)  # type: ignore[union-attr]
                    lane.write(op, lsn)
        except ValueError:
            for number, saved in before.items():
                self._lanes[number].restore(saved)
            self._room.give_back(growth)
            raise

    def _saved(self, steps: Sequence[Step]) -> dict[int, Saved]:
        numbers = {step.op.lane for step in steps if not isinstance(step.op, SaveRun)}
        return {number: (self._lanes.get(number) or self._new_lane(number)).save() for number in sorted(numbers)}

    def _new_lane(self, number: int) -> Lane:
        files = LaneFiles(
            self._files,
            number,
            segment_size_bytes=self._sizes.lane_segment_bytes,
            index_interval_bytes=self._sizes.index_interval_bytes,
            report=self.damage.append,
        )
        lane = self._lanes[number] = Lane(number, self._files, RecoveredLane(LaneState(), files, 0))
        return lane

    # -------------------------------------------------------------- syncing

    def sync(self) -> None:
        """Without threads: make everything written so far durable and run its callbacks."""
        if self._background:
            raise RuntimeError("this store has a thread that syncs")
        self._commit_waiting([self._queue.get() for _ in range(self._queue.qsize())], call_soon=self._call_soon)

    @property
    def pending(self) -> int:
        """Writes no sync was begun for."""
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
        """Nothing waits: leave evidence that the log was synced to its end, and bring lane files up to date.

        The sync thread does this by itself; without threads it is for the owner to call.
        """
        assert self._wal is not None
        with self._committing:
            self._wal.mark()
            self._apply()
            self._retry_stalled()
            self._room.look_again()

    def _commit_waiting(self, waiting: Sequence[Queued | None], *, call_soon: CallSoon | None) -> None:
        group = Group()
        taken: list[Queued] = []
        for queued in waiting:
            if queued is None:
                break
            if queued.then is _nothing:
                continue  # only to wake the thread
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
        receipt = _receipt(self._syncs)
        if call_soon is None:
            _hand_out(taken, receipt)
        else:
            call_soon(partial(_hand_out, taken, receipt))
        self._unapplied += taken
        self._unapplied_bytes += group.size_bytes
        if self._unapplied_bytes >= self._apply_above_bytes:
            self._apply()

    def _apply(self) -> None:
        """Bring lane files up to date, in runs: one write for many operations of a lane."""
        taken, self._unapplied, self._unapplied_bytes = self._unapplied, [], 0
        by_lane: dict[int, list[Step]] = {}
        growth = 0
        for queued in taken:
            growth += queued.growth
            for step in queued.steps:
                if isinstance(step.op, SaveRun):
                    self._incarnation = step.op.incarnation
                else:
                    by_lane.setdefault(step.op.lane, []).append(step)
        for number, steps in by_lane.items():
            self._changed[number] = self._lanes[number]
            self._apply_lane(self._lanes[number], steps)
        if growth:
            self._room.settled(growth)

    def _apply_lane(self, lane: Lane, steps: Sequence[Step]) -> None:
        """What the log holds is safe; on a full disk it reaches the lane's files later."""
        for attempt, pending in enumerate((steps, ())):
            try:
                lane.apply(pending)
            except OSError as error:
                if not is_no_space(error):
                    self._fatal(error)
                if not attempt:
                    self._room.release()
            else:
                self._stalled.pop(lane.number, None)
                return
        self._stalled[lane.number] = lane

    def _retry_stalled(self) -> None:
        for lane in list(self._stalled.values()):
            self._apply_lane(lane, ())

    # ------------------------------------------------------------- settling

    def _roll(self) -> None:
        """Go on in another log segment, and have the full ones freed."""
        assert self._wal is not None
        self._apply()
        self._retry_stalled()
        if not self._stalled:
            self._settle_later(self._noted())
        if not self._wal.use_next(timeout_s=None if self._threads and not self._stalled else 0):
            self._fatal(DiskFull("the log is full and cannot be emptied"))

    def _noted(self) -> Settlement:
        """What a checkpoint may say now: every operation up to the last synced lsn is in lane files."""
        assert self._wal is not None
        changed, self._changed = list(self._changed.values()), {}
        self._metas.update({lane.number: lane.meta() for lane in changed})
        return Settlement(
            replay_from=self._wal.sequence + 1,
            lsn=self._wal.synced_lsn,
            incarnation=self._incarnation,
            lanes=dict(self._metas),
            changed=changed,
        )

    def _settle_later(self, job: Settlement) -> None:
        if self._threads:
            self._jobs.put(partial(self._settling.settle, job))
        else:
            self._guarded(partial(self._settling.settle, job))

    def _run_jobs(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()

    def _guarded(self, target: Callable[[], object]) -> None:
        """An error here is a failed sync, or a storage thread that stops with writers waiting: the process ends."""
        try:
            target()
        except Exception as error:
            self._fatal(error)

    # -------------------------------------------------------------- reading

    def read(self, lane: int, *, after: int, max_entries: int, max_bytes: int) -> list[Entry]:
        held = self._lanes.get(lane)
        return [] if held is None else held.read(after=after, max_entries=max_entries, max_bytes=max_bytes)

    def places(self, lane: int, *, after: int, upto: int) -> list[Place]:
        """Where entries lie for who can read this machine's files: as many as do, from after+1 on."""
        held = self._lanes.get(lane)
        return [] if held is None else held.places(after=after, upto=upto)

    def stored_files(self, lane: int) -> list[StoredFile]:
        """The lane's files, oldest first, for retention. The newest message of a file is taken to be its last."""
        held = self._lanes.get(lane)
        return [] if held is None else held.stored_files()

    @property
    def full(self) -> bool:
        """Takes no entries at the moment; promises still fit."""
        return self._room.full or bool(self._stalled)

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
        """A last checkpoint, so that the next start has no log to replay. On a full disk the log stays as it is."""
        self.rest()
        if not self._stalled:
            self._settling.settle(self._noted())


def _nothing(receipt: Synced) -> None:
    """Of a write that only wakes the sync thread."""


def _hand_out(taken: Sequence[Queued], receipt: Synced) -> None:
    for queued in taken:
        queued.then(receipt)

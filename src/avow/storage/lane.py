"""One open lane: its state as written, its state as in its files, and the entries in between.

An operation is first written (`FileStore.write` accepted it), then durable (the log was synced), then applied (it is in
the lane's files). Readers see it once it is written, the files change only after it is durable, and a checkpoint may
include it only after it is applied. So a lane has two states, and the entries that are written and not yet applied,
which are read from memory:

    positions   base+1 ...... file_to | file_to+1 ....... written.end
    read from   the lane's files      | `_waiting`, each with the lsn that wrote it

An operation that replaces or cuts entries lowers `file_to` when it is written. The files must still contain the old
entries then, because the operation may never become durable; they are no longer read.

The owner of the store writes, its sync thread applies, any thread reads: all under `lock`.
"""

from __future__ import annotations

import contextlib
import threading
from bisect import bisect_right
from collections.abc import Sequence
from typing import Final, NamedTuple

from msgspec.structs import replace

from avow.errors import StorageDamaged, Trimmed
from avow.queue.records import StoredFile
from avow.replication.durable import Place
from avow.replication.effects import (
    Persist,
    SaveCut,
    SaveEntries,
    SaveFence,
    SaveSnapshot,
    SaveState,
    SaveTrim,
)
from avow.storage.checkpoint import LaneMeta, snapshot_path, write_snapshot
from avow.storage.files import Files
from avow.storage.lane_state import LaneState
from avow.storage.recovery import RecoveredLane, meta_of
from avow.storage.space_reserve import is_no_space
from avow.storage.store import entry_size_bytes
from avow.wire.messages import Entry
from avow.wire.record import Buffer

_RUN_BYTES_MAX: Final = 1024 * 1024


class Step(NamedTuple):
    """An operation that is durable in the log and to be applied to a lane's files. `payload`: as in the log."""

    op: Persist
    lsn: int
    payload: Sequence[Buffer]
    size: int


class Saved(NamedTuple):
    """A lane's written state, to be restored."""

    written: LaneState
    file_to: int
    waiting: list[Entry]
    waiting_lsns: list[int]


class Lane:
    def __init__(self, number: int, files: Files, found: RecoveredLane) -> None:
        if not 0 <= number < 1 << 32:
            raise ValueError(f"lane number {number} does not fit in 32 bits; nothing was written")
        self.number = number
        self.lock = threading.RLock()
        self.written = replace(found.state)
        self._disk, self._applied, self.files, self._found = files, found.state, found.files, found
        self._unapplied: list[Step] = []
        self._file_to = found.state.end
        self._waiting: list[Entry] = []
        self._waiting_lsns: list[int] = []
        self._created: dict[int, int] = {}  # last position of a full file -> creation time of that entry

    # -------------------------------------------------------------- writing

    def write(self, op: Persist, lsn: int) -> None:
        """Raises ValueError, and changes nothing, if the operation does not fit."""
        with self.lock:
            if type(op) is SaveEntries:  # nearly all operations
                entries, first = op.entries, op.entries[0].position
                behind = first == self.written.end + 1
                self.written.append(first, len(entries))
                if not behind:
                    self._show_until(first - 1)
                self._waiting += entries
                self._waiting_lsns += (lsn,) * len(entries)
                return
            fold(self.written, op)
            if isinstance(op, SaveCut):
                self._show_until(op.end)
            elif isinstance(op, SaveSnapshot) and op.reset:
                self._show_until(0)
                self._file_to = op.snapshot.position

    def save(self) -> Saved:
        with self.lock:
            return Saved(replace(self.written), self._file_to, self._waiting.copy(), self._waiting_lsns.copy())

    def restore(self, saved: Saved) -> None:
        """Undo the writes since `save`. The caller ensures that nothing is written or applied in between."""
        with self.lock:
            self.written, self._file_to, self._waiting, self._waiting_lsns = saved

    def _show_until(self, end: int) -> None:
        if end < self._file_to:
            self._file_to = end
        del self._waiting[end - self._file_to :], self._waiting_lsns[end - self._file_to :]

    # ------------------------------------------------------------- applying

    def apply(self, steps: Sequence[Step]) -> None:
        """Change the files. After an OSError the remaining steps wait, and the next call tries them first."""
        with self.lock:
            self._unapplied += steps
            while self._unapplied:
                run = self._next_run()
                self._apply_run(run)
                del self._unapplied[: len(run)]
                self._forget_waiting(run[-1].lsn)

    def _next_run(self) -> list[Step]:
        """One step, or several that append consecutive entries and fit into one write."""
        run, size, following = [self._unapplied[0]], self._unapplied[0].size, 0
        if isinstance(run[0].op, SaveEntries):
            following = run[0].op.entries[-1].position + 1
        for step in self._unapplied[1:]:
            if not isinstance(step.op, SaveEntries) or step.op.entries[0].position != following:
                break
            if size + step.size > _RUN_BYTES_MAX:
                break
            run.append(step)
            size, following = size + step.size, step.op.entries[-1].position + 1
        return run

    def _apply_run(self, run: Sequence[Step]) -> None:
        """Change the files first, then the state: an operation that failed half-way is applied again from the start."""
        op = run[0].op
        if isinstance(op, SaveEntries):
            first = op.entries[0].position
            if first <= self._applied.end:
                self.files.cut(first - 1)
            payload = [buffer for step in run for buffer in step.payload]
            self.files.append(first, payload, size=sum(step.size for step in run))
        elif isinstance(op, SaveCut):
            if op.end < self._applied.end:
                self.files.cut(op.end)
        elif isinstance(op, SaveSnapshot):
            self._apply_snapshot(op, run[0])
        for step in run:
            fold(self._applied, step.op)
        if isinstance(op, SaveTrim):
            self.files.trim(self._applied.base)

    def _apply_snapshot(self, op: SaveSnapshot, step: Step) -> None:
        if not op.reset and op.snapshot.position <= self._applied.snapshot:
            return
        path = snapshot_path(self.number, position=op.snapshot.position, lsn=step.lsn)
        self.files.make_folder()
        crc = write_snapshot(self._disk, path, b"".join(step.payload))
        self.files.dirty.add(path)
        self.files.folder_dirty = True
        self._found.snapshot_lsn, self._found.snapshot_crc = step.lsn, crc
        if op.reset:
            self.files.remove_all()
            self._found.unreadable_upto = 0

    def _forget_waiting(self, lsn: int) -> None:
        """Entries written up to `lsn` are in the files now: drop them from memory."""
        count = bisect_right(self._waiting_lsns, lsn)
        del self._waiting[:count], self._waiting_lsns[:count]
        self._file_to += count

    def meta(self) -> LaneMeta:
        with self.lock:
            return meta_of(self._applied, self._found)

    def take_dirty(self) -> tuple[list[str], bool]:
        """(files to be synced, whether to sync the folder). They count as synced from here on."""
        with self.lock:
            self._keep_indexes()
            self.files.release()
            dirty, folder = sorted(self.files.dirty), self.files.folder_dirty
            self.files.dirty, self.files.folder_dirty = set(), False
            return dirty, folder

    def _keep_indexes(self) -> None:
        """Write indexes. On a full disk they are skipped: an index can be rebuilt from its file."""
        try:
            self.files.keep_indexes()
        except OSError as error:
            if not is_no_space(error):
                raise

    # -------------------------------------------------------------- reading

    def read(self, *, after: int, max_entries: int, max_bytes: int) -> list[Entry]:
        with self.lock:
            if after < self.written.base:
                raise Trimmed(
                    f"entry {after + 1} of lane {self.number} was trimmed; the first one left is "
                    f"{self.written.base + 1}. Read from there"
                )
            if self.written.end <= after < self.written.lost_upto:
                raise StorageDamaged(file=self.files.folder, position=0, expected=f"entry {after + 1}", found="damage")
            found = self._read_files(after, max_entries, max_bytes)
            if after + len(found) < self._file_to:
                return found
            return self._add_waiting(found, after, max_entries, max_bytes)

    def places(self, *, after: int, upto: int) -> list[Place]:
        """Places of the entries after+1 .. upto that are in the lane's files, up to the first damaged one."""
        with self.lock:
            found: list[Place] = []
            if self.written.base <= after and self.files.segments and self.files.reachable:
                with contextlib.suppress(StorageDamaged):
                    found.extend(self.files.places(after=after, upto=min(upto, self._file_to)))
            return found

    def _read_files(self, after: int, max_entries: int, max_bytes: int) -> list[Entry]:
        found: list[Entry] = []
        upto = min(self._file_to, after + max_entries)
        try:
            found.extend(self.files.entries(after=after, upto=upto, max_bytes=max_bytes))
        except StorageDamaged as flaw:
            self.files.report(flaw)
            if not found:
                raise
        return found

    def _add_waiting(self, found: list[Entry], after: int, max_entries: int, max_bytes: int) -> list[Entry]:
        room = max_bytes - sum(map(entry_size_bytes, found))
        start = after + len(found) - self._file_to
        for entry in self._waiting[start : start + max_entries - len(found)]:
            room -= entry_size_bytes(entry)
            if found and room < 0:
                break
            found.append(entry)
        return found

    def stored_files(self) -> list[StoredFile]:
        """The full files; the one being written is never deleted."""
        with self.lock:
            segments = self.files.segments
            ends = [segment.first - 1 for segment in segments[1:]]
            return [
                StoredFile(last, segment.size, self._created_ms(last))
                for segment, last in zip(segments, ends, strict=False)
                if last > self.written.base
            ]

    def _created_ms(self, position: int) -> int:
        known = self._created.get(position)
        if known is None:
            found = self._read_files(position - 1, 1, 1)
            known = self._created[position] = found[0].created_ms if found else 0
        return known

    @property
    def size_bytes(self) -> int:
        return sum(segment.size for segment in self.files.segments)


def fold(state: LaneState, op: Persist) -> None:
    """Apply an operation to a state. Raises ValueError, and changes nothing, if it does not fit."""
    if isinstance(op, SaveEntries):
        state.append(op.entries[0].position, len(op.entries))
    elif isinstance(op, SaveState):
        state.promise(promised=op.promised, stamped=op.stamped)
    elif isinstance(op, SaveCut):
        state.cut(op.end)
    elif isinstance(op, SaveSnapshot):
        state.take_snapshot(op.snapshot.position, reset=op.reset)
    elif isinstance(op, SaveTrim):
        state.trim(op.upto)
    elif isinstance(op, SaveFence):
        state.fence(op.end)

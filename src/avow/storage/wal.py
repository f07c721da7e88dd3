"""The write-ahead log: one for all lanes of a peer, and the only file synced before a write is acknowledged.

The sync is the main cost of a write, so it is shared: everything that waits when a sync ends becomes one group, with
one write and one fdatasync. The log is in a few segments of fixed size that were filled with zeros once and are reused,
because overwriting existing blocks changes no metadata and its sync is one write to the disk.

The layout of a group:

    [opening record][records in order ...][zeros to the next 4 KiB][second records of promises][zeros to the next 4 KiB]

It starts on a 4 KiB boundary: no block with acknowledged records is ever written again, so a write torn by a power cut
cannot destroy them. The second record of a promise is in another block than the first, so one bad block does not lose
it. The opening record has the lsn of the next record: all lower ones are synced, because a group is written only after
the previous one was synced. After its sync, the place that the log reached is written to the mark (`sync_mark`). From
both, recovery knows what must be there, and distinguishes a torn tail from a loss (see `replay`).

A segment is free again when a checkpoint has made everything in it durable elsewhere. `Wal` is used by one thread; only
`retire` may be called from another. A failed write or sync ends the process: after a failed fsync the kernel may mark
the lost pages as clean, so a later successful fsync proves nothing.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from typing import Final

from avow.storage.files import Files, fill_with_zeros
from avow.storage.sync_mark import SyncMark
from avow.storage.wal_records import (
    BLOCK_BYTES,
    OVERHEAD_BYTES,
    SEGMENT_FORMAT,
    SEGMENT_START,
    SegmentHeader,
    WalKind,
    encode,
    segment_block,
)
from avow.wire.record import Buffer

_OPENING_BYTES: Final = OVERHEAD_BYTES
_ZEROS: Final = bytes(BLOCK_BYTES)


class Group:
    """The writes of one sync. Sizes are summed while adding, so that checking whether more fits is cheap."""

    __slots__ = ("_second_bytes", "_seconds", "_size", "last_lsn", "parts")

    def __init__(self) -> None:
        self.parts: list[Buffer] = []
        self._seconds: list[Buffer] = []
        self._size, self._second_bytes, self.last_lsn = _OPENING_BYTES, 0, 0

    def add(self, parts: Sequence[Buffer], size: int, seconds: Sequence[Buffer], last_lsn: int) -> None:
        """`seconds`: the second records of promises. `last_lsn`: of the records added."""
        self.parts += parts
        self._size += size
        self.last_lsn = last_lsn
        if seconds:
            self._seconds += seconds
            self._second_bytes += sum(map(len, seconds))

    def size_with(self, size: int, second_bytes: int) -> int:
        """The size in bytes if this much were added."""
        return _blocks(self._size + size) + _blocks(self._second_bytes + second_bytes)

    @property
    def size_bytes(self) -> int:
        return _blocks(self._size) + _blocks(self._second_bytes)

    def buffers(self, *, first_lsn: int, epoch: int) -> list[Buffer]:
        opening, _ = encode(WalKind.GROUP, first_lsn, epoch)
        found = [*opening, *self.parts, _ZEROS[: -self._size % BLOCK_BYTES]]
        if self._seconds:
            found += [*self._seconds, _ZEROS[: -self._second_bytes % BLOCK_BYTES]]
        return found


def size_alone_bytes(size: int, second_bytes: int) -> int:
    """The size in bytes of a group with only this write."""
    return _blocks(_OPENING_BYTES + size) + _blocks(second_bytes)


def _blocks(size: int) -> int:
    return size + (-size % BLOCK_BYTES)


class Wal:
    def __init__(
        self,
        files: Files,
        *,
        segment_size_bytes: int,
        epoch: int,
        next_sequence: int,
        synced_lsn: int,
        slots: Sequence[str],
        mark: SyncMark,
    ) -> None:
        """`slots`: paths of prepared segments that can be overwritten."""
        self._mark = mark
        self._files, self._segment_size_bytes, self.epoch = files, segment_size_bytes, epoch
        self.capacity_bytes = segment_size_bytes - SEGMENT_START
        self.sequence = next_sequence - 1  # of the segment being written
        self.synced_lsn = synced_lsn
        self._slot = ""
        self._handle: int | None = None
        self._offset = segment_size_bytes  # nothing fits before the first `use_next`
        self._opening: list[Buffer] = []
        self._free = deque(slots)
        self._live: dict[int, str] = {}
        self._freed = threading.Condition()

    def fits(self, group_bytes: int) -> bool:
        return self._offset + group_bytes <= self._segment_size_bytes

    @property
    def room_bytes(self) -> int:
        """Bytes that can be written without retiring a segment."""
        return self._segment_size_bytes - self._offset + len(self._free) * self.capacity_bytes

    @property
    def slots(self) -> int:
        return len(self._free) + len(self._live)

    def commit(self, group: Group) -> None:
        """One write, one sync, and the mark. Afterwards everything in the group is durable. An OSError is final."""
        assert self._handle is not None
        size = group.size_bytes
        buffers = self._opening + group.buffers(first_lsn=self.synced_lsn + 1, epoch=self.epoch)
        start = 0 if self._opening else self._offset
        self._files.write(self._handle, buffers, offset=start)
        self._files.sync(self._handle)
        self._opening = []
        self._offset += size
        self.synced_lsn = group.last_lsn or self.synced_lsn
        self._mark.write(lsn=self.synced_lsn, segment=self.sequence, offset=self._offset, epoch=self.epoch)

    def rest(self) -> None:
        """Nothing waits to be written: make the mark durable."""
        self._mark.sync()

    def use_next(self, *, timeout_s: float | None = None) -> bool:
        """Continue in a free segment; its opening block is written with the first group. False: none became free."""
        with self._freed:
            if not self._freed.wait_for(lambda: bool(self._free), timeout_s):
                return False
            slot = self._free.popleft()
            self.sequence += 1
            self._live[self.sequence] = slot
        self._close_segment()
        self._mark.sync()
        self._handle = self._files.open(slot)
        header = SegmentHeader(SEGMENT_FORMAT, self._segment_size_bytes, self.sequence, self.epoch, self.synced_lsn + 1)
        self._opening, self._offset = [segment_block(header)], SEGMENT_START
        return True

    def retire(self, before: int) -> None:
        """Segments numbered below `before` are no longer needed. May be called from another thread."""
        with self._freed:
            for sequence in [number for number in self._live if number < before]:
                self._free.append(self._live.pop(sequence))
            self._freed.notify_all()

    def add_slot(self, path: str) -> None:
        with self._freed:
            self._free.append(path)
            self._freed.notify_all()

    def close(self) -> None:
        self._close_segment()
        self._mark.close()

    def _close_segment(self) -> None:
        if self._handle is not None:
            self._files.close(self._handle)
            self._handle = None


def slot_path(number: int) -> str:
    return f"wal/slot-{number:03}.wal"


def fill_slot(files: Files, number: int, *, size: int) -> str:
    """Create a segment of zeros. It gets its name when it is complete, so that a partial one is never used."""
    path = slot_path(number)
    fill_with_zeros(files, f"{path}.new", size=size)
    files.rename(old=f"{path}.new", new=path)
    files.sync_folder("wal")
    return path

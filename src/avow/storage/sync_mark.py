"""The mark of how far the log was synced, which makes a lost part of the log visible.

The log alone cannot show that its end is missing: a segment that was deleted looks like one that was never written, and
one that was shortened like one with a torn tail. A peer that takes a loss for "never written" has forgotten entries it
acknowledged and promises it made, and votes as if it had not. So after each sync of the log, and before anything in it
is acknowledged, the place it reached is written to two other files. At a start, everything up to the mark must be
there; only bytes after it can be a torn tail.

    mark-a, mark-b      the same two slots in both files, 4 KiB apart

    byte  size  field
       0     4  magic "AVmk"
       4     4  crc32c of the rest
       8     8  counter: the higher one is newer
      16     8  lsn: the log is synced up to this record
      24     8  segment: the one that was written last
      32     8  offset: its bytes up to here are synced
      40     8  epoch of that segment
      48     8  promised: no lane of this peer ever promised a higher ballot
      56     8  incarnation: no run of this peer had a higher number

The mark is never ahead of the log, because it is written after the log's sync. It is written into the page cache with
each group and synced when the log rests, when it continues in another segment, and when it is closed. The kill of a
process therefore never makes it too old; a power cut may, by the groups since its last sync, and then the log's own
rule decides (see `replay`). Marks are written to one slot until they are synced, and then to the other one, so a write
torn by a power cut leaves the mark that was synced last.

`promised` is what a peer that lost promises falls back on: it promises that ballot in every lane.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

from crc32c import crc32c

from avow.errors import StorageDamaged
from avow.replication.effects import Persist, SaveRun, SaveState
from avow.storage.files import Files, read_whole, write_whole

MARKS: Final = ("mark-a", "mark-b")
_MAGIC_AND_CRC: Final = Struct("<4sI")
_BODY: Final = Struct("<7Q")
_MAGIC: Final = b"AVmk"
_SIZE_BYTES: Final = _MAGIC_AND_CRC.size + _BODY.size
_SLOT_BYTES: Final = 4096


class Mark(NamedTuple):
    counter: int
    lsn: int
    segment: int
    offset: int
    epoch: int
    promised: int
    incarnation: int


def read_mark(files: Files, damage: list[StorageDamaged]) -> Mark | None:
    """The newest mark; None: no file has one. If only one file has, the other is added to `damage`."""
    newest: Mark | None = None
    flaws: list[StorageDamaged] = []
    for path in MARKS:
        data = read_whole(files, path)
        marks = _marks(data or b"")
        if marks:
            newest = max([newest, *marks] if newest is not None else marks)
        else:
            found = "no such file" if data is None else data[:16].hex()
            flaws.append(StorageDamaged(file=path, position=0, expected="a mark of the log's last sync", found=found))
    if newest is not None:
        damage += flaws
    return newest


def _marks(data: bytes) -> list[Mark]:
    return [mark for slot in (0, 1) if (mark := _unpack(data, slot)) is not None]


def _unpack(data: bytes, slot: int) -> Mark | None:
    at = slot * _SLOT_BYTES
    if len(data) < at + _SIZE_BYTES:
        return None
    magic, crc = _MAGIC_AND_CRC.unpack_from(data, at)
    if magic != _MAGIC or crc32c(data[at + _MAGIC_AND_CRC.size : at + _SIZE_BYTES]) != crc:
        return None
    return Mark(*_BODY.unpack_from(data, at + _MAGIC_AND_CRC.size))


def _newest_slot(data: bytes) -> int:
    return max((0, 1), key=lambda slot: _unpack(data, slot) or ())


def _pack(mark: Mark) -> bytes:
    body = _BODY.pack(*mark)
    return _MAGIC_AND_CRC.pack(_MAGIC, crc32c(body)) + body


class SyncMark:
    """The two files, open. Used by the thread that syncs the log."""

    def __init__(self, files: Files, last: Mark) -> None:
        """Both files have `last`, synced, when this returns. A crash in between leaves at least one of them."""
        self._files, self._counter = files, last.counter
        self.promised, self.incarnation = last.promised, last.incarnation
        for path in MARKS:
            data = read_whole(files, path) or b""
            self._counter = max([self._counter, *(mark.counter for mark in _marks(data))])  # of an earlier use, too
            if len(data) != 2 * _SLOT_BYTES:
                write_whole(files, f"{path}.new", [_pack(last).ljust(2 * _SLOT_BYTES, b"\0")])
                files.rename(old=f"{path}.new", new=path)
                files.sync_folder(".")
        self._handles = [files.open(path) for path in MARKS]
        self._slots = [1 - _newest_slot(read_whole(files, path) or b"") for path in MARKS]  # to be overwritten next
        self.dirty = False
        self.write(lsn=last.lsn, segment=last.segment, offset=last.offset, epoch=last.epoch)
        self.sync()

    def saw(self, op: Persist) -> None:
        """Before the operation is written, so that the marks from its sync on cover it."""
        if type(op) is SaveState:
            self.promised = max(self.promised, op.promised)
        elif type(op) is SaveRun:
            self.incarnation = max(self.incarnation, op.incarnation)

    def write(self, *, lsn: int, segment: int, offset: int, epoch: int) -> None:
        """The log is synced up to here. This does not wait for the disk."""
        self._counter += 1
        data = [_pack(Mark(self._counter, lsn, segment, offset, epoch, self.promised, self.incarnation))]
        for handle, slot in zip(self._handles, self._slots, strict=True):
            self._files.write(handle, data, offset=slot * _SLOT_BYTES)
        self.dirty = True

    def sync(self) -> None:
        """Make the last mark durable. An OSError is final, as after every failed sync."""
        if not self.dirty:
            return
        for handle in self._handles:
            self._files.sync(handle)
        self._slots, self.dirty = [1 - slot for slot in self._slots], False

    def close(self) -> None:
        for handle in self._handles:
            self._files.close(handle)
        self._handles = []

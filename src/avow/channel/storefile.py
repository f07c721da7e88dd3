"""The file behind a `FileStore`: records at its end, one write for each call, read back after a kill.

    file head, 16 bytes          record head, 32 bytes
    0   8  "AvowPend"            0   4  crc32c of bytes 4 to 32, begun with the salt
    8   4  version = 1           4   4  crc32c of the body, begun with the salt
    12  4  salt, random          8   4  "AvP+" values, "AvP-" serials that were released
                                 12  4  size of the body
                                 16  8  first serial
                                 24  8  last serial
                                 32     body of "+": u32 length for each value, then the values

A process that is killed leaves at most its last record unfinished, and nothing of that had left it. So an unreadable
record with nothing readable behind it was torn: it is cut off. An unreadable record with a readable one behind it was
whole once: that is damage, it is said, and nothing is changed. The salt keeps records that lie in a message's own bytes
from being taken for records of this file.

Released bytes are given back when the file has doubled since it was last rewritten, and at once when nothing is left.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from struct import Struct as Layout
from struct import pack, unpack_from
from typing import TYPE_CHECKING, Final

from crc32c import crc32c
from msgspec import Struct

from avow.errors import BadChecksum, BadMagic, DiskFull, FolderUnusable, UnknownVersion
from avow.limits import KIB, MIB

if TYPE_CHECKING:
    from avow.channel.frames import Buffer

EMPTIED_FROM_BYTES: Final = 64 * KIB  # a smaller file is not worth a call when nothing is left in it
REWRITTEN_FROM_BYTES: Final = 4 * MIB
_MAGIC: Final = b"AvowPend"
_VERSION: Final = 1
_FILE_HEAD: Final = Layout("<8sII")
_HEAD: Final = Layout("<II4sIQQ")
_TAG: Final = b"AvP"
_VALUES: Final = b"AvP+"
_RELEASED: Final = b"AvP-"


class Appended(Struct, frozen=True):
    first: int
    values: Sequence[Buffer]


class Record(Struct, frozen=True):
    tag: bytes
    first: int
    last: int
    body: memoryview
    end: int


class StoreFile:
    """Opens and locks `path`, which may be missing. Raises FolderUnusable, BadMagic, UnknownVersion, BadChecksum."""

    def __init__(self, path: Path, *, sync: bool) -> None:
        self._path, self._sync = path, sync
        self._handle = _open_locked(path)
        self.last_serial = 0
        self._live = 0  # values that are not released
        try:
            self._salt, self._end = self._check_head()
            self._read_back()
        except BaseException:
            os.close(self._handle)
            raise
        self._rewrite_at = max(REWRITTEN_FROM_BYTES, 2 * self._end)

    def _check_head(self) -> tuple[int, int]:
        head = os.pread(self._handle, _FILE_HEAD.size, 0)
        if not head.startswith(_MAGIC[: len(head)]):
            raise BadMagic(f"head of {self._path}", expected=_MAGIC, found=head[:8], at=0)
        if len(head) < _FILE_HEAD.size:  # new, or its process was killed right after making it
            salt = int.from_bytes(os.urandom(4), "little")
            os.pwrite(self._handle, _FILE_HEAD.pack(_MAGIC, _VERSION, salt), 0)
            self._sync_name()
            return salt, _FILE_HEAD.size
        _, version, salt = _FILE_HEAD.unpack(head)
        if version != _VERSION:
            raise UnknownVersion(f"version of {self._path}", expected=_VERSION, found=version, at=8)
        return salt, os.fstat(self._handle).st_size

    def _read_back(self) -> None:
        data = self._read()
        at = _FILE_HEAD.size
        for record in _records(data, self._salt):
            at = record.end
            self.last_serial = max(self.last_serial, record.last)
        if at < self._end:
            self._check_torn(data, at)
            os.ftruncate(self._handle, at)
            self._end = at
        self._live = sum(1 for _ in _stored(data[:at], self._salt))

    def _check_torn(self, data: memoryview, at: int) -> None:
        raw = bytes(data)
        found = raw.find(_TAG, at + 8 + 1)  # 8 is where a tag stands in its head
        while found >= 0:
            if _record(data, found - 8, self._salt) is not None:
                raise BadChecksum(f"a record of {self._path}", expected="its checksum", found="another", at=at)
            found = raw.find(_TAG, found + 1)

    def _read(self) -> memoryview:
        pieces = []
        at = 0
        while at < self._end and (piece := os.pread(self._handle, self._end - at, at)):
            pieces.append(piece)
            at += len(piece)
        return memoryview(b"".join(pieces))

    def stored(self) -> Iterator[tuple[int, bytes]]:
        """Serial and value of what was not released, in order."""
        return ((serial, bytes(value)) for serial, value in _stored(self._read(), self._salt))

    # ------------------------------------------------------------------ writing

    def append(self, appended: Sequence[Appended]) -> None:
        """Raises DiskFull, and then nothing of it is kept."""
        pieces: list[Buffer] = []
        for one in appended:
            pieces += _values_record(one, self._salt)
            self.last_serial = one.first + len(one.values) - 1
        if not pieces:
            return
        self._write(b"".join(pieces))
        self._live += sum(len(one.values) for one in appended)
        if self._sync:
            os.fdatasync(self._handle)

    def release(self, spans: Sequence[tuple[int, int]]) -> None:
        self._live -= sum(last - first + 1 for first, last in spans)
        if not self._live and self._end >= EMPTIED_FROM_BYTES:
            os.ftruncate(self._handle, _FILE_HEAD.size)
            self._end = _FILE_HEAD.size
        elif spans:
            self._write(b"".join(_record_head(_RELEASED, first, last, b"", self._salt) for first, last in spans))
        if self._end >= self._rewrite_at:
            self._rewrite()

    def _write(self, data: bytes) -> None:
        """All of it or nothing: half a record in the middle of the file would look like damage."""
        written = 0
        try:
            while written < len(data):
                written += os.pwrite(self._handle, memoryview(data)[written:], self._end + written)
        except OSError as error:
            os.ftruncate(self._handle, self._end)
            if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise
            raise DiskFull(
                f"{self._path} cannot grow ({error.strerror}); nothing was stored. Free some space"
            ) from None
        self._end += written

    def _rewrite(self) -> None:
        """The same without what was released. The old file is the file until the new one has its name."""
        fresh = self._path.with_name(self._path.name + ".new")
        handle = _open_locked(fresh)
        try:
            data = b"".join([_FILE_HEAD.pack(_MAGIC, _VERSION, self._salt), *self._live_records()])
            os.ftruncate(handle, 0)
            written = 0
            while written < len(data):
                written += os.pwrite(handle, memoryview(data)[written:], written)
            if self._sync:
                os.fdatasync(handle)
            os.rename(fresh, self._path)
        except OSError:  # no room for both: the old one goes on
            os.close(handle)
            fresh.unlink(missing_ok=True)
            self._rewrite_at = 2 * self._end
            return
        os.close(self._handle)
        self._handle, self._end = handle, len(data)
        self._sync_name()
        self._rewrite_at = max(REWRITTEN_FROM_BYTES, 2 * self._end)

    def _live_records(self) -> Iterator[Buffer]:
        values: list[Buffer] = []
        first = 0
        for serial, value in _stored(self._read(), self._salt):
            if values and serial != first + len(values):
                yield from _values_record(Appended(first, values), self._salt)
                values = []
            first = first if values else serial
            values.append(value)
        if values:
            yield from _values_record(Appended(first, values), self._salt)

    def _sync_name(self) -> None:
        if not self._sync:
            return
        folder = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def close(self) -> None:
        os.close(self._handle)


# ---------------------------------------------------------------------- records


def _values_record(appended: Appended, salt: int) -> list[Buffer]:
    count = len(appended.values)
    body = b"".join([pack(f"<{count}I", *map(len, appended.values)), *appended.values])
    return [_record_head(_VALUES, appended.first, appended.first + count - 1, body, salt), body]


def _record_head(tag: bytes, first: int, last: int, body: bytes, salt: int) -> bytes:
    head = _HEAD.pack(0, crc32c(body, salt), tag, len(body), first, last)
    return pack("<I", crc32c(head[4:], salt)) + head[4:]


def _record(data: memoryview, at: int, salt: int) -> Record | None:
    """None: there is no whole record."""
    start = at + _HEAD.size
    if at < 0 or start > len(data):
        return None
    head_crc, body_crc, tag, size, first, last = _HEAD.unpack_from(data, at)
    if crc32c(data[at + 4 : start], salt) != head_crc or start + size > len(data):
        return None
    body = data[start : start + size]
    return Record(tag, first, last, body, start + size) if crc32c(body, salt) == body_crc else None


def _records(data: memoryview, salt: int) -> Iterator[Record]:
    at = _FILE_HEAD.size
    while (record := _record(data, at, salt)) is not None:
        yield record
        at = record.end


def _stored(data: memoryview, salt: int) -> Iterator[tuple[int, memoryview]]:
    kept: dict[int, memoryview] = {}
    for record in _records(data, salt):
        if record.tag == _VALUES:
            kept.update(enumerate(_values(record), record.first))
        else:
            for serial in range(record.first, record.last + 1):
                kept.pop(serial, None)
    return iter(sorted(kept.items()))


def _values(record: Record) -> Iterator[memoryview]:
    count = record.last - record.first + 1
    lengths = unpack_from(f"<{count}I", record.body)
    for start, stop in pairwise(accumulate(lengths, initial=4 * count)):
        yield record.body[start:stop]


def _open_locked(path: Path) -> int:
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        same = os.fstat(handle).st_ino == path.stat().st_ino  # else it was rewritten while it was being opened
    except (BlockingIOError, FileNotFoundError):
        same = False
    if not same:
        os.close(handle)
        raise FolderUnusable(f"{path} is used by another process or store; nothing was changed. Close that one first")
    return handle

"""Stores for unacknowledged messages, so that they survive the end of a channel or of the process.

A channel appends messages to its store before it writes them to a socket, and releases them when a commit that covers
them is acknowledged. So the store holds the messages that the application must send again after a failure:

    store = FileStore(path)
    waiting = store.load()                    # from the previous channel, perhaps of a process that was killed
    channel = await open_channel(dial, store=store)
    for value in waiting: channel.send(value)

Every channel numbers its messages from 1. So a store has its own numbers, *serials*. When a channel makes its first
append (number 1), all stored messages become candidates for resending. A value that is sent again keeps the serial it
had: it is stored once, and released when it is acknowledged on the new channel. Values that are not sent again stay
stored. Only one channel at a time may use a store.

The file of a `FileStore` is a log: one write per call appends records, which are read back after a restart.

    file head, 16 bytes          record head, 32 bytes
    0   8  "AvowPend"            0   4  crc32c of bytes 4 to 32, begun with the salt
    8   4  version = 1           4   4  crc32c of the body, begun with the salt
    12  4  salt, random          8   4  "AvP+" values, "AvP-" released serials
                                 12  4  size of the body
                                 16  8  first serial
                                 24  8  last serial
                                 32     body of "+": u32 length for each value, then the values

A process that is killed leaves at most its last record incomplete, and has not sent any message of it. So an unreadable
record without a readable one after it is torn and is cut off. An unreadable record with a readable one after it is
damaged: opening raises BadChecksum and changes nothing. The salt prevents bytes inside a message from being read as
records of this file.

Space is reclaimed by a rewrite when the file has doubled since the last one, and by truncation when nothing is stored.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from struct import Struct as Layout
from struct import pack, unpack_from
from typing import TYPE_CHECKING, Final, Protocol

from crc32c import crc32c
from msgspec import Struct

from avow.errors import BadChecksum, BadMagic, DiskFull, FolderUnusable, InvalidRequest, UnknownVersion
from avow.limits import KIB, MIB

if TYPE_CHECKING:
    from avow.channel.protocol.frames import Buffer


EMPTIED_FROM_BYTES: Final = 64 * KIB  # an empty store below this size is not truncated: it is not worth the call
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
        self._live = 0  # number of values that are not released
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
        if len(head) < _FILE_HEAD.size:  # new, or the process was killed right after creating it
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
        """Serial and value of each message that is not released, in order."""
        return ((serial, bytes(value)) for serial, value in _stored(self._read(), self._salt))

    # ------------------------------------------------------------------ writing

    def append(self, appended: Sequence[Appended]) -> None:
        """Raises DiskFull; nothing was stored then."""
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
        """Writes all of it or nothing: half a record in the middle of the file would count as damage."""
        written = 0
        try:
            while written < len(data):
                written += os.pwrite(self._handle, memoryview(data)[written:], self._end + written)
        except OSError as error:
            os.ftruncate(self._handle, self._end)
            if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise
            raise DiskFull(
                f"cannot extend {self._path} ({error.strerror}); nothing was stored. Free disk space and try again"
            ) from None
        self._end += written

    def _rewrite(self) -> None:
        """Rewrite the file without released values. The old file stays valid until the new one is renamed over it."""
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
        except OSError:  # no space for both files: keep the old one
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
    """The record at this offset; None if there is no complete, valid one."""
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
        same = os.fstat(handle).st_ino == path.stat().st_ino  # otherwise it was rewritten while it was being opened
    except (BlockingIOError, FileNotFoundError):
        same = False
    if not same:
        os.close(handle)
        raise FolderUnusable(
            f"{path} is in use by another process or store; nothing was changed. Close the other one first"
        )
    return handle


class PendingStore(Protocol):
    """Called on the event loop: calls must be short. If a store cannot save messages it raises; they are not sent."""

    def append(self, number: int, values: Sequence[Buffer]) -> None:
        """Save messages of the current channel, from `number` on, before this returns."""
        ...

    def release(self, upto: int) -> None:
        """Messages of the current channel up to this one are acknowledged."""
        ...

    def load(self) -> list[bytes]:
        """All stored messages, in the order in which they were first appended."""
        ...

    def close(self) -> None: ...


class Span(Struct, gc=False):
    """Serials `first` to `last`."""

    first: int
    last: int


class Serials:
    """Maps the messages of the current channel to serials."""

    def __init__(self, *, last: int = 0) -> None:
        self.last = last
        self._spans: deque[Span] = deque()  # of the messages after released_to, in the order of the channel
        self._released_to = self._appended_to = 0
        self._again: dict[bytes, deque[int]] = {}  # values that may be sent again, with their serials

    def begin(self, stored: Iterable[tuple[int, bytes]]) -> None:
        """A channel begins; `stored` is what earlier channels left."""
        self._spans.clear()
        self._released_to = self._appended_to = 0
        self._again = {}
        for serial, value in stored:
            self._again.setdefault(value, deque()).append(serial)

    def append(self, number: int, values: Sequence[Buffer]) -> list[Appended]:
        """Assign serials. Returns the values that must be stored; the others are stored already."""
        if number != self._appended_to + 1:
            raise InvalidRequest(
                f"message {number} was appended after message {self._appended_to}; it was not stored. "
                "Append the messages of a channel in order, from 1"
            )
        self._appended_to += len(values)
        if not self._again:
            return [self._new(values)] if values else []
        fresh: list[Appended] = []
        for value in values:
            serials = self._again.get(bytes(value))
            if serials is None:
                fresh.append(self._new([value]))
                continue
            self._add(serials.popleft(), 1)
            if not serials:
                del self._again[bytes(value)]
        return fresh

    def _new(self, values: Sequence[Buffer]) -> Appended:
        first = self.last + 1
        self.last += len(values)
        self._add(first, len(values))
        return Appended(first, values)

    def _add(self, first: int, count: int) -> None:
        if self._spans and self._spans[-1].last == first - 1:
            self._spans[-1].last += count
        else:
            self._spans.append(Span(first, first + count - 1))

    def release(self, upto: int) -> list[Span]:
        """Release messages up to this number. Returns their serials."""
        left = min(upto, self._appended_to) - self._released_to
        gone: list[Span] = []
        while left > 0:
            span = self._spans[0]
            last = min(span.last, span.first + left - 1)
            gone.append(Span(span.first, last))
            self._released_to += last - span.first + 1
            left -= last - span.first + 1
            span.first = last + 1
            if span.first > span.last:
                self._spans.popleft()
        return gone


class MemoryStore:
    """Survives the end of a channel, not of the process."""

    def __init__(self) -> None:
        self._serials = Serials()
        self._values: dict[int, bytes] = {}

    def append(self, number: int, values: Sequence[Buffer]) -> None:
        if number == 1:
            self._serials.begin(sorted(self._values.items()))
        for appended in self._serials.append(number, values):
            self._values.update(enumerate(map(bytes, appended.values), appended.first))

    def release(self, upto: int) -> None:
        for span in self._serials.release(upto):
            for serial in range(span.first, span.last + 1):
                del self._values[serial]

    def load(self) -> list[bytes]:
        return [value for _, value in sorted(self._values.items())]

    def close(self) -> None:
        pass


class FileStore:
    """Survives the end of the process, and with `sync` also a power failure, at the cost of one sync per loop turn.

    The sync blocks the event loop. Released messages may reappear after a power failure, or if the process is killed
    between an acknowledgement and its record: delivery of resent messages is at least once.
    """

    def __init__(self, path: Path | str, *, sync: bool = False) -> None:
        self._file = StoreFile(Path(path), sync=sync)
        self._serials = Serials(last=self._file.last_serial)

    def append(self, number: int, values: Sequence[Buffer]) -> None:
        if number == 1:
            self._serials.begin(self._file.stored())
        self._file.append(self._serials.append(number, values))

    def release(self, upto: int) -> None:
        self._file.release([(span.first, span.last) for span in self._serials.release(upto)])

    def load(self) -> list[bytes]:
        return [value for _, value in self._file.stored()]

    def close(self) -> None:
        self._file.close()

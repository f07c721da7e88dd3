"""The files of one lane: its records laid end to end, cut into files of a bounded size.

These files are what readers read and what retention deletes. They are not what makes a write durable (the write-ahead
log is), so they are written without a sync, and always behind it: an operation reaches a lane's file only after the log
that holds it was synced. Were it the other way round, a suffix could be overwritten by an operation the power cut then
takes back, and synced entries would be gone.

    lanes/<lane>/<position of the first entry>.log    records, byte for byte as the log has them
    lanes/<lane>/<position of the first entry>.idx    points into a file that is full (see `index`)
    lanes/<lane>/<position>-<lsn>.snap                snapshots (see `checkpoint`)

A file ends where the next one starts. Files change at the boundary of an append only, so what was one payload in the
log is one stretch of bytes here: that is how either copy can stand in for the other.

A record that cannot be walked over makes the exact place of later positions unknown. Nothing is removed for that
reason: the next append then opens a new file, named by its position, and readers go from name to name.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from avow.errors import Malformed, StorageDamaged
from avow.storage.files import Files, read_whole, write_whole
from avow.storage.index import Index
from avow.wire.messages import Entry
from avow.wire.record import HEADER_SIZE_BYTES, Buffer, Header, padded, read_header, record_size, unpack_entry

_WINDOW_BYTES: Final = 1024 * 1024
_PROBE_BYTES: Final = 64 * 1024
_HEADER_PROBE_BYTES: Final = 4 * 1024  # behind a large record: another one is likely, and only its header is wanted
_LARGE_BYTES: Final = 128 * 1024  # read by itself, to the byte, and handed on without a copy
NEW_FILE: Final = -1  # as a tail's size: where the lane ends inside its last file is not known


class Segment:
    """One file. `size`: bytes that belong to the lane; what lies behind is left over and will be overwritten."""

    __slots__ = ("first", "index", "path", "size")

    def __init__(self, *, first: int, path: str, size: int, index: Index | None) -> None:
        self.first, self.path, self.size, self.index = first, path, size, index


class Place(Struct, frozen=True, gc=False):
    """Where a record lies, and its header. `full`: nothing will be written to that file any more."""

    position: int
    path: str
    full: bool
    offset: int
    header: bytes


class LaneFiles:
    """Not safe to share between threads: its owner holds a lock around each call."""

    def __init__(
        self,
        files: Files,
        lane: int,
        *,
        segment_size_bytes: int,
        index_interval_bytes: int,
        report: Callable[[StorageDamaged], None],
    ) -> None:
        self._files, self.folder = files, f"lanes/{lane}"
        self._segment_size_bytes, self._interval_bytes, self._report = segment_size_bytes, index_interval_bytes, report
        self.segments: list[Segment] = []
        self._handle: int | None = None  # of the last file
        self._new_file = False
        self.dirty: set[str] = set()  # files to be synced before the log that covers them is reused
        self.folder_dirty = self._folder_made = False
        self.full: list[Segment] = []  # files whose index is to be kept beside them

    # -------------------------------------------------------------- opening

    def open(self) -> None:
        """Find the lane's files, as long as they are on the disk; `end_at` then says where the last one ends."""
        for name in self._files.names(self.folder):
            stem, _, kind = name.partition(".")
            if kind != "log" or not stem.isdigit():
                continue
            handle = self._files.open(path := f"{self.folder}/{name}")
            self.segments.append(Segment(first=int(stem), path=path, size=self._files.size(handle), index=None))
            self._files.close(handle)

    @property
    def tail(self) -> tuple[int, int]:
        """(first position, size) of the last file, for a checkpoint."""
        if not self.segments:
            return 0, NEW_FILE
        return self.segments[-1].first, NEW_FILE if self._new_file else self.segments[-1].size

    def end_at(self, tail: tuple[int, int]) -> None:
        """The lane ends inside this file: later ones, and bytes behind, are left over and go."""
        first, size = tail
        while self.segments and self.segments[-1].first > first:
            self._remove_last()
        if size == NEW_FILE or not self.segments or self.segments[-1].first != first:
            self._new_file = True
        elif self.segments[-1].size > size:
            self._truncate(size)

    def start_new_file(self) -> None:
        self._new_file = True

    # -------------------------------------------------------------- writing

    def make_folder(self) -> None:
        """Before the first file. The folder's own name is synced with the folder."""
        if not self._folder_made:
            self._files.make_folder(self.folder)
            self._folder_made = self.folder_dirty = True

    def append(self, first: int, buffers: Sequence[Buffer], *, size: int) -> None:
        """Records from position `first` on. On OSError nothing changed that a second attempt would not write again."""
        if self._new_file or not self.segments or self.segments[-1].size >= self._segment_size_bytes:
            self._open_next(first)
        last = self.segments[-1]
        if self._handle is None:
            self._handle = self._files.open(last.path, create=True)
        self._files.write(self._handle, buffers, offset=last.size)
        if last.index is not None:
            last.index.add(first, offset=last.size)
        last.size += size
        self.dirty.add(last.path)

    def _open_next(self, first: int) -> None:
        self.release()
        if self.segments and not self._new_file and self.segments[-1].index is not None:
            self.full.append(self.segments[-1])
        while self.segments and self.segments[-1].first >= first:
            self._remove_last()
        self.make_folder()
        path = f"{self.folder}/{first:020}.log"
        self._handle = self._files.open(path, create=True)
        self._files.truncate(self._handle, 0)
        index = Index(first=first, interval_bytes=self._interval_bytes)
        self.segments.append(Segment(first=first, path=path, size=0, index=index))
        self._new_file, self.folder_dirty = False, True

    def cut(self, end: int) -> None:
        """Drop what lies behind the entry at `end`."""
        while self.segments and self.segments[-1].first > end:
            self._remove_last()
            self._new_file = False
        if not self.segments:
            return
        try:
            _, offset = self.place(end + 1)
        except StorageDamaged:
            self._new_file = True
            return
        if offset < self.segments[-1].size:
            self._truncate(offset)
            self._new_file = False

    def _truncate(self, size: int) -> None:
        last = self.segments[-1]
        if self._handle is None:
            self._handle = self._files.open(last.path)
        self._files.truncate(self._handle, size)
        last.size = size
        if last.index is not None:
            last.index.cut(size)
        self._files.remove(_index_path(last))
        self.full = [segment for segment in self.full if segment is not last]
        self.dirty.add(last.path)
        self.folder_dirty = True

    def _remove_last(self) -> None:
        self.release()
        self._remove(self.segments.pop())

    def _remove(self, segment: Segment) -> None:
        self._files.remove(segment.path)
        self._files.remove(_index_path(segment))
        self.full = [other for other in self.full if other is not segment]
        self.dirty.discard(segment.path)
        self.folder_dirty = True

    def remove_all(self) -> None:
        while self.segments:
            self._remove_last()
        self._new_file = False

    def trim(self, base: int) -> None:
        """Remove the files whose entries all lie at or below `base`; never the one being written."""
        while len(self.segments) > 1 and self.segments[1].first <= base + 1:
            self._remove(self.segments.pop(0))

    def release(self) -> None:
        """Close the file being written; it is opened again when needed."""
        if self._handle is not None:
            self._files.close(self._handle)
            self._handle = None

    # -------------------------------------------------------------- reading

    @property
    def reachable(self) -> bool:
        """Other processes on this machine can find the files."""
        return bool(self._files.place(self.folder))

    def place(self, position: int) -> tuple[int, int]:
        """(first position of a file, byte in it) at which `position` starts or would start. Raises StorageDamaged."""
        segment, _ = self._holding(position, upto=position)
        at, offset = self._index(segment).before(position)
        for header in self._headers(segment, position=at, offset=offset, stop=position):
            at, offset = at + 1, offset + _record_bytes(header)
        if at < position:
            raise _missing(segment.path, offset, position=at)
        return segment.first, offset

    def entries(self, *, after: int, upto: int, max_bytes: int = 1 << 63) -> Iterator[Entry]:
        """Verified entries after+1 .. upto in order, as many as have `max_bytes`, but at least one.

        Raises StorageDamaged at the first that cannot be read.
        """
        position, room = after + 1, max_bytes
        while position <= upto:
            segment, stop = self._holding(position, upto=upto)
            at, offset = self._index(segment).before(position)
            window = _Window(self, segment)
            for header in self._headers(segment, position=at, offset=offset, stop=stop, window=window):
                if at >= position:
                    room -= _variable_bytes(header)
                    if room < 0 and at > after + 1:
                        return
                    record = window.at(offset, size=_record_bytes(header))
                    yield _unpack(record, position=at, file=segment.path, offset=offset)
                at, offset = at + 1, offset + _record_bytes(header)
            if at < stop:
                raise _missing(segment.path, offset, position=at)
            position = stop

    def places(self, *, after: int, upto: int) -> Iterator[Place]:
        """Where entries after+1 .. upto lie, in order; headers are verified, bodies not looked at.

        Raises StorageDamaged at the first that is not there.
        """
        position = after + 1
        while position <= upto:
            segment, stop = self._holding(position, upto=upto)
            at, offset = self._index(segment).before(position)
            path, full = self._files.place(segment.path), segment is not self.segments[-1]
            window = _Window(self, segment, ahead=_HEADER_PROBE_BYTES)
            for header in self._headers(segment, position=at, offset=offset, stop=stop, window=window):
                if at >= position:
                    yield Place(at, path, full, offset, bytes(window.at(offset, size=HEADER_SIZE_BYTES)))
                at, offset = at + 1, offset + _record_bytes(header)
            if at < stop:
                raise _missing(segment.path, offset, position=at)
            position = stop

    def stretch(self, first: int, *, size: int) -> bytes:
        """The bytes that start with the record of `first`, whichever file holds it. Raises StorageDamaged."""
        return self.bytes_at(self.place(first), size=size)

    def bytes_at(self, place: tuple[int, int], *, size: int) -> bytes:
        """As many as the file has."""
        segment = next((each for each in self.segments if each.first == place[0]), None)
        return b"" if segment is None else self.read(segment, size=size, offset=place[1])

    def _holding(self, position: int, *, upto: int) -> tuple[Segment, int]:
        """The file with `position`, and the first position that is not to be read from it."""
        for number in range(len(self.segments) - 1, -1, -1):
            if self.segments[number].first <= position:
                later = self.segments[number + 1].first if number + 1 < len(self.segments) else upto + 1
                return self.segments[number], min(later, upto + 1)
        raise _missing(f"{self.folder}/{position:020}.log", 0, position=position)

    def _headers(
        self, segment: Segment, *, position: int, offset: int, stop: int, window: _Window | None = None
    ) -> Iterator[Header]:
        """Of the records of position .. stop-1, verified. Ends early where the file does."""
        window = window or _Window(self, segment)
        while position < stop and offset < segment.size:
            found = window.at(offset, size=HEADER_SIZE_BYTES)
            if len(found) < HEADER_SIZE_BYTES:
                raise _missing(segment.path, offset + len(found), position=position)
            header = _header_of(found, position, file=segment.path, offset=offset)
            if offset + _record_bytes(header) > segment.size:
                raise _missing(segment.path, segment.size, position=position)
            yield header
            position, offset = position + 1, offset + _record_bytes(header)

    def read(self, segment: Segment, *, size: int, offset: int) -> bytes:
        """As many as the file has."""
        size = max(0, min(size, segment.size - offset))
        if self._handle is not None and segment is self.segments[-1]:
            return self._files.read(self._handle, size=size, offset=offset)
        try:
            handle = self._files.open(segment.path)
        except FileNotFoundError:
            return b""
        try:
            return self._files.read(handle, size=size, offset=offset)
        finally:
            self._files.close(handle)

    # -------------------------------------------------------------- indexes

    def _index(self, segment: Segment) -> Index:
        if segment.index is None:
            segment.index = self._kept_index(segment) or self._walked_index(segment)
        return segment.index

    def _kept_index(self, segment: Segment) -> Index | None:
        path = _index_path(segment)
        data = read_whole(self._files, path)
        if data is None:
            return None
        try:
            index = Index.from_bytes(data, interval_bytes=self._interval_bytes, file=path)
            return index if index.size_bytes == segment.size else None
        except StorageDamaged as flaw:
            self._report(flaw)
            return None

    def _walked_index(self, segment: Segment) -> Index:
        """Stops at a record that cannot be walked over: positions behind it are then found missing when asked for."""
        index = Index(first=segment.first, interval_bytes=self._interval_bytes)
        position, offset = segment.first, 0
        with contextlib.suppress(StorageDamaged):
            for header in self._headers(segment, position=position, offset=0, stop=1 << 63):
                index.add(position, offset=offset)
                position, offset = position + 1, offset + _record_bytes(header)
        return index

    def paths_behind(self, position: int) -> set[str]:
        """Files that hold, or could hold, entries behind `position`."""
        last = len(self.segments) - 1
        return {
            segment.path
            for number, segment in enumerate(self.segments)
            if number == last or self.segments[number + 1].first > position + 1
        }

    def forget_indexes(self, *, after: int) -> None:
        """Entries behind `after` may be others now: an index from before, whose removal was lost, must not stay."""
        behind = self.paths_behind(after)
        for segment in self.segments:
            if segment.path in behind:
                self._files.remove(_index_path(segment))
                segment.index, self.folder_dirty = None, True

    def keep_indexes(self) -> None:
        """Write the indexes of files that became full."""
        for segment in self.full:
            if segment.index is not None:
                write_whole(
                    self._files, temporary := f"{_index_path(segment)}.new", [segment.index.to_bytes(segment.size)]
                )
                self._files.rename(old=temporary, new=_index_path(segment))
                self.folder_dirty = True
        self.full = []


def shorten(payload: Buffer, *, count: int) -> Buffer:
    """The first `count` records of a payload."""
    offset = 0
    for _ in range(count):
        offset += record_size(payload[offset : offset + HEADER_SIZE_BYTES])
    return payload[:offset]


class _Window:
    """A file's bytes for somebody who walks it: small records come out of what was read ahead, a large one by itself.

    What is read ahead grows while records are small. A header behind a large record is read with little around it.
    `ahead`: always so much, for who wants headers only.
    """

    __slots__ = ("_ahead", "_data", "_files", "_most", "_segment", "_start")

    def __init__(self, files: LaneFiles, segment: Segment, *, ahead: int = 0) -> None:
        self._files, self._segment = files, segment
        self._data, self._start = memoryview(b""), 0
        self._ahead, self._most = ahead or _PROBE_BYTES, ahead or _WINDOW_BYTES

    def at(self, offset: int, *, size: int) -> memoryview:
        """As many bytes as the file has."""
        if size >= _LARGE_BYTES:
            self._ahead = _HEADER_PROBE_BYTES
            return memoryview(self._files.read(self._segment, size=size, offset=offset))
        begin = offset - self._start
        if begin + size > len(self._data):
            self._data = memoryview(self._files.read(self._segment, size=max(size, self._ahead), offset=offset))
            self._ahead = min(self._ahead * 16, self._most)
            self._start, begin = offset, 0
        return self._data[begin : begin + size]


def _header_of(found: Buffer, position: int, *, file: str, offset: int) -> Header:
    try:
        header = read_header(found)
    except Malformed as error:
        raise _wrapped(error, file=file, offset=offset) from error
    if header[11] != position:
        raise StorageDamaged(
            file=file, position=offset, expected=f"the entry at {position}", found=f"an entry at {header[11]}"
        )
    return header


def _record_bytes(header: Header) -> int:
    return HEADER_SIZE_BYTES + padded(header[6])


def _variable_bytes(header: Header) -> int:
    """Of its control and its batch, as `entry_size_bytes` counts them."""
    body, control = header[6], header[7]
    return body - padded(control) + control


def _unpack(record: memoryview, *, position: int, file: str, offset: int) -> Entry:
    """A small batch is copied, once: it must not keep the window it was read with alive. A large one was read alone."""
    if len(record) < HEADER_SIZE_BYTES:
        raise _missing(file, offset + len(record), position=position)
    try:
        entry = unpack_entry(record)
    except Malformed as error:
        raise _wrapped(error, file=file, offset=offset) from error
    return entry if len(record) >= _LARGE_BYTES else replace(entry, batch=bytes(entry.batch))


def _wrapped(error: Malformed, *, file: str, offset: int) -> StorageDamaged:
    return StorageDamaged(file=file, position=offset + (error.at or 0), expected=error.expected, found=error.found)


def _missing(file: str, offset: int, *, position: int) -> StorageDamaged:
    return StorageDamaged(file=file, position=offset, expected=f"the entry at {position}", found="the end of the file")


def _index_path(segment: Segment) -> str:
    return f"{segment.path.removesuffix('.log')}.idx"

"""The files of one lane: its records end to end, in files of a limited size.

Readers read these files and retention deletes them. The write-ahead log makes writes durable, so these files are
written without a sync and always after it: an operation is written to a lane's file only after its log record was
synced. In the other order, an operation that a power cut then undoes could have overwritten synced entries.

    lanes/<lane>/<position of the first entry>.log    records, byte for byte as the log has them
    lanes/<lane>/<position of the first entry>.idx    the index of a full file
    lanes/<lane>/<position>-<lsn>.snap                snapshots (see `checkpoint`)

A file ends where the next one starts. A new file begins only between appends, so a payload in the log is one contiguous
range of bytes here, and each copy can replace the other.

After a record that cannot be skipped (its header is damaged), the offsets of later positions are unknown. Nothing is
removed for that reason: the next append begins a new file, named by its position, and readers continue with that file.

The index of a file has the offset of an entry about every 64 KiB. Entries have different lengths, so an entry is found
by starting at an earlier known offset and skipping records. An offset for each entry would use too much memory; one
every 64 KiB costs 16 bytes and one short read. Points are added while entries are appended, at the starts of appended
runs. For a full file they are written to a small file with a checksum; without it (or if it is damaged) the index is
rebuilt by reading the file's headers.
"""

from __future__ import annotations

import contextlib
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from avow.errors import Malformed, StorageDamaged
from avow.replication.durable import Place
from avow.storage import checked
from avow.storage.files import Files, read_whole, write_whole
from avow.wire.messages import Entry
from avow.wire.record import (
    HEADER_SIZE_BYTES,
    Buffer,
    Header,
    header_crc,
    padded,
    read_header,
    record_size,
    unpack_entry,
)


class Point(NamedTuple):
    position: int
    offset: int


class Index:
    """Points of one file, ascending. The first is always the file's first entry, at byte 0."""

    __slots__ = ("_interval_bytes", "_offsets", "_positions", "size_bytes")

    def __init__(self, *, first: int, interval_bytes: int) -> None:
        self._interval_bytes = interval_bytes
        self.size_bytes = 0  # of the indexed file when the index was written
        self._positions = array("Q", [first])
        self._offsets = array("Q", [0])

    def __len__(self) -> int:
        return len(self._positions)

    def add(self, position: int, *, offset: int) -> None:
        """An entry starts here; added only if it is far enough after the last point."""
        if offset - self._offsets[-1] >= self._interval_bytes:
            self._positions.append(position)
            self._offsets.append(offset)

    def before(self, position: int) -> Point:
        """The last point at or before `position`."""
        found = bisect_right(self._positions, position) - 1
        return Point(self._positions[found], self._offsets[found])

    def cut(self, size_bytes: int) -> None:
        """The file ends here now: remove later points."""
        keep = max(1, bisect_left(self._offsets, size_bytes))
        del self._positions[keep:], self._offsets[keep:]

    def to_bytes(self, size_bytes: int) -> bytes:
        """`size_bytes`: of the indexed file. The index is not used if the file has another size later."""
        size = size_bytes.to_bytes(8, "little")
        return checked.seal(checked.INDEX, size + self._positions.tobytes() + self._offsets.tobytes())

    @classmethod
    def from_bytes(cls, data: bytes, *, interval_bytes: int, file: str) -> Index:
        """Raises StorageDamaged."""
        body = checked.unseal(checked.INDEX, data, file=file)
        half = 8 + (len(body) - 8) // 2
        index = cls(first=0, interval_bytes=interval_bytes)
        index.size_bytes = int.from_bytes(body[:8], "little")
        index._positions, index._offsets = array("Q", body[8:half]), array("Q", body[half:])
        return index


_WINDOW_BYTES: Final = 1024 * 1024
_PROBE_BYTES: Final = 64 * 1024
_HEADER_PROBE_BYTES: Final = 4 * 1024  # after a large record: another one is likely, and only its header is needed
_LARGE_BYTES: Final = 128 * 1024  # such records are read alone, exactly, and returned without a copy
NEW_FILE: Final = -1  # as a tail's size: where the lane ends in its last file is unknown


class FileMeta(Struct, frozen=True, array_like=True):
    """What a checkpoint says of a file, to tell it from another one under its name. A checksum of 0 is not known.

    Two copies of a lane that have the same header somewhere are the same up to there (equal origin and position), so
    the last header stands for the whole file. The first one is for a file whose end was replaced later.
    """

    first: int
    size: int
    first_crc: int
    last_at: int = 0  # byte position of the last record
    last_crc: int = 0


class Segment:
    """One file. `size`: bytes that belong to the lane; later bytes are left over and will be overwritten."""

    __slots__ = ("crc", "first", "index", "last", "path", "size")

    def __init__(self, *, first: int, path: str, size: int, index: Index | None, crc: int = 0) -> None:
        """`crc`: of the first record's header; 0: none."""
        self.first, self.path, self.size, self.index, self.crc = first, path, size, index, crc
        self.last: FileMeta | None = None  # as it was when it was last asked for


class LaneFiles:
    """Not thread-safe: its owner holds a lock around each call."""

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
        self._segment_size_bytes, self._interval_bytes, self.report = segment_size_bytes, index_interval_bytes, report
        self.segments: list[Segment] = []
        self._handle: int | None = None  # of the last file
        self._new_file = False
        self.dirty: set[str] = set()  # files to be synced before the log that covers them is reused
        self.folder_dirty = self._folder_made = False
        self.full: list[Segment] = []  # files whose index is to be written
        self._foreign: list[Segment] = []  # files that are not the lane's, though named so

    # -------------------------------------------------------------- opening

    def open(self) -> None:
        """Find the lane's files with their sizes on disk; `end_at` then sets where the last one ends."""
        for name in self._files.names(self.folder):
            stem, _, kind = name.partition(".")
            if kind != "log" or not stem.isdigit():
                continue
            handle = self._files.open(path := f"{self.folder}/{name}")
            size, crc = self._files.size(handle), _sound_crc(self._files.read(handle, size=HEADER_SIZE_BYTES, offset=0))
            self.segments.append(Segment(first=int(stem), path=path, size=size, index=None, crc=crc))
            self._files.close(handle)

    def known(self, end: int) -> list[FileMeta]:
        """Each file, for a checkpoint at which the lane ends at `end`."""
        found = []
        for number, segment in enumerate(self.segments):
            if segment.last is None or segment.last.size != segment.size:
                last = self.segments[number + 1].first - 1 if number + 1 < len(self.segments) else end
                segment.last = self._describe(segment, last)
            found.append(segment.last)
        return found

    def _describe(self, segment: Segment, last: int) -> FileMeta:
        at = crc = 0
        with contextlib.suppress(StorageDamaged):
            first, at = self.place(last)
            if first == segment.first:
                crc = _sound_crc(self.read(segment, size=HEADER_SIZE_BYTES, offset=at))
        return FileMeta(segment.first, segment.size, segment.crc, at if crc else 0, crc)

    def compare(self, known: Sequence[FileMeta], *, base: int, keep: int, end: int) -> tuple[list[StorageDamaged], int]:
        """Compare the files with those of a checkpoint at which the lane ended at `end`; of its entries, base+1 .. keep
        must still be there. A file that is another one is left out of the lane from here on.

        Returns the flaws, and the last position of a file that has one.
        """
        flaws: list[StorageDamaged] = []
        flawed_upto = 0
        held = {segment.first: segment for segment in self.segments}
        for number, meta in enumerate(known):
            last = known[number + 1].first - 1 if number + 1 < len(known) else end
            if last <= base or meta.first > keep:
                continue
            segment = held.get(meta.first)
            flaw = self._flaw(meta, segment, whole=last <= keep)
            if flaw is not None:
                flaws.append(flaw)
                flawed_upto = last
            elif segment is not None and last <= keep:
                segment.last = meta
        return flaws, flawed_upto

    def _flaw(self, meta: FileMeta, segment: Segment | None, *, whole: bool) -> StorageDamaged | None:
        """`whole`: nothing of the file was replaced since the checkpoint."""
        path = f"{self.folder}/{meta.first:020}.log"
        if segment is None:
            return _missing(path, 0, position=meta.first, found="no such file")
        if whole and segment.size < meta.size:
            return StorageDamaged(file=path, position=segment.size, expected=f"{meta.size} bytes", found="its end")
        checks = [(0, meta.first_crc, segment.crc)]
        if whole and meta.last_crc:
            header = self.read(segment, size=HEADER_SIZE_BYTES, offset=meta.last_at)
            checks.append((meta.last_at, meta.last_crc, _sound_crc(header)))
        for at, expected, found in checks:
            if expected and not found:
                return _missing(path, at, position=meta.first, found="a damaged header")
            if expected and found != expected:
                self.segments.remove(segment)
                self._foreign.append(segment)
                return _missing(path, at, position=meta.first, found=f"another file: {found:08x} for {expected:08x}")
        return None

    def set_aside_foreign(self) -> None:
        """Keep files that are not the lane's under another name."""
        for segment in self._foreign:
            self._set_aside(segment)
        self._foreign = []

    def set_aside_after(self, first: int) -> None:
        """Keep the files after this one under another name: the lane does not know any more what is in them."""
        while self.segments and self.segments[-1].first > first:
            self._set_aside(self.segments.pop())

    def _set_aside(self, segment: Segment) -> None:
        self.release()
        self._files.rename(old=segment.path, new=f"{segment.path}.lost")
        self._files.remove(_index_path(segment))
        self.folder_dirty = True

    @property
    def tail(self) -> tuple[int, int]:
        """(first position, size) of the last file, for a checkpoint."""
        if not self.segments:
            return 0, NEW_FILE
        return self.segments[-1].first, NEW_FILE if self._new_file else self.segments[-1].size

    def end_at(self, tail: tuple[int, int]) -> None:
        """The lane ends in this file: later files, and later bytes, are left over and are removed."""
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
        """Create the folder before the first file. Its name is synced with the folder."""
        if not self._folder_made:
            self._files.make_folder(self.folder)
            self._folder_made = self.folder_dirty = True

    def append(self, first: int, buffers: Sequence[Buffer], *, size: int) -> None:
        """Append records from position `first` on. After an OSError the call can be repeated."""
        if self._new_file or not self.segments or self.segments[-1].size >= self._segment_size_bytes:
            self._open_next(first)
        last = self.segments[-1]
        if self._handle is None:
            self._handle = self._files.open(last.path, create=True)
        self._files.write(self._handle, buffers, offset=last.size)
        if not last.size:
            last.crc = header_crc(buffers[0])
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
        """Drop the entries after `end`."""
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
        """Remove the files whose entries are all at or below `base`; never the one being written."""
        while len(self.segments) > 1 and self.segments[1].first <= base + 1:
            self._remove(self.segments.pop(0))

    def release(self) -> None:
        """Close the file being written; it is reopened when needed."""
        if self._handle is not None:
            self._files.close(self._handle)
            self._handle = None

    # -------------------------------------------------------------- reading

    @property
    def reachable(self) -> bool:
        """Whether other processes on this machine can open the files."""
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
        """Verified entries after+1 .. upto in order, as many as fit into `max_bytes`, but at least one.

        Raises StorageDamaged at the first one that cannot be read.
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
        """Places of the entries after+1 .. upto, in order. Headers are verified, bodies are not read.

        Raises StorageDamaged at the first one that is missing.
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

    def bytes_from(self, first: int, *, size: int) -> bytes:
        """The bytes from the record of `first` on, from the file that has it. Raises StorageDamaged."""
        return self.bytes_at(self.place(first), size=size)

    def bytes_at(self, place: tuple[int, int], *, size: int) -> bytes:
        """At most `size` bytes, as many as the file has."""
        segment = next((each for each in self.segments if each.first == place[0]), None)
        return b"" if segment is None else self.read(segment, size=size, offset=place[1])

    def _holding(self, position: int, *, upto: int) -> tuple[Segment, int]:
        """(the file with `position`, the first position that must not be read from it)."""
        for number in range(len(self.segments) - 1, -1, -1):
            if self.segments[number].first <= position:
                later = self.segments[number + 1].first if number + 1 < len(self.segments) else upto + 1
                return self.segments[number], min(later, upto + 1)
        raise _missing(f"{self.folder}/{position:020}.log", 0, position=position)

    def _headers(
        self, segment: Segment, *, position: int, offset: int, stop: int, window: _Window | None = None
    ) -> Iterator[Header]:
        """The verified headers of the records position .. stop-1. Ends early at the end of the file."""
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
        """At most `size` bytes, as many as the file has."""
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
            self.report(flaw)
            return None

    def _walked_index(self, segment: Segment) -> Index:
        """Rebuild an index. It stops at a damaged header: later positions are then reported as missing when read."""
        index = Index(first=segment.first, interval_bytes=self._interval_bytes)
        position, offset = segment.first, 0
        with contextlib.suppress(StorageDamaged):
            for header in self._headers(segment, position=position, offset=0, stop=1 << 63):
                index.add(position, offset=offset)
                position, offset = position + 1, offset + _record_bytes(header)
        return index

    def paths_behind(self, position: int) -> set[str]:
        """Files that have, or could have, entries after `position`."""
        last = len(self.segments) - 1
        return {
            segment.path
            for number, segment in enumerate(self.segments)
            if number == last or self.segments[number + 1].first > position + 1
        }

    def forget_indexes(self, *, after: int) -> None:
        """Remove the indexes of files with entries after `after`: these may differ now, and an index may be
        outdated."""
        behind = self.paths_behind(after)
        for segment in self.segments:
            if segment.path in behind:
                self._files.remove(_index_path(segment))
                segment.index, self.folder_dirty = None, True

    def keep_indexes(self) -> None:
        """Write the indexes of files that have become full."""
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
    """Read-ahead of a file for sequential reading: small records come from the window, a large one is read alone.

    The window grows while records are small. After a large record only little is read with the next header. `ahead`: a
    fixed window size, for reading headers only.
    """

    __slots__ = ("_ahead", "_data", "_files", "_most", "_segment", "_start")

    def __init__(self, files: LaneFiles, segment: Segment, *, ahead: int = 0) -> None:
        self._files, self._segment = files, segment
        self._data, self._start = memoryview(b""), 0
        self._ahead, self._most = ahead or _PROBE_BYTES, ahead or _WINDOW_BYTES

    def at(self, offset: int, *, size: int) -> memoryview:
        """At most `size` bytes, as many as the file has."""
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


def _sound_crc(header: Buffer) -> int:
    try:
        read_header(header)
    except Malformed:
        return 0
    return header_crc(header)


def _record_bytes(header: Header) -> int:
    return HEADER_SIZE_BYTES + padded(header[6])


def _variable_bytes(header: Header) -> int:
    """The size of its control and batch, as `entry_size_bytes` counts them."""
    body, control = header[6], header[7]
    return body - padded(control) + control


def _unpack(record: memoryview, *, position: int, file: str, offset: int) -> Entry:
    """A small batch is copied once, so that it does not keep its window alive. A large one was read alone."""
    if len(record) < HEADER_SIZE_BYTES:
        raise _missing(file, offset + len(record), position=position)
    try:
        entry = unpack_entry(record)
    except Malformed as error:
        raise _wrapped(error, file=file, offset=offset) from error
    return entry if len(record) >= _LARGE_BYTES else replace(entry, batch=bytes(entry.batch))


def _wrapped(error: Malformed, *, file: str, offset: int) -> StorageDamaged:
    return StorageDamaged(file=file, position=offset + (error.at or 0), expected=error.expected, found=error.found)


def _missing(file: str, offset: int, *, position: int, found: str = "the end of the file") -> StorageDamaged:
    return StorageDamaged(file=file, position=offset, expected=f"the entry at {position}", found=found)


def _index_path(segment: Segment) -> str:
    return f"{segment.path.removesuffix('.log')}.idx"

"""Batches as a reader gets them, and the requests that fetch them.

A batch is a view of the received bytes. `to_arrow` returns Arrow columns over them without a copy; `values` copies each
value into Python bytes; `messages` makes an object per message, with key and headers. Callers pay only for the form
they use.

While the caller processes one answer, the next is already requested (only one ahead), so reading takes as long as the
slower of the peer and the caller, not the sum of both.

A record's checksums are verified when it is received. The offsets inside, which Arrow uses unchecked, were validated by
the peer that accepted the batch and are covered by the checksum.

Records of a peer on this machine are read from its files instead of through a socket (see `wire.places`). A full file
is memory-mapped: its columns are read from the kernel's page cache without a copy. The file that is still being written
is read with `pread`. A mapping stays valid when retention deletes the file. A path may name a different file on this
machine. So each record header is compared with the one the peer sent; any difference raises `NotLocal`, and the reader
requests the bytes from the peer.
"""

from __future__ import annotations

import asyncio
import mmap
import os
from collections.abc import AsyncGenerator, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from avow import limits
from avow.client.descriptions import Level, queue_path
from avow.client.outcomes import reader_of
from avow.errors import InvalidRequest, Malformed
from avow.wire.batch import Batch
from avow.wire.columns import plain_value_span
from avow.wire.places import CONTENT_TYPE as PLACES
from avow.wire.places import PlacedRange, Places, decode_places
from avow.wire.ranges import CONTENT_TYPE, Range, parse_ranges
from avow.wire.record import HEADER_SIZE_BYTES, read_header, read_record, record_size

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    import pyarrow as pa

    from avow.client.cluster import Cluster
    from avow.wire.http import Answer


READ_SIZE_BYTES: Final = 4 * limits.MIB
READ_COUNT_MAX: Final = 65_536
_RANGES: Final = f"Accept: {CONTENT_TYPE}\r\n".encode()
_PLACES: Final = f"Accept: {PLACES}, {CONTENT_TYPE};q=0.9\r\n".encode()


class Message(Struct, frozen=True, gc=False):
    """`time_ms` is the message's own time, or the time its batch was created."""

    lane: int
    version: int
    value: bytes
    key: bytes | None = None
    headers: tuple[tuple[str, bytes], ...] = ()
    time_ms: int = 0


class StoredMessage(Message, frozen=True, gc=False):
    """A message read by its version id. `stored_by`: peers that have it on disk. If not committed it may disappear."""

    committed: bool = True
    stored_by: tuple[int, ...] = ()


class _Json(Struct, frozen=True):
    """A message in the API's JSON: text if it is UTF-8, otherwise base64 (`bytes`)."""

    lane: int
    version: int
    value: str | None = None
    value_base64: bytes = b""
    key: str | None = None
    key_base64: bytes | None = None
    headers: dict[str, str] = {}
    time_ms: int = 0
    committed: bool = True
    stored_by: tuple[int, ...] = ()


_read_json: Final = reader_of(_Json)


def read_stored(body: bytes | bytearray) -> StoredMessage:
    found = _read_json(body)
    return StoredMessage(
        found.lane,
        found.version,
        found.value_base64 if found.value is None else found.value.encode(),
        found.key_base64 if found.key is None else found.key.encode(),
        tuple((name, value.encode()) for name, value in found.headers.items()),
        found.time_ms,
        found.committed,
        found.stored_by,
    )


class ReadBatch:
    """Messages of one lane with consecutive versions, from `first_version` to `last_version`."""

    __slots__ = ("_commit", "_range", "count", "first_version", "lane")
    lane: int
    first_version: int
    count: int

    def __init__(self, found: Range, commit: Callable[[int, int], Awaitable[None]] | None = None) -> None:
        self._range = found
        self._commit = commit
        self.lane, self.first_version, self.count = found.lane, found.first_version, found.count

    @property
    def last_version(self) -> int:
        return self.first_version + self.count - 1

    @property
    def created_ms(self) -> int:
        """When the batch was created: the time of messages without their own."""
        return read_header(self._range.record, verify=False)[13]

    @property
    def size_bytes(self) -> int:
        """The size of the record that contains the batch."""
        return len(self._range.record)

    def __len__(self) -> int:
        return self.count

    def __repr__(self) -> str:
        return f"ReadBatch(lane={self.lane}, versions {self.first_version} to {self.last_version})"

    def values(self) -> list[bytes]:
        record, first = self._range.record, self._range.offset
        span = plain_value_span(record)
        if span is None:
            return [bytes(value) for value in Batch(record).values()[first : first + self.count]]
        _, offsets_at, values_at, _ = span
        offsets = record[offsets_at + 4 * first : offsets_at + 4 * (first + self.count + 1)].cast("i").tolist()
        start = offsets[0]
        joined = bytes(record[values_at + start : values_at + offsets[-1]])
        if start:
            return [joined[begin - start : end - start] for begin, end in pairwise(offsets)]
        return [joined[begin:end] for begin, end in pairwise(offsets)]

    def messages(self) -> list[Message]:
        batch, first = Batch(self._range.record), self._range.offset
        times, created_ms = batch.times(), batch.created_ms
        found = []
        for row, value in enumerate(self.values()):
            number = first + row
            key = batch.key(number)
            found.append(
                Message(
                    self.lane,
                    self.first_version + row,
                    value,
                    None if key is None else bytes(key),
                    tuple((name, bytes(item)) for name, item in batch.headers(number)),
                    created_ms if times is None else times[number],
                )
            )
        return found

    def to_arrow(self) -> pa.RecordBatch:
        """Columns over the received bytes, without a copy: value, key, and headers and time if the batch has them."""
        from avow.wire.arrow import to_arrow

        whole = to_arrow(self._range.record)
        if self.count == whole.num_rows:
            return whole
        return whole.slice(self._range.offset, self.count)

    async def commit(self) -> None:
        """Move the subscriber's cursor past this batch. Only for batches that were read for a subscriber."""
        if self._commit is None:
            raise InvalidRequest(
                "this batch was not read for a subscriber; no cursor was moved. Use follow(subscriber=...)"
            )
        await self._commit(self.lane, self.last_version)


class JoinedBatch(ReadBatch):
    """Several batches of one lane with consecutive versions (`parts`), as one."""

    __slots__ = ("parts",)

    def __init__(self, parts: Sequence[ReadBatch]) -> None:
        super().__init__(parts[0]._range)
        self.parts = tuple(parts)
        self.count = sum(part.count for part in parts)

    def values(self) -> list[bytes]:
        return [value for part in self.parts for value in part.values()]

    def messages(self) -> list[Message]:
        return [message for part in self.parts for message in part.messages()]

    def to_arrow(self) -> pa.RecordBatch:
        """Like that of one batch. Several batches are copied together; columns that some lack are null there."""
        if len(self.parts) == 1:
            return self.parts[0].to_arrow()
        import pyarrow as pa

        tables = [pa.Table.from_batches([part.to_arrow()]) for part in self.parts]
        return pa.concat_tables(tables, promote_options="default").combine_chunks().to_batches()[0]


class Page(Struct, frozen=True):
    """One answer: its batches, the version to continue after, and the lane's end on the answering peer."""

    batches: list[ReadBatch]
    next_after: int
    end: int


def read_page(
    answer: Answer,
    *,
    after: int,
    commit: Callable[[int, int], Awaitable[None]] | None = None,
    files: LocalFiles | None = None,
) -> Page:
    """Decode an answer. Raises NotLocal if `files` do not contain the records that it names."""
    if files is not None and answer.header(b"content-type") == PLACES.encode():
        batches = [ReadBatch(found, commit) for found in files.ranges(decode_places(answer.body))]
    else:
        batches = [ReadBatch(found, commit) for found in _received(answer.body)]
    reached = batches[-1].last_version if batches else after
    return Page(batches, answer.number(b"avow-next") or reached, answer.number(b"avow-end") or reached)


def _received(body: bytes | bytearray) -> Iterator[Range]:
    for found in parse_ranges(memoryview(body)):
        read_record(found.record)  # the checksum of the body
        yield found


class LaneReader:
    """Reads one lane page by page, from any peer that answers."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        queue: str,
        lane: int,
        after: int,
        max_bytes: int = READ_SIZE_BYTES,
        max_count: int = READ_COUNT_MAX,
        preferred: int = 0,
        commit: Callable[[int, int], Awaitable[None]] | None = None,
        local: bool = False,
    ) -> None:
        """`local`: read from the peer's files, if they are on this machine and readable."""
        self._cluster, self.lane, self.after = cluster, lane, after
        self._target = queue_path(queue, "messages") + b"?lane=%d&max=%d&max_bytes=%d" % (lane, max_count, max_bytes)
        self._preferred, self._commit = preferred, commit
        self._files = LocalFiles() if local else None

    async def fetch(self, *, after: int, wait_s: float = 0.0, level: Level = "local", at_least: int = 0) -> Page:
        target = self._target + b"&after=%d" % after
        if level != "local":
            target += b"&level=" + level.encode()
        if level == "at_least":
            target += b"&at_least=%d" % at_least
        if wait_s:
            target += b"&wait_s=%g" % wait_s
        if self._files is not None:
            try:
                return await self._page(target, after, wait_s, self._files)
            except NotLocal:
                self._files = None
        return await self._page(target, after, wait_s, None)

    async def _page(self, target: bytes, after: int, wait_s: float, files: LocalFiles | None) -> Page:
        accept = _RANGES if files is None else _PLACES
        answer = await self._cluster.call(b"GET", target, headers=accept, wait_s=wait_s, preferred=self._preferred)
        return read_page(answer, after=after, commit=self._commit, files=files)

    async def pages(self, *, until: int | None, level: Level, at_least: int) -> AsyncGenerator[list[ReadBatch], None]:
        """Pages up to `until`, or the end in the first answer, so that reading ends however fast others write."""
        page = await self.fetch(after=self.after, level=level, at_least=at_least)
        stop = page.end if until is None else until
        level, at_least = ("local", 0) if level == "local" else ("at_least", page.end)
        ahead: asyncio.Task[Page] | None = None
        try:
            while True:
                more = bool(page.batches) and page.next_after < stop
                if more:
                    work = self.fetch(after=page.next_after, level=level, at_least=at_least)
                    ahead = asyncio.get_running_loop().create_task(work)
                self.after = page.next_after
                yield _up_to(page.batches, stop)
                if not more or ahead is None:
                    return
                page, ahead = await ahead, None
        finally:
            if ahead is not None:
                ahead.cancel()
                await asyncio.gather(ahead, return_exceptions=True)


def _up_to(batches: list[ReadBatch], stop: int) -> list[ReadBatch]:
    if not batches or batches[-1].last_version <= stop:
        return batches
    kept = [batch for batch in batches if batch.first_version <= stop]
    if kept and kept[-1].last_version > stop:
        kept[-1] = _shorter(kept[-1], stop)
    return kept


def _shorter(batch: ReadBatch, stop: int) -> ReadBatch:
    found: Any = batch._range
    cut = Range(found.lane, found.first_version, found.offset, stop - found.first_version + 1, found.record)
    return ReadBatch(cut, batch._commit)


# ---------------------------------------------------------------------- files of a peer on this machine


class NotLocal(Exception):
    """The file is a different one on this machine, or does not exist, or is not readable for this user."""


class LocalFiles:
    """The memory maps of one reader. A map is freed with the last array that points into it."""

    def __init__(self) -> None:
        self._maps: dict[str, memoryview] = {}

    def ranges(self, places: Places) -> list[Range]:
        """The ranges, verified like received ones. Raises NotLocal."""
        wanted = {places.files[one.file][0] for one in places.ranges}
        self._maps = {path: view for path, view in self._maps.items() if path in wanted}
        try:
            return [self._range(places, one) for one in places.ranges]
        except (OSError, ValueError, Malformed) as error:
            raise NotLocal(str(error)) from error

    def _range(self, places: Places, one: PlacedRange) -> Range:
        path, full = places.files[one.file]
        size = record_size(one.header)
        record = self._mapped(path)[one.at : one.at + size] if full else _read(path, size=size, at=one.at)
        if len(record) < size or record[:HEADER_SIZE_BYTES] != one.header:
            raise NotLocal(f"{path} has a different record at offset {one.at}")
        read_record(record)  # the checksum of the body
        return Range(places.lane, one.first_version, one.offset, one.count, record)

    def _mapped(self, path: str) -> memoryview:
        found = self._maps.get(path)
        if found is None:
            handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                found = memoryview(mmap.mmap(handle, 0, prot=mmap.PROT_READ))
            finally:
                os.close(handle)
            self._maps[path] = found
        return found


def _read(path: str, *, size: int, at: int) -> memoryview:
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return memoryview(os.pread(handle, size, at))
    finally:
        os.close(handle)

"""Reading a segment of the write-ahead log after a crash: what is there, what is damaged, what was never finished.

A power cut in the middle of a write leaves a torn tail, and a torn tail must be dropped without a word: nobody was told
it was stored. A record that was synced and then went bad looks the same from close up, and dropping that one without a
word would lose an acknowledged write. What tells them apart is what comes after:

    A group is written only when the group before it was synced. So everything in front of the last group that can be
    recognised (its opening record is intact) was synced, and a flaw there is damage. A flaw behind it is a torn tail.
    A later segment that was opened is such evidence too, for the whole of the one before.

The limit of the rule: damage in the very last group before a power cut is taken for a torn tail. The log therefore
writes an empty group when it becomes idle and when it is closed, which leaves only what was written in the last moments
before a cut undefended, and only against a second fault in the same place.

After a flaw, reading goes on at the next header, or repeated header, that is sound and belongs to this use of the
segment. A record known by its repeated header only is whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from crc32c import crc32c

from avow.errors import StorageDamaged
from avow.storage.records import (
    BLOCK_BYTES,
    HEAD,
    HEADER_BYTES,
    SEGMENT_START,
    TAIL,
    Header,
    SegmentHeader,
    WalKind,
    header_at,
    segment_header_at,
)

_SHARED: Final = HEAD[:3]  # both magics start with it, so one search finds either


class Found(NamedTuple):
    """A record. `payload` None: it does not have its checksum."""

    file: str
    offset: int
    header: Header
    payload: memoryview | None


class SegmentScan:
    """One pass over one segment. `flaws` are sealed or torn depending on `sealed_to`, a byte position."""

    def __init__(self, data: bytes, *, file: str, opening: SegmentHeader) -> None:
        self._data, self._file, self._opening = data, file, opening
        self.found: list[Found] = []
        self.flaws: list[StorageDamaged] = []
        self.sealed_to = 0
        self.synced_lsn = 0  # as the group that says most says
        self._scan()

    def __len__(self) -> int:
        return len(self._data)

    def _scan(self) -> None:
        offset: int | None = SEGMENT_START
        while offset is not None and offset < len(self._data):
            header = self._header(offset, magic=HEAD)
            if header is not None:
                offset = self._take(offset, header)
            elif (boundary := self._padding_end(offset)) > offset:
                offset = boundary
            else:
                offset = self._resume(offset)

    def _header(self, offset: int, *, magic: bytes) -> Header | None:
        """Of this use of the segment, and not longer than what is left of it."""
        header = header_at(self._data, offset, magic=magic)
        if header is None or header.epoch != self._opening.epoch or header.lsn < self._opening.first_lsn:
            return None
        start = offset if magic == HEAD else offset + HEADER_BYTES - header.size
        return header if SEGMENT_START <= start <= len(self._data) - header.size else None

    def _take(self, offset: int, header: Header) -> int:
        """Add the record that starts here. Returns where the next one does."""
        body, end = offset + HEADER_BYTES, offset + header.size
        payload = memoryview(self._data)[body : end - HEADER_BYTES]
        found = crc32c(payload)
        if found != header.crc:
            self._flaw(body, expected=f"crc {header.crc:08x} of lsn {header.lsn}", found=f"crc {found:08x}")
        tail = self._data[end - HEADER_BYTES : end]
        if self._data[offset : offset + 4] == HEAD and tail != TAIL + self._data[offset + 4 : body]:
            self._flaw(end - HEADER_BYTES, expected=f"the header of lsn {header.lsn} again", found=tail.hex())
        if header.kind == WalKind.GROUP:
            self.sealed_to = offset
            self.synced_lsn = header.lsn - 1
        else:
            whole = payload[: header.length] if found == header.crc else None
            self.found.append(Found(self._file, offset, header, whole))
        return end

    def _padding_end(self, offset: int) -> int:
        """Zeros up to the next block belong to the group. On a block's boundary there is no padding."""
        boundary = offset + -offset % BLOCK_BYTES
        return boundary if self._data.count(0, offset, boundary) == boundary - offset else offset

    def _resume(self, offset: int) -> int | None:
        """Where reading can go on behind a flaw, or None at the end of the log."""
        for place in self._candidates(offset):
            header = self._header(place, magic=HEAD)
            if header is not None:
                self._flaw(offset, expected=f"a record before lsn {header.lsn}", found=self._glimpse(offset))
                return place
            header = self._header(place, magic=TAIL)
            if header is not None and (start := place + HEADER_BYTES - header.size) >= offset:
                self._flaw(start, expected=f"the header of lsn {header.lsn}", found=self._glimpse(start))
                return self._take(start, header)
        # Nothing sound behind: a torn tail, or the end.
        return None

    def _candidates(self, offset: int) -> Iterator[int]:
        place = self._data.find(_SHARED, offset)
        while place >= 0:
            if place % 8 == 0:
                yield place
            place = self._data.find(_SHARED, place + 1)

    def _glimpse(self, offset: int) -> str:
        return self._data[offset : offset + 16].hex()

    def _flaw(self, offset: int, *, expected: str, found: str) -> None:
        self.flaws.append(StorageDamaged(file=self._file, position=offset, expected=expected, found=found))


def opening_of(data: bytes, *, file: str) -> tuple[SegmentHeader | None, list[StorageDamaged]]:
    """The opening block of a segment, from whichever copy is newer, and the flaws met.

    No header and no flaw: the segment was never used, or its first use was torn. No header and a flaw: it cannot be
    known what the segment held.
    """
    copies = [segment_header_at(data, offset) for offset in (0, BLOCK_BYTES)]
    sound = [header for header in copies if header is not None]
    newest = max(sound, key=lambda header: header.sequence, default=None)
    if newest is None and not any(data[BLOCK_BYTES:SEGMENT_START]):
        return None, []
    expected = "an opening block" if newest is None else f"the opening block of segment {newest.sequence}"
    flaws = [
        StorageDamaged(file=file, position=offset, expected=expected, found=data[offset : offset + 48].hex())
        for offset, copy in zip((0, BLOCK_BYTES), copies, strict=True)
        if copy is None or copy != newest
    ]
    return newest, flaws

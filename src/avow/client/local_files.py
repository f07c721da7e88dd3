"""Records in the files of a peer on this machine, instead of through a socket (see `wire.places`).

A file that is full is mapped: its bytes go from the kernel's cache to whoever reads the columns, and nobody copies
them. The one that is still being written is read instead. A map keeps its file alive when retention removes it.

Whether a path means the peer's file at all is not known before a record there was compared with the peer's word. Any
difference raises `NotHere`, and the reader asks the peer for bytes.
"""

from __future__ import annotations

import mmap
import os

from avow.errors import Malformed
from avow.wire.places import PlacedRange, Places
from avow.wire.ranges import Range
from avow.wire.record import HEADER_SIZE_BYTES, read_record, record_size


class NotHere(Exception):
    """The file is another one here, or gone, or not to be read by this user."""


class LocalFiles:
    """The maps of one reader. They go with the arrays over them."""

    def __init__(self) -> None:
        self._maps: dict[str, memoryview] = {}

    def ranges(self, places: Places) -> list[Range]:
        """Verified, as if they had been received. Raises NotHere."""
        wanted = {places.files[one.file][0] for one in places.ranges}
        self._maps = {path: view for path, view in self._maps.items() if path in wanted}
        try:
            return [self._range(places, one) for one in places.ranges]
        except (OSError, ValueError, Malformed) as error:
            raise NotHere(str(error)) from error

    def _range(self, places: Places, one: PlacedRange) -> Range:
        path, full = places.files[one.file]
        size = record_size(one.header)
        record = self._mapped(path)[one.at : one.at + size] if full else _read(path, size=size, at=one.at)
        if len(record) < size or record[:HEADER_SIZE_BYTES] != one.header:
            raise NotHere(f"{path} has another record at {one.at}")
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

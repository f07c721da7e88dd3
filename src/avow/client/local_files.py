"""Reads records from the files of a peer on this machine instead of through a socket (see `wire.places`).

A full file is memory-mapped: its columns are read from the kernel's page cache without a copy. The file that is still
being written is read with `pread`. A mapping stays valid when retention deletes the file.

A path may name a different file on this machine. So each record header is compared with the one the peer sent; any
difference raises `NotLocal`, and the reader requests the bytes from the peer.
"""

from __future__ import annotations

import mmap
import os

from avow.errors import Malformed
from avow.wire.places import PlacedRange, Places
from avow.wire.ranges import Range
from avow.wire.record import HEADER_SIZE_BYTES, read_record, record_size


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

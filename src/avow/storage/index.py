"""Where in a lane's file an entry starts, roughly: one point for every so many bytes.

Entries have different lengths, so finding one by its position means knowing where some earlier one starts and walking
from there. A point for each entry would cost more memory than the entries are worth; a point every 64 KiB costs 16
bytes for 64 KiB and one short read. Points are added while entries are appended and lie at the starts of appended runs.
For a file that is full they are kept in a small checked file beside it; without that (or when it is damaged) they are
found again by walking the file.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from typing import NamedTuple

from avow.storage import checked


class Point(NamedTuple):
    position: int
    offset: int


class Index:
    """Points of one file, ascending. The first is always the file's first entry, at byte 0."""

    __slots__ = ("_interval_bytes", "_offsets", "_positions", "size_bytes")

    def __init__(self, *, first: int, interval_bytes: int) -> None:
        self._interval_bytes = interval_bytes
        self.size_bytes = 0  # of the indexed file, when the index was kept
        self._positions = array("Q", [first])
        self._offsets = array("Q", [0])

    def __len__(self) -> int:
        return len(self._positions)

    def add(self, position: int, *, offset: int) -> None:
        """An entry starts here; remembered only when it is far enough behind the last point."""
        if offset - self._offsets[-1] >= self._interval_bytes:
            self._positions.append(position)
            self._offsets.append(offset)

    def before(self, position: int) -> Point:
        """The last point that is not behind `position`."""
        found = bisect_right(self._positions, position) - 1
        return Point(self._positions[found], self._offsets[found])

    def cut(self, size_bytes: int) -> None:
        """The file ends here now: forget points behind."""
        keep = max(1, bisect_left(self._offsets, size_bytes))
        del self._positions[keep:], self._offsets[keep:]

    def to_bytes(self, size_bytes: int) -> bytes:
        """`size_bytes`: of the indexed file. An index of a file that has another size by now is not used."""
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

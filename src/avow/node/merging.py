"""Merging: small writes of one lane are held until they can be appended as one record.

While an entry of a lane waits for its sync, the next entry would have to wait for the sync after that anyway. So small
writes are held until no entry waits for its sync, and are then appended as one entry that names each of them
(`wire.merge`). A single write on an idle lane is appended at once; under load the entries grow, not their number.

A held write was never appended, so if it cannot be appended any more, the answer is a refusal and not "unknown". A
write whose id is already held joins it: both requests get the same answer.

Only uncompressed sections with the same columns are held together, in the order of arrival. Before anything else is
appended to the lane, the held writes are appended.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Generic, TypeVar

from avow.limits import BATCH_COUNT_MAX, MERGEABLE_SIZE_BYTES_MAX, MERGED_SIZE_BYTES_MAX, MERGED_WRITES_MAX
from avow.node.records import Merged
from avow.wire.merge import merge_sections, mergeable_shape
from avow.wire.messages import Kind

if TYPE_CHECKING:
    from avow.node.lane.requests import Write

A = TypeVar("A")  # identifies a request that waits for an answer

UNMERGEABLE: Final = -1


def shape_of(write: Write) -> int:
    """Writes with the same shape may be held together. UNMERGEABLE: the write must be appended alone."""
    if not write.mergeable or write.kind != Kind.DATA or write.expected != -1 or not write.write_id or write.control:
        return UNMERGEABLE
    if len(write.batch) > MERGEABLE_SIZE_BYTES_MAX:
        return UNMERGEABLE
    return mergeable_shape(write.batch, count=write.count)


class Held(Generic[A]):
    """Add in the order of arrival, `take` all at once. `writes` is empty when nothing is held."""

    __slots__ = ("_count", "_shape", "_size_bytes", "writes")

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self.writes: dict[bytes, tuple[Write, list[A]]] = {}  # by write id, in order
        self._count = self._size_bytes = 0
        self._shape = UNMERGEABLE

    def join(self, write_id: bytes, asker: A) -> bool:
        """True: a write with this id is held already, and the asker will get its answer too."""
        held = self.writes.get(write_id)
        if held is None:
            return False
        held[1].append(asker)
        return True

    def has_room(self, write: Write, shape: int) -> bool:
        """Whether the write may be added; if not, the held writes must be appended first."""
        if not self.writes:
            return True
        return (
            shape == self._shape
            and self._size_bytes + len(write.batch) <= MERGED_SIZE_BYTES_MAX
            and self._count + write.count <= BATCH_COUNT_MAX
            and len(self.writes) < MERGED_WRITES_MAX
        )

    def add(self, write: Write, shape: int, asker: A) -> None:
        self.writes[write.write_id] = (write, [asker])
        self._shape = shape
        self._count += write.count
        self._size_bytes += len(write.batch)

    def askers(self) -> list[A]:
        return [asker for _, askers in self.writes.values() for asker in askers]

    def take(self) -> tuple[Merged, list[tuple[A, bytes]]]:
        """All held writes as one, and (asker, write id) for each waiting request."""
        held, count = self.writes, self._count
        self._clear()
        waiting = [(asker, write_id) for write_id, (_, askers) in held.items() for asker in askers]
        if len(held) == 1:
            (write, _) = next(iter(held.values()))
            return Merged(count, write.write_id, write.created_ms, write.batch, []), waiting
        writes, parts, first = [], [], 0
        for write_id, (write, _) in held.items():
            parts.append((write_id, write.count, write.batch))
            writes.append((write_id, first, write.count))
            first += write.count
        created_ms = max([write.created_ms for write, _ in held.values()])  # retention deletes none of them early
        return Merged(count, b"", created_ms, merge_sections(parts), writes), waiting

    def drop(self) -> list[A]:
        """Drop the held writes. Returns the requests that must be refused."""
        askers = self.askers()
        self._clear()
        return askers

"""Small writes of one lane that wait to become one record.

While an entry of a lane waits for its sync here, whatever is appended next waits for the sync after that one: nothing
is lost by appending it later, together with all that comes meanwhile. So small writes are held until the lane has
nothing under way, and then go into the log as one entry that names each of them (`wire.merge`). One that comes alone
is appended as it is, at once; under load the entries grow and their number does not.

What is held was never appended, so when it cannot be any more, the answer is a refusal and not "unknown". A write whose
id is held already joins it: both askers hear the same.

Held together are sections with the same columns, uncompressed. Order is that of arrival; whoever appends something else
to the lane lets go of what is held first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from msgspec import Struct

from avow.limits import BATCH_COUNT_MAX, MERGEABLE_SIZE_BYTES_MAX, MERGED_SIZE_BYTES_MAX, MERGED_WRITES_MAX
from avow.wire.merge import merge_sections, mergeable_shape
from avow.wire.messages import Kind

if TYPE_CHECKING:
    from avow.peer.lane import Write

A = TypeVar("A")  # who waits for an answer

UNMERGEABLE = -1


class Merged(Struct, frozen=True, gc=False):
    """What to append. `writes` is its index, (write id, offset, count) each; empty when it is a single write."""

    count: int
    write_id: bytes
    created_ms: int
    batch: bytes
    writes: list[tuple[bytes, int, int]]


def shape_of(write: Write) -> int:
    """With which others it may be held: those of the same number. UNMERGEABLE: with none."""
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
        """True: this id is held already, and the asker will hear what comes of it."""
        held = self.writes.get(write_id)
        if held is None:
            return False
        held[1].append(asker)
        return True

    def has_room(self, write: Write, shape: int) -> bool:
        """Whether it may be added; if not, what is held must go first."""
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
        """Everything held as one write, and who waits for which write id."""
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
        created_ms = max([write.created_ms for write, _ in held.values()])  # the youngest: nothing is deleted early
        return Merged(count, b"", created_ms, merge_sections(parts), writes), waiting

    def drop(self) -> list[A]:
        """Nothing of it will be appended: these must be told so."""
        askers = self.askers()
        self._clear()
        return askers

"""Reads the entries that contain a range of versions, in as few storage reads as possible.

A reader asks for versions; the index returns ranges, each inside one entry; entries at consecutive positions are read
together. An entry is returned whole, with the range of messages that was asked for; it is never decoded here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import islice, takewhile
from typing import Final, Protocol, TypeAlias

from avow.node.records import Served
from avow.queue.records import VisibleRange
from avow.replication.durable import Place
from avow.wire.messages import Entry
from avow.wire.record import record_size

RANGES_MAX: Final = 8_192  # in one answer
_RANGES_FIRST: Final = 32  # in the first lookup: a few large batches may fill the answer

PLACED_SIZE_BYTES_MIN: Final = 16 * 1024  # average size of a record from which places are returned

Entries: TypeAlias = Callable[[int, int, int], Sequence[Entry]]  # (after, max_entries, max_bytes)


class Find(Protocol):
    def __call__(self, *, after: int, upto: int) -> Sequence[Place]: ...


def read_ranges(ranges: Iterable[VisibleRange], entries: Entries, *, max_bytes: int) -> list[Served]:
    """In the order of versions; stops before `max_bytes` of batches, but not before the first entry."""
    served: list[Served] = []
    room, source, step = max_bytes, iter(ranges), _RANGES_FIRST
    while (room > 0 or not served) and len(served) < RANGES_MAX:
        wanted = list(islice(source, min(step, RANGES_MAX - len(served))))
        left = _read_runs(wanted, entries, served, room)
        if not wanted or left is None:
            break
        room, step = left, step * 4
    return served


def place_ranges(ranges: Iterable[VisibleRange], find: Find) -> list[tuple[VisibleRange, Place]]:
    """In the order of versions, up to the first whose record is not in a file. Empty if the first records are so small
    that returning their places costs as much as returning the records."""
    source = iter(ranges)
    found = _placed(list(islice(source, _RANGES_FIRST)), find)
    if sum(record_size(place.header) for _, place in found) < PLACED_SIZE_BYTES_MIN * len(found):
        return []
    return found + _placed(list(islice(source, RANGES_MAX)), find) if len(found) == _RANGES_FIRST else found


def _placed(wanted: list[VisibleRange], find: Find) -> list[tuple[VisibleRange, Place]]:
    if not wanted:
        return []
    held = {place.position: place for place in find(after=wanted[0].position - 1, upto=wanted[-1].position)}
    return [(one, held[one.position]) for one in takewhile(lambda one: one.position in held, wanted)]


def _read_runs(wanted: list[VisibleRange], entries: Entries, served: list[Served], room: int) -> int | None:
    """The remaining bytes; None: an entry did not fit, or is missing."""
    at = 0
    while at < len(wanted) and (room > 0 or not served):
        run = _run_length(wanted, at)
        first = wanted[at].position
        found = entries(first - 1, wanted[at + run - 1].position - first + 1, max(room, 1))
        held = {entry.position: entry for entry in found}
        for range_ in wanted[at : at + run]:
            entry = held.get(range_.position)
            if entry is None or (served and room - len(entry.batch) < 0):
                return None
            served.append(Served(range_.first_version, range_.offset, range_.count, entry))
            room -= len(entry.batch)
        at += run
    return room


def _run_length(ranges: Sequence[VisibleRange], at: int) -> int:
    """How many ranges from `at` on are at consecutive positions (or the same one)."""
    end = at + 1
    while end < len(ranges) and 0 <= ranges[end].position - ranges[end - 1].position <= 1:
        end += 1
    return end - at

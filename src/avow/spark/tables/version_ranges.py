"""The versions of each lane that a table holds, without reading its rows.

A row of an archive identifies its message: `topic` (the queue), `partition` (the lane), `offset` (the version). Writers
record for each lane the first version, the last one, and the number of rows between them in the table's metadata. These
ranges determine how far a queue may be trimmed: up to the first version that is missing in the archive.

Versions have no gaps, so a range is whole if it has as many rows as versions. Tasks of one batch may hold interleaved
versions of a lane (after a shuffle), so overlapping ranges are merged before this is checked. A gap ends what counts as
archived, even if later versions exist: trimming past it would lose messages that only the queue holds. The count
assumes that each version occurs once, as one query writes it. An archive that was written again under another name has
more rows than versions; its lanes count as archived only up to there.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

QUEUE: Final = "topic"
LANE: Final = "partition"
VERSION: Final = "offset"
COLUMNS: Final = (QUEUE, LANE, VERSION)
LANES: Final = (QUEUE, LANE)


class Range(msgspec.Struct, frozen=True, order=True):
    """`rows` rows of a lane with versions from `first` to `last`, both included."""

    queue: str
    lane: int
    first: int
    last: int
    rows: int

    @property
    def whole(self) -> bool:
        return self.rows == self.last - self.first + 1


def merged(ranges: Iterable[Range]) -> list[Range]:
    """Sorts ranges, merges overlapping ones, and joins adjacent ones that are whole."""
    joined: list[Range] = []
    for following in _disjoint(ranges):
        last = joined[-1] if joined else None
        if last is not None and last.whole and following.whole and _touches(last, following):
            joined[-1] = _together(last, following)
        else:
            joined.append(following)
    return joined


def archived_ends(ranges: Iterable[Range]) -> dict[tuple[str, int], int]:
    """The version of each lane up to which none is missing. A lane whose first range is not whole is left out."""
    first: dict[tuple[str, int], Range] = {}
    for each in merged(ranges):
        first.setdefault((each.queue, each.lane), each)
    return {lane: each.last for lane, each in first.items() if each.whole}


def _disjoint(ranges: Iterable[Range]) -> list[Range]:
    found: list[Range] = []
    for following in sorted(ranges):
        if found and _same_lane(found[-1], following) and following.first <= found[-1].last:
            found[-1] = _together(found[-1], following)
        else:
            found.append(following)
    return found


def _same_lane(one: Range, other: Range) -> bool:
    return (one.queue, one.lane) == (other.queue, other.lane)


def _touches(one: Range, following: Range) -> bool:
    return _same_lane(one, following) and following.first == one.last + 1


def _together(one: Range, other: Range) -> Range:
    return Range(one.queue, one.lane, one.first, max(one.last, other.last), one.rows + other.rows)

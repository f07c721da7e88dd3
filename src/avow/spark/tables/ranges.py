"""Which versions of which lanes a table holds, without reading its rows.

A row of an archive names its message: `topic` (the queue), `partition` (the lane), `offset` (the version). Whoever
writes rows notes for each lane the first version, the last, and how many rows lie between; the notes are kept with
the table's metadata. From them follows how far a queue may be trimmed: to the end of what is archived without a hole.

Versions have no gaps, so a stretch is whole if it has as many rows as versions. Tasks of one batch may hold
interleaved versions of a lane (after a shuffle), so stretches that overlap are counted together before that is asked.
A hole ends what counts as archived, although later versions may be there: trimming past it would lose what only the
queue holds. Counting supposes that a version is there once, as one query writes it: an archive that was written again
under another name has more rows than versions, and its lanes have no end from there on.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

QUEUE, LANE, VERSION = "topic", "partition", "offset"
COLUMNS = (QUEUE, LANE, VERSION)
LANES = (QUEUE, LANE)


class Range(msgspec.Struct, frozen=True, order=True):
    """`rows` rows of a lane, whose versions lie between `first` and `last`, both included."""

    queue: str
    lane: int
    first: int
    last: int
    rows: int

    @property
    def whole(self) -> bool:
        return self.rows == self.last - self.first + 1


def merged(ranges: Iterable[Range]) -> list[Range]:
    """Sorted; overlapping ones counted together; neighbours that are whole joined."""
    joined: list[Range] = []
    for following in _disjoint(ranges):
        last = joined[-1] if joined else None
        if last is not None and last.whole and following.whole and _touches(last, following):
            joined[-1] = _together(last, following)
        else:
            joined.append(following)
    return joined


def archived_ends(ranges: Iterable[Range]) -> dict[tuple[str, int], int]:
    """The last version of each lane up to which nothing is missing. A lane that begins with a hole is not named."""
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

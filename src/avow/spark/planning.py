"""Which versions a batch takes, and how they are cut into partitions. Pure.

    survey            what the peers say of each lane: first version that exists, next one that will, ended or not
    `advanced`        from a stream's progress and a survey to the furthest progress possible
    `limited`         the same, but with at most so many versions: shared in proportion to what waits
    `ranges_between`  the versions between two progresses
    `cut`             ranges into partitions (minPartitions, maxRecordsPerPartition)

Sharing: every lane that has something waiting gets at least one version, and the rest of the limit is divided in
proportion to what waits, by largest remainder, so the sum is the limit exactly. When there are more lanes than the
limit allows, they take turns; whose turn it is follows from how far all of them have come, so it needs no memory and a
restarted stream decides the same.

Progress never goes back: a peer that lags behind may name an end before a version that was read already.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import TypeAlias

from msgspec import Struct

from avow.spark.offsets import Progress

LaneId: TypeAlias = tuple[str, int]


class LaneState(Struct, frozen=True):
    """`first`: the first version that exists; `next`: the one after the last. `peers`: who holds the lane."""

    queue: str
    lane: int
    first: int
    next: int
    ended: bool = False
    peers: tuple[int, ...] = ()


class LaneRange(Struct, frozen=True):
    """Versions from `start` to before `end`."""

    queue: str
    lane: int
    start: int
    end: int

    @property
    def rows(self) -> int:
        return max(self.end - self.start, 0)

    def __str__(self) -> str:
        return f"queue {self.queue!r}, lane {self.lane}, versions {self.start} to {self.end - 1}"


class Gone(Struct, frozen=True):
    """A lane that no peer knows any more, and that was not read to its end."""

    queue: str
    lane: int
    next: int

    def __str__(self) -> str:
        return f"queue {self.queue!r}, lane {self.lane}: it is not there any more, and was read up to {self.next - 1}"


# ------------------------------------------------------------------ how far a stream may go


def advanced(start: Progress, survey: Iterable[LaneState]) -> tuple[Progress, list[Gone]]:
    """The furthest progress, and the lanes that vanished before they were read whole. Both are definite."""
    states = {(state.queue, state.lane): state for state in survey}
    gone = [
        Gone(queue, lane, version)
        for queue, lane, version in start.lanes()
        if (queue, lane) not in states and lane not in start.whole.get(queue, ())
    ]
    nexts = {key: max(start.next(*key), state.next) for key, state in states.items() if not start.over(*key)}
    return _progress(start, states, nexts), gone


def limited(start: Progress, survey: Iterable[LaneState], rows: int) -> tuple[Progress, list[Gone]]:
    """As `advanced`, with at most so many versions."""
    states = {(state.queue, state.lane): state for state in survey}
    furthest, gone = advanced(start, states.values())
    starts = {key: _start_of(start, states[key]) for key in states if not start.over(*key)}
    waiting = {key: furthest.next(*key) - at for key, at in starts.items() if furthest.next(*key) > at}
    shares = share(waiting, rows, turn=sum(starts.values()))
    nexts = {key: at + shares.get(key, 0) for key, at in starts.items()}
    return _progress(start, states, nexts), gone


def _start_of(start: Progress, state: LaneState) -> int:
    """What was trimmed is not there to be read, so it takes no part of a limit."""
    return max(start.next(state.queue, state.lane), state.first)


def waiting_rows(start: Progress, survey: Iterable[LaneState]) -> int:
    return sum(
        max(state.next - _start_of(start, state), 0) for state in survey if not start.over(state.queue, state.lane)
    )


def _progress(start: Progress, states: Mapping[LaneId, LaneState], nexts: Mapping[LaneId, int]) -> Progress:
    """Lanes that vanished are dropped and remembered by the highest of their numbers."""
    queues: dict[str, dict[int, int]] = {}
    whole: dict[str, set[int]] = {}
    forgotten = dict(start.forgotten)
    for (queue, lane), version in nexts.items():
        queues.setdefault(queue, {})[lane] = version
        if states[queue, lane].ended and version >= states[queue, lane].next:
            whole.setdefault(queue, set()).add(lane)
    for queue, lane, _ in start.lanes():
        if (queue, lane) not in states:
            forgotten[queue] = max(lane, forgotten.get(queue, lane))
    return Progress(queues, {queue: frozenset(lanes) for queue, lanes in whole.items()}, forgotten)


def share(waiting: Mapping[LaneId, int], rows: int, *, turn: int = 0) -> dict[LaneId, int]:
    """At most `rows` of what waits, for each lane its part. The sum is `rows`, or all there is."""
    lanes = sorted(waiting)
    total = sum(waiting.values())
    if total <= rows:
        return dict(waiting)
    if rows < len(lanes):
        first = turn % len(lanes)
        return dict.fromkeys((lanes[first:] + lanes[:first])[:rows], 1)
    spare, rest = rows - len(lanes), total - len(lanes)
    exact = {key: divmod(spare * (waiting[key] - 1), rest) for key in lanes}
    shares = {key: 1 + whole for key, (whole, _) in exact.items()}
    left = rows - sum(shares.values())
    for key in sorted(lanes, key=lambda key: (-exact[key][1], key))[:left]:
        shares[key] += 1
    return shares


# ------------------------------------------------------------------ ranges and partitions


def ranges_between(start: Progress, end: Progress) -> list[LaneRange]:
    """What lies between; a lane whose start is behind its end already has nothing there."""
    found = [
        LaneRange(queue, lane, start.next(queue, lane), version)
        for queue, lane, version in end.lanes()
        if not start.over(queue, lane)
    ]
    return sorted((one for one in found if one.rows), key=lambda one: (one.queue, one.lane))


def cut(
    ranges: Sequence[LaneRange], *, min_partitions: int | None = None, rows_max: int | None = None
) -> list[LaneRange]:
    """One partition for each range; more where there are to be more, or smaller ones."""
    counts = [1 if rows_max is None else -(-one.rows // rows_max) for one in ranges]
    if min_partitions is not None and sum(counts) < min_partitions:
        total = sum(one.rows for one in ranges)
        wanted = [-(-one.rows * min_partitions // total) for one in ranges]
        counts = [max(pair) for pair in zip(counts, wanted, strict=True)]
    return [piece for one, count in zip(ranges, counts, strict=True) for piece in _pieces(one, min(count, one.rows))]


def _pieces(one: LaneRange, count: int) -> list[LaneRange]:
    edges = [one.start + one.rows * number // count for number in range(count + 1)]
    return [LaneRange(one.queue, one.lane, low, high) for low, high in pairwise(edges)]


def lost_part(one: LaneRange, first: int) -> tuple[LaneRange | None, LaneRange | None]:
    """(what of a range was trimmed, what is there), when a lane begins at `first` now."""
    border = min(max(one.start, first), one.end)
    lost, there = LaneRange(one.queue, one.lane, one.start, border), LaneRange(one.queue, one.lane, border, one.end)
    return lost if lost.rows else None, there if there.rows else None

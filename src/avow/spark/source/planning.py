"""Selects the versions of a batch and splits them into partitions. Pure.

    survey            the state of each lane at the peers: first existing version, next version, ended or not
    `advanced`        the furthest progress possible, from a stream's progress and a survey
    `limited`         the same with a limit on the number of versions
    `ranges_between`  the versions between two progresses
    `cut`             ranges into partitions (minPartitions, maxRecordsPerPartition)

A limit is shared between lanes: every lane with unread versions gets at least one, and the rest is divided in
proportion to their unread versions by largest remainder, so the sum is exactly the limit. If there are more lanes than
the limit, they take turns. The turn is derived from the progress of all lanes, so it needs no state, and a restarted
stream makes the same choice.

Progress never moves back: a peer that lags behind may report an end before a version that was already read.

Retention, a trim, or the end of a pub-sub lane may remove versions before they are read. With failOnDataLoss (the
default) the read then fails with their names; without it, they are skipped and a warning is logged.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Final, TypeAlias

from msgspec import Struct

from avow.errors import Trimmed
from avow.spark.source.offsets import Progress

LOG: Final = logging.getLogger("avow.spark")


def report_loss(what: object, *, fail: bool) -> None:
    """Raises Trimmed, or logs a warning."""
    if fail:
        raise Trimmed(
            f"{what} can no longer be read: removed before this read reached it. The read failed; set the option "
            "failOnDataLoss to false to skip what is lost, or the option archive to a table that holds it"
        )
    LOG.warning("%s can no longer be read and is skipped (failOnDataLoss is false)", what)


LaneId: TypeAlias = tuple[str, int]


class LaneState(Struct, frozen=True):
    """`first`: the first version that exists; `next`: the one after the last; `peers`: those that store the lane."""

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


class VanishedLane(Struct, frozen=True):
    """A lane that no peer lists any more and that was not read to its end."""

    queue: str
    lane: int
    next: int

    def __str__(self) -> str:
        return f"queue {self.queue!r}, lane {self.lane}, versions after {self.next - 1} (the lane no longer exists)"


# ------------------------------------------------------------------ the progress of a stream


def advanced(start: Progress, survey: Iterable[LaneState]) -> tuple[Progress, list[VanishedLane]]:
    """The furthest progress possible, and the lanes that vanished before they were read to their end."""
    states = {(state.queue, state.lane): state for state in survey}
    gone = [
        VanishedLane(queue, lane, version)
        for queue, lane, version in start.lanes()
        if (queue, lane) not in states and lane not in start.whole.get(queue, ())
    ]
    nexts = {key: max(start.next(*key), state.next) for key, state in states.items() if not start.over(*key)}
    return _progress(start, states, nexts), gone


def limited(start: Progress, survey: Iterable[LaneState], rows: int) -> tuple[Progress, list[VanishedLane]]:
    """As `advanced`, with at most `rows` versions."""
    states = {(state.queue, state.lane): state for state in survey}
    furthest, gone = advanced(start, states.values())
    starts = {key: _start_of(start, states[key]) for key in states if not start.over(*key)}
    waiting = {key: furthest.next(*key) - at for key, at in starts.items() if furthest.next(*key) > at}
    shares = share(waiting, rows, turn=sum(starts.values()))
    nexts = {key: at + shares.get(key, 0) for key, at in starts.items()}
    return _progress(start, states, nexts), gone


def _start_of(start: Progress, state: LaneState) -> int:
    """Trimmed versions cannot be read, so they do not count towards a limit."""
    return max(start.next(state.queue, state.lane), state.first)


def waiting_rows(start: Progress, survey: Iterable[LaneState]) -> int:
    return sum(
        max(state.next - _start_of(start, state), 0) for state in survey if not start.over(state.queue, state.lane)
    )


def _progress(start: Progress, states: Mapping[LaneId, LaneState], nexts: Mapping[LaneId, int]) -> Progress:
    """Vanished lanes are dropped; `forgotten` stores the highest of their numbers."""
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
    """Each lane's share of at most `rows` unread versions. The sum is `rows`, or all versions if there are fewer."""
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
    """The ranges between two progresses; nothing for a lane whose start is at or after its end."""
    found = [
        LaneRange(queue, lane, start.next(queue, lane), version)
        for queue, lane, version in end.lanes()
        if not start.over(queue, lane)
    ]
    return sorted((one for one in found if one.rows), key=lambda one: (one.queue, one.lane))


def cut(
    ranges: Sequence[LaneRange], *, min_partitions: int | None = None, rows_max: int | None = None
) -> list[LaneRange]:
    """One partition per range, or several to satisfy `min_partitions` and `rows_max`."""
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
    """Split a range into (the trimmed part, the existing part) for a lane that now begins at `first`."""
    border = min(max(one.start, first), one.end)
    lost, there = LaneRange(one.queue, one.lane, one.start, border), LaneRange(one.queue, one.lane, border, one.end)
    return lost if lost.rows else None, there if there.rows else None

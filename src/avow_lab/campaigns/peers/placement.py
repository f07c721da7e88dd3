"""The version of every message at the end: one pass over each lane, then lookups by operation.

The copies of all peers are compared first; the longest copy of a lane is then taken as the lane. Consecutive codes at
consecutive versions form a run, so a batch in one piece is one run of any length, and a lane of a million messages in
batches becomes some hundred thousand tuples.

An `Effect` is what the time checks need of a run: the time from which it may have taken effect, and from which it must.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from avow_lab.campaigns.peers.findings import Anomaly, Findings
from avow_lab.campaigns.peers.history import INDEX_BITS, FinalLane, Kind, Op

_WRITES: Final = (Kind.WRITE, Kind.STREAM, Kind.STAGE)


class Run(NamedTuple):
    lane: int
    version: int  # of its first message
    code: int  # likewise
    length: int

    @property
    def last(self) -> int:
        return self.version + self.length - 1


class Effect(NamedTuple):
    first: int
    last: int
    invoked_ns: int
    ended_ns: int | None  # None: it was not acknowledged
    op: int
    session: int


class Floor:
    """The highest version that had been acknowledged before a given time."""

    def __init__(self, acknowledged: Sequence[tuple[int, int]]) -> None:
        self._times: list[int] = []
        self._highest: list[int] = []
        highest = 0
        for time_ns, version in sorted(acknowledged):
            highest = max(highest, version)
            self._times.append(time_ns)
            self._highest.append(highest)

    def before(self, time_ns: int) -> int:
        at = bisect_left(self._times, time_ns)
        return self._highest[at - 1] if at else 0


class Placement:
    """One queue at the end. The checks of writes and transactions fill `effects`, by lane."""

    def __init__(self, queue: str) -> None:
        self.queue = queue
        self.lanes: dict[int, array[int]] = {}
        self.strange: dict[int, str] = {}
        self.runs: dict[int, list[Run]] = {}  # by operation
        self.effects: dict[int, list[Effect]] = defaultdict(list)

    def floors(self) -> dict[int, Floor]:
        return {
            lane: Floor([(effect.ended_ns, effect.last) for effect in effects if effect.ended_ns is not None])
            for lane, effects in self.effects.items()
        }


def place(queue: str, final: Sequence[FinalLane], ops: Mapping[int, Op], findings: Findings) -> Placement:
    placement = Placement(queue)
    by_lane: dict[int, list[FinalLane]] = defaultdict(list)
    for copy in final:
        by_lane[copy.lane].append(copy)
        placement.strange.update(copy.strange)
    for lane, copies in sorted(by_lane.items()):
        longest = max(copies, key=lambda copy: len(copy.codes))
        placement.lanes[lane] = longest.codes
        _compare(longest, copies, findings)
        _take_runs(placement, lane, ops, findings)
    return placement


def _compare(longest: FinalLane, copies: Sequence[FinalLane], findings: Findings) -> None:
    findings.check(Anomaly.DISAGREEMENT, len(longest.codes) * (len(copies) - 1))
    for copy in copies:
        if copy.unreadable:
            what = f"peer {copy.peer} shows nothing after version {len(copy.codes)}: {copy.unreadable}"
            findings.add(Anomaly.DISAGREEMENT, copy.queue, f"lane {copy.lane}: {what}")
            continue
        if copy.codes == longest.codes:
            continue
        at = next((i for i, (a, b) in enumerate(zip(copy.codes, longest.codes, strict=False)) if a != b), -1)
        if at < 0:
            what = f"peer {copy.peer} shows {len(copy.codes)} messages, peer {longest.peer} {len(longest.codes)}"
        else:
            here, there = _name(copy.codes[at]), _name(longest.codes[at])
            what = f"version {at + 1} is {here} at peer {copy.peer} and {there} at peer {longest.peer}"
        findings.add(Anomaly.DISAGREEMENT, copy.queue, f"lane {copy.lane}: {what}")


def _name(code: int) -> str:
    return f"{code >> INDEX_BITS}.{code & ((1 << INDEX_BITS) - 1)}" if code >= 0 else "an unknown value"


def _take_runs(placement: Placement, lane: int, ops: Mapping[int, Op], findings: Findings) -> None:
    findings.check(Anomaly.PHANTOM, len(placement.lanes[lane]))
    for run in _runs(lane, placement.lanes[lane]):
        op = ops.get(run.code >> INDEX_BITS)
        where = f"lane {lane} version {run.version}"
        if run.code < 0:
            text = placement.strange.get(run.code, "")
            findings.add(Anomaly.PHANTOM, placement.queue, f"{where}: no operation wrote {text!r}")
        elif op is None or op.kind not in _WRITES or op.queue != placement.queue:
            findings.add(Anomaly.PHANTOM, placement.queue, f"{where}: {_name(run.code)} was not written to this queue")
        else:
            placement.runs.setdefault(op.number, []).append(run)


def _runs(lane: int, codes: array[int]) -> Iterator[Run]:
    start, first, following = 1, 0, None
    for version, code in enumerate(codes, 1):
        if code != following:
            if following is not None:
                yield Run(lane, start, first, version - start)
            start, first = version, code
        following = code + 1 if code >= 0 else -(1 << 62)  # two unknown values are never one run
    if following is not None:
        yield Run(lane, start, first, len(codes) + 1 - start)

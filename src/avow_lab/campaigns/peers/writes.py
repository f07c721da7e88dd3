"""The check of writes: each is where it must be, once, whole, and nowhere else. Also lookups and compare-and-append.

A write is one batch in one lane, so it is there as one run or not at all. A write with several keys is `split` into a
batch for each lane: each of those is checked alone, and a refusal says nothing about the others.

A stream is what a producer sent up to a commit, in any number of batches. When the commit is acknowledged, each message
is there once, and those of a lane are in order. If it is not, each of them is there once or not at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Final

from avow_lab.campaigns.peers.findings import Anomaly, Findings
from avow_lab.campaigns.peers.history import COUNT_MAX, Kind, Op, Outcome, Span
from avow_lab.campaigns.peers.placement import Effect, Floor, Placement, Run

_INDEX: Final = COUNT_MAX - 1


def check_writes(ops: Iterable[Op], placement: Placement, findings: Findings) -> None:
    for op in ops:
        if op.kind not in (Kind.WRITE, Kind.STREAM):
            continue
        runs = sorted(placement.runs.get(op.number, ()), key=lambda run: run.code)
        present = check_once(op, runs, placement, findings)
        if op.outcome is Outcome.REFUSED and runs and not op.split:
            findings.add(Anomaly.PHANTOM, op.queue, f"{_about(op)} was refused ({op.code}) and is at {_places(runs)}")
        if op.outcome is Outcome.DONE:
            _check_acknowledged(op, runs, present, placement, findings)
        elif runs and not op.split and op.kind is Kind.WRITE:
            _check_whole(op, runs, present, findings)
        for run in runs:
            placement.effects[run.lane].append(
                Effect(run.version, run.last, op.invoked_ns, op.ended_ns, op.number, op.session)
            )


def check_once(op: Op, runs: Sequence[Run], placement: Placement, findings: Findings) -> int:
    """Returns how many of its messages are there. `runs` are in the order of codes, so copies are adjacent."""
    findings.check(Anomaly.DUPLICATED, op.count)
    present, following = 0, -1
    for run in runs:
        if run.code < following:
            findings.add(Anomaly.DUPLICATED, placement.queue, f"{_about(op)} is at {_places(runs)}")
        if (run.code & _INDEX) + run.length > op.count:
            findings.add(Anomaly.PHANTOM, placement.queue, f"{_about(op)} has {op.count} messages; more are there")
        present += run.length
        following = max(following, run.code + run.length)
    return present


def _check_acknowledged(op: Op, runs: list[Run], present: int, placement: Placement, findings: Findings) -> None:
    findings.check(Anomaly.LOST, op.count)
    findings.check(Anomaly.REORDERED, op.count)
    if present < op.count:
        gone = f"{op.count - present} of {op.count} messages of {_about(op)}, acknowledged at {op.spans}, are not there"
        findings.add(Anomaly.LOST, op.queue, gone)
    if op.kind is Kind.WRITE:
        _check_named_places(op, runs, findings)
    in_order = sorted(runs, key=lambda run: (run.lane, run.version))
    if any(a.lane == b.lane and a.code > b.code for a, b in pairwise(in_order)):
        findings.add(Anomaly.REORDERED, placement.queue, f"{_about(op)} is out of order: {_places(in_order)}")


def _check_named_places(op: Op, runs: list[Run], findings: Findings) -> None:
    if sum(last - first + 1 for _, first, last in op.spans) != op.count:
        findings.add(
            Anomaly.REORDERED, op.queue, f"{_about(op)} has {op.count} messages and was acknowledged at {op.spans}"
        )
    if any(not _inside(run, op.spans) for run in runs):
        findings.add(
            Anomaly.REORDERED, op.queue, f"{_about(op)} was acknowledged at {op.spans} and is at {_places(runs)}"
        )


def _check_whole(op: Op, runs: list[Run], present: int, findings: Findings) -> None:
    findings.check(Anomaly.TORN)
    if len(runs) > 1 or present != op.count:
        findings.add(Anomaly.TORN, op.queue, f"of {_about(op)}, {op.count} messages, only {_places(runs)} is there")


def _inside(run: Run, spans: Iterable[Span]) -> bool:
    return any(lane == run.lane and first <= run.version and run.last <= last for lane, first, last in spans)


# ---------------------------------------------------------------------- lookups


def check_lookups(ops: Iterable[Op], placement: Placement, findings: Findings) -> None:
    for op in ops:
        if op.kind is not Kind.LOOKUP:
            continue
        runs = placement.runs.get(op.about, [])
        if op.outcome is Outcome.DONE:
            findings.check(Anomaly.LOST)
            if not runs:
                findings.add(Anomaly.LOST, op.queue, f"write {op.about} was found at {op.spans} and is not there")
            elif any(not _inside(run, op.spans) for run in runs):
                where = _places(runs)
                findings.add(Anomaly.REORDERED, op.queue, f"write {op.about}: found at {op.spans}, is at {where}")
        elif op.code == "LANE_ENDED":
            findings.check(Anomaly.PHANTOM)
            if any(run.lane == op.lane for run in runs):
                what = f"the lookup of write {op.about} said that it is not in lane {op.lane}, and it is there"
                findings.add(Anomaly.PHANTOM, op.queue, what)


# ---------------------------------------------------------------------- expected cursors


def check_expected(ops: Iterable[Op], placement: Placement, floors: Mapping[int, Floor], findings: Findings) -> None:
    winners: dict[tuple[int, int], int] = {}
    ends = {lane: {effect.last for effect in effects} | {0} for lane, effects in placement.effects.items()}
    ops = list(ops)
    for op in ops:
        if op.kind is Kind.STREAM:  # several batches that lie one after the other: the lane ended after each
            for run in placement.runs.get(op.number, ()):
                ends[run.lane].update(range(run.version, run.last))
    for op in ops:
        if op.kind is not Kind.WRITE or op.expected < 0:
            continue
        findings.check(Anomaly.EXPECTED)
        for run in placement.runs.get(op.number, ())[:1]:
            if run.version != op.expected + 1:
                what = f"{_about(op)} expected the end {op.expected} and follows version {run.version - 1}"
                findings.add(Anomaly.EXPECTED, op.queue, what)
        if op.outcome is Outcome.DONE:
            other = winners.setdefault((op.lane, op.expected), op.number)
            if other != op.number:
                what = f"writes {other} and {op.number} both won with expected {op.expected} in lane {op.lane}"
                findings.add(Anomaly.EXPECTED, op.queue, what)
        elif op.code == "NOT_EQUAL":
            floor = floors[op.lane].before(op.invoked_ns) if op.lane in floors else 0
            _check_named_end(op, floor, ends.get(op.lane, {0}), findings)


def _check_named_end(op: Op, floor: int, ends: set[int], findings: Findings) -> None:
    if op.cursor == op.expected:
        findings.add(Anomaly.EXPECTED, op.queue, f"{_about(op)} was refused although the end was {op.cursor}")
    elif op.cursor < floor:
        what = (
            f"the refusal of {_about(op)} said that lane {op.lane} ends at {op.cursor}; {floor} was acknowledged before"
        )
        findings.add(Anomaly.EXPECTED, op.queue, what)
    elif op.cursor not in ends:
        what = f"the refusal of {_about(op)} said that lane {op.lane} ends at {op.cursor}, where it never ended"
        findings.add(Anomaly.EXPECTED, op.queue, what)


def _about(op: Op) -> str:
    return f"{op.kind} {op.number} of session {op.session}"


def _places(runs: Iterable[Run]) -> str:
    return ", ".join(f"lane {run.lane} versions {run.version}-{run.last}" for run in list(runs)[:4])

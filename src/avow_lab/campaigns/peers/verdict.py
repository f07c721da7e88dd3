"""The result of a campaign as one value, which is printed, stored as JSON, and decides the exit code.

Besides violations it reports availability: for each queue the longest time without an acknowledged write and the faults
during it, and how long writes to a lane were interrupted after its coordinator was killed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final

from msgspec import Struct

from avow_lab.campaigns.peers.faults import Fault
from avow_lab.campaigns.peers.findings import Anomaly, Finding, Findings
from avow_lab.campaigns.peers.history import WRITES, Kind, Op, Outcome
from avow_lab.campaigns.peers.timeline import Band

SECOND_NS: Final = 1_000_000_000
RESUME_WINDOW_S: Final = 8


class Gap(Struct, frozen=True):
    """The longest time without an acknowledged write to a queue."""

    queue: str
    gap_s: float
    at_s: float
    during: str


class Resumed(Struct, frozen=True):
    """The time from the kill of a lane's coordinator until writes to that lane were acknowledged again."""

    what: str
    at_s: float
    after_s: float


class Verdict(Struct):
    seed: int
    peers: int
    duration_s: float
    network: str
    operations: dict[str, dict[str, int]]  # kind -> outcome -> count
    refusals: dict[str, dict[str, int]]  # queue -> code of a refused write -> count
    acknowledged: int  # messages
    checked: dict[str, int]
    violations: dict[str, int]
    findings: list[Finding]
    faults: list[Fault]
    gaps: list[Gap]
    resumed: list[Resumed]
    notes: list[str]  # what was left out, and why
    troubles: list[str]  # errors no client should see
    stuck: str = ""  # why the cluster did not become whole again
    folder: str = ""
    plot: str = ""

    @property
    def clean(self) -> bool:
        return not self.violations and not self.troubles and not self.stuck


def operations_of(ops: Iterable[Op]) -> dict[str, dict[str, int]]:
    found: dict[str, Counter[str]] = {}
    for op in ops:
        found.setdefault(str(op.kind), Counter())[str(op.outcome) or str(Outcome.UNKNOWN)] += 1
    return {kind: dict(sorted(counts.items())) for kind, counts in sorted(found.items())}


def refusals_of(ops: Iterable[Op]) -> dict[str, dict[str, int]]:
    found: dict[str, Counter[str]] = {}
    for op in ops:
        if op.outcome is Outcome.REFUSED and op.kind in WRITES:
            found.setdefault(op.queue, Counter())[op.code] += 1
    return {queue: dict(sorted(counts.items())) for queue, counts in sorted(found.items())}


def acknowledged_of(ops: Iterable[Op]) -> int:
    return sum(
        op.count if op.kind is Kind.STREAM else sum(last - first + 1 for _, first, last in op.spans)
        for op in ops
        if op.kind in WRITES and op.outcome is Outcome.DONE
    )


def counts_of(findings: Findings) -> tuple[dict[str, int], dict[str, int]]:
    """Checked, and found. The first has every name."""
    checked = {str(anomaly): findings.checked[anomaly] for anomaly in Anomaly}
    return checked, {str(anomaly): count for anomaly, count in findings.counts.items()}


# ---------------------------------------------------------------------- availability


def gaps_of(ops: Sequence[Op], faults: Sequence[Fault], *, start_ns: int, end_ns: int) -> list[Gap]:
    """Between `start_ns` and `end_ns`, when the sessions were stopped."""
    times: dict[str, list[int]] = {}
    for op in ops:
        if op.kind in WRITES:
            acknowledged = times.setdefault(op.queue, [])
            if op.outcome is Outcome.DONE and start_ns <= op.completed_ns <= end_ns:
                acknowledged.append(op.completed_ns)
    gaps = []
    for queue, found in sorted(times.items()):
        moments = [start_ns, *sorted(found), end_ns]
        longest, at = max((b - a, a) for a, b in pairwise(moments))
        during = [fault.what for fault in faults if fault.started_ns < at + longest and _until(fault) > at]
        gaps.append(Gap(queue, longest / SECOND_NS, (at - start_ns) / SECOND_NS, "; ".join(during) or "no fault"))
    return gaps


def _until(fault: Fault) -> int:
    return max(fault.recovered_ns, fault.ended_ns)


def resumed_of(ops: Sequence[Op], faults: Sequence[Fault], *, start_ns: int) -> list[Resumed]:
    found = []
    for number, fault in enumerate(faults):
        if fault.lane >= 0:
            following = [other.started_ns for other in faults[number + 1 :][:1]]
            after = pause_after(ops, fault.queue, fault.lane, fault.started_ns, until_ns=min(following, default=None))
            found.append(Resumed(fault.what, (fault.started_ns - start_ns) / SECOND_NS, after))
    return found


def pause_after(ops: Iterable[Op], queue: str, lane: int, moment_ns: int, *, until_ns: int | None = None) -> float:
    """The end of the longest pause between acknowledged writes to a lane, in seconds after a given time.

    Answers that were in flight at that time still arrive, so the first answer after it proves nothing. Pauses after
    `until_ns` have other causes.
    """
    window_ns = min(moment_ns + RESUME_WINDOW_S * SECOND_NS, until_ns or moment_ns + RESUME_WINDOW_S * SECOND_NS)
    times = sorted(
        op.completed_ns
        for op in ops
        if op.queue == queue
        and op.outcome is Outcome.DONE
        and op.kind in WRITES
        and moment_ns < op.completed_ns <= window_ns
        and any(span[0] == lane for span in op.spans)
    )
    moments = [moment_ns, *times]
    if not times:
        return float(RESUME_WINDOW_S)
    _, end = max((b - a, b) for a, b in pairwise(moments))
    return (end - moment_ns) / SECOND_NS


def bands_of(faults: Iterable[Fault], *, start_ns: int) -> list[Band]:
    return [
        Band(
            fault.kind,
            fault.what + (f" ({fault.note})" if fault.note else ""),
            (fault.started_ns - start_ns) / SECOND_NS,
            (fault.ended_ns - start_ns) / SECOND_NS,
        )
        for fault in faults
    ]

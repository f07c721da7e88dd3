"""The check of a whole history: every operation, and every lane of every queue as every peer shows it at the end.

Pure: rows in, findings out. The checks of writes and transactions run first, because they find the effects that the
time checks compare. The time checks are here: real time over all sessions, reads, and cursors.

Two writes are ordered by real time when one was acknowledged before the other was requested. One pass over a lane by
version finds every pair in the wrong order. It remembers the latest request so far: an effect that had ended before
that request comes after one that had not been requested yet.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from avow_lab.campaigns.peers.findings import Anomaly, Findings
from avow_lab.campaigns.peers.history import FinalLane, Kind, Op, Outcome, digest_of
from avow_lab.campaigns.peers.placement import Effect, Floor, Placement, place
from avow_lab.campaigns.peers.transactions import check_transactions
from avow_lab.campaigns.peers.writes import check_expected, check_lookups, check_writes


def check(ops: Sequence[Op], final: Sequence[FinalLane]) -> Findings:
    """`final` holds one entry for each lane that each peer shows; peers that were removed are left out."""
    findings = Findings()
    by_number = {op.number: op for op in ops}
    by_queue: dict[str, list[Op]] = defaultdict(list)
    copies: dict[str, list[FinalLane]] = defaultdict(list)
    for op in ops:
        by_queue[op.queue].append(op)
    for copy in final:
        copies[copy.queue].append(copy)
    for queue in sorted(by_queue.keys() | copies.keys()):
        _check_queue(queue, by_queue[queue], copies[queue], by_number, findings)
    return findings


def _check_queue(
    queue: str, ops: list[Op], copies: list[FinalLane], by_number: dict[int, Op], findings: Findings
) -> None:
    placement = place(queue, copies, by_number, findings)
    check_writes(ops, placement, findings)
    check_transactions(ops, placement, findings)
    check_lookups(ops, placement, findings)
    check_real_time(placement, findings)
    floors = placement.floors()
    check_expected(ops, placement, floors, findings)
    check_reads(ops, placement, floors, findings)
    check_cursors(ops, findings)


def check_real_time(placement: Placement, findings: Findings) -> None:
    for lane, effects in placement.effects.items():
        effects.sort()
        findings.check(Anomaly.REAL_TIME, len(effects))
        latest: Effect | None = None
        for effect in effects:
            if latest is not None and effect.ended_ns is not None and effect.ended_ns < latest.invoked_ns:
                _report_swapped(placement, lane, effect, latest, findings)
            if latest is None or effect.invoked_ns > latest.invoked_ns:
                latest = effect


def _report_swapped(placement: Placement, lane: int, before: Effect, after: Effect, findings: Findings) -> None:
    own = before.session == after.session
    what = (
        f"lane {lane}: {before.op} was acknowledged at version {before.first} before {after.op} was requested, "
        f"which is at {after.first}{' (one session)' if own else ''}"
    )
    findings.add(Anomaly.REORDERED if own else Anomaly.REAL_TIME, placement.queue, what)


# ---------------------------------------------------------------------- reads


def check_reads(ops: Iterable[Op], placement: Placement, floors: Mapping[int, Floor], findings: Findings) -> None:
    known: dict[tuple[int, int], int] = defaultdict(int)  # (session, lane): the highest version it knows of
    for op in sorted(ops, key=lambda op: op.completed_ns):
        if op.outcome is not Outcome.DONE:
            continue
        if op.kind in (Kind.WRITE, Kind.PUBLISH):
            for lane, _, last in op.spans:
                known[op.session, lane] = max(known[op.session, lane], last)
        elif op.kind is Kind.READ:
            _check_shown(op, placement, findings)
            floor = floors[op.lane].before(op.invoked_ns) if op.lane in floors else 0
            _check_recent(op, floor=floor, known=known[op.session, op.lane], findings=findings)
            if op.level != "local":
                known[op.session, op.lane] = max(known[op.session, op.lane], op.end)


def _check_shown(op: Op, placement: Placement, findings: Findings) -> None:
    codes = placement.lanes.get(op.lane)
    findings.check(Anomaly.REORDERED, max(0, op.end - op.after))
    if op.end <= op.after:
        return
    if codes is None or op.end > len(codes):
        end = 0 if codes is None else len(codes)
        findings.add(Anomaly.LOST, op.queue, f"read {op.number} saw version {op.end} of lane {op.lane}; it has {end}")
    elif digest_of(codes[op.after : op.end]) != op.digest:
        what = f"read {op.number} ({op.level}) saw other messages at versions {op.after + 1}-{op.end} of lane {op.lane}"
        findings.add(Anomaly.REORDERED, op.queue, what)


def _check_recent(op: Op, *, floor: int, known: int, findings: Findings) -> None:
    if op.cut or op.level == "local":
        return
    seen = max(op.after, op.end)
    if op.level == "linearizable":
        findings.check(Anomaly.REAL_TIME)
        if op.end < floor:
            what = f"linearizable read {op.number} of lane {op.lane} ended at {seen}; {floor} had been acknowledged"
            findings.add(Anomaly.REAL_TIME, op.queue, what)
    findings.check(Anomaly.NONMONOTONIC)
    if op.end < known:
        what = f"read {op.number} ({op.level}) of lane {op.lane} ended at {seen}; session {op.session} knew {known}"
        findings.add(Anomaly.NONMONOTONIC, op.queue, what)


# ---------------------------------------------------------------------- cursors


def check_cursors(ops: Iterable[Op], findings: Findings) -> None:
    """A cursor only moves forward, to a version that a session moved it to, and no session sees it go back."""
    by_cursor: dict[tuple[str, int], list[Op]] = defaultdict(list)
    for op in ops:
        if op.kind in (Kind.MOVE, Kind.CURSOR):
            by_cursor[op.subscriber, op.lane].append(op)
    for (name, lane), group in by_cursor.items():
        moved = [(op.completed_ns, _at(op)) for op in group if op.kind is Kind.MOVE and op.outcome is Outcome.DONE]
        floor = Floor(moved)
        asked = max((op.after for op in group if op.kind is Kind.MOVE), default=0)
        seen: dict[int, int] = {}
        for op in sorted(group, key=lambda op: op.completed_ns):
            if op.outcome is Outcome.DONE:
                least = seen.get(op.session, 0)
                if op.kind is Kind.MOVE:
                    least = max(least, floor.before(op.invoked_ns), op.after)
                _check_cursor(op, f"cursor {name} of lane {lane}", least=least, most=asked, findings=findings)
                seen[op.session] = max(least, _at(op))


def _check_cursor(op: Op, what: str, *, least: int, most: int, findings: Findings) -> None:
    findings.check(Anomaly.NONMONOTONIC)
    at = _at(op)
    if at < least:
        findings.add(Anomaly.NONMONOTONIC, op.queue, f"{what}: {op.number} saw {at}, after {least}")
    if at > most:
        findings.add(Anomaly.PHANTOM, op.queue, f"{what}: {op.number} saw {at}, and no session moved it beyond {most}")


def _at(op: Op) -> int:
    return next((version for lane, _, version in op.spans if lane == op.lane), 0)

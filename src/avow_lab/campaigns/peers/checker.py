"""The check of a whole history: every operation, and every lane of every queue as every peer shows it at the end.

Pure: rows in, findings out. The checks of writes and transactions run first, because they find the effects that the
time checks compare. The time checks are here: real time over all sessions, reads, and cursors.

Two writes are ordered by real time when one was acknowledged before the other was requested. One pass over a lane by
version finds every pair in the wrong order. It remembers the latest request so far: an effect that had ended before
that request comes after one that had not been requested yet.

A transaction is there as a whole and in one piece, or not at all. It is some staged batches and a decision. If its
publish was acknowledged, every acknowledged staged batch is there, within the acknowledged versions, in the order
staged and without gaps. If it was not published, or was discarded, none of it is there. A publish without an answer may
have happened; then all of it is there. That holds over all lanes of the transaction: if it is in one of them, every
acknowledged staged batch is there, whichever lane it was staged in. In a cluster whose level is below 2 each lane
decides alone, so each is checked alone (`one_outcome` false).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from avow_lab.campaigns.peers.findings import Anomaly, Findings
from avow_lab.campaigns.peers.history import FinalLane, Kind, Op, Outcome, digest_of
from avow_lab.campaigns.peers.placement import Effect, Floor, Placement, Run, place
from avow_lab.campaigns.peers.writes import check_expected, check_lookups, check_once, check_writes

# ---------------------------------------------------------------------- transactions


class Transaction:
    def __init__(self, number: int) -> None:
        self.number = number
        self.stages: list[Op] = []
        self.publishes: list[Op] = []
        self.discards: list[Op] = []

    @property
    def acknowledged(self) -> Op | None:
        return next((op for op in self.publishes if op.outcome is Outcome.DONE), None)

    @property
    def lanes(self) -> set[int]:
        return {op.lane for op in self.stages}

    @property
    def impossible(self) -> bool:
        """No publish can have happened."""
        if any(op.outcome is Outcome.DONE for op in self.discards):
            return True
        return all(op.outcome is Outcome.REFUSED for op in self.publishes)


def check_transactions(
    ops: Iterable[Op], placement: Placement, findings: Findings, *, one_outcome: bool = True
) -> None:
    for transaction in _by_transaction(ops):
        findings.check(Anomaly.TORN)
        by_lane: dict[int, list[Run]] = defaultdict(list)
        for op in transaction.stages:
            runs = sorted(placement.runs.get(op.number, ()), key=lambda run: run.code)
            check_once(op, runs, placement, findings)
            for run in runs:
                by_lane[run.lane].append(run)
        alone = not one_outcome and len(transaction.lanes) > 1
        if by_lane and transaction.impossible and not (alone and transaction.publishes):
            _report(placement, findings, Anomaly.PHANTOM, transaction, "was not published and is there", by_lane)
        if by_lane and not alone:
            _check_one_outcome(transaction, by_lane, placement, findings)
        _check_acknowledged(transaction, by_lane, placement, findings)
        for lane, runs in by_lane.items():
            _check_piece(transaction, lane, runs, placement, findings)


def _by_transaction(ops: Iterable[Op]) -> list[Transaction]:
    found: dict[int, Transaction] = {}
    for op in ops:
        if op.txn:
            transaction = found.setdefault(op.txn, Transaction(op.txn))
            if op.kind is Kind.STAGE:
                transaction.stages.append(op)
            elif op.kind is Kind.PUBLISH:
                transaction.publishes.append(op)
            else:
                transaction.discards.append(op)
    return list(found.values())


def _check_acknowledged(
    transaction: Transaction, by_lane: dict[int, list[Run]], placement: Placement, findings: Findings
) -> None:
    publish = transaction.acknowledged
    if publish is None:
        return
    findings.check(Anomaly.LOST, sum(op.count for op in transaction.stages if op.outcome is Outcome.DONE))
    spans = {lane: (first, last) for lane, first, last in publish.spans}
    for op in transaction.stages:
        if op.outcome is Outcome.DONE and op.number not in placement.runs:
            _report(placement, findings, Anomaly.LOST, transaction, f"was published without batch {op.number}", by_lane)
    for lane, runs in by_lane.items():
        first, last = spans.get(lane, (0, -1))
        if (min(run.version for run in runs), max(run.last for run in runs)) != (first, last):
            what = f"was acknowledged at versions {first}-{last} of lane {lane} and is elsewhere"
            _report(placement, findings, Anomaly.REORDERED, transaction, what, by_lane)


def _check_one_outcome(
    transaction: Transaction, by_lane: dict[int, list[Run]], placement: Placement, findings: Findings
) -> None:
    missing = {
        op.lane
        for op in transaction.stages
        if op.outcome is Outcome.DONE and op.number not in placement.runs and op.lane not in by_lane
    }
    if missing:
        what = f"is there, and is not in lanes {sorted(missing)}"
        _report(placement, findings, Anomaly.TORN, transaction, what, by_lane)


def _check_piece(
    transaction: Transaction, lane: int, runs: list[Run], placement: Placement, findings: Findings
) -> None:
    """In one lane: every acknowledged batch is there, whole, in the order staged, without a gap."""
    stages = [op for op in transaction.stages if op.lane == lane]
    missing = [op.number for op in stages if op.outcome is Outcome.DONE and op.number not in placement.runs]
    whole = sum(op.count for op in stages if op.number in placement.runs)
    in_order = sorted(runs, key=lambda run: run.version)
    gaps = any(a.last + 1 != b.version for a, b in pairwise(in_order))
    swapped = any(a.code > b.code for a, b in pairwise(in_order))
    if missing or gaps or swapped or sum(run.length for run in runs) != whole:
        _report(placement, findings, Anomaly.TORN, transaction, f"is in pieces in lane {lane}", {lane: in_order})
    if transaction.publishes:
        done = transaction.acknowledged
        asked = transaction.publishes[0]
        first, last = in_order[0].version, in_order[-1].last
        placement.effects[lane].append(
            Effect(first, last, asked.invoked_ns, done.completed_ns if done else None, asked.number, asked.session)
        )


def _report(
    placement: Placement,
    findings: Findings,
    anomaly: Anomaly,
    transaction: Transaction,
    what: str,
    by_lane: dict[int, list[Run]],
) -> None:
    where = [(run.lane, run.version, run.last) for runs in by_lane.values() for run in runs][:6]
    decisions = [f"{op.kind}: {op.outcome or 'open'} {op.code}".strip() for op in transaction.publishes]
    decisions += [f"{op.kind}: {op.outcome or 'open'} {op.code}".strip() for op in transaction.discards]
    findings.add(anomaly, placement.queue, f"transaction {transaction.number} ({'; '.join(decisions)}) {what}: {where}")


# ---------------------------------------------------------------------- the whole history


def check(ops: Sequence[Op], final: Sequence[FinalLane], *, one_outcome: bool = True) -> Findings:
    """`final` holds one entry for each lane that each peer shows; peers that were removed are left out. `one_outcome`:
    a transaction over several lanes has one outcome."""
    findings = Findings()
    by_number = {op.number: op for op in ops}
    by_queue: dict[str, list[Op]] = defaultdict(list)
    copies: dict[str, list[FinalLane]] = defaultdict(list)
    for op in ops:
        by_queue[op.queue].append(op)
    for copy in final:
        copies[copy.queue].append(copy)
    for queue in sorted(by_queue.keys() | copies.keys()):
        _check_queue(queue, by_queue[queue], copies[queue], by_number, findings, one_outcome=one_outcome)
    return findings


def _check_queue(
    queue: str,
    ops: list[Op],
    copies: list[FinalLane],
    by_number: dict[int, Op],
    findings: Findings,
    *,
    one_outcome: bool,
) -> None:
    placement = place(queue, copies, by_number, findings)
    check_writes(ops, placement, findings)
    check_transactions(ops, placement, findings, one_outcome=one_outcome)
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

"""The check of transactions: each is there as a whole and in one piece, or not at all.

A transaction is some staged batches and a decision. If its publish was acknowledged, every acknowledged staged batch is
there, within the acknowledged versions, in the order staged and without gaps. If it was not published, or was
discarded, none of it is there. A publish without an answer may have happened; then all of it is there. Each lane
decides alone, so an unanswered or refused publish of several lanes may have reached some of them: each lane is checked
alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from itertools import pairwise

from avow_lab.campaigns.peers.findings import Anomaly, Findings
from avow_lab.campaigns.peers.history import Kind, Op, Outcome
from avow_lab.campaigns.peers.placement import Effect, Placement, Run
from avow_lab.campaigns.peers.writes import check_once


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
        if len(self.lanes) > 1:
            return not self.publishes
        return all(op.outcome is Outcome.REFUSED for op in self.publishes)


def check_transactions(ops: Iterable[Op], placement: Placement, findings: Findings) -> None:
    for transaction in _by_transaction(ops):
        findings.check(Anomaly.TORN)
        by_lane: dict[int, list[Run]] = defaultdict(list)
        for op in transaction.stages:
            runs = sorted(placement.runs.get(op.number, ()), key=lambda run: run.code)
            check_once(op, runs, placement, findings)
            for run in runs:
                by_lane[run.lane].append(run)
        if by_lane and transaction.impossible:
            _report(placement, findings, Anomaly.PHANTOM, transaction, "was not published and is there", by_lane)
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

"""The verdict on a whole history: every operation, and every lane of every queue as every peer shows it at the end.

Pure: rows in, findings out. Each check is a module of its own; this one says in which order they run, because the
checks of writes and transactions find the effects that the time checks then compare.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from avow.testing.prove.findings import Findings
from avow.testing.prove.history import FinalLane, Op
from avow.testing.prove.order import check_cursors, check_reads, check_real_time
from avow.testing.prove.placement import place
from avow.testing.prove.transactions import check_transactions
from avow.testing.prove.writes import check_expected, check_lookups, check_writes


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

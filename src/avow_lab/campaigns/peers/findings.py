"""The violations that a history can have, by name, and those that were found.

    lost            acknowledged, or shown to a reader, and not there at the end
    duplicated      one message in two places
    phantom         a message that was not sent, or of a refused write, or of a transaction that was not published
    reordered       not at the version that was acknowledged or read; or a session's own awaited writes swapped
    expected        a compare-and-append that does not directly follow, two winners, or a refusal that names a wrong end
    real time       a write requested after another was acknowledged comes before it, or a linearizable read misses it
    nonmonotonic    a session's at_least read, or a subscriber's cursor, went back
    torn            a batch or a transaction is there in part, or not in one piece
    disagreement    two peers show different lanes at the end

`checked` counts how many times each could have been found, so that a clean verdict says how much was checked.
"""

from __future__ import annotations

from collections import Counter
from enum import StrEnum
from typing import Final

from msgspec import Struct

KEPT_MAX: Final = 50  # of each name; all are counted


class Anomaly(StrEnum):
    LOST = "lost"
    DUPLICATED = "duplicated"
    PHANTOM = "phantom"
    REORDERED = "reordered"
    EXPECTED = "expected"
    REAL_TIME = "real time"
    NONMONOTONIC = "nonmonotonic"
    TORN = "torn"
    DISAGREEMENT = "disagreement"


class Finding(Struct, frozen=True):
    anomaly: Anomaly
    queue: str
    what: str


class Findings:
    def __init__(self) -> None:
        self.checked: Counter[Anomaly] = Counter()
        self.counts: Counter[Anomaly] = Counter()
        self.kept: list[Finding] = []

    def check(self, anomaly: Anomaly, count: int = 1) -> None:
        self.checked[anomaly] += count

    def add(self, anomaly: Anomaly, queue: str, what: str) -> None:
        self.counts[anomaly] += 1
        if self.counts[anomaly] <= KEPT_MAX:
            self.kept.append(Finding(anomaly, queue, what))

    @property
    def clean(self) -> bool:
        return not self.counts

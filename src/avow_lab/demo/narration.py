"""The demo's events and its verdict: values for the screen, for plain lines and for JSON.

The text of an Event is made once, so that a terminal, a pipe and a program get the same. A verdict is clean only if
orders, messages and rows are equal, both in the audit, id by id, and in the counts of database, peers and table.
"""

from __future__ import annotations

from typing import Any, Final, Literal, TypeAlias

from msgspec import Struct

from avow.spark.pipelines.audit_report import Report
from avow_lab.demo.chain import Decided, Sample

Act: TypeAlias = Literal["starting", "orders", "peer", "shop", "draining", "audit", "next"]
ACTS: Final[tuple[Act, ...]] = Act.__args__  # type: ignore[attr-defined]
TITLES: Final[dict[Act, str]] = {
    "starting": "starting peers, shop and Spark",
    "orders": "orders flow",
    "peer": "kill -9 of a coordinator",
    "shop": "kill -9 of the shop",
    "draining": "no more orders, all are delivered",
    "audit": "the audit compares all stages",
    "next": "where to look next",
}


def plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


class Event(Struct, frozen=True):
    """`values` are the numbers of the text, for programs."""

    at_s: float
    act: Act
    event: str
    text: str
    values: dict[str, Any] = {}


class Takeover(Struct, frozen=True):
    """`known_s`: the time until every lane had a running coordinator. `longest_s`: the longest wait of a customer for
    an answer meanwhile; `usual_s`: the median before."""

    peer: int
    pid: int
    lanes: int
    successors: tuple[int, ...]
    known_s: float
    longest_s: float
    usual_s: float


class Verdict(Struct, kw_only=True):
    """`counted`: by database, peers and table themselves, independent of the audit."""

    seed: int
    duration_s: float
    counted: Sample
    report: Report
    told_committed: int
    told_rolled_back: int
    repeated: int
    takeover: Takeover | None = None
    decided: Decided | None = None
    misreported: list[str] = []
    stuck: str = ""
    planted: str = ""
    folder: str = ""

    @property
    def audited(self) -> tuple[int, int, int]:
        """Orders, messages, rows."""
        rows = self.report.rows
        return rows("business") or 0, rows("queue") or 0, rows("table") or 0

    @property
    def clean(self) -> bool:
        counted = (self.counted.committed, self.counted.messages, self.counted.rows)
        agreed = len({*self.audited, *counted}) == 1 and self.counted.committed > 0
        return agreed and self.report.clean and not self.misreported and not self.stuck

    @property
    def wrong(self) -> list[str]:
        """A line for each problem."""
        found = [f"{one.kind}: {one.count:,} {one.what} ({', '.join(one.ids[:5])})" for one in self.report.findings]
        found += [f"misreported: {text}" for text in self.misreported]
        found += [f"not delivered: {self.stuck}"] if self.stuck else []
        if not self.clean and not found:
            found.append(f"the audit counted {self.audited}, and the stages counted {self.counted}")
        return found

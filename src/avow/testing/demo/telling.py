"""What the demo tells while it runs, and its verdict: values for a screen, for lines and for JSON.

An Event is something that happened; its text is made here, once, so that a person on a terminal, a pipe and a program
are told the same. A verdict is good only if three counts agree twice: as the audit found them, id by id, and as the
database, the peers and the table count themselves.
"""

from __future__ import annotations

from typing import Any, Final, Literal, TypeAlias

from msgspec import Struct

from avow.spark.pipelines.audit_report import Report
from avow.testing.demo.chain import Decided, Look

Act: TypeAlias = Literal["starting", "orders", "peer", "shop", "draining", "books", "next"]
ACTS: Final[tuple[Act, ...]] = Act.__args__  # type: ignore[attr-defined]
TITLES: Final[dict[Act, str]] = {
    "starting": "starting peers, shop and Spark",
    "orders": "orders flow",
    "peer": "kill -9 of a coordinator",
    "shop": "kill -9 of the shop",
    "draining": "no more orders, all of it arrives",
    "books": "the audit closes the books",
    "next": "where to look next",
}


def plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


class Event(Struct, frozen=True):
    """`values` are the figures of the text, for programs."""

    at_s: float
    act: Act
    event: str
    text: str
    values: dict[str, Any] = {}


class Takeover(Struct, frozen=True):
    """`known_s`: until every lane had a coordinator that runs. `longest_s`: what a customer waited at most for an
    answer meanwhile; `usual_s`: the median before."""

    peer: int
    pid: int
    lanes: int
    successors: tuple[int, ...]
    known_s: float
    longest_s: float
    usual_s: float


class Verdict(Struct, kw_only=True):
    """`counted`: by the stages themselves, beside what the audit found in them."""

    seed: int
    duration_s: float
    counted: Look
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
        """A line for each thing that is; empty when it is clean."""
        found = [f"{one.kind}: {one.count:,} {one.what} ({', '.join(one.ids[:5])})" for one in self.report.findings]
        found += [f"misreported: {text}" for text in self.misreported]
        found += [f"not delivered: {self.stuck}"] if self.stuck else []
        if not self.clean and not found:
            found.append(f"the audit counted {self.audited}, and the stages themselves {self.counted}")
        return found

"""The report of an audit: as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from msgspec import Struct

from avow.spark.pipelines.audit_rules import KINDS, Kind, Stage

_TITLES: Final[dict[Kind, str]] = {
    "lost": "lost",
    "doubled": "doubled",
    "orphaned": "orphaned",
    "undecided": "undecided (repeat the audit when these are finished)",
}


class StageCount(Struct, frozen=True):
    """`rows` counts repeated ids, `ids` counts each id once."""

    stage: Stage
    what: str
    rows: int
    ids: int


class Finding(Struct, frozen=True):
    """`ids`: the first of `count` ids, sorted."""

    kind: Kind
    stage: Stage
    what: str
    count: int
    ids: tuple[str, ...]


class Report(Struct, frozen=True):
    name: str
    stages: tuple[StageCount, ...]
    statuses: dict[str, int]  # of pledges
    findings: tuple[Finding, ...]
    duration_s: float = 0.0

    @property
    def clean(self) -> bool:
        return not self.findings

    @property
    def exit_code(self) -> int:
        return 0 if self.clean else 1

    def count(self, kind: Kind) -> int:
        return sum(finding.count for finding in self.findings if finding.kind == kind)

    def rows(self, stage: Stage) -> int | None:
        return next((count.rows for count in self.stages if count.stage == stage), None)

    def text(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        width = max(len(count.what) for count in self.stages)
        yield f"audit {self.name}"
        yield f"  {'stage':10}{'what':{width}}  {'rows':>12}  {'ids':>12}"
        for one in self.stages:
            yield f"  {one.stage:10}{one.what:{width}}  {one.rows:12,}  {one.ids:12,}"
        if self.statuses:
            yield "  pledges: " + ", ".join(f"{status} {count:,}" for status, count in sorted(self.statuses.items()))
        for finding in self.findings:
            yield f"{_TITLES[finding.kind]}: {finding.count:,} {finding.what}"
            yield from (f"    {text}" for text in finding.ids)
            if finding.count > len(finding.ids):
                yield f"    and {finding.count - len(finding.ids):,} more"
        yield self.verdict

    @property
    def verdict(self) -> str:
        if self.clean:
            return "The audit is clean: nothing is lost, doubled, orphaned or undecided."
        counts = ", ".join(f"{self.count(kind):,} {kind}" for kind in KINDS if self.count(kind))
        return f"The audit is not clean: {counts}."

"""What a run found, as JSON, as a table in the terminal, and as a region of docs/benchmarks.md.

Everything between the two marks of the document is written by the run; the prose around it by people. A figure is a
median with the range of its rounds in brackets.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec
from rich.console import Console
from rich.table import Table

from benchmarks.rivals.avow_alone import Alone
from benchmarks.rivals.targets import Target
from benchmarks.rivals.work import MESSAGE_BYTES, WORKS, Figures, Sample, Spread

BEGIN: Final = "<!-- figures: written by `python -m benchmarks against` -->"
END: Final = "<!-- end of figures -->"


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    processor: str
    cores: int
    memory_gib: int
    kernel: str
    python: str
    load_before: float
    load_after: float


class Contender(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    version: str
    durability: str
    client: str
    notes: str = ""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    command: str
    date: str
    rounds: int
    seconds: float
    machine: Machine
    contenders: list[Contender]
    missing: dict[str, str]
    samples: dict[str, dict[str, dict[int, Sample]]]
    figures: dict[str, dict[str, Figures]]
    alone: Alone | None
    targets: list[Target]

    @property
    def reached(self) -> int:
        return sum(target.reached is True for target in self.targets)


def figure(value: float) -> str:
    """Three digits that matter, thousands apart."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def spread(of: Spread, *, scale: float = 1.0) -> str:
    return f"{figure(of.median * scale)} ({figure(of.low * scale)} to {figure(of.high * scale)})"


def busy(figures: Figures, cores: int) -> str:
    """The share of all processor time that clients and servers used, from medians: whether the machine was full."""
    each_us = figures.server_cpu_us.median + figures.client_cpu_us.median
    return f"{min(1.0, figures.per_s.median * each_us / 1e6 / cores):.0%}"


def _rows(report: Report, work: str) -> list[list[str]]:
    by_system = report.figures.get(work, {})
    ours = by_system.get("Avow")
    rows = []
    for name, figures in by_system.items():
        ratio = "" if ours is None or name == "Avow" else f"{ours.per_s.median / figures.per_s.median:.2f}"
        rows.append(
            [
                name,
                spread(figures.per_s),
                spread(figures.p50_us, scale=1e-3),
                spread(figures.server_cpu_us),
                figure(figures.client_cpu_us.median),
                busy(figures, report.machine.cores),
                ratio,
            ]
        )
    return rows


_COLUMNS: Final = ("system", "messages/s", "p50 ms", "server CPU µs/message", "client", "busy", "Avow : it")


def print_report(report: Report, console: Console) -> None:
    for work in WORKS:
        if work.name not in report.figures:
            continue
        table = Table(title=f"{work.title}, {MESSAGE_BYTES} B", title_justify="left")
        for number, column in enumerate(_COLUMNS):
            table.add_column(column, justify="left" if number == 0 else "right")
        for row in _rows(report, work.name):
            table.add_row(*row)
        console.print(table)
    console.print(_target_table(report.targets))
    for name, reason in report.missing.items():
        console.print(f"not measured: {name}: {reason}", markup=False)


def _target_table(targets: list[Target]) -> Table:
    table = Table(title="targets", title_justify="left")
    for column in ("target", "wanted", "measured", ""):
        table.add_column(column)
    for target in targets:
        table.add_row(target.text, wanted(target), measured(target), verdict(target))
    return table


def wanted(target: Target) -> str:
    return f"{'at least' if target.at_least else 'at most'} {figure(target.limit)}"


def measured(target: Target) -> str:
    return spread(target.figure) if target.figure is not None else "not measured"


def verdict(target: Target) -> str:
    return {True: "reached", False: "NOT reached", None: "-"}[target.reached]


def write_document(report: Report, path: Path) -> None:
    """Replace the region between the marks; a document without them is refused."""
    text = path.read_text()
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{path} has no region between {BEGIN} and {END}; the figures are in the JSON file only")
    path.write_text(f"{before}{BEGIN}\n\n{as_markdown(report)}\n{END}{after}")


def as_markdown(report: Report) -> str:
    parts = [
        _about(report),
        "![throughput, latency and server processor time of each system](benchmarks.png)\n",
        "### Targets\n",
        _markdown(
            ("target", "wanted", "measured", ""),
            [[each.text, wanted(each), measured(each), verdict(each)] for each in report.targets],
        ),
        *(_work_section(report, work.name, work.title) for work in WORKS if work.name in report.figures),
    ]
    if report.alone is not None:
        parts.append(_alone_section(report.alone))
    parts.append(_systems_section(report))
    return "\n".join(parts)


def _about(report: Report) -> str:
    machine = report.machine
    return (
        f"`{report.command}` on {report.date}: {report.rounds} rounds of {report.seconds:g} s, {MESSAGE_BYTES} B "
        f"messages. {machine.processor}, {machine.cores} cores, {machine.memory_gib} GiB, Linux {machine.kernel}, "
        f"Python {machine.python}; load before {machine.load_before:.1f}, after {machine.load_after:.1f}.\n"
    )


def _work_section(report: Report, work: str, title: str) -> str:
    return f"### {title}\n\n" + _markdown(_COLUMNS, _rows(report, work))


def _alone_section(alone: Alone) -> str:
    rows = [
        ["reading into Arrow, messages/s of one client core", spread(alone.read_per_core_s)],
        ["reading into Arrow, messages/s by the clock", spread(alone.read_per_s)],
        ["send_many(1,000) x 4 to a fresh queue, messages/s", spread(alone.empty_per_s)],
        [f"the same behind {alone.backlog_messages:,} messages", spread(alone.behind_per_s)],
        ["with backlog : fresh, round by round", spread(alone.ratio)],
        ["memory of each peer afterwards, MiB", ", ".join(map(figure, alone.peer_rss_mib))],
    ]
    return "### Avow alone\n\n" + _markdown(("", "measured"), rows)


def _systems_section(report: Report) -> str:
    rows = [[each.name, each.version, each.durability, each.client, each.notes] for each in report.contenders]
    missing = "".join(f"\nNot measured: {name}: {reason}\n" for name, reason in report.missing.items())
    return "### Systems\n\n" + _markdown(("system", "version", "acknowledged means", "client", "notes"), rows) + missing


def _markdown(columns: tuple[str, ...], rows: list[list[str]]) -> str:
    lines = [columns, tuple("---" for _ in columns), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)

"""The run as one picture: throughput, latency and processor time of each system, work by work."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from benchmarks.rivals.report import Report
from benchmarks.rivals.work import MESSAGE_BYTES, WORKS, Figures, Spread

_COLORS: Final = {
    "Avow": "#1b6ca8",
    "NATS sync": "#2e8b57",
    "NATS default": "#9fd3b4",
    "RabbitMQ": "#e07b39",
    "Redis": "#b03a48",
}
_PANELS: Final[tuple[tuple[str, Callable[[Figures], Spread], float], ...]] = (
    ("messages/s (higher is better)", lambda figures: figures.per_s, 1.0),
    ("p50, ms (lower is better)", lambda figures: figures.p50_us, 1e-3),
    ("server CPU, µs per message (lower is better)", lambda figures: figures.server_cpu_us, 1.0),
)


def draw(report: Report, path: Path) -> None:
    """Bars are medians, whiskers the range of the rounds; scales are logarithmic."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    works = [work for work in WORKS if work.name in report.figures]
    panels, axes = plt.subplots(len(_PANELS), 1, figsize=(10, 11), constrained_layout=True)
    for axis, (label, pick, scale) in zip(axes, _PANELS, strict=True):
        _draw_panel(axis, report, [work.name for work in works], pick, scale)
        axis.set_yscale("log")
        axis.set_ylabel(label)
        axis.set_xticks(range(len(works)), [work.title.replace(", ", ",\n") for work in works], fontsize=8)
        axis.grid(axis="y", alpha=0.3)
    axes[0].legend(fontsize=8, ncols=len(_COLORS), loc="upper center", bbox_to_anchor=(0.5, 1.15))
    panels.suptitle(f"Three nodes each, {MESSAGE_BYTES} B messages, {report.rounds} interleaved rounds, {report.date}")
    panels.savefig(path, dpi=110)
    plt.close(panels)


def _draw_panel(axis: Any, report: Report, works: list[str], pick: Callable[[Figures], Spread], scale: float) -> None:
    names = [name for name in _COLORS if any(name in report.figures[work] for work in works)]
    width = 0.8 / max(1, len(names))
    for place, name in enumerate(names):
        at = [number for number, work in enumerate(works) if name in report.figures[work]]
        spreads = [pick(report.figures[works[number]][name]) for number in at]
        axis.bar(
            [number - 0.4 + width * (place + 0.5) for number in at],
            [each.median * scale for each in spreads],
            width,
            label=name,
            color=_COLORS[name],
            yerr=[
                [(each.median - each.low) * scale for each in spreads],
                [(each.high - each.median) * scale for each in spreads],
            ],
            ecolor="#333333",
            error_kw={"elinewidth": 0.8},
        )

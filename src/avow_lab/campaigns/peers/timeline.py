"""A plot of a campaign: acknowledged, refused and unknown operations each second, and the faults.

`Timeline` has the numbers. `draw_html` makes a self-contained file (inline SVG), `draw_png` the same with matplotlib.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Final

from msgspec import Struct

from avow.errors import NotInstalled
from avow_lab.campaigns.peers.history import WRITES, Op, Outcome

WIDTH, LANE_HEIGHT, LEFT, TOP = 1100, 130, 70, 30
COLOURS: Final = ("#1b6ca8", "#2e8b57", "#b8651b", "#7a4fa3", "#444444")
FAULT_COLOURS: Final = {
    "kill": "#d9534f",
    "restart": "#e8a33d",
    "pause": "#8e7cc3",
    "partition": "#5b9bd5",
    "slow": "#9fc5e8",
    "filled": "#93c47d",
    "damage": "#c27ba0",
    "add": "#76a5af",
    "remove": "#a2845e",
}


class Band(Struct, frozen=True):
    """A fault, in seconds since the campaign began."""

    kind: str
    what: str
    from_s: float
    to_s: float


class Timeline(Struct):
    """A bucket for each second. `acknowledged` counts messages by queue; the others count operations.

    NOT_EQUAL, the answer to an outdated expected cursor, is not counted as refused.
    """

    seconds: int
    acknowledged: dict[str, list[int]]
    refused: list[int]
    unknown: list[int]
    bands: list[Band]


def timeline_of(ops: Iterable[Op], bands: Sequence[Band], *, start_ns: int, end_ns: int) -> Timeline:
    seconds = max(1, -(-(end_ns - start_ns) // 1_000_000_000))
    acknowledged: dict[str, Counter[int]] = {}
    refused: Counter[int] = Counter()
    unknown: Counter[int] = Counter()
    for op in ops:
        at = min(seconds - 1, max(0, (op.completed_ns - start_ns) // 1_000_000_000))
        if op.outcome is Outcome.REFUSED and op.code != "NOT_EQUAL":
            refused[at] += 1
        elif op.outcome is Outcome.UNKNOWN:
            unknown[at] += 1
        elif op.outcome is Outcome.DONE and op.kind in WRITES:
            by_second = acknowledged.setdefault(op.queue, Counter())
            by_second[at] += sum(last - first + 1 for _, first, last in op.spans)
    return Timeline(
        seconds,
        {queue: _row(found, seconds) for queue, found in sorted(acknowledged.items())},
        _row(refused, seconds),
        _row(unknown, seconds),
        list(bands),
    )


def _row(found: Counter[int], seconds: int) -> list[int]:
    return [found[second] for second in range(seconds)]


# ---------------------------------------------------------------------- HTML


def draw_html(timeline: Timeline, *, title: str, verdict: str) -> str:
    rows = [(f"{queue}: messages acknowledged per second", row) for queue, row in timeline.acknowledged.items()]
    rows += [
        ("operations refused per second (without NOT_EQUAL)", timeline.refused),
        ("outcome unknown per second", timeline.unknown),
    ]
    height = TOP + len(rows) * LANE_HEIGHT + 40
    parts = [_bands(timeline, height - 40)]
    for index, (name, row) in enumerate(rows):
        colour = COLOURS[index % len(COLOURS)] if index < len(timeline.acknowledged) else "#c0392b"
        parts.append(_curve(name, row, timeline.seconds, top=TOP + index * LANE_HEIGHT, colour=colour))
    parts.append(_axis(timeline.seconds, height - 40))
    svg = "\n".join(parts)
    return _PAGE.format(
        title=escape(title), verdict=escape(verdict), width=WIDTH, height=height, svg=svg, legend=_legend(timeline)
    )


_PAGE: Final = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<style>body{{font:14px system-ui,sans-serif;margin:24px;color:#222}}svg{{background:#fff;border:1px solid #ddd}}
text{{font:11px system-ui,sans-serif;fill:#444}}.legend span{{display:inline-block;margin-right:14px}}
.legend i{{display:inline-block;width:12px;height:12px;margin-right:4px;opacity:.55}}
pre{{background:#f6f6f6;padding:12px}}</style></head><body><h1>{title}</h1>
<div class="legend">{legend}</div>
<svg viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" aria-label="{title}">
{svg}
</svg><pre>{verdict}</pre></body></html>
"""


def _x(second: float, seconds: int) -> float:
    return LEFT + second * (WIDTH - LEFT - 20) / seconds


def _bands(timeline: Timeline, bottom: int) -> str:
    shapes = []
    for band in timeline.bands:
        left, right = _x(band.from_s, timeline.seconds), _x(min(band.to_s, timeline.seconds), timeline.seconds)
        shapes.append(
            f'<rect x="{left:.1f}" y="{TOP}" width="{max(2.0, right - left):.1f}" height="{bottom - TOP}" '
            f'fill="{_colour(band.kind)}" opacity="0.3"><title>{escape(band.what)} '
            f"({band.from_s:.1f} to {band.to_s:.1f} s)</title></rect>"
        )
    return "\n".join(shapes)


def _colour(kind: str) -> str:
    return FAULT_COLOURS.get(kind.split(" ")[0], "#999999")


def _curve(name: str, row: Sequence[int], seconds: int, *, top: int, colour: str) -> str:
    most = max([*row, 1])
    base, room = top + LANE_HEIGHT - 18, LANE_HEIGHT - 36
    points = []
    for second, value in enumerate(row):
        y = base - value * room / most
        points.append(f"{_x(second, seconds):.1f},{y:.1f} {_x(second + 1, seconds):.1f},{y:.1f}")
    return (
        f'<text x="{LEFT}" y="{top + 12}">{escape(name)} (most {most:,})</text>'
        f'<line x1="{LEFT}" y1="{base}" x2="{WIDTH - 20}" y2="{base}" stroke="#ccc"/>'
        f'<text x="{LEFT - 8}" y="{base}" text-anchor="end">0</text>'
        f'<text x="{LEFT - 8}" y="{base - room + 8}" text-anchor="end">{most:,}</text>'
        f'<polyline points="{" ".join(points)}" fill="none" stroke="{colour}" stroke-width="1.5"/>'
    )


def _axis(seconds: int, y: int) -> str:
    step = max(1, next((step for step in (5, 10, 30, 60, 300, 600) if seconds / step <= 20), 3600))
    marks = [
        f'<text x="{_x(at, seconds):.1f}" y="{y + 16}" text-anchor="middle">{at} s</text>'
        for at in range(0, seconds + 1, step)
    ]
    return "\n".join(marks)


def _legend(timeline: Timeline) -> str:
    kinds = sorted({band.kind.split(" ")[0] for band in timeline.bands})
    return "".join(f'<span><i style="background:{_colour(kind)}"></i>{escape(kind)}</span>' for kind in kinds)


# ---------------------------------------------------------------------- PNG


def draw_png(timeline: Timeline, path: Path, *, title: str) -> None:
    """Raises NotInstalled without matplotlib."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
        from matplotlib.patches import Patch
    except ImportError:
        raise NotInstalled("a PNG plot (an HTML plot needs nothing)", extra="plot") from None
    rows = [*timeline.acknowledged.items(), ("refused", timeline.refused), ("unknown", timeline.unknown)]
    figure = Figure(figsize=(14, 2.0 * len(rows)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(len(rows), 1, sharex=True, squeeze=False)[:, 0]
    for axis, (name, row) in zip(axes, rows, strict=True):
        axis.step(range(timeline.seconds), row, where="post", linewidth=1)
        axis.set_ylabel(f"{name}/s")
        axis.set_ylim(bottom=0)
        for band in timeline.bands:
            axis.axvspan(
                band.from_s, max(band.to_s, band.from_s + 0.1), color=_colour(band.kind), alpha=0.3, linewidth=0
            )
    kinds = sorted({band.kind.split(" ")[0] for band in timeline.bands})
    figure.legend(
        handles=[Patch(color=_colour(kind), alpha=0.3, label=kind) for kind in kinds], loc="outside right upper"
    )
    axes[0].set_title(title)
    axes[-1].set_xlabel("seconds")
    figure.savefig(path, dpi=110)


def draw(timeline: Timeline, path: Path, *, title: str, verdict: str) -> None:
    """The suffix decides the format: .png, or else HTML."""
    if path.suffix.lower() == ".png":
        draw_png(timeline, path, title=title)
    else:
        path.write_text(draw_html(timeline, title=title, verdict=verdict), "utf-8")

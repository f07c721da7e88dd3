"""The output of `avow demo`: a live screen of 80 by 24, lines without a terminal, objects for programs; the verdict.

The screen shows, from top to bottom: the act; the counts, each with the last half minute as a sparkline; the processes
and coordinators; the events, newest last. Nothing here does IO.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from avow.cli.output import number, plural
from avow_lab.demo.chain import PeerSample, Sample, Sampler
from avow_lab.demo.narration import ACTS, TITLES, Act, Event, Verdict

SPARKS: Final = "▁▂▃▄▅▆▇█"
SPARKS_SHOWN: Final = 40
ABOVE_LINES: Final = 13  # all but peers and events; and one for the cursor
WORD_CHARS: Final = 10  # lost at the end of a line, because words are not broken
BAR_CHARS: Final = 40
RATE_SAMPLES: Final = 5
FIGURES: Final[tuple[tuple[str, Callable[[Sample], int], str], ...]] = (
    ("orders committed", lambda sample: sample.committed, "cyan"),
    ("messages queued", lambda sample: sample.messages, "magenta"),
    ("rows in the table", lambda sample: sample.rows, "green"),
)
EVENT_STYLES: Final = {"killing": "bold red", "taken_over": "bold", "decided": "bold", "returned": "green"}


class Scene(Struct, frozen=True):
    """`share`: of the requested orders. A pid of 0: not started yet."""

    act: Act
    elapsed_s: float
    share: float
    shop_pid: int
    shop_open: bool
    driver_pid: int
    batches: int


def picture(scene: Scene, sampler: Sampler, events: Sequence[Event], *, width: int, height: int) -> RenderableType:
    sample = sampler.latest
    parts: list[RenderableType] = [_title(scene), _acts(scene.act), Text(""), _figures(sampler), Text("")]
    parts += [_peer(peer) for peer in sample.peers]
    parts += [_others(scene), Text("")]
    parts += newest(events, width=width, lines=height - ABOVE_LINES - len(sample.peers))
    return Group(*parts)


def newest(events: Sequence[Event], *, width: int, lines: int) -> list[Text]:
    """As many as fit, at least one; the newest last."""
    found: list[Text] = []
    for event in reversed(events):
        line = event_line(event)
        lines -= math.ceil(line.cell_len / max(1, width - WORD_CHARS))
        if found and lines < 0:
            break
        found.append(line)
    return found[::-1]


def _title(scene: Scene) -> Text:
    done = round(scene.share * BAR_CHARS)
    clock = f"{int(scene.elapsed_s) // 60}:{int(scene.elapsed_s) % 60:02}"
    bar = Text.assemble(("━" * done, "cyan"), ("━" * (BAR_CHARS - done), "grey37"))
    return Text.assemble(
        ("avow demo ", "bold"), (f"{clock:>6}  ", "dim"), bar, (f" {scene.share:4.0%} of orders", "dim")
    )


def _acts(act: Act) -> Text:
    at, line = ACTS.index(act), Text()
    for index in range(len(ACTS)):
        line.append("● " if index < at else "◉ " if index == at else "○ ", "green" if index < at else "bold yellow")
    return line.append(f"{at + 1} {TITLES[act]}", "bold yellow")


def _figures(sampler: Sampler) -> Table:
    made = Table(box=None, show_header=False, pad_edge=False, padding=(0, 1, 0, 0))
    made.add_column(width=17)
    made.add_column(width=7, justify="right")
    made.add_column(width=SPARKS_SHOWN)
    made.add_column(width=8, justify="right", style="dim")
    for name, of, style in FIGURES:
        rates = sampler.rates(of, last=SPARKS_SHOWN)
        recent = rates[-RATE_SAMPLES:]
        rate = f"{sum(recent) / len(recent):,.0f}/s" if recent else ""
        made.add_row(name, Text(number(of(sampler.latest)), f"bold {style}"), Text(sparkline(rates), style), rate)
    lags = sampler.values(lambda sample: sample.lag, last=SPARKS_SHOWN)
    made.add_row("lag: no row yet", Text(number(sampler.latest.lag), "bold"), Text(sparkline(lags), "yellow"), "")
    return made


def sparkline(values: Sequence[float]) -> str:
    """Scaled so that the highest value is a full block."""
    top = max(values, default=0.0)
    steps = len(SPARKS) - 1
    return "".join(SPARKS[round(value / top * steps) if top else 0] for value in values)


def _peer(peer: PeerSample) -> Text:
    line = Text.assemble(
        ("● ", "green") if peer.alive else ("✖ ", "bold red"), f"peer {peer.number}   pid {peer.pid:<8}"
    )
    if not peer.alive:
        return line.append("dead", "bold red")
    led = f"coordinates {plural(peer.coordinates, 'lane')}" if peer.coordinates else "follows"
    return line.append(led, "" if peer.coordinates else "dim")


def _others(scene: Scene) -> Text:
    shop = ("● ", "green") if scene.shop_open else ("✖ ", "bold red") if scene.shop_pid else ("○ ", "dim")
    shop_line = f"shop     pid {scene.shop_pid:<8}" if scene.shop_pid else "shop     not open yet   "
    state = "open" if scene.shop_open else "dead" if scene.shop_pid else ""
    pipeline = f"batch {scene.batches:,} is written" if scene.batches else "starting"
    spark = ("● ", "green") if scene.batches else ("○ ", "dim")
    return Text.assemble(
        shop,
        shop_line,
        (f"{state}\n", "" if scene.shop_open else "bold red"),
        spark,
        f"Spark    pid {scene.driver_pid:<8}",
        pipeline,
    )


# ---------------------------------------------------------------------- events


def event_line(event: Event) -> Text:
    style = EVENT_STYLES.get(event.event, "")
    return Text.assemble((f"{event.at_s:5.1f} s ", "dim"), (event.text, style))


def event_object(event: Event) -> dict[str, Any]:
    """The event and its numbers in one flat object."""
    found: dict[str, Any] = msgspec.to_builtins(event, str_keys=True)
    values: dict[str, Any] = found.pop("values")
    return {**values, **found}


def sample_text(sample: Sample) -> str:
    return (
        f"{sample.committed:,} orders committed, {sample.messages:,} messages, {sample.rows:,} rows; lag {sample.lag:,}"
    )


# ---------------------------------------------------------------------- verdict


def verdict_lines(verdict: Verdict) -> list[Text]:
    names = ("orders committed", "messages in the queue", "rows in the table")
    counted = (verdict.counted.committed, verdict.counted.messages, verdict.counted.rows)
    right = verdict.clean
    lines = [Text.assemble(("the audit", "bold"), ("              counted     audited", "dim"))]
    for name, own, audited in zip(names, counted, verdict.audited, strict=True):
        agreed = own == audited == counted[0]
        mark = ("  ✔", "bold green") if agreed else ("  ✖", "bold red")
        lines.append(Text.assemble(f"  {name:<21}{own:>7,}{audited:>12,}", mark))
    lines.append(_told(verdict))
    lines += [Text(f"  {line}", "red") for line in verdict.wrong]
    lines.append(_outcome(verdict) if right else Text.assemble(("The counts do not agree.", "bold red")))
    return lines


def _told(verdict: Verdict) -> Text:
    return Text(
        f"  customers were told: committed {verdict.told_committed:,}, rolled back {verdict.told_rolled_back:,}; "
        f"asked again {verdict.repeated:,} times",
        "dim",
    )


def _outcome(verdict: Verdict) -> Text:
    count = verdict.counted.committed
    equal = f"{count:,} orders = {count:,} messages = {count:,} rows"
    return Text.assemble(("All counts agree: ", "bold green"), (equal, "bold"), f", in {verdict.duration_s:.0f} s.")


def verdict_object(verdict: Verdict) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(verdict)
    return {"event": "verdict", "clean": verdict.clean, "wrong": verdict.wrong, **found}

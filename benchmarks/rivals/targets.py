"""What the project set out to reach against other systems, each with the figure of this run beside it.

A target is the median of ratios within rounds: the turn of one system over the turn of the other that ran next to it.
It is reached or not reached, and the run says which; nothing fails. Timings of a shared machine are no test.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

import msgspec

from benchmarks.rivals.work import Sample, Spread

Samples: TypeAlias = Mapping[str, Mapping[str, Mapping[int, Sample]]]  # by work, system, round

US: Final = "Avow"


class Target(msgspec.Struct, frozen=True, kw_only=True):
    text: str
    limit: float
    at_least: bool
    figure: Spread | None = None  # None: not measured in this run

    @property
    def reached(self) -> bool | None:
        if self.figure is None:
            return None
        return self.figure.median >= self.limit if self.at_least else self.figure.median <= self.limit


class _Ratio(msgspec.Struct, frozen=True, kw_only=True):
    text: str
    work: str
    rival: str
    of: Callable[[Sample], float]
    limit: float
    at_least: bool = True


def _per_s(sample: Sample) -> float:
    return sample.per_s


def _p50(sample: Sample) -> float:
    return sample.p50_us


def _cpu(sample: Sample) -> float:
    return sample.server_cpu_us


_RATIOS: Final = (
    _Ratio(text="1,000 in flight: throughput : NATS sync", work="single", rival="NATS sync", of=_per_s, limit=3.0),
    _Ratio(
        text="1,000 in flight: throughput : NATS default", work="single", rival="NATS default", of=_per_s, limit=1.5
    ),
    _Ratio(
        text="send_many(1,000) x 4: throughput : NATS sync", work="batch1000", rival="NATS sync", of=_per_s, limit=15.0
    ),
    _Ratio(text="send_many(1,000) x 4: throughput : Redis", work="batch1000", rival="Redis", of=_per_s, limit=5.0),
    _Ratio(text="one in flight: p50 : NATS sync", work="one", rival="NATS sync", of=_p50, limit=0.6, at_least=False),
    _Ratio(
        text="1,000 in flight: server CPU per message : NATS sync",
        work="single",
        rival="NATS sync",
        of=_cpu,
        limit=1 / 5,
        at_least=False,
    ),
    _Ratio(
        text="batches of 100: server CPU per message : NATS sync",
        work="batch100",
        rival="NATS sync",
        of=_cpu,
        limit=1 / 15,
        at_least=False,
    ),
    _Ratio(text="64 connections: throughput : Redis", work="connections", rival="Redis", of=_per_s, limit=1.0),
)
READ_PER_CORE_S: Final = 5_000_000
BACKLOG_RATIO: Final = 0.9


def judge(samples: Samples, *, reading: Spread | None, backlog: Spread | None, backlog_messages: int) -> list[Target]:
    """Every target with the figure of this run. `reading` is messages per second of a client core, `backlog` a
    ratio."""
    ratios = [_judge_ratio(each, samples) for each in _RATIOS]
    read = Target(
        text="reading into Arrow: messages per second of one client core",
        limit=READ_PER_CORE_S,
        at_least=True,
        figure=reading,
    )
    behind = Target(
        text=f"throughput with a backlog of {backlog_messages:,} messages : empty",
        limit=BACKLOG_RATIO,
        at_least=True,
        figure=backlog,
    )
    return [*ratios, read, behind]


def _judge_ratio(ratio: _Ratio, samples: Samples) -> Target:
    systems = samples.get(ratio.work, {})
    ours, theirs = systems.get(US, {}), systems.get(ratio.rival, {})
    rounds = [ratio.of(ours[number]) / ratio.of(theirs[number]) for number in ours if number in theirs]
    figure = Spread.of(rounds) if rounds else None
    return Target(text=ratio.text, limit=ratio.limit, at_least=ratio.at_least, figure=figure)

"""Whether one build is better or worse than another, from rounds in which both did the same work.

One turn alone says little: a shared machine drifts by tens of percent within minutes. What counts is the ratio of two
turns of the same round, and the median of these ratios over all rounds. Its confidence interval is a pair of order
statistics, which assumes nothing about how ratios are distributed: the true median lies below the k-th smallest of n
ratios exactly when fewer than k of them fall below it, and that count is binomial. The narrowest pair that covers at
least 99 % is taken. For 15 rounds it is the third smallest and the third largest (99.3 %).

Three arms run: `before`, `after`, and `again`, which is `before` once more. The interval of again/before (A/A) is what
noise alone does. A median of after/before is worse when it lies above that interval and above 1, better when it lies
below it and below 1. Twelve figures are judged at once (four loads, three figures), so 95 % would not be enough: of
runs of two equal builds with 15 rounds, 30 % would call some figure worse; with 99 % it is one in ten. Repeat a run
that fails by little, with another seed, before you believe it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Final, Literal, TypeAlias

import msgspec

from benchmarks.rivals.work import Sample

BEFORE: Final = "before"
AFTER: Final = "after"
AGAIN: Final = "again"
ARMS: Final = (BEFORE, AFTER, AGAIN)
CONFIDENCE: Final = 0.99
ROUNDS_MIN: Final = 15
SERVER_CPU_LIMIT: Final = 1.05

Judgement: TypeAlias = Literal["better", "within A/A", "worse", "too few rounds"]
Rounds: TypeAlias = Mapping[int, Mapping[str, Sample]]  # by round and arm


class Interval(msgspec.Struct, frozen=True, kw_only=True):
    """A median with its order-statistic interval. `coverage` falls short of CONFIDENCE when there are few values."""

    median: float
    low: float
    high: float
    coverage: float

    @classmethod
    def of(cls, values: Sequence[float], *, confidence: float = CONFIDENCE) -> Interval:
        ordered = sorted(values)
        rank = interval_rank(len(ordered), confidence=confidence)
        return cls(
            median=statistics.median(ordered),
            low=ordered[rank - 1],
            high=ordered[-rank],
            coverage=interval_coverage(len(ordered), rank),
        )


def interval_coverage(count: int, rank: int) -> float:
    """How surely the true median lies between the rank-th smallest and the rank-th largest of `count` values."""
    outside = sum(math.comb(count, below) for below in range(rank))
    return 1 - 2 * outside / (1 << count)


def interval_rank(count: int, *, confidence: float) -> int:
    """Of the narrowest pair that covers `confidence`; the widest, 1, when none does."""
    return max((k for k in range(1, count // 2 + 1) if interval_coverage(count, k) >= confidence), default=1)


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """One figure of one load. `before` and `after` are medians of the figure itself, in its own unit."""

    load: str
    figure: str
    rounds: int
    before: float
    after: float
    ratio: Interval
    noise: Interval  # again/before
    judgement: Judgement
    above_limit: bool = False

    @property
    def failed(self) -> bool:
        return self.above_limit or self.judgement in ("worse", "too few rounds")


FIGURES: Final = ("server CPU µs/message", "p50 µs", "client CPU µs/message")
SERVER_CPU, P50, CLIENT_CPU = FIGURES


def figure_of(sample: Sample, figure: str) -> float:
    if figure == SERVER_CPU:
        return sample.server_cpu_us
    return sample.p50_us if figure == P50 else sample.client_cpu_us


def compare(load: str, figure: str, rounds: Rounds, *, rounds_min: int = ROUNDS_MIN) -> Comparison:
    """Rounds in which an arm is missing are left out. Raises ValueError when none is whole."""
    whole = [arms for arms in rounds.values() if all(arm in arms for arm in ARMS)]
    if not whole:
        raise ValueError(f"no round of {load} was measured with all of {', '.join(ARMS)}")
    before, after, again = ([figure_of(arms[arm], figure) for arms in whole] for arm in ARMS)
    ratio = Interval.of([a / b for a, b in zip(after, before, strict=True)])
    noise = Interval.of([a / b for a, b in zip(again, before, strict=True)])
    return Comparison(
        load=load,
        figure=figure,
        rounds=len(whole),
        before=statistics.median(before),
        after=statistics.median(after),
        ratio=ratio,
        noise=noise,
        judgement=judge_ratio(ratio, noise) if len(whole) >= rounds_min else "too few rounds",
        above_limit=figure == SERVER_CPU and ratio.median > SERVER_CPU_LIMIT,
    )


def judge_ratio(ratio: Interval, noise: Interval) -> Judgement:
    """Less is better: all figures are costs."""
    if ratio.median > max(noise.high, 1.0):
        return "worse"
    if ratio.median < min(noise.low, 1.0):
        return "better"
    return "within A/A"

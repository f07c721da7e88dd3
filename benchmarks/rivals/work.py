"""What is measured, in values: a piece of work, one sample of it, the figures of many samples.

A piece of work says what a client wants, not how a system is asked for it: so many connections, each with so many
requests under way, so many messages in a request. Each system maps it to what its fastest client would do (Redis, whose
WAIT holds a connection, needs a connection for each request under way), and says so.
"""

from __future__ import annotations

import statistics
from typing import Final

import msgspec

MESSAGE_BYTES: Final = 100


class Work(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    title: str
    connections: int = 1
    window: int = 1
    batch: int = 1


WORKS: Final = (
    Work(name="single", title="1,000 in flight, awaitable per message", window=1000),
    Work(name="batch1000", title="send_many(1,000) x 4 in flight", window=4, batch=1000),
    Work(name="batch100", title="batches of 100, 10 in flight", window=10, batch=100),
    Work(name="one", title="one in flight"),
    Work(name="connections", title="64 connections, one in flight each", connections=64),
)


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """One round of one work on one system. Processor time is of the three nodes together."""

    messages: int
    requests: int
    seconds: float
    p50_us: float
    server_cpu_s: float
    client_cpu_s: float

    @property
    def per_s(self) -> float:
        return self.messages / self.seconds

    @property
    def server_cpu_us(self) -> float:
        return self.server_cpu_s / self.messages * 1e6

    @property
    def client_cpu_us(self) -> float:
        return self.client_cpu_s / self.messages * 1e6


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """The median of some rounds, and how far they lay apart."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: list[float]) -> Spread:
        return cls(median=statistics.median(values), low=min(values), high=max(values))


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """All rounds of one work on one system."""

    rounds: int
    per_s: Spread
    p50_us: Spread
    server_cpu_us: Spread
    client_cpu_us: Spread

    @classmethod
    def of(cls, samples: list[Sample]) -> Figures:
        return cls(
            rounds=len(samples),
            per_s=Spread.of([each.per_s for each in samples]),
            p50_us=Spread.of([each.p50_us for each in samples]),
            server_cpu_us=Spread.of([each.server_cpu_us for each in samples]),
            client_cpu_us=Spread.of([each.client_cpu_us for each in samples]),
        )


class Missing(Exception):
    """A system cannot be measured here; the text says what to do. The others are measured all the same."""

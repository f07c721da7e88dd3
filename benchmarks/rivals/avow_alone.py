"""Two figures that only Avow has here: reading into Arrow, and writing to a queue with a long past.

One queue is filled. It is read from its first version into Arrow record batches, in batches of 1,000 messages, by one
client process; the figure is messages for each second of that process's processor time, because beside it the peer that
serves works on the same machine. Then writing to that queue alternates with writing to fresh ones.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from benchmarks.rivals.avow import AvowSystem
from benchmarks.rivals.work import WORKS, Missing, Sample, Spread

FILL_BATCH: Final = 1000
READ_MESSAGES_MAX: Final = 5_000_000
SLOWEST_PER_S: Final = 20_000  # for time limits only
_WORK: Final = next(work for work in WORKS if work.name == "batch1000")


class Alone(msgspec.Struct, frozen=True, kw_only=True):
    backlog_messages: int
    filled_per_s: float
    read_per_core_s: Spread
    read_per_s: Spread
    empty_per_s: Spread
    behind_per_s: Spread
    ratio: Spread
    peer_rss_mib: list[float]
    reads: list[Sample]
    writes: list[tuple[Sample, Sample]]  # to a fresh queue, to the one with a past


def measure_alone(
    system: AvowSystem, *, backlog: int, rounds: int, seconds: float, warmup_s: float, say: Callable[[str], None]
) -> Alone:
    queue = system.create_queue()
    filled = system.carry_out(
        system.order("fill", queue, messages=backlog, batch=FILL_BATCH), timeout_s=60 + backlog / SLOWEST_PER_S
    )
    say(f"filled with {filled.messages:,} messages at {filled.per_s:,.0f}/s")
    reads = [_read(system, queue, min(filled.messages, READ_MESSAGES_MAX)) for _ in range(rounds)]
    pairs = [_write_both(system, queue, number, seconds=seconds, warmup_s=warmup_s) for number in range(rounds)]
    memory = system.rss_mib()
    system.delete_queue(queue)
    return Alone(
        backlog_messages=filled.messages,
        filled_per_s=filled.per_s,
        read_per_core_s=Spread.of([each.messages / each.client_cpu_s for each in reads]),
        read_per_s=Spread.of([each.per_s for each in reads]),
        empty_per_s=Spread.of([each.per_s for each, _ in pairs]),
        behind_per_s=Spread.of([each.per_s for _, each in pairs]),
        ratio=Spread.of([behind.per_s / empty.per_s for empty, behind in pairs]),
        peer_rss_mib=memory,
        reads=reads,
        writes=pairs,
    )


def _write_both(
    system: AvowSystem, queue: str, number: int, *, seconds: float, warmup_s: float
) -> tuple[Sample, Sample]:
    """To a fresh queue and to the one with a past; every second time in the opposite order."""
    if number % 2:
        behind = system.run_on(queue, _WORK, seconds=seconds, warmup_s=warmup_s)
        return system.run(_WORK, seconds=seconds, warmup_s=warmup_s), behind
    empty = system.run(_WORK, seconds=seconds, warmup_s=warmup_s)
    return empty, system.run_on(queue, _WORK, seconds=seconds, warmup_s=warmup_s)


def _read(system: AvowSystem, queue: str, messages: int) -> Sample:
    order = system.order("read", queue, messages=messages)
    sample = system.carry_out(order, timeout_s=60 + messages / SLOWEST_PER_S)
    if sample.messages != messages:
        raise Missing(f"{sample.messages:,} messages were read, not {messages:,}: no figure")
    return sample

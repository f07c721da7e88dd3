"""Channels and the peer's budget: what clients did not commit, and what they did not acknowledge, is bounded."""

from __future__ import annotations

import os
from typing import Any

import pytest
from tests.unit.server.channels.channel_bench import Bench, record, run

from avow.channel.endpoint import Channel
from avow.errors import ChannelFailed
from avow.limits import CHANNEL_CAP_SIZE_BYTES_MIN, KIB, MIB
from avow.server.byte_budget import FREE_SIZE_BYTES
from avow.server.channels.channel_memory import SWEEP_S, UNACKNOWLEDGED_S, UNCOMMITTED_S
from avow.server.channels.push import GROUP_SIZE_BYTES

MEMORY = 16 * MIB  # 4 MiB received, 4 MiB pushed
LARGE = b'{"value":"%b"}' % (b"x" * (500 * KIB))
EACH = 4  # large messages before a commit
PRODUCERS = 12


async def producer(bench: Bench) -> Channel:
    return await bench.open(role="producer", queue="q", format="json", producer=os.urandom(16).hex())


def in_bench(scenario: Any, **settings: Any) -> None:
    async def whole() -> None:
        async with Bench(1, memory_bytes_max=MEMORY, **settings) as bench:
            bench.cluster.create("q")
            await bench.run(0.5)
            await scenario(bench)

    run(whole)


def test_uncommitted_messages_are_bounded_and_every_channel_commits() -> None:
    async def scenario(bench: Bench) -> None:
        share, seen = bench.budget.received, 0
        producers = [await producer(bench) for _ in range(PRODUCERS)]
        for number in range(EACH):
            for channel in producers:
                channel.send(LARGE)
            await bench.run(SWEEP_S / 3)
            seen = max(seen, share.held)
            if number == EACH - 1:
                assert bench.channels[1].statistics()["paused"] > 0
        commits = [channel.commit() for channel in producers]
        while any(channel.non_acked_message_count for channel in producers):
            await bench.run(SWEEP_S)
            seen = max(seen, share.held)
        for commit in commits:
            await commit
        assert seen <= share.size_bytes_max + CHANNEL_CAP_SIZE_BYTES_MIN + PRODUCERS * len(LARGE)
        await bench.run(2 * SWEEP_S)
        assert share.held == 0
        assert bench.channels[1].statistics()["paused"] == 0
        assert len(bench.values(1)) == PRODUCERS * EACH

    in_bench(scenario)


def test_a_channel_that_does_not_commit_while_others_wait_gets_its_messages_back() -> None:
    async def scenario(bench: Bench) -> None:
        lazy, busy = await producer(bench), await producer(bench)
        ended: list[ChannelFailed | None] = []
        lazy.on_end = ended.append
        for _ in range(8):
            lazy.send(LARGE)
        await bench.run(5.0)
        for _ in range(4):
            busy.send(LARGE)
        commit = busy.commit()
        await bench.run(UNCOMMITTED_S / 2)
        assert ended == []
        await commit
        (failure,) = ended
        assert failure is not None
        assert (failure.name, len(failure.pending)) == ("BUSY", 8)
        assert "commit sooner" in str(failure)
        assert bench.budget.received.refused == 1

    in_bench(scenario)


def test_a_channel_that_does_not_commit_is_left_alone_while_nobody_waits() -> None:
    async def scenario(bench: Bench) -> None:
        lazy = await producer(bench)
        for _ in range(8):
            lazy.send(LARGE)
        await bench.run(3 * UNCOMMITTED_S)
        await lazy.commit()
        assert len(bench.values(1)) == 8

    in_bench(scenario)


def test_small_messages_are_taken_while_large_ones_wait() -> None:
    async def scenario(bench: Bench) -> None:
        for _ in range(3):
            channel = await producer(bench)
            for _ in range(6):
                channel.send(LARGE)
        await bench.run(SWEEP_S * 2)
        assert bench.channels[1].statistics()["paused"] > 0
        small = await producer(bench)
        small.send(b'{"value":"small"}')
        await small.commit()
        assert bench.values(1) == [b"small"]

    in_bench(scenario)


# ---------------------------------------------------------------------- pushed


@pytest.mark.parametrize("role", ["subscriber", "reader"])
def test_clients_that_acknowledge_nothing_hold_a_bounded_number_of_bytes(role: str) -> None:
    async def scenario(bench: Bench) -> None:
        writer = await bench.open(role="producer", queue="q", format="records")
        for _ in range(40):
            writer.send(record(bytes(200 * KIB)))
        await writer.commit()
        share = bench.budget.pushed
        asked: list[dict[str, Any]] = [{"subscriber": f"s{n}"} if role == "subscriber" else {} for n in range(12)]
        slow = [await bench.read(acks=False, role=role, queue="q", format="ranges", **one) for one in asked]
        await bench.run(1.0)
        most = share.size_bytes_max + len(slow) * (FREE_SIZE_BYTES + GROUP_SIZE_BYTES)
        assert share.size_bytes_max // 2 < share.held <= most
        assert share.waiting > 0
        name: dict[str, Any] = {"subscriber": "q"} if asked[0] else {}
        quick = await bench.read(role=role, queue="q", format="ranges", **name)
        await bench.run(UNACKNOWLEDGED_S + 1.0)
        await bench.until(lambda: len(quick.got) == 40)
        assert share.held <= most
        ended = [one.failure for one in slow if one.ended]
        assert ended
        assert {failure.name for failure in ended} == {"BUSY"}
        assert "acknowledge sooner" in str(ended[0])

    in_bench(scenario)

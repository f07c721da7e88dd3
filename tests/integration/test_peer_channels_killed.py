"""Channels while peers are killed, stopped and started again."""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import Any

from tests.integration.peer_channels import (
    aged,
    coordinator,
    create,
    open_to,
    read,
    record,
    run,
    subscriber,
    until,
    values,
)

from avow.channel.endpoint import Channel
from avow.errors import AvowError, ChannelFailed
from avow.testing.cluster import LocalCluster


def numbered(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


async def anywhere(cluster: LocalCluster, **asked: Any) -> Channel:
    """The first peer that opens it."""
    deadline = monotonic() + 20.0
    while True:
        for at in cluster.running:
            try:
                return await open_to(cluster.api(at), options={"patience_s": 1.0}, **asked)
            except (AvowError, ChannelFailed):
                assert monotonic() < deadline
                await asyncio.sleep(0.02)


def test_kill_9_of_the_coordinator_loses_duplicates_and_reorders_nothing() -> None:
    async def scenario(cluster: LocalCluster) -> None:
        create(cluster, "orders")
        killed = await until(lambda: coordinator(cluster, "orders"))
        channel = await open_to(cluster.api(killed % 3 + 1), role="producer", queue="orders")
        for number in range(3_000):
            await channel.writable()
            channel.send(record(b"%d" % number))
            if number % 100 == 0:
                channel.commit()
                await asyncio.sleep(0.002)
            if number == 1_500:
                await until(lambda: channel.core.out.acked)
                cluster.kill(killed)
        await asyncio.wait_for(channel.commit(), 60)
        channel.close()
        await channel.wait_ended()
        now = await until(lambda: coordinator(cluster, "orders", at=killed % 3 + 1))
        assert values(cluster, "orders", 0, at=now) == numbered(3_000)

    with LocalCluster(3) as cluster:
        run(scenario(cluster))


def test_messages_returned_after_kill_9_of_the_receiving_peer_are_resent_once() -> None:
    """Committed and handed back are together everything that was sent, and nothing is in the queue twice."""

    async def scenario(cluster: LocalCluster) -> None:
        create(cluster, "orders")
        killed = await until(lambda: coordinator(cluster, "orders"))
        channel = await open_to(cluster.api(killed), role="producer", queue="orders", options={"patience_s": 3.0})
        began, sent = monotonic(), 0
        try:
            while sent < 50_000:
                await channel.writable()
                channel.send(record(b"%d" % sent))
                sent += 1
                if sent % 50 == 0:
                    channel.commit()
                    await asyncio.sleep(0)
                if sent == 2_000:
                    await until(lambda: channel.core.out.acked)
                    cluster.kill(killed)
        except ChannelFailed:
            pass
        failure = await channel.wait_ended()
        assert failure is not None
        assert channel.core.out.released_to + len(failure.pending) == sent
        again = await anywhere(cluster, role="producer", queue="orders")
        for pending in failure.pending:
            await again.writable()
            again.send(aged(pending.value, round((monotonic() - began) * 1000)))
        await asyncio.wait_for(again.commit(), 60)
        again.close()
        await again.wait_ended()
        now = await until(lambda: coordinator(cluster, "orders", at=killed % 3 + 1))
        assert values(cluster, "orders", 0, at=now) == numbered(sent)

    with LocalCluster(3) as cluster:
        run(scenario(cluster))


def test_the_members_of_a_killed_peer_are_forgotten_and_those_of_a_stopped_one_leave() -> None:
    async def scenario(cluster: LocalCluster) -> None:
        create(cluster, "orders", lanes=2)
        asked: dict[str, Any] = {"role": "subscriber", "queue": "orders", "subscriber": "s"}
        first = await read(cluster.api(1), member="a", **asked)
        await until(lambda: first.lanes is not None)
        second = await read(cluster.api(3), member="b", **asked)
        await until(lambda: first.ended and second.lanes is not None)
        first = await read(cluster.api(1), member="a", **asked)
        await until(lambda: first.lanes == {"0": 0})
        producer = await open_to(cluster.api(2), role="producer", queue="orders")
        cluster.kill(3)
        producer.send(record(b"x", lane=1))
        await producer.commit()
        await until(lambda: first.got == [(1, b"x")])
        members = subscriber(cluster, "orders", "s", at=1)["members"]
        assert members == [{"member": "a", "peer": 1, "lanes": [0, 1]}]
        second.channel.abort()
        await second.channel.wait_ended()
        cluster.restart(3)
        await first.channel.commit()
        cluster.stop(1)
        await until(lambda: first.ended)
        assert first.failure.reason == "GOING"
        await until(lambda: not subscriber(cluster, "orders", "s", at=2)["members"])
        assert subscriber(cluster, "orders", "s", at=2)["versions"] == {"0": 0, "1": 1}
        producer.close()
        await producer.wait_ended()

    with LocalCluster(3) as cluster:
        run(scenario(cluster))


def test_a_subscriber_continues_at_another_peer_from_its_durable_cursor() -> None:
    async def scenario(cluster: LocalCluster) -> None:
        create(cluster, "orders")
        asked: dict[str, Any] = {"role": "subscriber", "queue": "orders", "subscriber": "s"}
        producer = await open_to(cluster.api(1), role="producer", queue="orders")

        async def send(values: list[bytes]) -> None:
            for value in values:
                producer.send(record(value.ljust(2_000, b".")))
            await producer.commit()

        await send(numbered(250))
        first = await read(cluster.api(3), acks=False, options={"patience_s": 3.0}, **asked)
        await until(lambda: len(first.got) == 250 and first.commits)
        half = first.commits[-1]
        await send(numbered(500)[250:])
        await until(lambda: len(first.got) == 500)
        first.channel.ack_commit(half)
        await first.channel.commit()
        cursor = subscriber(cluster, "orders", "s", at=1)["versions"]["0"]
        assert 0 < cursor < 500
        cluster.kill(3)
        await until(lambda: first.ended)
        second = await read(cluster.api(2), **asked)
        await until(lambda: len(second.got) == 500 - cursor)
        assert second.lanes == {"0": cursor}
        assert [value.rstrip(b".") for value in second.of(0)] == numbered(500)[cursor:]

    with LocalCluster(3) as cluster:
        run(scenario(cluster))

"""The messages that a producer returns, and those that its store keeps for the next run."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.integration.producer_runs import everything, numbers, run, send, until
from tests.scripted_cluster import ScriptedCluster

from avow.channel.protocol.frames import EndCode
from avow.channel.stores import FileStore, MemoryStore
from avow.client.client import Client
from avow.errors import ChannelFailed, DiskFull, Forbidden, InvalidRequest, Offline, UnknownQueue


def test_without_a_peer_all_messages_not_known_to_be_queued_are_returned() -> None:
    async def work(cluster: ScriptedCluster, client: Client) -> None:
        producer = client.producer("q")

        async def produce() -> None:
            async with producer:
                await send(producer, 0, 5)
                await producer.commit()
                cluster.peer(1).channels.takes = lambda lane, record: False
                cluster.peer(1).channels.acks = False
                await producer.send(b"0005", key=b"k", headers={"h": b"x"})
                await until(lambda: cluster.peer(1).channels.open[0].core.incoming.received_to == 6)
                for peer in cluster.peers:
                    await peer.kill()
                await until(lambda: producer.statistics()["peer"] is None)
                await producer.send(b"0006")
                await producer.commit()

        with pytest.raises(ChannelFailed) as caught:
            await produce()
        pending = caught.value.pending
        assert [(one.value, one.key, one.fate) for one in pending] == [
            (b"0005", b"k", "unknown"),
            (b"0006", None, "unsent"),
        ]
        assert pending[0].headers == (("h", b"x"),)
        with pytest.raises(ChannelFailed) as again:
            await producer.send(b"late")
        assert again.value.pending == pending

    assert everything(run(work, timeout_s=5.0, virtual=True)) == numbers(0, 5)


def test_a_permanent_refusal_is_raised_once_uncertain_writes_are_decided() -> None:
    async def work(cluster: ScriptedCluster, client: Client) -> None:
        async def produce() -> None:
            async with client.producer("q") as producer:
                server = cluster.peer(1).channels
                server.takes = lambda lane, record: "FORBIDDEN" if b"0003" in record else True
                await send(producer, 0, 6)
                for peer in cluster.peers:
                    peer.script = lambda request: Forbidden("no right") if b"0003" in request.body else None
                await producer.commit()

        with pytest.raises(ChannelFailed) as caught:
            await produce()
        assert caught.value.name == "FORBIDDEN"
        handed_back = {one.value for one in caught.value.pending}
        assert b"0003" in handed_back
        assert handed_back | set(everything(cluster)) == set(numbers(0, 6))
        assert not handed_back & set(everything(cluster))

    run(work)


def test_a_missing_queue_or_a_refusing_peer_is_reported_at_the_start() -> None:
    async def work(cluster: ScriptedCluster, client: Client) -> None:
        with pytest.raises(UnknownQueue):
            async with client.producer("nowhere"):
                pass
        for peer in cluster.peers:
            peer.script = lambda request: Forbidden("no right") if request.names[-1] == "channel" else None
        with pytest.raises(Forbidden):
            async with client.producer("q"):
                pass
        with pytest.raises(InvalidRequest, match="new"):
            await client.producer("q").send(b"x")

    run(work)


def test_closing_the_client_ends_waits_for_a_commit_with_an_error() -> None:
    async def work(cluster: ScriptedCluster, client: Client) -> None:
        cluster.peer(1).channels.acks = False
        producer = client.producer("q")
        await producer.open()
        await producer.send(b"0000")
        waiting = asyncio.create_task(producer.commit())
        await asyncio.sleep(0.01)
        await client.close()
        with pytest.raises(ChannelFailed, match="client was closed"):
            await waiting

    run(work)


@pytest.mark.parametrize("pubsub", [False, True])
def test_the_next_run_first_resolves_the_messages_in_the_store(tmp_path: Path, pubsub: bool) -> None:
    path = tmp_path / "pending"

    async def first(cluster: ScriptedCluster, client: Client) -> None:
        producer = client.producer("q", store=path)
        await producer.open()
        taken = 0

        def takes(lane: int, record: bytes) -> bool:
            nonlocal taken
            taken += 1
            return taken <= 3

        cluster.peer(1).channels.takes, cluster.peer(1).channels.acks = takes, False
        await send(producer, 0, 8)
        await until(lambda: taken == 8)
        producer.abort()

    async def second(cluster: ScriptedCluster, client: Client) -> None:
        cluster.ended.add(11)
        async with client.producer("q", store=path) as producer:
            assert producer.non_acked_message_count in (0, 5)
            await send(producer, 8, 12)

    cluster = run(first, pubsub=pubsub)
    assert everything(cluster) == numbers(0, 3)
    run(second, pubsub=pubsub, cluster=cluster)
    assert sorted(everything(cluster)) == numbers(0, 12)
    store = FileStore(path)
    assert store.load() == []
    store.close()


def test_unresolved_messages_stay_in_the_store_and_are_returned() -> None:
    store = MemoryStore()

    async def work(cluster: ScriptedCluster, client: Client) -> None:
        async def produce() -> None:
            async with client.producer("q", store=store) as producer:
                cluster.peer(1).channels.takes = lambda lane, record: False
                cluster.peer(1).channels.acks = False
                await producer.send(b"0000")
                await asyncio.sleep(0.02)
                for peer in cluster.peers:
                    peer.script = lambda request: Offline("no quorum")
                cluster.peer(1).channels.end_all(EndCode.REFUSED, name="OFFLINE")
                await producer.commit()

        with pytest.raises(ChannelFailed):
            await produce()
        assert len(store.load()) == 1
        with pytest.raises(ChannelFailed) as caught:
            async with client.producer("q", store=store):
                pass
        assert [one.value for one in caught.value.pending] == [b"0000"]

    run(work, timeout_s=5.0, virtual=True)
    assert len(store.load()) == 1


def test_a_failing_store_ends_the_producer_and_the_message_is_returned() -> None:
    class Full(MemoryStore):
        def append(self, number: int, values: object) -> None:
            raise DiskFull("no room; nothing was stored")

    async def work(cluster: ScriptedCluster, client: Client) -> None:
        async def produce() -> None:
            async with client.producer("q", store=Full()) as producer:
                await producer.send(b"0000")
                await producer.commit()

        with pytest.raises(ChannelFailed, match="no room") as caught:
            await produce()
        assert [(one.value, one.fate) for one in caught.value.pending] == [(b"0000", "unsent")]

    assert everything(run(work)) == []

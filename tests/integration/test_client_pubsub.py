"""Writes to pub-sub queues against scripted peers: each batch in exactly one lane, whichever peer dies."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
import uvloop
from tests.integration.test_client_two_phase import script_writes
from tests.scripted_cluster import ScriptedCluster
from tests.virtual_loop import run_virtual

import avow
from avow.client.client import Client
from avow.client.outcomes import Done
from avow.client.queue import Queue
from avow.errors import InvalidRequest, LaneEnded, Offline, Unknown


def run(
    work: Callable[[ScriptedCluster, Client], Awaitable[None]], *, timeout_s: float = 60.0, virtual: bool = False
) -> ScriptedCluster:
    """`virtual`: on a virtual clock and a network in memory, for what happens at a deadline."""
    cluster = ScriptedCluster(3)

    async def go() -> None:
        cluster.create("p", strategy="pub-sub", lanes=0)
        for peer in cluster.peers:
            peer.open_lane = 10 + peer.number
        async with cluster, await avow.connect(cluster.addresses, timeout_s=timeout_s) as client:
            await work(cluster, client)

    (run_virtual if virtual else uvloop.run)(go())
    return cluster


def everything(cluster: ScriptedCluster) -> list[bytes]:
    lanes = sorted(lane for name, lane in cluster.shelf.records if name == "p")
    return [value for lane in lanes for value in cluster.shelf.values("p", lane)]


async def noticed(queue: Queue, lost: asyncio.Future[Done]) -> None:
    """Until the client has seen that the answer to its write is lost."""
    for _ in range(60_000):
        if queue.statistics()[0]["unresolved"] or lost.done():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("nothing was lost")


def test_writes_go_to_the_open_lane_of_the_peer_they_are_sent_to() -> None:
    async def work(cluster: ScriptedCluster, client: Client) -> None:
        queue = client.queue("p")
        done = await asyncio.gather(*[queue.send(b"%d" % number) for number in range(10)])
        assert {found.lane for found in done} == {11}
        assert [found.first_version for found in done] == list(range(1, 11))
        with pytest.raises(InvalidRequest, match="belongs to a peer"):
            await queue.enqueue(b"x", lane=12)
        with pytest.raises(InvalidRequest, match="expect"):
            await queue.enqueue(b"x", expected=3)

    run(work)


@pytest.mark.parametrize("name", ["two words", "100%d", "grüße/1"])
def test_a_name_that_is_escaped_in_a_path_is_written_to(name: str) -> None:
    async def work(cluster: ScriptedCluster, client: Client) -> None:
        cluster.create(name, strategy="pub-sub", lanes=0)
        assert (await client.queue(name).enqueue(b"1")).lane == 11
        assert cluster.shelf.values(name, 11) == [b"1"]

    run(work)


def test_an_ended_lane_is_replaced_by_the_current_one() -> None:
    async def work(cluster: ScriptedCluster, client: Client) -> None:
        queue = client.queue("p")
        await queue.enqueue(b"1")
        cluster.ended.add(11)
        cluster.peer(1).open_lane = 21
        done = await queue.enqueue(b"2")
        assert done.lane in (21, 12)

    assert everything(run(work)) == [b"1", b"2"]


def test_a_dead_peer_causes_no_refusal_and_new_writes_continue_at_once() -> None:
    async def work(cluster: ScriptedCluster, client: Client) -> None:
        queue = client.queue("p")
        await queue.enqueue(b"0")
        await cluster.peer(1).kill()
        lost = queue.send(b"1")  # leaves before this client knows of the death
        await asyncio.sleep(0.01)
        done = await queue.enqueue(b"2")
        assert done.lane == 12
        assert not lost.done()  # the write that came later did not wait for it
        cluster.ended.add(11)
        await lost

    assert sorted(everything(run(work))) == [b"0", b"1", b"2"]


def test_a_write_without_an_answer_is_retried_in_its_lane_while_its_peer_lives() -> None:
    async def work(cluster: ScriptedCluster, client: Client) -> None:
        queue = client.queue("p")
        await queue.enqueue(b"0")
        cluster.peer(1).script = script_writes("act and drop")
        waiting = queue.send(b"1")
        await asyncio.sleep(0)
        assert (await waiting).lane == 11

    assert everything(run(work)) == [b"0", b"1"]


def test_the_outcome_of_a_write_at_a_dead_peer_is_looked_up_at_the_others() -> None:
    async def work(cluster: ScriptedCluster, client: Client) -> None:
        queue = client.queue("p")
        await queue.enqueue(b"0")
        cluster.peer(1).script = script_writes("act and drop", then="drop")
        lost = queue.send(b"1")
        await noticed(queue, lost)
        await cluster.peer(1).kill()
        meanwhile = await queue.enqueue(b"2")
        assert meanwhile.lane in (12, 13)
        found = await lost
        assert (found.lane, found.first_version) == (11, 2)

    assert sorted(everything(run(work))) == [b"0", b"1", b"2"]


def test_a_write_missing_from_the_dead_peers_lane_is_written_elsewhere_once() -> None:
    async def work(cluster: ScriptedCluster, client: Client) -> None:
        queue = client.queue("p")
        await queue.enqueue(b"0")
        cluster.peer(1).script = script_writes(then="drop")
        lost = queue.send(b"1")
        await noticed(queue, lost)
        await cluster.peer(1).kill()
        assert not lost.done()
        cluster.ended.add(11)
        assert (await lost).lane in (12, 13)

    assert sorted(everything(run(work))) == [b"0", b"1"]


def test_an_undecidable_write_is_not_written_elsewhere_and_ends_unknown_with_its_lane() -> None:
    async def work(cluster: ScriptedCluster, client: Client) -> None:
        queue = client.queue("p")
        await queue.enqueue(b"0")
        cluster.peer(1).script = script_writes(then="drop")
        with pytest.raises(Unknown) as caught:
            await queue.enqueue(b"1")
        assert caught.value.__dict__["lane"] == 11
        assert len(caught.value.__dict__["write_id"]) == 16

    assert everything(run(work, timeout_s=1.0)) == [b"0"]


def test_a_definite_refusal_of_one_peer_does_not_refuse_the_write() -> None:
    async def work(cluster: ScriptedCluster, client: Client) -> None:
        queue = client.queue("p")
        cluster.peer(1).script = script_writes(then=Offline("no quorum here"))
        cluster.peer(2).script = script_writes(then=LaneEnded("opening another"))
        done = await asyncio.gather(*[queue.enqueue(b"%d" % number) for number in range(20)])
        assert {found.lane for found in done} == {13}

    assert len(everything(run(work))) == 20


def test_a_peer_without_an_open_lane_is_skipped() -> None:
    async def work(cluster: ScriptedCluster, client: Client) -> None:
        cluster.peer(1).open_lane = None
        assert (await client.queue("p").enqueue(b"1")).lane == 12

    run(work)


def test_when_every_peer_refuses_the_last_refusal_is_raised() -> None:
    async def work(cluster: ScriptedCluster, client: Client) -> None:
        for peer in cluster.peers:
            peer.script = script_writes(then=Offline("no quorum"))
        with pytest.raises(Offline):
            await client.queue("p").enqueue(b"1")

    assert everything(run(work, timeout_s=5.0, virtual=True)) == []

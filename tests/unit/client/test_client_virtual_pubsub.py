"""Writes to pub-sub queues on a virtual clock: each in exactly one lane, and a dead peer delays no write."""

from __future__ import annotations

import asyncio
from collections import Counter
from random import Random

import pytest
from tests.scripted_cluster import PeerServer, Request, ScriptedCluster
from tests.unit.client.virtual_client import SWEEP_S, Scripted, everything, now, play, script_writes, write_ids, writes
from tests.virtual_loop import VirtualLoop

from avow.client.client import Client
from avow.client.outcomes import Done
from avow.client.queue import Queue
from avow.errors import LaneEnded, Offline, Unknown
from avow.wire.batch import Batch

LANE = 11  # of peer 1; peers 2 and 3 have lanes 12 and 13


def lookups(peer: PeerServer) -> list[Request]:
    return [request for request in peer.requests if "writes" in request.names]


def lanes_of(cluster: ScriptedCluster) -> dict[bytes, list[int]]:
    """The lanes that contain each write id."""
    found: dict[bytes, list[int]] = {}
    for (_, lane), records in cluster.shelf.records.items():
        for _, record in records:
            found.setdefault(Batch(record).write_id, []).append(lane)
    return found


async def lost_write(cluster: ScriptedCluster, queue: Queue, answer: Scripted = "drop") -> asyncio.Future[Done]:
    """A write whose answer from peer 1 was lost. The peer answers no later write."""
    await queue.enqueue(b"0")
    cluster.peer(1).script = script_writes(answer, then="drop")
    lost = queue.send(b"1")
    await asyncio.sleep(0.001)
    assert queue.statistics()[0]["unresolved"] == 1
    return lost


# --------------------------------------------------------------------------------------------- one lane only


@pytest.mark.parametrize("seed", range(30))
def test_a_write_is_never_in_two_lanes_whatever_fails(seed: int) -> None:
    """Connections break before and after a write, peers refuse, and peers restart."""
    random = Random(seed)
    troubles: list[Scripted] = [
        None,
        "drop",
        "act and drop",
        "silent",
        Offline("no quorum"),
        LaneEnded("opening another"),
    ]

    async def trouble(cluster: ScriptedCluster) -> None:
        for _ in range(6):
            await asyncio.sleep(random.uniform(0, 2))
            peer = random.choice(cluster.peers)
            if random.random() < 0.5:
                await peer.run_again()
            peer.script = script_writes(*random.choices(troubles, [4, 1, 1, 1, 1, 1], k=10))

    async def work(cluster: ScriptedCluster, client: Client) -> None:
        queue, sent = client.queue("q"), []
        troubled = asyncio.ensure_future(trouble(cluster))
        for number in range(50):
            sent.append(queue.send(b"%d" % number))
            await asyncio.sleep(random.uniform(0, 0.3))
        done = await asyncio.gather(*sent)
        await troubled
        for found, number in zip(done, range(50), strict=True):
            assert cluster.shelf.values("q", found.lane)[found.first_version - 1] == b"%d" % number

    cluster = play(work, pubsub=True, timeout_s=300.0, seed=seed)
    assert all(len(lanes) == 1 for lanes in lanes_of(cluster).values())
    assert sorted(everything(cluster), key=int) == [b"%d" % number for number in range(50)]


def test_a_write_without_an_answer_is_retried_in_the_same_lane_while_its_peer_lives() -> None:
    async def work(cluster: ScriptedCluster, client: Client) -> None:
        queue = client.queue("q")
        await queue.enqueue(b"0")
        cluster.peer(1).script = script_writes("act and drop")
        done = await queue.enqueue(b"1")
        assert (done.lane, done.first_version) == (LANE, 2)

    cluster = play(work, pubsub=True)
    assert {request.query["lane"] for request in writes(cluster)} == {str(LANE)}
    assert everything(cluster) == [b"0", b"1"]


def test_a_definite_refusal_frees_the_write_for_another_lane() -> None:
    async def work(cluster: ScriptedCluster, client: Client) -> None:
        queue = client.queue("q")
        cluster.peer(1).script = script_writes(then=Offline("no quorum here"))
        cluster.peer(2).script = script_writes(then=LaneEnded("opening another"))
        began = now()
        assert (await queue.enqueue(b"1")).lane == 13
        assert now() - began < 1.0

    cluster = play(work, pubsub=True)
    assert len(set(write_ids(cluster))) == 1


# ----------------------------------------------------------------------------------------------- the dead owner


def test_a_dead_owners_write_is_looked_up_at_other_peers_until_it_is_found() -> None:
    async def work(cluster: ScriptedCluster, client: Client) -> None:
        queue = client.queue("q")
        for peer in cluster.peers[1:]:  # they do not know it yet
            peer.script = lambda request: Offline() if "writes" in request.names else None
        lost = await lost_write(cluster, queue, "act and drop")
        await cluster.peer(1).kill()
        await asyncio.sleep(10.0)
        assert not lost.done()
        for peer in cluster.peers[1:]:
            peer.script = lambda request: None
        found = await lost
        assert (found.lane, found.first_version) == (LANE, 2)
        asked = sorted(request.at for peer in cluster.peers[1:] for request in lookups(peer))
        assert len(asked) >= 15  # about every half second, from both
        assert all(lookups(peer) for peer in cluster.peers[1:])

    cluster = play(work, pubsub=True, timeout_s=60.0)
    assert everything(cluster) == [b"0", b"1"]
    assert all(request.query["lane"] == str(LANE) for request in lookups(cluster.peer(2)) + lookups(cluster.peer(3)))


def test_a_dead_owners_write_goes_to_another_lane_once_its_lane_has_ended_without_it() -> None:
    async def work(cluster: ScriptedCluster, client: Client) -> None:
        queue = client.queue("q")
        lost = await lost_write(cluster, queue)
        await cluster.peer(1).kill()
        await asyncio.sleep(10.0)
        assert not lost.done()
        assert everything(cluster) == [b"0"]  # the outcome is not known yet, so it is in no other lane
        cluster.ended.add(LANE)
        ended = now()
        assert (await lost).lane in (12, 13)
        assert now() - ended <= 1.0

    cluster = play(work, pubsub=True, timeout_s=60.0)
    assert sorted(everything(cluster)) == [b"0", b"1"]
    assert all(len(lanes) == 1 for lanes in lanes_of(cluster).values())


@pytest.mark.parametrize("unreachable", [False, True])
def test_new_writes_continue_through_another_peer_at_once(unreachable: bool) -> None:
    """Also if connection attempts to the dead peer's address time out."""

    async def work(cluster: ScriptedCluster, client: Client) -> None:
        queue, loop = client.queue("q"), asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        lost = await lost_write(cluster, queue)
        await cluster.peer(1).kill()
        if unreachable:
            loop.unreachable.add(cluster.peer(1).port)
        began = now()
        done = [await queue.enqueue(b"%d" % number) for number in range(2, 12)]
        assert now() == began
        assert {found.lane for found in done} <= {12, 13}
        assert not lost.done()
        cluster.ended.add(LANE)
        await lost

    assert Counter(everything(play(work, pubsub=True, timeout_s=60.0))) == Counter(b"%d" % n for n in range(12))


def test_an_undecidable_write_ends_unknown_at_its_deadline_with_its_lane() -> None:
    async def work(cluster: ScriptedCluster, client: Client) -> None:
        queue = client.queue("q")
        await queue.enqueue(b"0")
        cluster.peer(1).script = script_writes(then="drop")
        began = now()
        with pytest.raises(Unknown) as caught:
            await queue.enqueue(b"1")
        assert 5.0 <= now() - began <= 5.0 + SWEEP_S + 1e-6
        assert caught.value.__dict__["lane"] == LANE
        assert caught.value.__dict__["write_id"] == write_ids(cluster)[-1]

    assert everything(play(work, pubsub=True, timeout_s=5.0)) == [b"0"]


def test_a_write_that_every_peer_refuses_is_refused_at_its_deadline() -> None:
    async def work(cluster: ScriptedCluster, client: Client) -> None:
        for peer in cluster.peers:
            peer.script = script_writes(then=Offline("no quorum"))
        began = now()
        with pytest.raises(Offline):
            await client.queue("q").enqueue(b"1")
        assert 5.0 <= now() - began <= 5.0 + SWEEP_S + 1e-6

    assert everything(play(work, pubsub=True, timeout_s=5.0)) == []


def test_a_write_under_lookup_is_unknown_with_its_lane_when_the_client_is_closed() -> None:
    async def work(cluster: ScriptedCluster, client: Client) -> None:
        queue = client.queue("q")
        lost = await lost_write(cluster, queue)
        began = now()
        await client.close()
        assert now() == began
        with pytest.raises(Unknown) as caught:
            await lost
        assert caught.value.__dict__["lane"] == LANE

    play(work, pubsub=True)

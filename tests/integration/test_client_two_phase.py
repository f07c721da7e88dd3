"""Writes to two-phase lanes against scripted peers: batching, failing over, order, outcomes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from itertools import chain, repeat

import pytest
import uvloop
from tests.scripted_cluster import Request, ScriptedCluster
from tests.virtual_loop import run_virtual

import avow
from avow.client.client import Client
from avow.client.outcomes import Done
from avow.client.queue import Queue
from avow.errors import (
    AvowError,
    Busy,
    InvalidRequest,
    Malformed,
    NotCoordinator,
    NotEqual,
    Offline,
    Unknown,
    UnknownQueue,
)
from avow.wire.batch import Batch

Scripted = AvowError | str | None


def run(
    work: Callable[[ScriptedCluster, Client], Awaitable[None]],
    *,
    peers: int = 3,
    lanes: int = 1,
    timeout_s: float = 60.0,
    virtual: bool = False,
) -> ScriptedCluster:
    """`virtual`: on a virtual clock and a network in memory, for what happens at a deadline."""
    cluster = ScriptedCluster(peers)

    async def go() -> None:
        cluster.create("q", lanes=lanes)
        async with cluster, await avow.connect(cluster.addresses, timeout_s=timeout_s) as client:
            await work(cluster, client)

    (run_virtual if virtual else uvloop.run)(go())
    return cluster


def script_writes(*answers: Scripted, then: Scripted = None) -> Callable[[Request], Scripted]:
    """A script that gives these answers to consecutive writes."""
    script: Iterator[Scripted] = chain(answers, repeat(then))
    return lambda request: next(script) if request.is_write else None


def writes(cluster: ScriptedCluster, number: int) -> list[Request]:
    return [request for request in cluster.peer(number).requests if request.is_write]


def send_until_busy(queue: Queue, value: bytes) -> list[asyncio.Future[Done]]:
    sent: list[asyncio.Future[Done]] = []
    try:
        while len(sent) < 200:
            sent.append(queue.send(value))
    except Busy:
        return sent
    raise AssertionError("nothing was refused")


def test_messages_sent_in_one_turn_leave_as_one_batch_and_each_gets_its_version() -> None:
    async def work(cluster: ScriptedCluster, client: Client) -> None:
        queue = client.queue("q")
        await queue.enqueue(b"first")
        done = await asyncio.gather(*[queue.send(b"%d" % number) for number in range(100)])
        assert [found.first_version for found in done] == list(range(2, 102))
        assert len({found.write_id for found in done}) == 1
        assert len(writes(cluster, 1)) == 2

    cluster = run(work)
    assert cluster.shelf.values("q", 0) == [b"first", *(b"%d" % number for number in range(100))]


def test_messages_sent_before_the_queue_is_known_wait_in_order() -> None:
    async def work(cluster: ScriptedCluster, client: Client) -> None:
        queue = client.queue("q")
        done = await asyncio.gather(*[queue.send(b"%d" % number) for number in range(5)])
        assert [found.first_version for found in done] == [1, 2, 3, 4, 5]

    run(work)


def test_the_open_batch_grows_while_others_are_in_flight() -> None:
    async def work(cluster: ScriptedCluster, client: Client) -> None:
        queue = client.queue("q")
        await queue.enqueue(b"first")
        futures = []
        for number in range(200):
            futures.append(queue.send(b"%d" % number))
            await asyncio.sleep(0)
        await asyncio.gather(*futures)

    cluster = run(work)
    assert cluster.shelf.values("q", 0) == [b"first", *(b"%d" % number for number in range(200))]


def test_keys_find_their_lane_and_messages_without_one_take_the_lanes_in_turn() -> None:
    async def work(cluster: ScriptedCluster, client: Client) -> None:
        queue = client.queue("q")
        keyed = await queue.enqueue_many([b"a", b"b", b"c"], keys=[b"k1", b"k2", b"k1"])
        again = await queue.enqueue(b"d", key=b"k1")
        assert again.lane in {done.lane for done in keyed}
        turns = [(await queue.enqueue(b"x")).lane for _ in range(6)]
        assert sorted(set(turns)) == [0, 1, 2]
        assert (await queue.enqueue(b"y", lane=2)).lane == 2
        with pytest.raises(InvalidRequest, match="lanes 0 to 2"):
            await queue.enqueue(b"y", lane=3)

    run(work, lanes=3)


def test_many_messages_are_split_at_the_limits_of_a_batch() -> None:
    async def work(cluster: ScriptedCluster, client: Client) -> None:
        done = await client.queue("q").enqueue_many([bytes(900_000)] * 20)
        assert len(done) == 3
        assert [found.first_version for found in done] == [1, done[0].last_version + 1, done[1].last_version + 1]
        assert done[-1].last_version == 20

    run(work)


def test_a_write_whose_answer_was_lost_is_retried_with_its_id_and_not_duplicated() -> None:
    async def work(cluster: ScriptedCluster, client: Client) -> None:
        queue = client.queue("q")
        await queue.enqueue(b"first")
        cluster.peer(1).script = script_writes("act and drop", then="drop")
        done = await queue.enqueue(b"second")
        assert done.first_version == 2
        again = next(request for number in (2, 3) for request in writes(cluster, number))
        assert int(again.headers["avow-age-ms"]) >= 10
        assert [request.headers["avow-age-ms"] for request in writes(cluster, 1)[:2]] == ["0", "0"]
        assert Batch(again.body).write_id == done.write_id

    cluster = run(work)
    assert cluster.shelf.values("q", 0) == [b"first", b"second"]


def test_order_is_kept_when_the_coordinator_dies_with_many_batches_in_flight() -> None:
    async def work(cluster: ScriptedCluster, client: Client) -> None:
        queue = client.queue("q")
        await queue.enqueue(b"0")
        cluster.peer(1).script = script_writes(None, None, "act and drop", then="drop")
        futures = []
        for number in range(1, 400):
            futures.append(queue.send(b"%d" % number))
            if number % 10 == 0:
                await asyncio.sleep(0)
        await asyncio.gather(*futures)

    cluster = run(work)
    assert cluster.shelf.values("q", 0) == [b"%d" % number for number in range(400)]


def test_after_a_refusal_the_remaining_batches_are_resent_in_order() -> None:
    async def work(cluster: ScriptedCluster, client: Client) -> None:
        queue = client.queue("q")
        await queue.enqueue(b"0")
        for peer in cluster.peers:
            peer.script = script_writes(*[Offline("taking over")] * (8 if peer.number == 1 else 1))
        futures = []
        for number in range(1, 100):
            futures.append(queue.send(b"%d" % number))
            await asyncio.sleep(0)
        await asyncio.gather(*futures)

    cluster = run(work)
    assert cluster.shelf.values("q", 0) == [b"%d" % number for number in range(100)]


def test_a_persistent_refusal_is_raised_at_the_deadline() -> None:
    async def work(cluster: ScriptedCluster, client: Client) -> None:
        queue = client.queue("q")
        await queue.enqueue(b"first")
        for peer in cluster.peers:
            peer.script = script_writes(then=Offline("no quorum"))
        with pytest.raises(Offline, match="scripted OFFLINE"):
            await queue.enqueue(b"second")
        assert all(writes(cluster, number) for number in (1, 2, 3))

    cluster = run(work, timeout_s=5.0, virtual=True)
    assert cluster.shelf.values("q", 0) == [b"first"]


def test_an_attempt_that_may_have_happened_makes_the_outcome_unknown_with_its_write_id() -> None:
    async def work(cluster: ScriptedCluster, client: Client) -> None:
        queue = client.queue("q")
        await queue.enqueue(b"first")
        cluster.peer(1).script = script_writes("act and drop", then="drop")
        for number in (2, 3):
            cluster.peer(number).script = script_writes(then=Offline("no quorum"))
        with pytest.raises(Unknown) as caught:
            await queue.enqueue(b"second")
        write_id = caught.value.__dict__["write_id"]
        assert Batch(cluster.shelf.records["q", 0][-1][1]).write_id == write_id
        found = await queue.outcome(write_id, lane=0)
        assert found[0].first_version == 2

    run(work, timeout_s=5.0, virtual=True)


def test_a_silent_peer_is_given_up_and_another_is_used() -> None:
    async def work(cluster: ScriptedCluster, client: Client) -> None:
        queue = client.queue("q")
        await queue.enqueue(b"first")
        cluster.peer(1).script = script_writes(then="silent")
        done = await queue.enqueue(b"second")
        assert done.first_version == 2

    run(work, timeout_s=10.0)


def test_the_coordinator_named_by_an_answer_gets_the_next_write() -> None:
    async def work(cluster: ScriptedCluster, client: Client) -> None:
        queue = client.queue("q")
        await queue.enqueue(b"1")
        cluster.coordinator = 3
        await queue.enqueue(b"2")
        await queue.enqueue(b"3")
        assert (len(writes(cluster, 1)), len(writes(cluster, 3))) == (2, 1)

    run(work)


def test_a_redirect_is_followed_at_once() -> None:
    async def work(cluster: ScriptedCluster, client: Client) -> None:
        queue = client.queue("q")
        hint = NotCoordinator("ask 2", coordinator=2, api=cluster.peer(2).url)
        cluster.peer(1).script = script_writes(then=hint)
        cluster.coordinator = 0
        await queue.enqueue(b"1")
        await queue.enqueue(b"2")
        assert (len(writes(cluster, 1)), len(writes(cluster, 2)), len(writes(cluster, 3))) == (1, 2, 0)

    run(work)


def test_the_expected_version_is_checked_and_a_conflict_names_the_end() -> None:
    async def work(cluster: ScriptedCluster, client: Client) -> None:
        queue = client.queue("q")
        assert (await queue.enqueue(b"1", expected=0)).first_version == 1
        with pytest.raises(NotEqual) as caught:
            await queue.enqueue(b"2", expected=0)
        assert caught.value.current == 1
        assert (await queue.enqueue_many([b"2", b"3"], expected=1))[0].last_version == 3

    run(work)


def test_a_conditional_write_whose_answer_was_lost_is_answered_with_its_first_outcome() -> None:
    async def work(cluster: ScriptedCluster, client: Client) -> None:
        queue = client.queue("q")
        await queue.enqueue(b"1")
        cluster.peer(1).script = script_writes("act and drop", then="drop")
        assert (await queue.enqueue(b"2", expected=1)).first_version == 2

    run(work)


def test_one_peer_that_does_not_know_a_new_queue_is_not_believed() -> None:
    async def work(cluster: ScriptedCluster, client: Client) -> None:
        cluster.peer(1).script = lambda request: UnknownQueue("no") if "q" in request.names else None
        assert (await client.queue("q").enqueue(b"1")).first_version == 1
        with pytest.raises(UnknownQueue):
            await client.queue("nobody knows").enqueue(b"1")

    run(work)


def test_two_conditional_writes_of_one_turn_keep_their_order() -> None:
    async def work(cluster: ScriptedCluster, client: Client) -> None:
        queue = client.queue("q")
        await queue.info()
        first, second, third = queue.send(b"1"), queue.send(b"2", expected=1), queue.send(b"3")
        assert [found.first_version for found in await asyncio.gather(first, second, third)] == [1, 2, 3]

    run(work)


def test_a_caller_that_stops_waiting_does_not_disturb_the_others() -> None:
    async def work(cluster: ScriptedCluster, client: Client) -> None:
        queue = client.queue("q")
        await queue.enqueue(b"0")
        futures = [queue.send(b"%d" % number) for number in range(1, 4)]
        futures[1].cancel()
        assert (await futures[0]).first_version == 2
        assert (await futures[2]).first_version == 4

    cluster = run(work)
    assert len(cluster.shelf.values("q", 0)) == 4


def test_a_write_id_chosen_by_the_caller_makes_a_repeat_harmless() -> None:
    async def work(cluster: ScriptedCluster, client: Client) -> None:
        queue = client.queue("q")
        first = await queue.enqueue_many([b"a", b"b"], write_id=b"0123456789abcdef")
        assert await queue.enqueue_many([b"a", b"b"], write_id=b"0123456789abcdef") == first

    cluster = run(work)
    assert cluster.shelf.values("q", 0) == [b"a", b"b"]


def test_sends_beyond_the_buffer_limit_are_refused_and_enqueues_wait() -> None:
    async def work(cluster: ScriptedCluster, client: Client) -> None:
        queue = client.queue("q")
        await queue.info()
        cluster.peer(1).script = script_writes(then="silent")
        sent = send_until_busy(queue, bytes(1 << 20))
        waiting = asyncio.ensure_future(queue.enqueue(b"patient"))
        await asyncio.sleep(0)
        cluster.peer(1).script = lambda request: None
        await cluster.peer(1).kill()
        await asyncio.gather(*sent)
        await waiting

    cluster = run(work, timeout_s=20.0)
    assert cluster.shelf.values("q", 0)[-1] == b"patient"


def test_closing_decides_all_waiting_writes() -> None:
    async def work(cluster: ScriptedCluster, client: Client) -> None:
        queue = client.queue("q")
        await queue.enqueue(b"1")
        cluster.peer(1).script = script_writes(then="silent")
        waiting = queue.send(b"2")
        while len(writes(cluster, 1)) < 2:
            await asyncio.sleep(0)
        await client.close()
        with pytest.raises(Unknown):
            await waiting
        with pytest.raises(InvalidRequest, match="closed"):
            queue.send(b"3")

    run(work)


def test_a_success_with_a_garbage_body_is_not_believed() -> None:
    async def work(cluster: ScriptedCluster, client: Client) -> None:
        queue = client.queue("q")
        await queue.enqueue(b"1")
        cluster.peer(1).script = script_writes("garbage", "garbage")
        assert (await queue.enqueue(b"2")).first_version == 2
        for peer in cluster.peers:
            peer.script = lambda request: "garbage"
        with pytest.raises(Malformed, match="answer of a peer"):
            await client.queues()

    run(work)


def test_an_unreachable_cluster_is_reported_with_its_addresses() -> None:
    async def go() -> None:
        with pytest.raises(Offline, match=r"127\.0\.0\.1:1\b"):
            await avow.connect("http://127.0.0.1:1", timeout_s=0.3)

    uvloop.run(go())

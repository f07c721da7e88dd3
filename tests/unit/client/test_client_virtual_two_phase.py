"""Writes to two-phase lanes on a virtual clock: repeats, order, deadlines and pauses, to the millisecond."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import chain, repeat
from random import Random

import pytest
from tests.scripted_cluster import PeerServer, ScriptedCluster
from tests.unit.client.virtual_client import (
    SWEEP_S,
    Scripted,
    everything,
    gaps,
    now,
    play,
    script_writes,
    write_ids,
    writes,
)

from avow.client.client import Client
from avow.errors import (
    AvowError,
    InvalidRequest,
    NotCoordinator,
    NotEqual,
    Offline,
    Unknown,
    UnknownQueue,
    UnknownSubscriber,
)

FIRST_S, LONGEST_S = 0.02, 0.5  # pauses between attempts


def script_all(cluster: ScriptedCluster, answer: Scripted) -> None:
    for peer in cluster.peers:
        peer.script = script_writes(then=answer)


async def refused(work: asyncio.Future[object] | object) -> AvowError:
    with pytest.raises(AvowError) as caught:
        await work  # type: ignore[misc]
    return caught.value


# ------------------------------------------------------------------------------------------ repeats and order


def test_a_write_whose_answer_was_lost_is_retried_with_the_same_id_and_not_duplicated() -> None:
    async def work(cluster: ScriptedCluster, client: Client) -> None:
        queue = client.queue("q")
        await queue.enqueue(b"first")
        cluster.peer(1).script = script_writes("act and drop", then="drop")
        done = await queue.enqueue(b"second")
        assert done.first_version == 2
        first, lost, *again = writes(cluster)
        assert {write_id == done.write_id for write_id in write_ids(cluster)[1:]} == {True}
        assert first.headers["avow-age-ms"] == lost.headers["avow-age-ms"] == "0"
        assert [int(one.headers["avow-age-ms"]) for one in again] == [int((one.at - lost.at) * 1000) for one in again]

    assert everything(play(work)) == [b"first", b"second"]


@pytest.mark.parametrize("seed", range(30))
def test_order_is_kept_and_nothing_is_duplicated_whichever_connections_break(seed: int) -> None:
    """Each peer breaks some connections before it executes a write, some after, and leaves some unanswered."""
    random = Random(seed)

    def breaks(peer: PeerServer) -> None:
        troubles: list[Scripted] = random.choices([None, "drop", "act and drop", "silent"], [6, 1, 1, 1], k=20)
        peer.script = script_writes(*troubles)

    async def work(cluster: ScriptedCluster, client: Client) -> None:
        queue = client.queue("q")
        await queue.enqueue(b"0")
        for peer in cluster.peers:
            breaks(peer)
        sent = []
        for number in range(1, 60):
            sent.append(queue.send(b"%d" % number))
            for _ in range(random.randrange(3)):
                await asyncio.sleep(0)
        done = await asyncio.gather(*sent)
        assert [found.first_version for found in done] == list(range(2, 61))

    assert everything(play(work, timeout_s=300.0, seed=seed)) == [b"%d" % number for number in range(60)]


def test_a_batch_after_a_failed_one_waits_until_that_is_done() -> None:
    async def work(cluster: ScriptedCluster, client: Client) -> None:
        queue = client.queue("q")
        await queue.info()
        for peer in cluster.peers:
            peer.script = script_writes(*[Offline("taking over")] * (2 if peer.number == 1 else 1))
        first = queue.send(b"1")
        await asyncio.sleep(0)
        second = queue.send(b"2")
        assert [(await found).first_version for found in (first, second)] == [1, 2]

    cluster = play(work)
    ids = write_ids(cluster)
    assert ids[0] != ids[1] == ids[-1]  # both were in flight; then the first alone, until it is done
    assert set(ids[2:-1]) == {ids[0]}
    assert everything(cluster) == [b"1", b"2"]


def test_nothing_new_is_sent_while_a_failed_batch_waits_for_those_in_flight() -> None:
    async def work(cluster: ScriptedCluster, client: Client) -> None:
        queue = client.queue("q")
        await queue.enqueue(b"0")
        cluster.peer(1).script = script_writes(Offline("no quorum"), 2.0)
        refused, slow = queue.send(b"1"), queue.send(b"2", expected=1)
        await asyncio.sleep(1.0)
        late = queue.send(b"3")
        done = [(await found).first_version for found in (refused, slow, late)]
        assert done == [3, 2, 4]  # the one accepted while the first was refused is done; no other overtakes it

    assert everything(play(work)) == [b"0", b"2", b"1", b"3"]


# ------------------------------------------------------------------------------------------- the coordinator


def test_a_change_of_coordinator_is_followed_by_the_next_write() -> None:
    async def work(cluster: ScriptedCluster, client: Client) -> None:
        queue = client.queue("q")
        for coordinator in (1, 3, 2, 2):
            cluster.coordinator = coordinator
            await queue.enqueue(b"x")
        assert [[request.is_write for request in peer.requests].count(True) for peer in cluster.peers] == [2, 1, 1]

    play(work)


def test_a_redirect_is_followed_without_a_pause() -> None:
    async def work(cluster: ScriptedCluster, client: Client) -> None:
        queue = client.queue("q")
        await queue.enqueue(b"first")
        cluster.peer(1).script = script_writes(then=NotCoordinator("no", coordinator=3, api=cluster.peer(3).url))
        cluster.coordinator = 3
        began = now()
        await queue.enqueue(b"second")
        assert now() == began
        assert writes(cluster)[-1] in cluster.peer(3).requests

    play(work)


def test_a_redirect_loop_between_peers_ends() -> None:
    async def work(cluster: ScriptedCluster, client: Client) -> None:
        for peer in cluster.peers:
            other = cluster.peer(peer.number % 3 + 1)
            peer.script = script_writes(then=NotCoordinator("no", coordinator=other.number, api=other.url))
        error = await refused(client.queue("q").enqueue(b"x"))
        assert isinstance(error, NotCoordinator)

    assert len(writes(play(work, timeout_s=5.0))) < 25


# --------------------------------------------------------------------------------------------------- deadlines

MAYBE: list[Scripted] = ["drop", "act and drop", "silent", "garbage", Unknown("no quorum answered")]
NEVER: list[Scripted] = [Offline("no quorum")]


@pytest.mark.parametrize("answer", MAYBE + NEVER, ids=lambda answer: answer if isinstance(answer, str) else answer.code)
def test_at_its_deadline_a_write_is_unknown_if_an_attempt_may_have_happened_else_refused(answer: Scripted) -> None:
    async def work(cluster: ScriptedCluster, client: Client) -> None:
        queue = client.queue("q")
        await queue.info()
        script_all(cluster, answer)
        began = now()
        error = await refused(queue.enqueue(b"x"))
        assert 5.0 <= now() - began <= 5.0 + SWEEP_S + 1e-6
        assert isinstance(error, Unknown) == (answer in MAYBE)
        assert error.definite == (answer in NEVER)
        if isinstance(error, Unknown):
            assert error.__dict__["write_id"] == write_ids(cluster)[0]

    cluster = play(work, timeout_s=5.0)
    assert len(set(write_ids(cluster))) == 1
    assert everything(cluster) == ([b"x"] if answer == "act and drop" else [])


@pytest.mark.parametrize("maybe_at", [1, 2, 3])
def test_one_attempt_that_may_have_happened_outweighs_all_that_did_not(maybe_at: int) -> None:
    async def work(cluster: ScriptedCluster, client: Client) -> None:
        queue = client.queue("q")
        await queue.info()
        script_all(cluster, Offline("no quorum"))
        cluster.peer(maybe_at).script = script_writes("drop", then=Offline("no quorum"))
        assert isinstance(await refused(queue.enqueue(b"x")), Unknown)

    play(work)


def test_a_write_that_reached_no_peer_is_refused_at_its_deadline() -> None:
    async def work(cluster: ScriptedCluster, client: Client) -> None:
        queue = client.queue("q")
        await queue.info()
        for peer in cluster.peers:
            await peer.kill()
        began = now()
        error = await refused(queue.enqueue(b"x"))
        assert isinstance(error, Offline)
        assert 5.0 <= now() - began <= 5.0 + SWEEP_S + 1e-6

    assert writes(play(work, timeout_s=5.0)) == []


def test_an_expected_version_that_the_lane_has_passed_is_a_definite_conflict() -> None:
    async def work(cluster: ScriptedCluster, client: Client) -> None:
        queue = client.queue("q")
        await queue.enqueue_many([b"1", b"2"])
        cluster.peer(1).script = script_writes("drop")
        error = await refused(queue.enqueue(b"3", expected=1))
        assert isinstance(error, NotEqual)
        assert (error.expected, error.current) == (1, 2)

    assert everything(play(work)) == [b"1", b"2"]


# ----------------------------------------------------------------------------------------------------- pauses


def test_pauses_double_up_to_half_a_second_and_are_reset_by_a_success() -> None:
    async def work(cluster: ScriptedCluster, client: Client) -> None:
        queue = client.queue("q")
        await queue.info()
        for _ in range(2):
            before = len(writes(cluster))
            script_all(cluster, Offline("no quorum"))
            waiting = queue.send(b"x")
            await asyncio.sleep(10.0)
            script_all(cluster, None)
            await waiting
            measured = gaps(writes(cluster)[before:])
            ceilings = [min(FIRST_S * 2**tries, LONGEST_S) for tries in range(len(measured))]
            assert len(measured) > 20
            for gap, ceiling in zip(measured, ceilings, strict=True):
                assert ceiling / 2 - 1e-9 <= gap <= ceiling + 1e-9

    play(work, timeout_s=60.0)


def test_a_silent_connection_is_given_up_after_a_growing_timeout() -> None:
    async def work(cluster: ScriptedCluster, client: Client) -> None:
        queue = client.queue("q")
        await queue.info()
        for peer in cluster.peers[1:]:
            await peer.kill()
        script_all(cluster, "silent")
        error = await refused(queue.enqueue(b"x"))
        assert isinstance(error, Unknown)
        waits = gaps([request for request in cluster.peer(1).requests if request.is_write])
        floor = [1.0, 2.0, 4.0, 8.0, 8.0]
        assert len(waits) >= len(floor)
        for waited, silent_s in zip(waits, floor, strict=False):
            assert silent_s <= waited <= silent_s + 2.5  # a sweep, a pause, and the other peers' turns

    play(work, timeout_s=60.0)


def test_a_read_is_retried_at_other_peers_and_is_offline_if_none_answers() -> None:
    async def work(cluster: ScriptedCluster, client: Client) -> None:
        cluster.peer(1).script = lambda request: "silent"
        began = now()
        assert (await client.queue("q").info()).name == "q"
        assert 5.0 <= now() - began <= 5.0 + FIRST_S  # as long as one attempt may take, and a pause
        for peer in cluster.peers:
            peer.script = lambda request: "drop"
        began = now()
        assert isinstance(await refused(client.queue("q").info()), Offline)  # a read cannot have changed anything
        assert now() - began == pytest.approx(20.0, abs=1e-6)

    play(work, timeout_s=20.0)


def test_a_removal_whose_answer_was_lost_is_done_when_the_repeat_finds_nothing() -> None:
    def lose_an_answer(cluster: ScriptedCluster) -> None:
        script: Iterator[Scripted] = chain(["act and drop"], repeat(None))
        for peer in cluster.peers:
            peer.script = lambda request: next(script) if request.method == "DELETE" else None

    async def work(cluster: ScriptedCluster, client: Client) -> None:
        queue = client.queue("q")
        await queue.move_cursor("s", {0: 0})
        lose_an_answer(cluster)
        await queue.remove_subscriber("s")
        assert await queue.subscribers() == ()
        assert isinstance(await refused(queue.remove_subscriber("s")), UnknownSubscriber)
        lose_an_answer(cluster)
        await client.delete_queue("q")
        assert cluster.shelf.queues == {}
        assert isinstance(await refused(client.delete_queue("q")), UnknownQueue)

    play(work)


def test_a_sweep_that_is_scheduled_again_does_not_add_a_timer() -> None:
    async def work(cluster: ScriptedCluster, client: Client) -> None:
        swept: list[float] = []

        def sweep(at: float) -> bool:
            swept.append(at)
            client._cluster.watch(sweep)
            return at < began + 1.0

        began = now()
        client._cluster.watch(sweep)
        await asyncio.sleep(2.0)
        assert [round((at - began) / SWEEP_S) for at in swept] == list(range(1, len(swept) + 1))

    play(work)


# ----------------------------------------------------------------------------------- queues that nobody knows


@pytest.mark.parametrize("pubsub", [False, True])
def test_a_queue_is_unknown_only_when_every_peer_says_so(pubsub: bool) -> None:
    def forget(cluster: ScriptedCluster, *numbers: int) -> None:
        for peer in cluster.peers:
            unknown = peer.number in numbers
            peer.script = lambda request, unknown=unknown: UnknownQueue() if unknown and "q" in request.names else None  # type: ignore[misc]

    async def work(cluster: ScriptedCluster, client: Client) -> None:
        queue = client.queue("q")
        await queue.enqueue(b"1")
        forget(cluster, 1, 2)
        await queue.enqueue(b"2")
        forget(cluster, 1, 2, 3)
        began = now()
        assert isinstance(await refused(queue.enqueue(b"3")), UnknownQueue)
        assert now() - began < 1.0  # long before the deadline

    assert everything(play(work, pubsub=pubsub, timeout_s=60.0)) == [b"1", b"2"]


# ------------------------------------------------------------------------------------------------------ the end


@pytest.mark.parametrize("pubsub", [False, True])
def test_closing_makes_sent_writes_unknown_and_unsent_ones_refused(pubsub: bool) -> None:
    async def work(cluster: ScriptedCluster, client: Client) -> None:
        queue = client.queue("q")
        await queue.enqueue(b"first")
        script_all(cluster, "silent")
        sent = []
        for number in range(20):  # more batches than may be in flight
            sent.append(queue.send(b"%d" % number))
            await asyncio.sleep(0)
        await asyncio.sleep(0.1)
        assert not any(future.done() for future in sent)
        began = now()
        await client.close()
        assert now() == began
        assert all(future.done() for future in sent)
        errors = [await refused(future) for future in sent]
        left = len(writes(cluster)) - 1
        assert 0 < left < 20
        assert all(isinstance(error, Unknown) for error in errors[:left])
        assert all(isinstance(error, Offline) and error.definite for error in errors[left:])
        with pytest.raises(InvalidRequest, match="closed"):
            queue.send(b"too late")

    assert everything(play(work, pubsub=pubsub)) == [b"first"]


@pytest.mark.parametrize("pubsub", [False, True])
def test_callers_that_stop_waiting_get_no_callback_and_leave_nothing(pubsub: bool) -> None:
    async def work(cluster: ScriptedCluster, client: Client) -> None:
        queue = client.queue("q")
        await queue.enqueue(b"0")
        script_all(cluster, "silent")
        callers = [asyncio.ensure_future(queue.enqueue(b"%d" % number)) for number in (1, 2, 3)]
        await asyncio.sleep(0.01)
        for caller in callers:
            caller.cancel()
        script_all(cluster, None)
        done = await queue.enqueue(b"4")
        while any(number for row in queue.statistics() for name, number in row.items() if name != "lane"):
            await asyncio.sleep(0.1)
        assert all(caller.cancelled() for caller in callers)
        assert done.first_version > 0

    assert sorted(everything(play(work, pubsub=pubsub, timeout_s=30.0))) == [b"%d" % number for number in range(5)]

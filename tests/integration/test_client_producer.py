"""A producer against scripted peers: whatever ends its channel, each message is in the queue once."""

from __future__ import annotations

import asyncio

import pytest
from tests.integration.producer_runs import everything, numbers, run, send, until, written_over_http
from tests.scripted_cluster import ScriptedCluster

from avow.channel.protocol.frames import POSITION_UNKNOWN, End, EndCode
from avow.client import producer_connection
from avow.client.client import Client
from avow.errors import InvalidRequest, TooLarge

# ---------------------------------------------------------------------- as long as all is well


def test_messages_of_one_turn_are_one_record_and_a_commit_confirms_them() -> None:
    async def work(cluster: ScriptedCluster, client: Client) -> None:
        async with client.producer("q") as producer:
            await send(producer, 0, 100, turns=False)
            assert producer.non_acked_message_count == 100
            await producer.commit()
            assert producer.non_acked_message_count == 0
            assert cluster.shelf.values("q", 0) == numbers(0, 100)
            (found,) = await producer.written()
            assert (found.first_version, found.last_version, found.messages) == (1, 100, 100)

    cluster = run(work)
    assert len(cluster.shelf.records["q", 0]) == 1
    assert written_over_http(cluster) == 0


def test_the_end_of_the_block_commits_its_messages() -> None:
    async def work(cluster: ScriptedCluster, client: Client) -> None:
        async with client.producer("q") as producer:
            await send(producer, 0, 10)
        with pytest.raises(InvalidRequest, match="closed"):
            await producer.send(b"late")

        async def fail() -> None:
            async with client.producer("q") as other:
                await other.send(b"0010")
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await fail()

    assert everything(run(work)) == numbers(0, 11)


def test_keys_headers_and_times_arrive_and_lanes_follow_key_name_or_rotation() -> None:
    async def work(cluster: ScriptedCluster, client: Client) -> None:
        async with client.producer("q") as producer:
            await producer.send(b"a", key=b"k", headers={"h": b"x"}, time_ms=7)
            await producer.send(b"b", lane=2)
            await producer.send_many([b"c", b"d"], keys=[b"k", b"k"])
            await producer.send_many([bytes(300_000)] * 5, lane=1)
            for _ in range(3):
                await producer.send(b"turn")
                await asyncio.sleep(0)
            with pytest.raises(InvalidRequest, match="lanes 0 to 2"):
                await producer.send(b"x", lane=3)
            with pytest.raises(TooLarge):
                await producer.send(bytes(2_000_000))
        messages = [m async for batch in client.queue("q").read() for m in batch.messages()]
        keyed = [m for m in messages if m.key == b"k"]
        assert [(m.value, m.headers, m.time_ms == 7) for m in keyed] == [
            (b"a", (("h", b"x"),), True),
            (b"c", (), False),
            (b"d", (), False),
        ]
        assert len({m.lane for m in messages if m.value == b"turn"}) == 3
        assert [m.lane for m in messages if len(m.value) == 300_000] == [1] * 5

    run(work, lanes=3)


def test_a_producer_is_suspended_at_its_limit_and_resumes_when_acknowledged() -> None:
    async def work(cluster: ScriptedCluster, client: Client) -> None:
        async with client.producer("q", pending_count=64) as producer:
            server = cluster.peer(1).channels
            server.acks = False
            sending = asyncio.create_task(send(producer, 0, 200))
            await until(lambda: producer.suspended)
            await asyncio.sleep(0.05)
            assert not sending.done()
            assert producer.statistics()["records"] <= 65
            server.acks = True
            server.open[0].ack_commit(server.open[0].core.incoming.commits_received_to)
            await sending

    assert everything(run(work)) == numbers(0, 200)


def test_acknowledgements_arrive_without_a_commit_of_the_application() -> None:
    async def work(cluster: ScriptedCluster, client: Client) -> None:
        async with client.producer("q", pending_count=64) as producer:
            await send(producer, 0, 60)
            await until(lambda: producer.non_acked_message_count < 20)

    run(work)


def test_an_empty_commit_returns_and_cancelling_a_wait_changes_nothing() -> None:
    async def work(cluster: ScriptedCluster, client: Client) -> None:
        async with client.producer("q") as producer:
            await producer.commit()
            server = cluster.peer(1).channels
            server.acks = False
            await producer.send(b"0000")
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(producer.commit(), 0.05)
            server.open[0].ack_commit(server.open[0].core.incoming.commits_received_to)
            server.acks = True
            await producer.commit()

    assert everything(run(work)) == numbers(0, 1)


# ---------------------------------------------------------------------- channels that fail


def test_a_lost_socket_is_resumed_at_the_same_peer_without_lookups() -> None:
    async def work(cluster: ScriptedCluster, client: Client) -> None:
        async with client.producer("q") as producer:
            for start in range(0, 200, 20):
                await send(producer, start, start + 20)
                cluster.peer(1).channels.cut()
            await producer.commit()
            assert producer.statistics()["channels"] == 1

    cluster = run(work)
    assert everything(cluster) == numbers(0, 200)
    assert written_over_http(cluster) == 0


def test_a_peer_that_dies_before_it_acknowledges_writes_duplicates_nothing() -> None:
    async def work(cluster: ScriptedCluster, client: Client) -> None:
        async with client.producer("q") as producer:
            server = cluster.peer(1).channels
            server.acks = False
            await send(producer, 0, 30)
            await until(lambda: len(everything(cluster)) == 30)
            await cluster.peer(1).kill()
            await send(producer, 30, 40)
            await producer.commit()
            assert producer.statistics()["channels"] == 2

    cluster = run(work)
    assert everything(cluster) == numbers(0, 40)
    assert written_over_http(cluster) >= 30


def test_a_peer_that_dies_before_it_writes_loses_nothing_and_lanes_keep_their_order() -> None:
    async def work(cluster: ScriptedCluster, client: Client) -> None:
        async with client.producer("q") as producer:
            taken = 0

            def takes(lane: int, record: bytes) -> bool:
                nonlocal taken
                taken += 1
                return taken <= 7

            cluster.peer(1).channels.takes, cluster.peer(1).channels.acks = takes, False
            await send(producer, 0, 30)
            await until(lambda: taken == 30)
            await cluster.peer(1).kill()
            await send(producer, 30, 60)

    cluster = run(work, lanes=3)
    assert sorted(everything(cluster)) == numbers(0, 60)
    for lane in range(3):
        values = cluster.shelf.values("q", lane)
        assert values == sorted(values)


@pytest.mark.parametrize(
    ("code", "name"),
    [(EndCode.GOING, ""), (EndCode.EXPIRED, ""), (EndCode.REFUSED, "OFFLINE"), (EndCode.ABORTED, "")],
)
def test_an_end_is_not_reported_when_another_peer_takes_over(code: EndCode, name: str) -> None:
    async def work(cluster: ScriptedCluster, client: Client) -> None:
        async with client.producer("q") as producer:
            cluster.peer(1).channels.acks = False
            await send(producer, 0, 10)
            waiting = asyncio.create_task(producer.commit())
            await asyncio.sleep(0.01)
            cluster.peer(1).channels.end_all(code, name=name)
            await waiting
            await send(producer, 10, 20)

    assert everything(run(work)) == numbers(0, 20)


def test_a_producer_survives_a_restarted_peer_that_does_not_know_the_channel() -> None:
    async def work(cluster: ScriptedCluster, client: Client) -> None:
        async with client.producer("q") as producer:
            cluster.peer(1).channels.acks = False
            await send(producer, 0, 10)
            await until(lambda: len(everything(cluster)) == 10)
            await cluster.peer(1).kill()
            await cluster.peer(1).start()
            await send(producer, 10, 20)

    assert everything(run(work)) == numbers(0, 20)


def test_a_silent_peer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer_connection, "SILENT_S", 0.2)

    async def work(cluster: ScriptedCluster, client: Client) -> None:
        async with client.producer("q") as producer:
            cluster.peer(1).channels.acks = False
            await send(producer, 0, 10)
            await producer.commit()
            assert cluster.peer(1).channels.open[0].ended

    assert everything(run(work)) == numbers(0, 10)


def test_an_idle_producer_opens_its_next_channel_when_it_needs_one() -> None:
    async def work(cluster: ScriptedCluster, client: Client) -> None:
        async with client.producer("q") as producer:
            await producer.send(b"0000")
            await producer.commit()
            await cluster.peer(1).kill()
            await until(lambda: producer.statistics()["peer"] is None)
            assert producer.statistics()["channels"] == 1
            await producer.send(b"0001")
            await producer.commit()
            assert producer.statistics()["channels"] == 2

    assert everything(run(work)) == numbers(0, 2)


# ---------------------------------------------------------------------- pub-sub


def test_a_pub_sub_record_is_bound_to_the_lane_of_the_peer_it_is_sent_to() -> None:
    async def work(cluster: ScriptedCluster, client: Client) -> None:
        async with client.producer("q") as producer:
            await send(producer, 0, 10)
            await producer.commit()
            assert cluster.shelf.values("q", 11) == numbers(0, 10)

    run(work, pubsub=True)


def test_records_in_a_dead_peers_lane_stay_there_and_the_others_go_to_another_lane_in_order() -> None:
    async def work(cluster: ScriptedCluster, client: Client) -> None:
        async with client.producer("q") as producer:
            taken = 0

            def takes(lane: int, record: bytes) -> bool:
                nonlocal taken
                taken += 1
                return taken <= 7

            cluster.peer(1).channels.takes, cluster.peer(1).channels.acks = takes, False
            await send(producer, 0, 20)
            await until(lambda: taken == 20)
            await cluster.peer(1).kill()
            await asyncio.sleep(0.1)
            assert cluster.shelf.values("q", 12) == []  # nobody can know yet, so nothing is written elsewhere
            cluster.ended.add(11)
            await send(producer, 20, 30)

    cluster = run(work, pubsub=True)
    assert cluster.shelf.values("q", 11) == numbers(0, 7)
    elsewhere = [cluster.shelf.values("q", lane) for lane in (12, 13) if ("q", lane) in cluster.shelf.records]
    assert elsewhere == [numbers(7, 30)]


@pytest.mark.parametrize("position", [0, POSITION_UNKNOWN])
def test_a_socket_refused_by_a_peer_that_shuts_down_does_not_move_stored_records_to_another_lane(position: int) -> None:
    """Regression: the refusal came before a Hello and was read as "nothing arrived". 0: a peer of an older build."""

    async def work(cluster: ScriptedCluster, client: Client) -> None:
        async with client.producer("q") as producer:
            server = cluster.peer(1).channels
            server.acks = False
            await send(producer, 0, 10)
            await until(lambda: len(everything(cluster)) == 10)
            server.refusal = End(EndCode.GOING, received_to=position, text="this process is shutting down")
            server.cut()
            await send(producer, 10, 20)

    assert sorted(everything(run(work, pubsub=True))) == numbers(0, 20)


def test_a_lane_that_ends_while_its_peer_lives_is_replaced_by_the_next() -> None:
    async def work(cluster: ScriptedCluster, client: Client) -> None:
        async with client.producer("q") as producer:
            await send(producer, 0, 5)
            await producer.commit()
            cluster.ended.add(11)
            cluster.peer(1).open_lane = 21
            cluster.peer(1).channels.takes = lambda lane, record: "LANE_ENDED" if lane == 11 else True
            await send(producer, 5, 10)

    cluster = run(work, pubsub=True)
    assert sorted(everything(cluster)) == numbers(0, 10)

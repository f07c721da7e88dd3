"""Subscribers' channels: from the durable cursor on, moved by acks, and read by one reader for each lane."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from tests.unit.server.channels.channel_bench import Bench, Reading, record, run

from avow.node.answers import Done
from avow.node.lane.two_phase_lane import Write
from avow.queue.commands import CursorCommand, LaneCursorsCommand, SubscriptionCommand, encode
from avow.wire.messages import Kind


def numbered(count: int, *, start: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(start, start + count)]


FROM_END: dict[str, Any] = {"from": "end"}


async def subscribe(bench: Bench, at: int = 1, *, member: str = "", acks: bool = True, **more: str) -> Reading:
    found = {"queue": "orders", "subscriber": "billing", **more}
    return await bench.read(at, role="subscriber", member=member, acks=acks, **found)


# ---------------------------------------------------------------------- cursors


def test_acks_move_the_durable_cursor_and_the_next_reader_starts_there() -> None:
    async def scenario() -> None:
        async with Bench() as bench:
            lane = bench.cluster.create("orders", lanes=2)
            await bench.fill(lane, numbered(5))
            first = await subscribe(bench)
            await bench.until(lambda: len(first.got) == 5)
            assert first.lanes == {"0": 0, "1": 0}
            assert first.epoch > 0
            await first.channel.commit()
            assert bench.cursor(lane, "billing") == 5
            first.channel.close()
            await bench.until(lambda: not bench.members("orders", "billing"))
            await bench.fill(lane, [b"5"])
            second = await subscribe(bench, 2)
            await bench.until(lambda: second.got)
            assert second.lanes == {"0": 5, "1": 0}
            assert second.of(0) == [b"5"]

    run(scenario)


def test_a_page_reads_json_and_the_limit_in_the_middle_of_a_group_loses_nothing() -> None:
    async def scenario() -> None:
        async with Bench() as bench:
            lane = bench.cluster.create("orders")
            producer = await bench.open(bench.coordinator(lane), role="producer", queue="orders")
            for start in range(0, 6_000, 1_000):
                producer.send(record(*numbered(1_000, start=start)))
            await producer.commit()
            reader = await subscribe(bench, 2, acks=False, format="json")
            far = bench.ends_at(2, "subscriber")
            await bench.until(lambda: far.suspended)
            assert 4_000 < len(reader.raw) < 6_000
            reader.acks = True
            reader.channel.ack_commit(reader.commits[-1])
            await bench.until(lambda: len(reader.raw) == 6_000)
            assert [json.loads(line)["value"] for line in reader.raw] == [str(number) for number in range(6_000)]
            await reader.channel.commit()
            assert bench.cursor(lane, "billing") == 6_000

    run(scenario)


def test_without_acks_the_cursor_stays_and_messages_are_redelivered() -> None:
    async def scenario() -> None:
        async with Bench() as bench:
            lane = bench.cluster.create("orders")
            await bench.fill(lane, numbered(5))
            first = await subscribe(bench, acks=False)
            await bench.until(lambda: len(first.got) == 5)
            await first.channel.commit()
            first.channel.close()
            await bench.until(lambda: not bench.members("orders", "billing"))
            assert bench.cursor(lane, "billing") == 0
            second = await subscribe(bench, 3)
            await bench.until(lambda: second.of(0) == numbered(5))

    run(scenario)


def test_a_clients_commit_is_acknowledged_only_when_earlier_moves_are_durable() -> None:
    async def scenario() -> None:
        async with Bench() as bench:
            lane = bench.cluster.create("orders")
            await bench.fill(lane, numbered(3))
            coordinator = bench.coordinator(lane)
            at = coordinator % 3 + 1
            reader = await subscribe(bench, at, acks=False)
            await bench.until(lambda: len(reader.got) == 3)
            bench.cluster.cut = {(coordinator, at), (at, coordinator)}
            reader.channel.ack_commit(reader.commits[-1])
            flushed: list[int] = []
            for number in range(5):
                reader.channel.commit(lambda number=number: flushed.append(number))  # type: ignore[misc]
            await bench.until(lambda: reader.channel.core.out.last_commit == 5)
            assert not flushed
            bench.cluster.cut = set()
            await bench.until(lambda: flushed == list(range(5)))
            assert bench.cursor(lane, "billing") == 3

    run(scenario)


@pytest.mark.parametrize("strategy", ["two-phase", "pub-sub"])
def test_a_new_subscriber_may_start_at_the_end_and_then_keeps_its_cursor(strategy: str) -> None:
    async def scenario() -> None:
        async with Bench() as bench:
            lane = bench.cluster.create("orders", strategy=strategy)
            if strategy == "pub-sub":
                lane = await bench.until(lambda: bench.cluster.nodes[1].pubsub["orders"].open_lane)
            producer = await bench.open(1, role="producer", queue="orders")

            async def write(*values: bytes) -> None:
                for value in values:
                    producer.send(record(value, lane=0 if strategy == "two-phase" else lane))
                await producer.commit()
                bench.cluster.run(0.5)

            await write(b"old", b"older")
            reader = await subscribe(bench, 1, **FROM_END)
            await bench.until(lambda: reader.lanes is not None)
            name = "0" if strategy == "two-phase" else str(lane)
            assert reader.lanes is not None
            assert reader.lanes[name] == 2
            reader.channel.close()
            await bench.until(lambda: not bench.members("orders", "billing"))
            await write(b"missed")
            again = await subscribe(bench, 2, **FROM_END)
            await bench.until(lambda: [value for _, value in again.got] == [b"missed"])

    run(scenario)


def test_a_subscriber_that_starts_at_the_end_of_an_empty_lane_misses_nothing() -> None:
    async def scenario() -> None:
        async with Bench() as bench:
            lane = bench.cluster.create("orders")
            first = await subscribe(bench, 1, **FROM_END)
            await bench.until(lambda: first.lanes == {"0": 0})
            first.channel.close()
            await bench.until(lambda: not bench.members("orders", "billing"))
            await bench.fill(lane, [b"a", b"b"])
            again = await subscribe(bench, 2, **FROM_END)
            await bench.until(lambda: again.of(0) == [b"a", b"b"])

    run(scenario)


@pytest.mark.parametrize("strategy", ["two-phase", "pub-sub"])
def test_a_client_may_acknowledge_any_version(strategy: str) -> None:
    async def scenario() -> None:
        async with Bench() as bench:
            lane = bench.cluster.create("orders", strategy=strategy)
            if strategy == "pub-sub":
                lane = await bench.until(lambda: bench.cluster.nodes[1].pubsub["orders"].open_lane)
            named = lane if strategy == "pub-sub" else 0
            producer = await bench.open(1, role="producer", queue="orders")
            producer.send(record(*numbered(5), lane=named))
            await producer.commit()
            reader = await subscribe(bench, acks=False)
            await bench.until(lambda: len(reader.got) == 5)
            reader.channel.send(b'{"versions":{"%d":3}}' % named)
            await reader.channel.commit()
            found = (
                bench.cursor(lane, "billing") if strategy == "two-phase" else bench.vector("orders", "billing")[lane]
            )
            assert found == 3

    run(scenario)


@pytest.mark.parametrize(
    "message", [b"x", b"{}", b'{"versions":{"a":1}}', b'{"versions":{"7":1}}', b'{"versions":{"0":99}}']
)
def test_other_messages_of_a_client_are_refused(message: bytes) -> None:
    async def scenario() -> None:
        async with Bench() as bench:
            bench.cluster.create("orders")
            reader = await subscribe(bench)
            await bench.until(lambda: reader.lanes is not None)
            reader.channel.send(message)
            await bench.until(lambda: reader.ended)
            assert reader.failure.name == "INVALID_REQUEST"

    run(scenario)


# ---------------------------------------------------------------------- who reads


def test_a_second_reader_takes_over_and_late_acks_of_the_first_move_nothing() -> None:
    async def scenario() -> None:
        async with Bench() as bench:
            lane = bench.cluster.create("orders")
            await bench.fill(lane, numbered(4))
            first = await subscribe(bench, 1, acks=False)
            await bench.until(lambda: len(first.got) == 4)
            far = bench.ends_at(1, "subscriber")
            bench.cluster.cut = {(1, 2), (2, 1), (1, 3), (3, 1)}
            second = await subscribe(bench, 2, acks=False)
            await bench.until(lambda: len(second.got) == 4)
            first.channel.ack_commit(first.commits[-1])  # its peer does not know yet that it was replaced
            second.channel.ack_commit(second.commits[0])
            await second.channel.commit()
            moved_to = bench.cursor(lane, "billing", at=2)
            bench.cluster.cut = set()
            await bench.until(lambda: first.ended)
            assert far.ended
            assert first.failure.reason in ("MOVED", "REFUSED")
            assert first.failure.name in ("FENCED", "OFFLINE")
            assert bench.cursor(lane, "billing") == moved_to
            assert not second.ended

    run(scenario)


def test_a_replaced_reader_learns_by_whom() -> None:
    async def scenario() -> None:
        async with Bench() as bench:
            bench.cluster.create("orders")
            first = await subscribe(bench, 1)
            await bench.until(lambda: first.lanes is not None)
            second = await subscribe(bench, 2)
            await bench.until(lambda: first.ended and second.lanes is not None)
            assert (first.failure.reason, first.failure.name) == ("MOVED", "FENCED")
            assert "at peer 2" in str(first.failure)
            assert bench.members("orders", "billing") == [("", 2)]

    run(scenario)


@pytest.mark.parametrize("strategy", ["two-phase", "pub-sub"])
def test_members_share_the_lanes_and_redistribute_them_when_one_leaves(strategy: str) -> None:
    async def scenario() -> None:
        async with Bench() as bench:
            lanes = 4 if strategy == "two-phase" else 1
            bench.cluster.create("orders", strategy=strategy, lanes=lanes)
            nodes = bench.cluster.nodes
            if strategy == "pub-sub":
                await bench.until(lambda: all(node.pubsub["orders"].open_lane for node in nodes.values()))
            every = (
                {str(n) for n in range(4)}
                if strategy == "two-phase"
                else set(map(str, nodes[1].pubsub["orders"].numbers))
            )
            first = await subscribe(bench, 1, member="a")
            await bench.until(lambda: first.lanes is not None and set(first.lanes) == every)
            second = await subscribe(bench, 2, member="b")
            await bench.until(lambda: first.ended and second.lanes is not None)
            assert (first.failure.reason, first.failure.name) == ("MOVED", "")
            first = await subscribe(bench, 1, member="a")
            await bench.until(lambda: first.lanes is not None)
            assert first.lanes is not None
            assert second.lanes is not None
            assert set(first.lanes) | set(second.lanes) == every
            assert not set(first.lanes) & set(second.lanes)
            assert not second.ended
            second.channel.close()
            (_, role), *_ = bench.channels[1]._followers.values()
            await bench.until(lambda: set(map(str, role._pusher.lanes)) == every)
            assert not first.ended

    run(scenario)


@pytest.mark.parametrize("strategy", ["two-phase", "pub-sub"])
@pytest.mark.parametrize("step", range(8))
def test_moves_in_flight_when_a_reader_is_replaced_are_decided_before_it_is_notified(strategy: str, step: int) -> None:
    """The client's commit is acknowledged if and only if its cursor has moved: it does not have to wonder."""

    async def scenario() -> None:
        async with Bench(seed=step) as bench:
            lane = bench.cluster.create("orders", strategy=strategy)
            if strategy == "pub-sub":
                lane = await bench.until(lambda: bench.cluster.nodes[1].pubsub["orders"].open_lane)
            producer = await bench.open(1, role="producer", queue="orders")
            producer.send(record(*numbered(5), lane=0 if strategy == "two-phase" else lane))
            await producer.commit()
            first = await subscribe(bench, 2, acks=False)
            await bench.until(lambda: len(first.got) == 5)
            flushed: list[int] = []
            joins = asyncio.ensure_future(subscribe(bench, 3, acks=False))
            for _ in range(step):
                await asyncio.sleep(0)
            if not first.ended:
                first.channel.ack_commit(first.commits[-1])
                first.channel.commit(lambda: flushed.append(1))
            second = await joins
            await bench.until(lambda: first.ended and second.lanes is not None)
            assert second.lanes is not None
            assert list(second.lanes.values()).count(5) == len(flushed)

    run(scenario)


@pytest.mark.parametrize("strategy", ["two-phase", "pub-sub"])
def test_members_that_join_together_reach_a_stable_assignment(strategy: str) -> None:
    async def scenario() -> None:
        async with Bench() as bench:
            bench.cluster.create("orders", strategy=strategy, lanes=6 if strategy == "two-phase" else 1)
            readers = {name: await subscribe(bench, 1 + index % 3, member=name) for index, name in enumerate("abcdef")}
            rejoined = 0
            for _ in range(200):
                await bench.run(0.05)
                for index, (name, reader) in enumerate(readers.items()):
                    if reader.ended:
                        rejoined += 1
                        readers[name] = await subscribe(bench, 1 + index % 3, member=name)
            assert not any(reader.ended for reader in readers.values())
            assert rejoined <= 12
            assert [name for name, _ in bench.members("orders", "billing")] == list("abcdef")

    run(scenario)


def test_the_others_take_the_lanes_of_a_member_whose_client_does_not_return() -> None:
    async def scenario() -> None:
        async with Bench(window_s=2.0) as bench:
            bench.cluster.create("orders", lanes=2)
            lost = await subscribe(bench, 1, member="a")
            await bench.until(lambda: lost.lanes is not None)
            road = bench.roads[-1]
            stays = await subscribe(bench, 2, member="b")
            await bench.until(lambda: stays.lanes is not None and lost.ended)
            lost = await subscribe(bench, 1, member="a")
            road = bench.roads[-1]
            await bench.until(lambda: lost.lanes is not None)
            road.cut()
            await bench.until(lambda: bench.members("orders", "billing") == [("b", 2)])
            (_, role), *_ = bench.channels[2]._followers.values()
            await bench.until(lambda: set(role._pusher.lanes) == {0, 1})
            assert not stays.ended
            assert bench.channels[1].statistics()["expired"] == 1

    run(scenario)


def test_the_death_of_a_peer_ends_its_members_and_others_read_their_lanes() -> None:
    async def scenario() -> None:
        async with Bench() as bench:
            lane = bench.cluster.create("orders", lanes=2)
            first = await subscribe(bench, 1, member="a")
            await bench.until(lambda: first.lanes is not None)
            second = await subscribe(bench, 3, member="b")
            await bench.until(lambda: first.ended and second.lanes is not None)
            first = await subscribe(bench, 1, member="a")
            await bench.until(lambda: first.lanes is not None)
            bench.kill(3)
            await bench.until(lambda: bench.members("orders", "billing") == [("a", 1)])
            await bench.fill(lane, [b"x"])
            await bench.fill(lane + 1, [b"y"])
            await bench.until(lambda: sorted(first.got) == [(0, b"x"), (1, b"y")])

    run(scenario)


def test_a_peer_that_is_started_again_forgets_the_channels_of_its_last_run() -> None:
    async def scenario() -> None:
        async with Bench() as bench:
            bench.cluster.create("orders")
            reader = await subscribe(bench, 3)
            await bench.until(lambda: reader.lanes is not None)
            bench.kill(3)
            bench.cluster.start(3)
            bench.serve(3)
            await bench.until(lambda: not bench.members("orders", "billing"), seconds=8.0)

    run(scenario)


def test_a_subscriber_removed_while_it_reads_is_told_to_start_again() -> None:
    async def scenario() -> None:
        async with Bench() as bench:
            lane = bench.cluster.create("orders")
            await bench.fill(lane, numbered(2))
            reader = await subscribe(bench, 2, acks=False)
            await bench.until(lambda: len(reader.got) == 2)
            write = Write(Kind.CURSOR, b"r" * 16, control=encode(CursorCommand("billing", remove=True)))
            assert isinstance(bench.cluster.ask(1, lambda n, r: n.write(r, lane, write, bench.cluster.now)), Done)
            reader.channel.ack_commit(reader.commits[-1])
            await bench.until(lambda: reader.ended)
            assert (reader.failure.reason, reader.failure.name) == ("MOVED", "")

    run(scenario)


# ---------------------------------------------------------------------- pub-sub


def test_a_subscriber_of_a_pubsub_queue_reads_all_lanes_and_its_vector_moves() -> None:
    async def scenario() -> None:
        async with Bench() as bench:
            bench.cluster.create("orders", strategy="pub-sub")
            nodes = bench.cluster.nodes
            await bench.until(lambda: all(node.pubsub["orders"].open_lane for node in nodes.values()))
            lanes = {number: node.pubsub["orders"].open_lane for number, node in nodes.items()}
            reader = await subscribe(bench, 1)
            for at, lane in lanes.items():
                producer = await bench.open(at, role="producer", queue="orders")
                for value in numbered(20):
                    producer.send(record(value, lane=lane))
                await producer.commit()
            await bench.until(lambda: len(reader.got) == 60)
            assert all(reader.of(lane) == numbered(20) for lane in lanes.values())
            await reader.channel.commit()
            await bench.until(lambda: bench.vector("orders", "billing") == dict.fromkeys(lanes.values(), 20))

    run(scenario)


def test_a_vector_moved_by_another_client_ends_the_reader_of_that_lane() -> None:
    async def scenario() -> None:
        async with Bench() as bench:
            bench.cluster.create("orders", strategy="pub-sub")
            lane = await bench.until(lambda: bench.cluster.nodes[1].pubsub["orders"].open_lane)
            producer = await bench.open(1, role="producer", queue="orders")
            for value in numbered(5):
                producer.send(record(value, lane=lane))
            await producer.commit()
            reader = await subscribe(bench, 1, member="a", acks=False)
            await bench.until(lambda: len(reader.got) == 5)
            moved = LaneCursorsCommand("orders", "billing", ((lane, 5),))
            assert isinstance(bench.cluster.command(Kind.CURSOR, moved), Done)
            for action in ("join", "leave"):
                other = SubscriptionCommand("orders", "billing", "b", 2, b"b" * 16, action)
                assert isinstance(bench.cluster.command(Kind.SUBSCRIPTION, other), Done)
            await bench.until(lambda: reader.ended)
            assert (reader.failure.reason, reader.failure.name) == ("MOVED", "")

    run(scenario)

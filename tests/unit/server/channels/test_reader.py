"""Readers' channels: visible messages are pushed in order, as long as the client keeps up."""

from __future__ import annotations

import json
from typing import Any, cast

from tests.unit.server.channels.channel_bench import Bench, record, run

from avow.channel.protocol.events import Bounds
from avow.node.answers import Done
from avow.node.lane.two_phase_lane import Write
from avow.queue.commands import LaneTrimCommand, QueueCommand, RetentionRules, Strategy, TrimCommand, encode
from avow.server.channels import push
from avow.wire.messages import Kind


def numbered(count: int, *, start: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(start, start + count)]


def test_a_reader_gets_existing_and_new_messages() -> None:
    async def scenario() -> None:
        async with Bench() as bench:
            lane = bench.cluster.create("orders", lanes=2)
            await bench.fill(lane, numbered(5))
            reader = await bench.read(2, role="reader", queue="orders")
            await bench.until(lambda: len(reader.got) == 5)
            assert reader.lanes == {"0": 0, "1": 0}
            await bench.fill(lane + 1, [b"a", b"b"])
            await bench.fill(lane, [b"5"])
            await bench.until(lambda: len(reader.got) == 8)
            assert reader.of(0) == numbered(6)
            assert reader.of(1) == [b"a", b"b"]
            await bench.until(lambda: not reader.channel.core.incoming.owing)

    run(scenario)


def test_a_reader_starts_at_its_requested_version() -> None:
    async def scenario() -> None:
        async with Bench() as bench:
            lane = bench.cluster.create("orders", lanes=2)
            await bench.fill(lane, numbered(5))
            await bench.fill(lane + 1, numbered(5))
            bench.cluster.run(0.5)
            middle = await bench.read(role="reader", queue="orders", after="0:3")
            from_end: dict[str, Any] = {"from": "end"}
            end = await bench.read(role="reader", queue="orders", after="1:4", **from_end)
            one = await bench.read(role="reader", queue="orders", lane=1)
            await bench.until(lambda: len(middle.got) == 7 and len(end.got) == 1 and len(one.got) == 5)
            assert (middle.lanes, end.lanes, one.lanes) == ({"0": 3, "1": 0}, {"0": 5, "1": 4}, {"1": 0})
            assert middle.of(0) == [b"3", b"4"]
            assert end.got == [(1, b"4")]
            await bench.fill(lane, [b"5"])
            await bench.until(lambda: end.of(0) == [b"5"])

    run(scenario)


def test_as_json_each_message_is_a_line_and_a_group_is_one_commit() -> None:
    async def scenario() -> None:
        async with Bench() as bench:
            lane = bench.cluster.create("orders")
            await bench.fill(lane, [b"a", b"\xff"])
            bench.cluster.run(0.5)
            reader = await bench.read(role="reader", queue="orders", format="json")
            await bench.until(lambda: len(reader.raw) == 2)
            first, second = map(json.loads, reader.raw)
            assert (first["lane"], first["version"], first["value"]) == (0, 1, "a")
            assert (second["version"], second["value_base64"]) == (2, "/w==")
            await bench.until(lambda: reader.commits)
            assert len(reader.commits) == 1

    run(scenario)


def test_a_reader_without_acks_gets_no_more_than_the_limit_and_resumes_with_acks() -> None:
    async def scenario() -> None:
        async with Bench() as bench:
            lane = bench.cluster.create("orders")
            producer = await bench.open(bench.coordinator(lane), role="producer", queue="orders")
            reader = await bench.read(2, role="reader", queue="orders", acks=False)
            for number in range(60):
                await producer.writable()
                producer.send(record(b"%d" % number + b"." * 300_000))
            await producer.commit()
            far = bench.ends_at(2, "reader")
            await bench.until(lambda: far.suspended)
            held = far.core.out.size_bytes
            assert held < Bounds().pending_bytes + push.GROUP_SIZE_BYTES + 400_000
            await bench.run(1.0)
            assert bench.channels[2].statistics()["suspended"] == 1
            pushed = len(reader.got)
            assert pushed < 60
            reader.channel.ack_commit(reader.commits[-1])
            reader.acks = True
            await bench.until(lambda: len(reader.got) == 60)
            assert [value.partition(b".")[0] for value in reader.of(0)] == numbered(60)

    run(scenario)


def test_lanes_take_turns() -> None:
    async def scenario() -> None:
        async with Bench() as bench:
            lane = bench.cluster.create("orders", lanes=2)
            producer = await bench.open(role="producer", queue="orders")
            for index in (0, 1):
                for number in range(8):
                    producer.send(record(b"%d" % number + b"." * 200_000, lane=index))
            await producer.commit()
            bench.cluster.run(0.5)
            reader = await bench.read(role="reader", queue="orders")
            await bench.until(lambda: len(reader.got) == 16)
            firsts = [found for found, _ in reader.got][:8]
            assert firsts.count(0) == firsts.count(1) == 4
            assert lane

    run(scenario)


def test_messages_trimmed_before_they_were_read_are_reported() -> None:
    async def scenario() -> None:
        async with Bench() as bench:
            lane = bench.cluster.create("orders")
            await bench.fill(lane, numbered(5))
            write = Write(Kind.TRIM, b"t" * 16, control=encode(TrimCommand(3)))
            assert isinstance(bench.cluster.ask(1, lambda n, r: n.write(r, lane, write, bench.cluster.now)), Done)
            bench.cluster.run(0.5)
            late = await bench.read(role="reader", queue="orders", after="0:1")
            await bench.until(lambda: late.ended)
            assert (late.failure.reason, late.failure.name) == ("REFUSED", "TRIMMED")
            start = await bench.read(role="reader", queue="orders")
            await bench.until(lambda: start.got)
            assert start.lanes == {"0": 3}
            assert start.of(0) == [b"3", b"4"]

    run(scenario)


def test_a_reader_of_a_deleted_queue_gets_an_error() -> None:
    async def scenario() -> None:
        async with Bench() as bench:
            for name, strategy in (("orders", "two-phase"), ("news", "pub-sub")):
                bench.cluster.create(name, strategy=strategy)
                reader = await bench.read(2, role="reader", queue=name)
                command = QueueCommand("delete", name, cast(Strategy, strategy), 1, RetentionRules(), ())
                assert isinstance(bench.cluster.command(Kind.QUEUE, command), Done)
                await bench.until(lambda reader=reader: reader.ended)  # type: ignore[misc]
                assert reader.failure.name == "UNKNOWN_QUEUE"

    run(scenario)


def test_a_reader_at_a_peer_that_is_cut_off_is_sent_elsewhere() -> None:
    async def scenario() -> None:
        async with Bench() as bench:
            bench.cluster.create("orders")
            reader = await bench.read(3, role="reader", queue="orders")
            bench.cluster.cut = {(3, 1), (1, 3), (3, 2), (2, 3)}
            await bench.until(lambda: reader.ended, seconds=5.0)
            assert (reader.failure.reason, reader.failure.name) == ("REFUSED", "OFFLINE")

    run(scenario)


def test_a_channel_survives_its_socket_and_nothing_is_lost_or_duplicated() -> None:
    async def scenario() -> None:
        async with Bench() as bench:
            lane = bench.cluster.create("orders")
            reader = await bench.read(2, role="reader", queue="orders")
            for number in range(30):
                await bench.fill(lane, [b"%d" % number])
                if number % 5 == 0:
                    bench.roads[-1].sockets[-1].lose()
                    await bench.run(0.1)
            await bench.until(lambda: len(reader.got) == 30)
            assert reader.of(0) == numbered(30)
            assert bench.channels[2].statistics()["resumed"] >= 5

    run(scenario)


# ---------------------------------------------------------------------- pub-sub


async def lanes_of(bench: Bench) -> dict[int, int]:
    """Peer -> the lane it writes to."""
    nodes = bench.cluster.nodes
    await bench.until(lambda: all(node.pubsub["news"].open_lane for node in nodes.values()))
    return {number: node.pubsub["news"].open_lane for number, node in nodes.items()}


async def publish(bench: Bench, at: int, values: list[bytes]) -> None:
    lane = bench.cluster.nodes[at].pubsub["news"].open_lane
    producer = await bench.open(at, role="producer", queue="news")
    for value in values:
        producer.send(record(value, lane=lane))
    await producer.commit()
    producer.close()


def test_a_reader_of_a_pubsub_queue_follows_new_lanes_and_finishes_ended_ones() -> None:
    async def scenario() -> None:
        async with Bench() as bench:
            bench.cluster.create("news", strategy="pub-sub")
            lanes = await lanes_of(bench)
            reader = await bench.read(1, role="reader", queue="news")
            await publish(bench, 2, [b"a"])
            await publish(bench, 3, [b"b"])
            await bench.until(lambda: len(reader.got) == 2)
            bench.kill(3)
            state = bench.cluster.nodes[1].metadata.state
            await bench.until(lambda: state.lanes.by_number[lanes[3]].ended)
            bench.cluster.start(3)
            await bench.until(lambda: "news" in bench.cluster.nodes[3].pubsub)
            await bench.until(lambda: bench.cluster.nodes[3].pubsub["news"].open_lane not in (0, lanes[3]))
            bench.serve(3)
            (_, follower), *_ = bench.channels[1]._followers.values()
            assert lanes[3] not in follower._pusher.lanes
            await publish(bench, 3, [b"c"])
            await bench.until(lambda: len(reader.got) == 3)
            assert reader.got[-1] == (bench.cluster.nodes[3].pubsub["news"].open_lane, b"c")

    run(scenario)


def test_a_pubsub_lane_removed_before_it_was_read_is_reported() -> None:
    async def scenario() -> None:
        async with Bench() as bench:
            bench.cluster.create("news", strategy="pub-sub")
            lanes = await lanes_of(bench)
            await publish(bench, 3, [b"a"])
            bench.kill(3)
            state = bench.cluster.nodes[1].metadata.state
            await bench.until(lambda: state.lanes.by_number[lanes[3]].ended)
            reader = await bench.read(1, role="reader", queue="news", after=f"{lanes[3]}:0")
            await bench.until(lambda: reader.got == [(lanes[3], b"a")])
            assert isinstance(bench.cluster.command(Kind.TRIM, LaneTrimCommand(lanes[3], 1)), Done)
            await bench.until(lambda: lanes[3] not in state.lanes.by_number)
            await publish(bench, 1, [b"b"])
            await bench.until(lambda: len(reader.got) == 2)
            assert not reader.ended

    run(scenario)

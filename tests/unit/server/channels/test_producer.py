"""Producers' channels over three nodes: once, in order, and acknowledged when a quorum has it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.unit.server.channels.channel_bench import Bench, record, run

from avow.channel.endpoint import Channel
from avow.errors import ChannelFailed
from avow.node.answers import Done
from avow.node.roles import NodeRoles
from avow.queue.commands import QueueCommand, RetentionRules
from avow.queue.records import Bounds
from avow.queue.state import QueueState
from avow.server.channels import lane_writer
from avow.wire.messages import Kind, Snapshot

PRODUCER = "0123456789abcdef" * 2


def numbered(count: int, *, start: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(start, start + count)]


async def failure_of(channel: Channel) -> ChannelFailed:
    failure = await channel.wait_ended()
    assert failure is not None
    return failure


# ---------------------------------------------------------------------- records


@pytest.mark.parametrize("at", [1, 2, 3])
def test_records_are_stored_in_order_through_any_peer(at: int) -> None:
    async def scenario() -> None:
        async with Bench() as bench:
            lane = bench.cluster.create("orders", lanes=2)
            channel = await bench.open(at, role="producer", queue="orders")
            for number in range(300):
                channel.send(record(b"%d" % number, lane=number % 2))
            await channel.commit()
            assert bench.values(lane) == numbered(300)[::2]
            assert bench.values(lane + 1) == numbered(300)[1::2]

    run(scenario)


def test_messages_that_wait_for_a_remote_coordinator_become_one_record() -> None:
    async def scenario() -> None:
        async with Bench() as bench:
            lane = bench.cluster.create("orders")
            coordinator = bench.coordinator(lane)
            channel = await bench.open(coordinator % 3 + 1, role="producer", queue="orders")
            before = bench.cluster.nodes[1].lanes[lane].applied
            for number in range(300):
                channel.send(record(b"%d" % number))
            await channel.commit()
            assert bench.values(lane) == numbered(300)
            assert bench.cluster.nodes[coordinator].lanes[lane].applied - before < 10

    run(scenario)


def test_a_commit_is_not_acknowledged_before_a_quorum_has_its_messages() -> None:
    async def scenario() -> None:
        async with Bench() as bench:
            lane = bench.cluster.create("orders")
            coordinator = bench.coordinator(lane)
            channel = await bench.open(coordinator, role="producer", queue="orders")
            others = [number for number in (1, 2, 3) if number != coordinator]
            bench.cluster.cut = {(coordinator, other) for other in others} | {(other, coordinator) for other in others}
            channel.send(record(b"x"))
            acked: list[str] = []
            channel.commit(lambda: acked.append("acked"))
            await bench.until(lambda: bench.cluster.nodes[coordinator].lanes[lane].core.log.end > 2, seconds=1.0)
            assert not acked
            bench.cluster.cut = set()
            await bench.until(lambda: acked)
            assert bench.values(lane) == [b"x"]

    run(scenario)


def test_a_commit_without_messages_is_acknowledged_at_once_and_covers_those_before_it() -> None:
    async def scenario() -> None:
        async with Bench() as bench:
            lane = bench.cluster.create("orders")
            channel = await bench.open(role="producer", queue="orders")
            await channel.commit()
            channel.send(record(b"a"))
            commits = [channel.commit() for _ in range(5)]
            for commit in commits:
                await commit
            assert bench.values(lane) == [b"a"]

    run(scenario)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_death_of_the_coordinator_neither_loses_duplicates_nor_reorders(seed: int) -> None:
    async def scenario() -> None:
        async with Bench(seed=seed) as bench:
            lane = bench.cluster.create("orders")
            coordinator = bench.coordinator(lane)
            channel = await bench.open(coordinator % 3 + 1, role="producer", queue="orders")
            for number in range(1_000):
                channel.send(record(b"%d" % number))
                if number % 100 == 50:
                    channel.commit()
                if number == 450:
                    await bench.until(lambda: channel.core.out.acked >= 3)
                    bench.kill(coordinator)
                if number % 50 == 0:
                    await bench.run(0.02)
            await channel.commit()
            assert bench.values(lane) == numbered(1_000)

    run(scenario)


def test_after_the_death_of_its_peer_a_producer_resends_through_another() -> None:
    async def scenario() -> None:
        async with Bench() as bench:
            lane = bench.cluster.create("orders")
            coordinator = bench.coordinator(lane)
            channel = await bench.open(coordinator, role="producer", queue="orders", options={"patience_s": 1.0})
            for number in range(200):
                channel.send(record(b"%d" % number))
            channel.commit()
            await bench.until(lambda: bench.values(lane))
            for number in range(200, 400):
                channel.send(record(b"%d" % number))
            channel.commit()
            bench.kill(coordinator)
            failure = await failure_of(channel)
            await bench.until(lambda: bench.coordinator(lane) not in (0, coordinator))
            again = await bench.open(coordinator % 3 + 1, role="producer", queue="orders")
            for pending in failure.pending:
                value = bytes(pending.value)
                again.send(value[:4] + (1_500).to_bytes(4, "little") + value[8:])
            await again.commit()
            assert bench.values(lane) == numbered(400)

    run(scenario)


def test_a_repeated_write_id_is_stored_once() -> None:
    async def scenario() -> None:
        async with Bench() as bench:
            lane = bench.cluster.create("orders")
            for at in (1, 2, 3):
                channel = await bench.open(at, role="producer", queue="orders")
                channel.send(record(b"a", write_id=b"a" * 16))
                channel.send(record(b"a", write_id=b"a" * 16))
                channel.send(record(b"b", write_id=b"b" * 16))
                await channel.commit()
            assert bench.values(lane) == [b"a", b"b"]

    run(scenario)


def test_without_a_quorum_the_client_is_sent_elsewhere_with_all_it_has_sent() -> None:
    async def scenario() -> None:
        async with Bench() as bench:
            lane = bench.cluster.create("orders")
            channel = await bench.open(1, role="producer", queue="orders")
            bench.cluster.cut = {(1, 2), (2, 1), (1, 3), (3, 1)}
            await bench.until(lambda: not bench.cluster.nodes[1].lanes[lane].core.online(bench.cluster.now))
            since = bench.cluster.now
            channel.send(record(b"x"))
            channel.commit()
            failure = await failure_of(channel)
            assert (failure.reason, failure.name) == ("REFUSED", "OFFLINE")
            assert len(failure.pending) == 1
            assert lane_writer.PATIENCE_S <= bench.cluster.now - since < 2 * lane_writer.PATIENCE_S

    run(scenario)


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (b"short", "INVALID_REQUEST"),
        (record(b"x", lane=2), "INVALID_REQUEST"),
        (record(b"x", write_id=b""), "INVALID_REQUEST"),
        (record(b"x")[:-8], "TOO_SHORT"),
        (record(b"x")[:-1] + b"y", "BAD_CHECKSUM"),
        (bytes(8) + b"no record at all" * 10, "BAD_MAGIC"),
    ],
)
def test_an_invalid_record_ends_the_channel_and_earlier_ones_are_stored(value: bytes, name: str) -> None:
    async def scenario() -> None:
        async with Bench() as bench:
            lane = bench.cluster.create("orders", lanes=2)
            channel = await bench.open(role="producer", queue="orders")
            channel.send(record(b"good"))
            channel.send(value)
            channel.send(record(b"after"))
            failure = await failure_of(channel)
            assert (failure.reason, failure.name) == ("REFUSED", name)
            assert len(failure.pending) == 3
            await bench.until(lambda: bench.values(lane) == [b"good"])

    run(scenario)


def test_large_records_keep_their_order_with_small_ones() -> None:
    async def scenario() -> None:
        async with Bench() as bench:
            lane = bench.cluster.create("orders")
            for at in (1, 2):
                channel = await bench.open(at, role="producer", queue="orders")
                for number in range(20):
                    filler = b"." * (100 if number % 3 else 40_000)
                    channel.send(record(b"%d:%d" % (at, number) + filler))
                await channel.commit()
            heads = [value.partition(b".")[0] for value in bench.values(lane)]
            assert heads == [b"%d:%d" % (at, number) for at in (1, 2) for number in range(20)]

    run(scenario)


def test_a_queue_that_is_deleted_ends_its_producers() -> None:
    async def scenario() -> None:
        async with Bench() as bench:
            bench.cluster.create("orders")
            channel = await bench.open(2, role="producer", queue="orders")
            command = QueueCommand("delete", "orders", "two-phase", 1, RetentionRules(), ())
            assert isinstance(bench.cluster.command(Kind.QUEUE, command), Done)
            bench.cluster.run(0.5)
            channel.send(record(b"x"))
            channel.commit()
            assert (await failure_of(channel)).name == "UNKNOWN_QUEUE"

    run(scenario)


# ---------------------------------------------------------------------- pub-sub


def test_a_pubsub_record_goes_to_the_lane_it_is_bound_to() -> None:
    async def scenario() -> None:
        async with Bench() as bench:
            bench.cluster.create("news", strategy="pub-sub")
            lane = await bench.until(lambda: bench.cluster.nodes[2].pubsub["news"].open_lane)
            channel = await bench.open(2, role="producer", queue="news")
            for number in range(200):
                channel.send(record(b"%d" % number, lane=lane))
            await channel.commit()
            assert bench.values(lane, at=2) == numbered(200)

    run(scenario)


def test_an_ended_pubsub_lane_ends_the_channel_with_its_error() -> None:
    async def scenario() -> None:
        async with Bench() as bench:
            bench.cluster.create("news", strategy="pub-sub")
            lane = await bench.until(lambda: bench.cluster.nodes[3].pubsub["news"].open_lane)
            bench.kill(3)
            await bench.until(lambda: bench.cluster.nodes[1].metadata.state.lanes.by_number[lane].ended)
            await bench.until(lambda: bench.cluster.nodes[1].pubsub["news"].core.ended_here(lane))
            channel = await bench.open(1, role="producer", queue="news")
            channel.send(record(b"x", lane=lane))
            failure = await failure_of(channel)
            assert (failure.reason, failure.name) == ("REFUSED", "LANE_ENDED")

    run(scenario)


def test_a_pubsub_record_without_a_lane_is_refused() -> None:
    async def scenario() -> None:
        async with Bench() as bench:
            bench.cluster.create("news", strategy="pub-sub")
            channel = await bench.open(role="producer", queue="news")
            channel.send(record(b"x"))
            assert (await failure_of(channel)).name == "INVALID_REQUEST"

    run(scenario)


# ---------------------------------------------------------------------- JSON


def test_json_messages_between_two_commits_are_one_write_and_keys_find_their_lanes() -> None:
    async def scenario() -> None:
        async with Bench() as bench:
            lane = bench.cluster.create("orders", lanes=3)
            channel = await bench.open(role="producer", queue="orders", format="json", producer=PRODUCER)
            for number in range(30):
                channel.send(json.dumps({"value": str(number), "key": f"k{number % 5}"}).encode())
            commit = channel.commit()
            await commit
            found = [bench.values(lane + index) for index in range(3)]
            assert sorted(value for values in found for value in values) == sorted(numbered(30))
            assert all(values == sorted(values, key=int) for values in found)
            write_id = bytes.fromhex(PRODUCER)[:8] + commit.id.to_bytes(8, "big")
            nodes = [bench.cluster.nodes[bench.coordinator(lane + index)] for index in range(3)]
            known = [node.lanes[lane + index].state.outcome_of(write_id) for index, node in enumerate(nodes)]
            assert [outcome is not None for outcome in known] == [bool(values) for values in found]

    run(scenario)


def test_a_page_that_resends_its_commits_on_a_new_channel_stores_them_once() -> None:
    async def scenario() -> None:
        async with Bench() as bench:
            lane = bench.cluster.create("orders")
            asked = {"role": "producer", "queue": "orders", "format": "json", "producer": PRODUCER}
            first = await bench.open(1, options={"patience_s": 0.5}, **asked)
            for number in range(10):
                first.send(json.dumps({"value": str(number)}).encode())
                first.commit()
            await bench.until(lambda: bench.values(lane))
            bench.roads[-1].cut()
            for number in range(10, 13):
                first.send(json.dumps({"value": str(number)}).encode())
                first.commit()
            failure = await failure_of(first)
            again = await bench.open(2, options={"last_commit": first.core.out.acked}, **asked)
            again.resend(failure.pending)
            await again.commit()
            assert bench.values(lane) == numbered(13)

    run(scenario)


def forgetful(founders: tuple[int, ...]) -> Snapshot:
    """The first snapshot of a lane that remembers eight write ids."""
    state = QueueState(bounds=Bounds(write_ids=8))
    state.position = 1
    return Snapshot(1, 2, founders, (), state.snapshot())


JSON: dict[str, Any] = {"role": "producer", "queue": "orders", "format": "json", "producer": PRODUCER}


async def forgotten_commit(bench: Bench) -> int:
    """A lane in which commit 1 of the producer was stored, acknowledged and forgotten."""
    lane = bench.cluster.create("orders")
    first = await bench.open(1, **JSON)
    first.send(b'{"value":"once"}')
    await first.commit()
    others = await bench.open(2, role="producer", queue="orders")
    for number in range(20):
        others.send(record(b"%d" % number))
        await others.commit()
    return lane


@pytest.mark.parametrize("told", [{}, {"tried": 1}, {"tried": 5, "created_ms": 1}])
def test_a_json_commit_that_the_lane_has_forgotten_is_not_stored_again(told: dict[str, Any]) -> None:
    async def scenario() -> None:
        async with Bench(roles=NodeRoles(founding_lane=forgetful)) as bench:
            lane = await forgotten_commit(bench)
            again = await bench.open(1, **JSON, **told)
            again.send(b'{"value":"once"}')
            again.commit()
            failure = await failure_of(again)
            assert (failure.reason, failure.name, len(failure.pending)) == ("REFUSED", "UNKNOWN", 1)
            assert "created_ms" in str(failure)
            assert bench.values(lane).count(b"once") == 1

    run(scenario)


@pytest.mark.parametrize("told", [{"tried": 1}, {"tried": 0}])
def test_a_json_producer_that_says_what_it_sent_before_is_not_held_up(told: dict[str, Any]) -> None:
    async def scenario() -> None:
        async with Bench(roles=NodeRoles(founding_lane=forgetful)) as bench:
            lane = await forgotten_commit(bench)
            new = await bench.open(1, options={"last_commit": told["tried"]}, **{**JSON, "producer": "ab" * 16}, **told)
            new.send(b'{"value":"new"}')
            await new.commit()
            assert bench.values(lane).count(b"new") == 1

    run(scenario)


def test_a_json_commit_that_is_younger_than_what_the_lane_remembers_is_decided() -> None:
    async def scenario() -> None:
        async with Bench(roles=NodeRoles(founding_lane=forgetful)) as bench:
            lane = await forgotten_commit(bench)
            await bench.run(3.0)
            began_ms = int(bench.cluster.now * 1000) - 500
            for _ in range(2):
                channel = await bench.open(1, **{**JSON, "producer": "cd" * 16}, tried=9, created_ms=began_ms)
                channel.send(b'{"value":"late"}')
                await channel.commit()
            assert bench.values(lane).count(b"late") == 1

    run(scenario)


@pytest.mark.parametrize(
    "value", [b"{", b"[]", b'{"value":1}', b'{"value":"a","value_base64":"YQ=="}', b"{}", b'{"colour":"blue"}', b"\xff"]
)
def test_wrong_json_ends_the_channel_and_the_message_is_named(value: bytes) -> None:
    async def scenario() -> None:
        async with Bench() as bench:
            bench.cluster.create("orders")
            channel = await bench.open(role="producer", queue="orders", format="json", producer=PRODUCER)
            channel.send(b'{"value":"a"}')
            channel.send(b'{"value":"b"}')
            channel.send(value)
            failure = await failure_of(channel)
            assert (failure.reason, failure.name) == ("REFUSED", "INVALID_REQUEST")
            assert "message 3 " in str(failure)

    run(scenario)


def test_json_for_a_pubsub_queue_goes_to_the_lane_of_the_peer() -> None:
    async def scenario() -> None:
        async with Bench() as bench:
            bench.cluster.create("news", strategy="pub-sub")
            lane = await bench.until(lambda: bench.cluster.nodes[2].pubsub["news"].open_lane)
            channel = await bench.open(2, role="producer", queue="news", format="json", producer=PRODUCER)
            channel.send(b'{"value":"a","key":"k"}')
            await channel.commit()
            assert bench.values(lane, at=2) == [b"a"]

    run(scenario)

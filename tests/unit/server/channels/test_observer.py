"""Observers of a pub-sub queue get the events enqueue, stored and committed."""

from __future__ import annotations

import json
from base64 import b64decode
from typing import Any

import pytest
from tests.unit.server.channels.channel_bench import Bench, Reading, record, run

from avow.errors import InvalidRequest
from avow.wire.batch import Batch


async def observe(bench: Bench, at: int, *, acks: bool = True) -> Reading:
    return await bench.read(at, acks=acks, role="observer", queue="news")


def events(reading: Reading, lane: int) -> list[dict[str, Any]]:
    return [event for event in map(json.loads, reading.raw) if event["lane"] == lane]


def values(seen: list[dict[str, Any]]) -> list[bytes]:
    batches = [Batch(b64decode(event["batch"])) for event in seen if event["event"] == "enqueue"]
    return [bytes(value) for batch in batches for value in batch.values()]


async def opened(bench: Bench) -> dict[int, int]:
    bench.cluster.create("news", strategy="pub-sub")
    nodes = bench.cluster.nodes
    await bench.until(lambda: all(node.pubsub["news"].open_lane for node in nodes.values()))
    return {number: node.pubsub["news"].open_lane for number, node in nodes.items()}


@pytest.mark.parametrize("at", [1, 2])
def test_an_observer_sees_a_record_then_who_stored_it_then_its_commit(at: int) -> None:
    async def scenario() -> None:
        async with Bench() as bench:
            lane = (await opened(bench))[1]
            observer = await observe(bench, at)
            producer = await bench.open(1, role="producer", queue="news")
            producer.send(record(b"x", b"y", lane=lane))
            await producer.commit()
            await bench.until(lambda: len(events(observer, lane)) >= 5)
            seen = events(observer, lane)
            assert values(seen) == [b"x", b"y"]
            first = seen[0]
            assert (first["event"], first["first_version"], first["last_version"]) == ("enqueue", 1, 2)
            stored = {event["peer"]: event["upto_version"] for event in seen if event["event"] == "stored"}
            assert stored == {1: 2, 2: 2, 3: 2}
            names = [event["event"] for event in seen]
            committed = names.index("committed")
            assert seen[committed]["upto_version"] == 2
            assert names[:committed].count("stored") >= 2

    run(scenario)


def test_a_record_stored_here_is_reported_before_a_quorum_has_it() -> None:
    async def scenario() -> None:
        async with Bench() as bench:
            lane = (await opened(bench))[1]
            observer = await observe(bench, 1)
            bench.cluster.cut = {(1, 2), (2, 1), (1, 3), (3, 1)}
            producer = await bench.open(1, role="producer", queue="news")
            producer.send(record(b"x", lane=lane))
            await bench.until(lambda: len(events(observer, lane)) == 2, seconds=0.2)
            assert [event["event"] for event in events(observer, lane)] == ["enqueue", "stored"]
            assert events(observer, lane)[1]["peer"] == 1

    run(scenario)


def test_earlier_commits_are_not_reported_again() -> None:
    async def scenario() -> None:
        async with Bench() as bench:
            lane = (await opened(bench))[1]
            producer = await bench.open(1, role="producer", queue="news")
            producer.send(record(b"old", lane=lane))
            await producer.commit()
            bench.cluster.run(0.5)
            observer = await observe(bench, 1)
            producer.send(record(b"new", lane=lane))
            await producer.commit()
            await bench.until(lambda: values(events(observer, lane)) == [b"new"])
            committed = [event["upto_version"] for event in events(observer, lane) if event["event"] == "committed"]
            assert committed[0] == 1

    run(scenario)


def test_under_load_positions_grow_and_every_record_is_reported_once() -> None:
    async def scenario() -> None:
        async with Bench() as bench:
            lanes = await opened(bench)
            observer = await observe(bench, 3)
            producers = {at: await bench.open(at, role="producer", queue="news") for at in lanes}
            for number in range(300):
                for at, producer in producers.items():
                    producer.send(record(b"%d" % number, lane=lanes[at]))
                if number % 50 == 0:
                    await bench.run(0.02)
            for producer in producers.values():
                await producer.commit()
            expected = [b"%d" % number for number in range(300)]
            await bench.until(lambda: all(values(events(observer, lane)) == expected for lane in lanes.values()))
            await bench.run(0.5)
            for lane in lanes.values():
                seen = events(observer, lane)
                for key in ("enqueue", "committed", *((peer,) for peer in (1, 2, 3))):
                    found = [
                        event.get("upto_version") or event["last_version"]
                        for event in seen
                        if event["event"] == key or (event["event"] == "stored" and (event["peer"],) == key)
                    ]
                    assert found == sorted(set(found))
                    assert found[-1] == 300

    run(scenario)


def test_a_slow_observer_has_bounded_memory_and_misses_no_record() -> None:
    async def scenario() -> None:
        async with Bench() as bench:
            lane = (await opened(bench))[1]
            observer = await observe(bench, 1, acks=False)
            producer = await bench.open(1, role="producer", queue="news")
            for number in range(80):
                await producer.writable()
                producer.send(record(b"%d" % number + b"." * 200_000, lane=lane))
            await producer.commit()
            far = bench.ends_at(1, "observer")
            await bench.until(lambda: far.suspended)
            assert len(values(events(observer, lane))) < 80
            observer.acks = True
            observer.channel.ack_commit(observer.commits[-1])
            await bench.until(lambda: len(values(events(observer, lane))) == 80)
            found = [value.partition(b".")[0] for value in values(events(observer, lane))]
            assert found == [b"%d" % number for number in range(80)]

    run(scenario)


def test_only_pubsub_queues_are_observed_and_nothing_is_watched_when_nobody_observes() -> None:
    async def scenario() -> None:
        async with Bench() as bench:
            await opened(bench)
            bench.cluster.create("orders")
            with pytest.raises(InvalidRequest, match="pub-sub"):
                await bench.open(1, role="observer", queue="orders")
            assert bench.peers[1].on_turn is None
            observer = await observe(bench, 1)
            assert bench.peers[1].on_turn is not None
            observer.channel.close()
            await bench.until(lambda: bench.peers[1].on_turn is None)

    run(scenario)

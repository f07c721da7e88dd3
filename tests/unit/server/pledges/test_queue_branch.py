"""Branches that are messages of a queue: once each, also when the lane has forgotten that it had one."""

from __future__ import annotations

import asyncio

import pytest
from tests.unit.pledge.lane.pledge_bench import Bench, BenchPeer, run

from avow.errors import InvalidRequest, NotCoordinator, Unknown, UnknownQueue
from avow.node.lane.two_phase_lane import Write
from avow.pledge.branches.queue import write_id_of
from avow.queue.commands import TrimCommand, encode
from avow.server.pledges.queue_branch import QueueBranches
from avow.wire.messages import Kind

REMEMBERED = 4


async def put(branches: QueueBranches, gid: str, *, since_ms: int, key: bytes = b"", queue: str = "q") -> None:
    async with asyncio.timeout(30):
        await branches(
            queue=queue,
            value=gid.encode(),
            key=key,
            headers={"avow-gid": gid},
            write_id=write_id_of(gid, "01"),
            since_ms=since_ms,
        )


def values(bench: Bench, lane: int) -> list[bytes]:
    """As its coordinator has them."""
    node = next(iter(bench.cluster.nodes.values()))
    return bench.cluster.values(lane, at=node.lanes[lane].core.live_coordinator(bench.cluster.now))


def make_forgetful(bench: Bench, lane: int) -> None:
    """Its lane remembers a few write ids only, from now on."""
    for node in bench.cluster.nodes.values():
        state = node.lanes[lane].state
        state.write_ids.size = REMEMBERED
        projection = node.lanes[lane].machine._projection
        if projection is not None:
            projection._ahead.write_ids.size = REMEMBERED


def test_a_repetition_from_any_peer_is_recognized_by_the_lane() -> None:
    async def scenario() -> None:
        async with Bench() as bench:
            lane = bench.cluster.create("q")
            branches = [QueueBranches(BenchPeer(bench, at)) for at in (1, 2, 3)]
            since_ms = BenchPeer(bench, 1).now_ms()
            await asyncio.gather(*[put(one, "a", since_ms=since_ms) for one in branches])
            await put(branches[0], "b", since_ms=since_ms)
            assert sorted(values(bench, lane)) == [b"a", b"b"]

    run(scenario)


def test_a_repetition_that_the_lane_has_forgotten_is_found_in_its_messages() -> None:
    async def scenario() -> None:
        async with Bench() as bench:
            lane = bench.cluster.create("q")
            branches = QueueBranches(BenchPeer(bench, 1))
            since_ms = BenchPeer(bench, 1).now_ms()
            make_forgetful(bench, lane)
            await put(branches, "a", since_ms=since_ms)
            for number in range(3 * REMEMBERED):
                await put(branches, f"other-{number}", since_ms=BenchPeer(bench, 1).now_ms())
            assert bench.cluster.nodes[1].lanes[lane].state.outcome_of(write_id_of("a", "01")) is None
            await put(branches, "a", since_ms=since_ms)
            await put(branches, "late", since_ms=since_ms)
            found = values(bench, lane)
            assert (found.count(b"a"), found.count(b"late")) == (1, 1)

    run(scenario)


def test_a_repetition_of_a_trimmed_message_is_unknown() -> None:
    async def scenario() -> None:
        async with Bench() as bench:
            lane = bench.cluster.create("q")
            peer = BenchPeer(bench, 1)
            branches, since_ms = QueueBranches(peer), peer.now_ms()
            make_forgetful(bench, lane)
            await put(branches, "a", since_ms=since_ms)
            for number in range(3 * REMEMBERED):
                await put(branches, f"other-{number}", since_ms=peer.now_ms())
            trim = Write(Kind.TRIM, b"t" * 16, control=encode(TrimCommand(5)))
            bench.cluster.ask(1, lambda node, request: node.write(request, lane, trim, bench.cluster.now))
            with pytest.raises(Unknown):
                await put(branches, "a", since_ms=since_ms)

    run(scenario)


def test_a_key_decides_the_lane() -> None:
    async def scenario() -> None:
        async with Bench() as bench:
            first = bench.cluster.create("q", lanes=3)
            branches = QueueBranches(BenchPeer(bench, 2))
            for number in range(6):
                await put(branches, f"g{number}", since_ms=1, key=b"same")
            found = [len(values(bench, first + lane)) for lane in range(3)]
            assert sorted(found) == [0, 0, 6]

    run(scenario)


def test_a_message_waits_for_the_lane_to_have_a_coordinator_again() -> None:
    async def scenario() -> None:
        async with Bench() as bench:
            lane = bench.cluster.create("q")
            dead = bench.cluster.nodes[1].lanes[lane].core.live_coordinator(bench.cluster.now)
            branches = QueueBranches(BenchPeer(bench, next(at for at in (1, 2, 3) if at != dead)))
            bench.cluster.kill(dead)
            since_ms = BenchPeer(bench, next(at for at in (1, 2, 3) if at != dead)).now_ms()
            await put(branches, "a", since_ms=since_ms)
            assert values(bench, lane) == [b"a"]

    run(scenario)


def test_queues_that_cannot_be_written_exactly_once_are_refused() -> None:
    async def scenario() -> None:
        async with Bench() as bench:
            bench.cluster.create("some", peers=(1, 2))
            bench.cluster.create("news", strategy="pub-sub")
            branches = QueueBranches(BenchPeer(bench, 3))
            for name, error in (
                ("missing", UnknownQueue),
                ("news", InvalidRequest),
                ("avow.pledges", InvalidRequest),
                ("some", NotCoordinator),
            ):
                with pytest.raises(error):
                    branches.check(name)

    run(scenario)

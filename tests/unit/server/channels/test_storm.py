"""Producers and members of a subscriber while links are cut, sockets lost, peers killed and clients replaced.

What must hold at the end, whatever happened: each message that a producer sent is in its lane once, in the order it
was sent; and no version was committed by two readers. A reader's commit counts when the peer has acknowledged its
barrier; what was acknowledged by the reader and not answered may have been committed or not.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from random import Random

import pytest
from tests.unit.node.node_cluster import data
from tests.unit.server.channels.channel_bench import Bench, Reading, record, run

from avow.channel.endpoint import Channel
from avow.errors import AvowError, ChannelFailed
from avow.wire.ranges import parse_ranges

SECONDS = 12.0
LANES = 3


class Member(Reading):
    """Processes messages at once, and reconnects whenever its channel ends."""

    def __init__(self, bench: Bench, name: str, rng: Random) -> None:
        super().__init__(acks=False)
        self.bench, self.name, self.rng = bench, name, rng
        self.groups: list[tuple[int, int, int, int]] = []  # commit, lane, first and last version
        self.since: list[tuple[int, int, int]] = []
        self.committed: Counter[tuple[int, int]] = Counter()
        self.maybe: set[tuple[int, int]] = set()

    def begin(self, channel: Channel) -> None:
        super().begin(channel)
        self.groups, self.since = [], []

    def _messages(self, values: list[memoryview]) -> None:
        for value in values:
            if bytes(value[:1]) != b"{":
                self.since += [(one.lane, one.first_version, one.last_version) for one in parse_ranges(bytes(value))]

    def _commit(self, commit_id: int) -> None:
        self.groups += [(commit_id, *span) for span in self.since]
        self.since = []

    def deal_with(self) -> None:
        """Commits the oldest few groups, then sends a barrier."""
        count = self.rng.randrange(4)
        done, self.groups = self.groups[:count], self.groups[count:]
        if not done or self.channel.ended:
            return
        self.channel.ack_commit(done[-1][0])
        while self.groups and self.groups[0][0] == done[-1][0]:
            done.append(self.groups.pop(0))
        versions = [(lane, version) for _, lane, first, last in done for version in range(first, last + 1)]
        self.maybe.update(versions)
        self.channel.commit(lambda: self.committed.update(versions))

    async def live(self, until: float) -> None:
        while self.bench.cluster.now < until:
            at = self.rng.choice(sorted(self.bench.cluster.nodes))
            try:
                await self.bench.open(
                    at,
                    begin=self.begin,
                    options={"patience_s": 1.0},
                    role="subscriber",
                    queue="orders",
                    subscriber="billing",
                    member=self.name,
                )
            except (AvowError, OSError):
                await self.bench.run(0.1)
                continue
            gives_up_at = self.bench.cluster.now + self.rng.expovariate(1 / 4.0)
            while not self.channel.ended and self.bench.cluster.now < min(until, gives_up_at):
                self.deal_with()
                await self.bench.run(0.05)
            self.channel.close()
            await self.channel.wait_ended()


class Producer:
    """Keeps sending; after each failure it resends unacknowledged writes with their age."""

    def __init__(self, bench: Bench, name: str, rng: Random) -> None:
        self.bench, self.name, self.rng = bench, name, rng
        self.sent: dict[int, list[bytes]] = {}
        self.waiting: list[tuple[bytes, float]] = []  # not acknowledged, and since when
        self.count = 0

    async def live(self, until: float) -> None:
        """Ends when everything is acknowledged."""
        while self.bench.cluster.now < until or self.waiting:
            at = self.rng.choice(sorted(self.bench.cluster.nodes))
            try:
                channel = await self.bench.open(at, options={"patience_s": 1.0}, role="producer", queue="orders")
            except (AvowError, OSError):
                await self.bench.run(0.1)
                continue
            with contextlib.suppress(ChannelFailed):
                await self.write(channel, until)
            channel.close()
            await channel.wait_ended()
            del self.waiting[: channel.core.out.released_to]

    async def write(self, channel: Channel, until: float) -> None:
        now, gives_up_at = self.bench.cluster.now, self.bench.cluster.now + self.rng.expovariate(1 / 3.0)
        for value, since in self.waiting:
            age_ms = max(1, round((now - since) * 1000))
            channel.send(value[:4] + age_ms.to_bytes(4, "little") + value[8:])
        while self.bench.cluster.now < min(until, gives_up_at):
            for _ in range(self.rng.randrange(5)):
                await channel.writable()
                channel.send(self.next())
            channel.commit()
            await self.bench.run(0.02)
        await channel.commit()

    def next(self) -> bytes:
        lane, text = self.rng.randrange(LANES), b"%s:%d" % (self.name.encode(), self.count)
        self.count += 1
        self.sent.setdefault(lane, []).append(text)
        self.waiting.append((record(text, lane=lane), self.bench.cluster.now))
        return self.waiting[-1][0]


async def fill(bench: Bench, rng: Random, until: float) -> None:
    """To a pub-sub queue, without a channel; the outcome is not checked here."""
    while bench.cluster.now < until:
        await bench.run(0.05)
        for number, node in list(bench.cluster.nodes.items()):
            held = node.pubsub.get("orders")
            if held is not None and held.open_lane and rng.random() < 0.7:
                write = data(b"x", rng.randbytes(16))
                node.write_pubsub(bench.next_request(), "orders", write, bench.cluster.now, lane=held.open_lane)
                assert number
        bench.wake()


async def weather(bench: Bench, rng: Random, until: float) -> None:
    while bench.cluster.now < until:
        await bench.run(rng.uniform(0.2, 1.0))
        what = rng.choice(("sockets", "sockets", "cut", "kill"))
        if what == "sockets":
            for road in bench.roads[-10:]:
                if road.sockets and road.sockets[-1].open and rng.random() < 0.5:
                    road.sockets[-1].lose()
        elif what == "cut":
            alone = rng.choice((1, 2, 3))
            bench.cluster.cut = {(alone, n) for n in (1, 2, 3)} | {(n, alone) for n in (1, 2, 3)}
            await bench.run(rng.uniform(0.1, 4.0))
            bench.cluster.cut = set()
        else:
            number = rng.choice((1, 2, 3))
            bench.kill(number)
            await bench.run(rng.uniform(0.1, 2.0))
            bench.cluster.start(number)
            bench.serve(number)
            await bench.run(1.0)


@pytest.mark.parametrize("seed", range(6))
def test_nothing_is_lost_duplicated_or_committed_twice_under_random_faults(seed: int) -> None:
    rng = Random(seed)

    async def scenario() -> None:
        async with Bench(window_s=2.0, seed=seed) as bench:
            first = bench.cluster.create("orders", lanes=LANES)
            until = bench.cluster.now + SECONDS
            producers = [Producer(bench, name, Random(seed * 10 + i)) for i, name in enumerate("pq")]
            members = [Member(bench, name, Random(seed * 10 + 5 + i)) for i, name in enumerate("abc")]
            async with asyncio.TaskGroup() as group:
                group.create_task(weather(bench, rng, until - 2.0))
                for producer in producers:
                    group.create_task(producer.live(until))
                for member in members:
                    group.create_task(member.live(until))
            await bench.until(lambda: all(bench.coordinator(first + index) for index in range(LANES)))
            for index in range(LANES):
                found = bench.values(first + index)
                for producer in producers:
                    mine = [value for value in found if value.startswith(producer.name.encode() + b":")]
                    assert mine == producer.sent.get(index, [])
            check_commits(members, {index: bench.cursor(first + index, "billing") for index in range(LANES)})

    run(scenario)


@pytest.mark.parametrize("seed", range(4))
def test_no_version_of_a_pubsub_queue_is_committed_twice_under_random_faults(seed: int) -> None:
    rng = Random(seed)

    async def scenario() -> None:
        async with Bench(window_s=2.0, seed=seed) as bench:
            bench.cluster.create("orders", strategy="pub-sub")
            until = bench.cluster.now + SECONDS
            members = [Member(bench, name, Random(seed * 10 + 5 + i)) for i, name in enumerate("abc")]
            async with asyncio.TaskGroup() as group:
                group.create_task(weather(bench, rng, until - 2.0))
                group.create_task(fill(bench, rng, until))
                for member in members:
                    group.create_task(member.live(until))
            await bench.run(3.0)
            check_commits(members, bench.vector("orders", "billing"))

    run(scenario)


def check_commits(members: list[Member], cursors: dict[int, int]) -> None:
    committed: Counter[tuple[int, int]] = Counter()
    for member in members:
        committed.update(member.committed)
    assert committed
    assert [place for place, count in committed.items() if count > 1] == []
    maybe = set().union(*(member.maybe for member in members))
    for lane, cursor in cursors.items():
        assert {(lane, version) for version in range(1, cursor + 1)} <= maybe
    assert all(version <= cursors[lane] for lane, version in committed)

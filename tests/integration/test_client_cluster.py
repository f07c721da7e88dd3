"""The client against real peers: `avow serve` processes that are killed, paused and restarted under it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from time import monotonic

import pytest
import uvloop
from tests.integration.channel_clusters import revived

import avow
from avow.client.client import Client
from avow.client.observer import Committed, Enqueued, Stored
from avow.client.outcomes import Done
from avow.client.queue import Queue
from avow.errors import AlreadyDecided, AvowError, ChannelFailed, Incomplete, InvalidRequest, NotEqual, UnknownQueue
from avow.testing.cluster import LocalCluster

WRITERS = 8


@pytest.fixture(scope="module")
def three() -> Iterator[LocalCluster]:
    with LocalCluster(3) as cluster:
        yield cluster


@pytest.fixture
def whole(three: LocalCluster) -> LocalCluster:
    return revived(three)


def run(cluster: LocalCluster, work: Callable[[Client], Awaitable[None]], *, timeout_s: float = 60.0) -> None:
    async def go() -> None:
        async with await avow.connect(cluster.addresses, timeout_s=timeout_s) as client:
            await work(client)

    uvloop.run(go())


class Load:
    """Sequential writers, each with its own numbered messages, until they are stopped."""

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self.done: list[tuple[bytes, Done]] = []
        self.errors: list[AvowError] = []
        self._stop = False

    async def _write(self, writer: int) -> None:
        number = 0
        while not self._stop:
            value = b"%d:%d" % (writer, number)
            try:
                self.done.append((value, await self.queue.enqueue(value)))
            except AvowError as error:
                self.errors.append(error)
            number += 1

    async def during(self, work: Callable[[], Awaitable[None]]) -> None:
        writers = [asyncio.create_task(self._write(writer)) for writer in range(WRITERS)]
        try:
            await self.wait_for(200)
            await work()
        finally:
            self._stop = True
            await asyncio.gather(*writers)

    async def wait_for(self, more: int) -> None:
        target, deadline = len(self.done) + more, monotonic() + 60
        while len(self.done) < target and monotonic() < deadline:
            await asyncio.sleep(0.01)
        assert len(self.done) >= target, f"{len(self.done)} of {target} writes, {self.errors[:3]}"

    async def check_read(self) -> None:
        """Everything acknowledged is there under its version, nothing twice, each writer's messages in order."""
        read: dict[tuple[int, int], bytes] = {}
        async for batch in self.queue.read(level="local"):
            read.update({(batch.lane, batch.first_version + n): v for n, v in enumerate(batch.values())})
        for value, done in self.done:
            assert read[done.lane, done.first_version] == value
        assert not [value for value, times in Counter(read.values()).items() if times > 1]
        if len({lane for lane, _ in read}) == 1:
            self._check_order([read[place] for place in sorted(read)])

    def _check_order(self, values: list[bytes]) -> None:
        last: dict[bytes, int] = {}
        for value in values:
            writer, _, number = value.partition(b":")
            assert int(number) == last.get(writer, -1) + 1
            last[writer] = int(number)


def coordinator_of(cluster: LocalCluster, queue: str) -> int:
    for number in cluster.running:
        lane = cluster.ask(number, f"/v1/queues/{queue}")["lanes"][0]
        if lane["coordinator"]:
            return int(lane["coordinator"])
    raise AssertionError("nobody coordinates")


def test_the_life_of_a_queue(three: LocalCluster) -> None:
    async def work(client: Client) -> None:
        assert {peer.number for peer in await client.peers()} == {1, 2, 3}
        await client.create_queue("life", lanes=2)
        queue = client.queue("life")
        done = await queue.enqueue(b"one", key=b"k", headers={"a": b"1"}, time_ms=5)
        found = [message async for batch in queue.read(lane=done.lane) for message in batch.messages()]
        assert [(m.value, m.key, m.headers, m.time_ms) for m in found] == [(b"one", b"k", (("a", b"1"),), 5)]
        stored = await queue.read_one(done.lane, done.first_version)
        assert (stored.value, stored.committed) == (b"one", True)
        assert (await queue.outcome(done.write_id, lane=done.lane))[0] == done
        await client.delete_queue("life")
        with pytest.raises(UnknownQueue):
            await client.queue("life").enqueue(b"two")

    run(three, work)


def test_one_of_two_writers_with_the_same_expected_version_wins(three: LocalCluster) -> None:
    async def add_one(queue: Queue, wins: list[int]) -> None:
        expected = 0
        while expected < 30:
            try:
                done = await queue.enqueue(b"x", expected=expected)
                wins.append(done.first_version)
                expected = done.first_version
            except NotEqual as error:
                expected = max(error.current, expected + 1)

    async def work(client: Client) -> None:
        await client.create_queue("race")
        wins: list[int] = []
        async with await avow.connect(three.addresses) as other:
            await asyncio.gather(add_one(client.queue("race"), wins), add_one(other.queue("race"), wins))
        assert sorted(wins)[:30] == list(range(1, 31))
        assert len(set(wins)) == len(wins)

    run(three, work)


def test_a_transaction_is_visible_whole_or_not_at_all(three: LocalCluster) -> None:
    async def work(client: Client) -> None:
        await client.create_queue("staged")
        queue = client.queue("staged")
        async with queue.transaction() as txn:
            await txn.enqueue_many([b"1", b"2"])
            await queue.enqueue(b"between")
            await txn.enqueue(b"3")
        assert [(done.first_version, done.last_version) for done in txn.published] == [(2, 4)]
        assert await txn.publish() == txn.published
        with pytest.raises(InvalidRequest, match="already published"):
            await txn.enqueue(b"late")

        async def fail() -> None:
            async with queue.transaction() as doomed:
                await doomed.enqueue(b"never")
                raise LookupError("changed my mind")

        with pytest.raises(LookupError):
            await fail()
        got = [value async for batch in queue.read() for value in batch.values()]
        assert got == [b"between", b"1", b"2", b"3"]

    run(three, work)


def test_named_parts_are_published_once_and_abandoned_attempts_are_dropped(three: LocalCluster) -> None:
    async def work(client: Client) -> None:
        await client.create_queue("parted", lanes=2)
        queue = client.queue("parted")
        job = {part: queue.transaction("job", part=part) for part in (1, 2, 3)}
        for part, attempt in job.items():
            await attempt.enqueue_many([b"%d-a" % part, b"%d-b" % part], lane=part % 2)

        async def fail() -> None:
            async with queue.transaction("job", part=4) as failing:
                await failing.enqueue(b"4", lane=1)
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await fail()
        driver = queue.transaction("job")
        with pytest.raises(Incomplete):
            await queue.transaction("job").publish_parts({0: {2: 3}})
        published = await driver.publish_parts({0: {2: 2}, 1: {3: 2}})
        assert [(done.lane, done.first_version, done.last_version) for done in published] == [(0, 1, 2), (1, 1, 2)]
        with pytest.raises(AlreadyDecided):
            await queue.transaction("job", part=9).enqueue(b"again", lane=0)
        assert await queue.transaction("job").publish_parts({0: {9: 1}, 1: {8: 1}}) == published
        got = sorted([value async for batch in queue.read() for value in batch.values()])
        assert got == [b"2-a", b"2-b", b"3-a", b"3-b"]

    run(three, work)


def test_parts_that_are_discarded_leave_the_name_free(three: LocalCluster) -> None:
    async def work(client: Client) -> None:
        await client.create_queue("aborted")
        queue = client.queue("aborted")
        await queue.transaction("job", part=1).enqueue(b"1")
        await queue.transaction("job").discard_parts({0: [1, 7]})
        again = queue.transaction("job", part=2)
        await again.enqueue(b"2")
        assert again.staged == {0: 1}
        assert (await again.publish_parts({0: {2: 1}}))[0].last_version == 1

    run(three, work)


def test_a_subscriber_continues_where_it_committed(three: LocalCluster) -> None:
    async def work(client: Client) -> None:
        await client.create_queue("followed", lanes=2)
        queue = client.queue("followed")
        for number in range(20):
            await queue.enqueue(b"%d" % number, lane=number % 2)
        seen: Counter[bytes] = Counter()
        while sum(seen.values()) < 20:
            async for batch in queue.follow(subscriber="s"):
                seen.update(batch.values())
                await batch.commit()
                break  # a follower that ends after each batch, and starts again
        assert set(seen.values()) == {1}
        assert (await queue.move_cursor("s", {0: 1, 1: 1})).versions == {0: 10, 1: 10}
        assert (await queue.reset_cursor("s", {0: 1, 1: 1})).versions == {0: 1, 1: 1}

    run(three, work)


def test_the_blocking_client_does_the_same(three: LocalCluster) -> None:
    with avow.connect_blocking(three.addresses) as client:
        client.create_queue("blocking")
        queue = client.queue("blocking")
        sent = [queue.send(b"%d" % number) for number in range(1_000)]
        assert sorted(future.result(20).first_version for future in sent) == list(range(1, 1_001))
        with queue.transaction() as txn:
            txn.enqueue_many([b"a", b"b"])
        assert txn.published[0].last_version == 1_002
        got = [value for batch in queue.read() for value in batch.values()]
        assert got == [*(b"%d" % number for number in range(1_000)), b"a", b"b"]
        for batch in queue.follow(subscriber="s"):
            batch.commit()
            break
        assert queue.cursor("s")[0] > 0


def test_the_blocking_client_retries_forgets_and_follows_page_by_page(three: LocalCluster) -> None:
    with avow.connect_blocking(three.addresses) as client:
        client.create_queue("faces")
        queue = client.queue("faces")
        done = queue.send(b"1", write_id=b"0123456789abcdef").result(20)
        assert queue.send(b"1", write_id=b"0123456789abcdef").result(20) == done
        pages = queue.follow_pages(subscriber="s")
        [batch] = next(pages)
        assert (batch.values(), batch.last_version, len(batch)) == ([b"1"], 1, 1)
        batch.commit()
        pages.close()  # type: ignore[attr-defined]
        assert [found.versions for found in queue.subscribers()] == [{0: 1}]
        assert queue.statistics()[0]["in_flight"] == 0
        assert list(client.statistics()["queues"]) == ["faces"]  # type: ignore[call-overload]
        assert client.queue("faces") is queue
        client.forget("faces")
        assert client.queue("faces") is not queue


def test_blocking_producers_and_subscriptions_open_and_close_without_a_block(three: LocalCluster) -> None:
    with avow.connect_blocking(three.addresses) as client:
        client.create_queue("opened")
        producer = client.producer("opened")
        producer.open()
        producer.send(b"1")
        producer.close()
        aborted = client.producer("opened")
        aborted.open()
        aborted.abort()
        with pytest.raises(ChannelFailed):
            aborted.commit()
        subscription = client.subscribe("opened", "s")
        [batch] = next(iter(subscription.pages()))
        assert (batch.values(), subscription.subscriber, subscription.member) == ([b"1"], "s", "")


def test_a_blocking_observer_sees_what_peers_of_a_pubsub_queue_send_each_other(three: LocalCluster) -> None:
    with avow.connect_blocking(three.addresses) as client:
        client.create_queue("events", strategy="pub-sub")
        queue, over = client.queue("events"), threading.Event()

        def write() -> None:
            while not over.wait(0.05):
                queue.enqueue(b"x")

        writer = threading.Thread(target=write)
        writer.start()
        try:
            event = next(client.observe("events"))
            assert isinstance(event, Enqueued | Stored | Committed)
        finally:
            over.set()
            writer.join()


def test_the_coordinator_is_killed_under_load_and_writes_resume_with_nothing_lost_or_refused(
    whole: LocalCluster,
) -> None:
    async def work(client: Client) -> None:
        await client.create_queue("killed")
        load = Load(client.queue("killed"))

        async def kill() -> None:
            victim = await asyncio.to_thread(coordinator_of, whole, "killed")
            await asyncio.to_thread(whole.kill, victim)
            await load.wait_for(500)
            await asyncio.to_thread(whole.restart, victim)
            await load.wait_for(200)

        await load.during(kill)
        assert load.errors == []
        await load.check_read()

    run(whole, work)


def test_pub_sub_writes_through_surviving_peers_are_never_refused(whole: LocalCluster) -> None:
    async def work(client: Client) -> None:
        await client.create_queue("pub-sub-killed", strategy="pub-sub")
        load = Load(client.queue("pub-sub-killed"))

        async def kill() -> None:
            victim = load.done[-1][1].lane
            owners = {lane.lane: lane.owner for lane in (await client.queue("pub-sub-killed").info()).lanes}
            await asyncio.to_thread(whole.kill, owners[victim] or 1)
            await load.wait_for(500)

        await load.during(kill)
        assert load.errors == []
        await load.check_read()

    run(whole, work)


def test_a_paused_coordinator_is_replaced_and_nothing_is_written_twice(whole: LocalCluster) -> None:
    async def work(client: Client) -> None:
        await client.create_queue("paused")
        load = Load(client.queue("paused"))

        async def pause() -> None:
            victim = await asyncio.to_thread(coordinator_of, whole, "paused")
            await asyncio.to_thread(whole.pause, victim)
            await load.wait_for(300)
            await asyncio.to_thread(whole.resume, victim)
            await load.wait_for(200)

        await load.during(pause)
        assert load.errors == []
        await load.check_read()

    run(whole, work)


def test_a_rolling_restart_loses_nothing_and_refuses_nothing(whole: LocalCluster) -> None:
    async def work(client: Client) -> None:
        await client.create_queue("rolling")
        load = Load(client.queue("rolling"))
        followed: list[bytes] = []

        async def follow() -> None:
            async for batch in client.queue("rolling").follow():
                followed.extend(batch.values())

        async def restart_all() -> None:
            for number in (1, 2, 3):
                await asyncio.to_thread(whole.stop, number)
                await load.wait_for(100)
                await asyncio.to_thread(whole.restart, number)
                await load.wait_for(100)

        follower = asyncio.create_task(follow())
        await load.during(restart_all)
        deadline = monotonic() + 60
        while len(followed) < len(load.done) and monotonic() < deadline:
            await asyncio.sleep(0.02)
        follower.cancel()
        await asyncio.gather(follower, return_exceptions=True)
        assert load.errors == []
        await load.check_read()
        assert len(followed) == len(set(followed)) == len(load.done)

    run(whole, work)


INTERRUPTED = """
import os, signal, sys, threading
import avow

client = avow.connect_blocking(sys.argv[1])
queue = client.queue("interrupted")
try:
    for batch in queue.follow(after=0):
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
except KeyboardInterrupt:
    sys.stdout.write(f"goes on at {queue.enqueue(b'two').last_version}")
client.close()
"""


def test_an_interrupted_follow_ends_and_its_client_stays_usable(three: LocalCluster) -> None:
    async def work(client: Client) -> None:
        await client.create_queue("interrupted")
        await client.queue("interrupted").enqueue(b"one")

    run(three, work)
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-c", INTERRUPTED, three.addresses],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (0, "goes on at 2"), ended.stderr

"""Producers, subscribers, followers and observers over real peers that are killed, paused, restarted and cut off."""

from __future__ import annotations

import asyncio
import hashlib
import random
import subprocess
import sys
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
import trustme
import uvloop
from reset_proxy import ResetProxy

import avow
from avow.client.client import Client
from avow.client.observer import Committed, Enqueued, Stored
from avow.client.producer import Producer
from avow.client.reading import ReadBatch
from avow.client.subscriber import Subscription
from avow.errors import ChannelFailed, Fenced, Forbidden, InvalidRequest, Unknown, UnknownMessage
from avow.testing.cluster import LocalCluster

Work = Callable[[LocalCluster, Client], Awaitable[None]]
PROGRAM = Path(__file__).with_name("client_programs.py")
STRATEGIES = ("two-phase", "pub-sub")


@pytest.fixture(scope="module")
def peers() -> Iterator[LocalCluster]:
    with LocalCluster(3) as cluster:
        yield cluster


@pytest.fixture
def cluster(peers: LocalCluster) -> LocalCluster:
    """With all its peers, whatever the test before has done to them."""
    for number in peers.founders:
        if number not in peers.running:
            peers.restart(number)
    return peers


def run(cluster: LocalCluster, work: Work, *, timeout_s: float = 30.0) -> None:
    async def go() -> None:
        async with await avow.connect(cluster.addresses, timeout_s=timeout_s) as client:
            await asyncio.wait_for(work(cluster, client), 100)

    uvloop.run(go())


async def create(client: Client, name: str, strategy: str = "two-phase", *, lanes: int = 2) -> str:
    await client.create_queue(name, strategy=strategy, lanes=lanes if strategy == "two-phase" else 1)  # type: ignore[arg-type]
    return name


async def contents(client: Client, queue: str, count: int) -> dict[int, list[int]]:
    """By lane, once so many messages are visible."""
    for _ in range(400):
        pubsub = (await client.queue(queue).info()).pubsub
        found: dict[int, list[int]] = defaultdict(list)
        async for batch in client.queue(queue).read(level="local" if pubsub else "linearizable"):
            found[batch.lane] += [int(value) for value in batch.values()]
        if sum(map(len, found.values())) >= count:
            return found
        await asyncio.sleep(0.05)
    raise AssertionError(f"{sum(map(len, found.values()))} messages are visible, not {count}")


def check_once_and_in_order(found: dict[int, list[int]], count: int) -> None:
    assert sorted(number for lane in found.values() for number in lane) == list(range(count))
    for lane in found.values():
        assert lane == sorted(lane)


def peer_of(cluster: LocalCluster, producer: Producer) -> int:
    url = producer.statistics()["peer"]
    return next((number for number in cluster.founders if cluster.api(number) == url), 0)


async def connected(cluster: LocalCluster, producer: Producer) -> int:
    for _ in range(2_000):
        if number := peer_of(cluster, producer):
            return number
        await asyncio.sleep(0.01)
    raise AssertionError("the producer found no peer")


async def send(producer: Producer, first: int, last: int) -> None:
    for number in range(first, last):
        await producer.send(b"%d" % number)
        if number % 20 == 0:
            await asyncio.sleep(0.002)


# ---------------------------------------------------------------------- producers


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_message_is_in_the_queue_once_and_in_order_though_the_producers_peer_is_killed(
    cluster: LocalCluster, strategy: str
) -> None:
    async def work(cluster: LocalCluster, client: Client) -> None:
        queue = await create(client, f"killed-{strategy}", strategy)
        async with client.producer(queue) as producer:
            for start in (0, 2_000, 4_000):
                await send(producer, start, start + 1_000)
                number = await connected(cluster, producer)
                sending = asyncio.create_task(send(producer, start + 1_000, start + 2_000))
                await asyncio.sleep(0.02)
                await asyncio.to_thread(cluster.kill, number)
                await sending
                await producer.commit()
                assert producer.non_acked_message_count == 0
                await asyncio.to_thread(cluster.restart, number)
            assert producer.statistics()["channels"] >= 3
        check_once_and_in_order(await contents(client, queue, 6_000), 6_000)

    run(cluster, work)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_peer_that_stands_still_is_left_and_what_it_does_when_it_wakes_up_doubles_nothing(
    cluster: LocalCluster, strategy: str
) -> None:
    async def work(cluster: LocalCluster, client: Client) -> None:
        queue = await create(client, f"paused-{strategy}", strategy)
        async with client.producer(queue) as producer:
            await send(producer, 0, 500)
            number = await connected(cluster, producer)
            cluster.pause(number)
            try:
                await send(producer, 500, 1_500)
                await producer.commit()
                assert peer_of(cluster, producer) != number
            finally:
                cluster.resume(number)
            await send(producer, 1_500, 2_000)
        await asyncio.to_thread(cluster.wait_ready)
        check_once_and_in_order(await contents(client, queue, 2_000), 2_000)

    run(cluster, work)


def test_resets_at_random_bytes_lose_and_double_nothing(cluster: LocalCluster) -> None:
    seed = random.randrange(1 << 32)
    rng = random.Random(seed)

    async def go() -> None:
        host, port = cluster.api(1).removeprefix("http://").split(":")
        proxy = ResetProxy((host, int(port)), budget=lambda: rng.randrange(2_000, 60_000))
        await proxy.start()
        url = proxy.url.replace("ws://", "http://").rstrip("/")
        async with await avow.connect(cluster.addresses) as client:
            queue = await create(client, "reset")
        async with await avow.connect(url) as client:
            cut_off(client, url)
            async with client.producer(queue) as producer, client.subscribe(queue, "s") as batches:
                reading = asyncio.create_task(read_and_commit(batches, 5_000))
                for number in range(5_000):
                    await producer.send(b"%d" % number, headers={"pad": bytes(100)})
                    if number % 10 == 0:
                        await asyncio.sleep(0.001)
                await producer.commit()
                check_once_and_in_order(await asyncio.wait_for(reading, 60), 5_000)
            assert proxy.resets >= 20, seed
        async with await avow.connect(cluster.addresses) as client:
            check_once_and_in_order(await contents(client, queue, 5_000), 5_000)
        await proxy.close()

    uvloop.run(asyncio.wait_for(go(), 100))


def cut_off(client: Client, url: str) -> None:
    """The client knows no other way than this."""
    client._cluster.links = [link for link in client._cluster.links if link.address.url == url]
    client._cluster.at = lambda _: None  # type: ignore[method-assign]


def test_when_the_cluster_is_gone_what_was_not_committed_is_handed_back_and_together_it_is_everything() -> None:
    with LocalCluster(3) as cluster:

        async def produce(cluster: LocalCluster, client: Client) -> tuple[int, ChannelFailed]:
            committed = sent = 0
            try:
                async with client.producer("q") as producer:
                    while True:
                        await producer.send(b"%d" % sent)
                        sent += 1
                        if sent % 100 == 0 and sent < 1_000:
                            await producer.commit()
                            committed = sent
                        if sent == 1_200:
                            for number in cluster.founders:
                                cluster.kill(number)
                        if sent == 1_300:
                            await producer.commit()
            except ChannelFailed as failed:
                assert sent == 1_300
                return committed, failed
            raise AssertionError("it did not fail")

        async def work(cluster: LocalCluster, client: Client) -> None:
            await create(client, "q")
            committed, failed = await produce(cluster, client)
            pending = [int(one.value) for one in failed.pending]
            assert sorted(pending) == list(range(1_300 - len(pending), 1_300))
            assert 1_300 - len(pending) >= committed
            for number in cluster.founders:
                await asyncio.to_thread(cluster.restart, number, ready=False)
            await asyncio.to_thread(cluster.wait_ready)
            found = await contents(client, "q", committed)
            there = sorted(number for lane in found.values() for number in lane)
            assert len(there) == len(set(there))
            assert set(there) | set(pending) == set(range(1_300))
            for one in failed.pending:
                known = await outcome(client, one.write_id)
                assert known is (int(one.value) in there)
                assert one.fate == "unknown" or not known

        run(cluster, work, timeout_s=3.0)


async def outcome(client: Client, write_id: bytes) -> bool:
    try:
        return bool(await client.queue("q").outcome(write_id))
    except UnknownMessage:
        return False


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_program_that_is_killed_goes_on_from_its_store_and_each_message_is_in_the_queue_once(
    cluster: LocalCluster, strategy: str, tmp_path: Path
) -> None:
    async def work(cluster: LocalCluster, client: Client) -> None:
        queue, first = await create(client, f"program-{strategy}", strategy), 0
        for life in range(3):
            sent = await asyncio.to_thread(live_and_die, cluster, queue, tmp_path / "pending", first, 130 + 90 * life)
            await asyncio.to_thread(settle, cluster, queue, tmp_path / "pending")
            found = await contents(client, queue, sent + 1)
            count = sum(map(len, found.values()))
            check_once_and_in_order(found, count)
            assert count in (sent + 1, sent + 2), "what was sent is there, and perhaps what it was just sending"
            first = count

    run(cluster, work)


def program(cluster: LocalCluster, queue: str, store: Path, first: int, last: int) -> subprocess.Popen[str]:
    command = [sys.executable, str(PROGRAM), cluster.addresses, queue, str(store), str(first), str(last)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def live_and_die(cluster: LocalCluster, queue: str, store: Path, first: int, count: int) -> int:
    """The last number that the program said it had sent when it was killed."""
    sent = -1
    with program(cluster, queue, store, first, first + 100_000) as process:
        assert process.stdout is not None
        for line in process.stdout:
            word, _, number = line.strip().partition(" ")
            sent = int(number) if word == "sent" else sent
            if sent == first + count:
                process.kill()
    return sent


def settle(cluster: LocalCluster, queue: str, store: Path) -> None:
    with program(cluster, queue, store, 0, 0) as process:
        assert process.stdout is not None
        assert process.stdout.read() == "settled\n"
    assert process.returncode == 0


# ---------------------------------------------------------------------- readers


async def read_and_commit(batches: Subscription, count: int) -> dict[int, list[int]]:
    """Until so many messages were handed out and all are committed."""
    found: dict[int, list[int]] = defaultdict(list)
    held: list[ReadBatch] = []
    while count > 0:
        batch = await anext(batches)
        found[batch.lane] += [int(value) for value in batch.values()]
        count -= len(batch)
        held.append(batch)
        if len(held) == 3 or count <= 0:  # some are always in hand when something happens
            await held[-1].commit()
            held.clear()
    return found


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_subscriber_is_handed_everything_once_though_peers_are_killed(cluster: LocalCluster, strategy: str) -> None:
    async def work(cluster: LocalCluster, client: Client) -> None:
        queue = await create(client, f"subscribed-{strategy}", strategy)
        async with client.producer(queue) as producer, client.subscribe(queue, "s") as batches:
            reading = asyncio.create_task(read_and_commit(batches, 4_000))
            for start, number in ((0, 1), (1_000, 2), (2_000, 3), (3_000, 1)):
                sending = asyncio.create_task(send(producer, start, start + 1_000))
                await asyncio.sleep(0.05)
                await asyncio.to_thread(cluster.kill, number)
                await sending
                await producer.commit()
                await asyncio.to_thread(cluster.restart, number)
            found = await asyncio.wait_for(reading, 60)
            assert batches.statistics()["channels"] >= 2
        check_once_and_in_order(found, 4_000)
        moved = await client.queue(queue).move_cursor("s", {})
        assert {lane: len(numbers) for lane, numbers in found.items()} == moved.versions

    run(cluster, work)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_takeover_is_clean(cluster: LocalCluster, strategy: str) -> None:
    async def work(cluster: LocalCluster, client: Client) -> None:
        queue = await create(client, f"taken-{strategy}", strategy, lanes=1)
        await client.queue(queue).enqueue_many([b"%d" % number for number in range(10)])
        async with await avow.connect(cluster.addresses) as other, client.subscribe(queue, "s") as first:
            committed = await anext(first)
            await committed.commit()
            await client.queue(queue).enqueue_many([b"%d" % number for number in range(10, 20)])
            held = await anext(first)
            async with other.subscribe(queue, "s") as second:
                again = await asyncio.wait_for(anext(second), 20)
                assert again.values()[0] == held.values()[0]
                with pytest.raises(Fenced):
                    await asyncio.wait_for(held.commit(), 20)
                with pytest.raises(Fenced):
                    await asyncio.wait_for(anext(first), 20)
                await again.commit()
                assert first.statistics()["channels"] == 1

    run(cluster, work)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_members_share_the_lanes_and_none_is_read_twice_as_they_come_and_go(
    cluster: LocalCluster, strategy: str
) -> None:
    async def work(cluster: LocalCluster, client: Client) -> None:
        queue = await create(client, f"members-{strategy}", strategy, lanes=4)
        committed: list[int] = []
        unsure: list[int] = []
        async with client.producer(queue) as producer, asyncio.TaskGroup() as readers:
            stop = asyncio.Event()
            for number, name in enumerate(("a", "b", "c")):
                readers.create_task(read_as_member(client, queue, name, committed, unsure, stop))
                await send(producer, number * 1_000, number * 1_000 + 1_000)
            await producer.commit()
            for _ in range(2_000):
                if len({*committed, *unsure}) >= 3_000:
                    break
                await asyncio.sleep(0.01)
            stop.set()
        assert len(committed) == len(set(committed))
        assert sorted({*committed, *unsure}) == list(range(3_000))

    run(cluster, work)


async def read_as_member(
    client: Client, queue: str, name: str, committed: list[int], unsure: list[int], stop: asyncio.Event
) -> None:
    """What it could commit: a batch that was fenced is another member's, one that nobody answered for may be."""
    async with client.subscribe(queue, "s", member=name) as batches:
        stopping = asyncio.create_task(stop.wait())
        while not stop.is_set():
            coming = asyncio.ensure_future(anext(batches))
            await asyncio.wait((coming, stopping), return_when=asyncio.FIRST_COMPLETED)
            if not coming.done():
                coming.cancel()
                await asyncio.gather(coming, return_exceptions=True)
                break
            batch = coming.result()
            numbers = [int(value) for value in batch.values()]
            try:
                await batch.commit()
                committed += numbers
            except Fenced:
                continue
            except Unknown:
                unsure += numbers
        stopping.cancel()


def test_a_subscriber_that_does_not_commit_holds_no_more_than_the_limit(cluster: LocalCluster) -> None:
    async def work(cluster: LocalCluster, client: Client) -> None:
        queue = await create(client, "slow", lanes=1)
        for _ in range(20):
            await client.queue(queue).enqueue_many([bytes(10_000)] * 200)
        async with client.subscribe(queue, "s") as batches:
            held: list[ReadBatch] = []
            while True:
                try:
                    held.append(await asyncio.wait_for(anext(batches), 1.0))
                except TimeoutError:
                    break
            taken = sum(map(len, held))
            assert 400 < taken < 1_800, "8 MiB of 40 are out, and a little more"
            while taken < 4_000:
                await held[-1].commit()
                batch = await asyncio.wait_for(anext(batches), 10)
                taken += len(batch)
                held = [batch]

    run(cluster, work)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_whoever_follows_gets_everything_once_though_peers_are_killed(cluster: LocalCluster, strategy: str) -> None:
    async def follow(client: Client, queue: str, count: int) -> dict[int, list[int]]:
        found: dict[int, list[int]] = defaultdict(list)
        async for batch in client.queue(queue).follow():
            found[batch.lane] += [int(value) for value in batch.values()]
            if sum(map(len, found.values())) >= count:
                break
        return found

    async def work(cluster: LocalCluster, client: Client) -> None:
        queue = await create(client, f"followed-{strategy}", strategy)
        following = asyncio.create_task(follow(client, queue, 3_000))
        async with client.producer(queue) as producer:
            for start, number in ((0, 1), (1_000, 2), (2_000, 3)):
                sending = asyncio.create_task(send(producer, start, start + 1_000))
                await asyncio.sleep(0.05)
                await asyncio.to_thread(cluster.kill, number)
                await sending
                await asyncio.to_thread(cluster.restart, number)
        check_once_and_in_order(await asyncio.wait_for(following, 60), 3_000)

    run(cluster, work)


def test_an_observer_hears_of_a_record_of_who_stored_it_and_of_its_commit_in_this_order(cluster: LocalCluster) -> None:
    async def work(cluster: LocalCluster, client: Client) -> None:
        queue = await create(client, "observed", "pub-sub")
        events = client.observe(queue)
        heard = asyncio.create_task(anext(events))
        await asyncio.sleep(0.1)
        done = await client.queue(queue).enqueue_many([b"a", b"b", b"c"])
        found = [await asyncio.wait_for(heard, 20)]
        while not isinstance(found[-1], Committed):
            found.append(await asyncio.wait_for(anext(events), 20))
        await events.aclose()
        first = found[0]
        assert isinstance(first, Enqueued)
        assert (first.lane, first.first_version, first.last_version) == (done[0].lane, 1, 3)
        assert first.batch.values() == [b"a", b"b", b"c"]
        stored = {event.peer for event in found if isinstance(event, Stored)}
        assert len(stored) >= 2
        assert found[-1] == Committed(done[0].lane, 3)
        with pytest.raises(InvalidRequest, match="pub-sub"):
            await anext(client.observe(await create(client, "not-observed")))

    run(cluster, work)


def test_a_channel_as_it_is_carries_what_the_wire_says(cluster: LocalCluster) -> None:
    async def work(cluster: LocalCluster, client: Client) -> None:
        queue = await create(client, "plain", lanes=1)
        await client.queue(queue).enqueue(b"hello")
        channel = await client.channel("reader", queue=queue, format="json", from_="start")
        assert (await anext(channel)).startswith(b'{"lanes"')
        assert b'"hello"' in await anext(channel)
        channel.close()
        await channel.wait_ended()

    run(cluster, work)


def test_channels_are_opened_over_tls_with_the_clients_token_and_its_rights(tmp_path: Path) -> None:
    settings = secrets(tmp_path)

    async def work() -> None:
        async with await avow.connect(cluster.addresses, token="admin", ca=settings["tls_ca"]) as client:
            queue = await create(client, "q")
            async with client.producer(queue) as producer:
                await send(producer, 0, 500)
            async with client.subscribe(queue, "s") as batches:
                check_once_and_in_order(await read_and_commit(batches, 500), 500)
        async with await avow.connect(cluster.addresses, token="reader", ca=settings["tls_ca"]) as client:
            async for batch in client.queue(queue).follow():
                assert len(batch)
                break
            for refused in (client.producer(queue), client.subscribe(queue, "s")):
                with pytest.raises(Forbidden):
                    await refused.open()

    with LocalCluster(1, settings=settings, token="admin", ca=settings["tls_ca"]) as cluster:
        uvloop.run(asyncio.wait_for(work(), 60))


def secrets(folder: Path) -> dict[str, str]:
    """Settings for TLS and tokens."""
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    certificate.private_key_pem.write_to_path(str(folder / "key.pem"))
    certificate.cert_chain_pems[0].write_to_path(str(folder / "cert.pem"))
    admin, reader = (hashlib.sha256(secret).hexdigest() for secret in (b"admin", b"reader"))
    (folder / "tokens.toml").write_text(
        f'[[token]]\nname = "admin"\nsha256 = "{admin}"\nadmin = true\n'
        f'[[token]]\nname = "reader"\nsha256 = "{reader}"\nrights = {{ "*" = ["read"] }}\n'
    )
    names = {"tokens": "tokens.toml", "tls_cert": "cert.pem", "tls_key": "key.pem", "tls_ca": "ca.pem"}
    return {name: str(folder / file) for name, file in names.items()}


# ---------------------------------------------------------------------- the blocking face


def test_blocking_producers_and_subscribers_do_what_their_twins_do(cluster: LocalCluster) -> None:
    with avow.connect_blocking(cluster.addresses) as client:
        client.create_queue("blocking", lanes=2)
        with client.producer("blocking") as producer:
            for number in range(3_000):
                producer.send(b"%d" % number)
            producer.send_many([b"3000", b"3001"], keys=[b"k", b"k"])
            producer.commit()
            assert producer.non_acked_message_count == 0
            assert sum(one.messages for one in producer.written()) == 3_002
            with pytest.raises(TypeError):
                producer.send("text")  # type: ignore[arg-type]
            with pytest.raises(InvalidRequest, match="lanes 0 to 1"):
                producer.send(b"x", lane=2)
        found: list[int] = []
        with client.subscribe("blocking", "s") as batches:
            for batch in batches:
                found += map(int, batch.values())
                batch.commit()
                if len(found) == 3_002:
                    break
        assert sorted(found) == list(range(3_002))
        client.queue("blocking").enqueue(b"3002")
        for batch in client.subscribe("blocking", "s"):
            assert batch.values() == [b"3002"]
            break
        with client.subscribe("blocking", "s") as first, client.subscribe("blocking", "s") as second:
            next(iter(second)).commit()
            with pytest.raises(Fenced):
                list(first)


def test_a_blocking_producer_that_fails_hands_back_also_what_it_was_given_meanwhile() -> None:
    with LocalCluster(1) as cluster, avow.connect_blocking(cluster.addresses, timeout_s=1.0) as client:
        client.create_queue("q")

        def produce() -> None:
            with client.producer("q") as producer:
                for number in range(1_000_000):
                    producer.send(b"%d" % number)
                    sent.append(number)
                    if number == 20_000:
                        producer.commit()
                        cluster.kill(1)

        sent: list[int] = []
        with pytest.raises(ChannelFailed) as caught:
            produce()
        pending = [int(one.value) for one in caught.value.pending]
        assert pending == list(range(20_001, len(sent)))

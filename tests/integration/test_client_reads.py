"""Reading, following, cursors, TLS, tokens and the blocking face, against scripted peers."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme
import uvloop
from tests.scripted_cluster import ScriptedCluster
from tests.virtual_loop import run_virtual

import avow
from avow.client.blocking import BlockingClient
from avow.client.client import Client
from avow.errors import InvalidRequest, Offline, Unknown, UnknownSubscriber

Runner = Callable[[Coroutine[Any, Any, None]], None]


@pytest.fixture(params=[asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def runner(request: pytest.FixtureRequest) -> Runner:
    found: Runner = request.param
    return found


def run(
    work: Callable[[ScriptedCluster, Client], Awaitable[None]], runner: Runner = uvloop.run, *, lanes: int = 1
) -> None:
    async def go() -> None:
        cluster = ScriptedCluster(2)
        cluster.create("q", lanes=lanes)
        async with cluster, await avow.connect(cluster.addresses, timeout_s=60.0) as client:
            await work(cluster, client)

    runner(go())


def test_messages_are_read_in_order_and_in_large_answers(runner: Runner) -> None:
    async def work(cluster: ScriptedCluster, client: Client) -> None:
        queue = client.queue("q")
        sent = [b"%06d" % number * 20 for number in range(30_000)]
        for start in range(0, len(sent), 1_000):
            await queue.enqueue_many(sent[start : start + 1_000])
        got = [value async for batch in queue.read() for value in batch.values()]
        assert got == sent
        arrow = [batch.to_arrow() async for batch in queue.read(after=500, until=1_500)]
        assert [value for table in arrow for value in table.column("value").to_pylist()] == sent[500:1_500]

    run(work, runner)


def test_a_read_stops_at_the_end_it_first_saw_despite_new_writes() -> None:
    async def work(cluster: ScriptedCluster, client: Client) -> None:
        queue = client.queue("q")
        await queue.enqueue_many([b"a"] * 10)
        await queue.enqueue_many([b"b"] * 10)
        seen = 0
        async for batch in queue.read(max_bytes=1):
            seen += batch.count
            await queue.enqueue(b"later")
        assert seen == 20

    run(work)


def test_a_read_continues_at_another_peer() -> None:
    async def work(cluster: ScriptedCluster, client: Client) -> None:
        queue = client.queue("q")
        for _ in range(5):
            await queue.enqueue_many([b"v"] * 10)
        seen = 0
        async for batch in queue.read(max_bytes=1):
            seen += batch.count
            if seen == 10:
                await cluster.peer(1).kill()
        assert seen == 50

    run(work)


def test_all_lanes_are_read_in_turn_unless_one_is_named() -> None:
    async def work(cluster: ScriptedCluster, client: Client) -> None:
        queue = client.queue("q")
        for lane in range(3):
            await queue.enqueue_many([b"%d" % lane] * 4, lane=lane)
        assert [batch.lane async for batch in queue.read()] == [0, 1, 2]
        assert [batch.lane async for batch in queue.read(lane=1)] == [1]
        found = [(batch.lane, batch.first_version) async for batch in queue.read(after={0: 2, 1: 4})]
        assert found == [(0, 3), (2, 1)]
        with pytest.raises(InvalidRequest, match="3 lanes"):
            await anext(queue.read(after=2))

    run(work, lanes=3)


def test_following_returns_existing_and_new_messages_and_a_cursor_keeps_the_position() -> None:
    async def work(cluster: ScriptedCluster, client: Client) -> None:
        queue = client.queue("q")
        await queue.enqueue_many([b"old"] * 3)
        with pytest.raises(UnknownSubscriber):
            await queue.cursor("reader")
        seen: list[bytes] = []
        async for batch in queue.follow(subscriber="reader"):
            seen += batch.values()
            if len(seen) == 3:
                await batch.commit()
                await queue.enqueue(b"new")
            else:
                break
        assert seen == [b"old"] * 3 + [b"new"]
        assert await queue.cursor("reader") == {0: 3}
        async for batch in queue.follow(subscriber="reader"):
            assert batch.values() == [b"new"]
            break

    run(work)


def test_following_merges_all_lanes_and_keeps_the_order_of_each() -> None:
    async def work(cluster: ScriptedCluster, client: Client) -> None:
        queue = client.queue("q")
        for number in range(9):
            await queue.enqueue(b"%d" % number, lane=number % 3)
        seen: dict[int, list[bytes]] = {0: [], 1: [], 2: []}
        async for batch in queue.follow():
            seen[batch.lane] += batch.values()
            if sum(map(len, seen.values())) == 9:
                break
        assert seen == {lane: [b"%d" % number for number in range(lane, 9, 3)] for lane in range(3)}

    run(work, lanes=3)


def test_an_unanswered_read_is_offline_and_an_unanswered_change_unknown() -> None:
    async def go() -> None:
        cluster = ScriptedCluster(1)
        async with cluster, await avow.connect(cluster.addresses, timeout_s=5.0) as client:
            cluster.peer(1).script = lambda request: "drop"
            with pytest.raises(Offline, match="no peer answered"):
                await client.queues()
            with pytest.raises(Unknown):
                await client.create_queue("q")

    run_virtual(go())


def test_the_list_of_peers_is_learned_from_any_of_them() -> None:
    async def go() -> None:
        cluster = ScriptedCluster(3)
        cluster.create("q")
        async with cluster, await avow.connect(cluster.peer(2).url) as client:
            await cluster.peer(2).kill()
            assert (await client.queue("q").enqueue(b"v")).first_version == 1
            assert [peer.number for peer in await client.peers()] == [1, 2, 3]

    uvloop.run(go())


def test_the_token_is_sent_and_certificates_are_verified(tmp_path: Path, runner: Runner) -> None:
    authority, stranger = trustme.CA(), trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    stranger.cert_pem.write_to_path(str(tmp_path / "other.pem"))

    async def go() -> None:
        cluster = ScriptedCluster(1, tls=context)
        cluster.create("q")
        async with cluster:
            async with await avow.connect(cluster.addresses, token="secret", ca=str(tmp_path / "ca.pem")) as client:
                await client.queue("q").enqueue_many([bytes(100)] * 10_000)
                assert sum([batch.count async for batch in client.queue("q").read()]) == 10_000
            assert {request.headers["authorization"] for request in cluster.peer(1).requests} == {"Bearer secret"}
            with pytest.raises(Offline, match="certificate"):
                await avow.connect(cluster.addresses, ca=str(tmp_path / "other.pem"), timeout_s=2.0)
            with pytest.raises(InvalidRequest, match="PEM"):
                await avow.connect(cluster.addresses, ca=str(tmp_path / "absent.pem"))

    runner(go())


# ------------------------------------------------------------------- the blocking face


@pytest.fixture
def addresses() -> Iterator[str]:
    """A scripted cluster in a separate thread."""
    cluster, started, stop = ScriptedCluster(2), threading.Event(), threading.Event()
    cluster.create("q")
    cluster.create("lanes", lanes=2)

    async def serve() -> None:
        async with cluster:
            started.set()
            await asyncio.to_thread(stop.wait)

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    assert started.wait(10)
    yield cluster.addresses
    stop.set()
    thread.join(10)


@pytest.fixture
def client(addresses: str) -> Iterator[BlockingClient]:
    with avow.connect_blocking(addresses, timeout_s=60.0) as found:
        yield found


def test_blocking_calls_do_the_same_as_async_ones(client: BlockingClient) -> None:
    queue = client.queue("q")
    assert queue.enqueue(b"1").first_version == 1
    assert queue.enqueue_many([b"2", b"3"])[0].last_version == 3
    assert queue.send(b"4").result(5).first_version == 4
    assert [value for batch in queue.read() for value in batch.values()] == [b"1", b"2", b"3", b"4"]
    assert queue.info().lanes[0].end == 4
    assert client.create_queue("other").name == "other"


def test_a_blocking_follow_commits_and_ends_when_its_loop_is_left(client: BlockingClient) -> None:
    queue = client.queue("q")
    queue.enqueue_many([b"1", b"2"])
    for batch in queue.follow(subscriber="s"):
        batch.commit()
        break
    assert queue.cursor("s") == {0: 2}


def test_several_threads_share_one_client_and_lose_nothing(client: BlockingClient) -> None:
    queue = client.queue("q")
    versions: list[int] = []

    def work() -> None:
        found = [queue.send(b"x") for _ in range(200)]
        versions.extend(future.result(10).first_version for future in found)
        versions.append(queue.enqueue(b"y").first_version)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert sorted(versions) == list(range(1, 4 * 201 + 1))


def test_a_refusal_reaches_the_waiting_thread(client: BlockingClient) -> None:
    queue = client.queue("lanes")
    with pytest.raises(InvalidRequest, match="lanes 0 to 1"):
        queue.enqueue(b"x", lane=7)
    with pytest.raises(InvalidRequest, match="lanes 0 to 1"):
        queue.send(b"x", lane=7).result(5)
    with pytest.raises(TypeError):
        queue.send("text").result(5)  # type: ignore[arg-type]


def test_a_closed_blocking_client_refuses_calls_and_leaves_no_thread(addresses: str) -> None:
    client = avow.connect_blocking(addresses)
    queue = client.queue("q")
    client.close()
    client.close()
    with pytest.raises(InvalidRequest, match="closed"):
        queue.enqueue(b"1")
    with pytest.raises(InvalidRequest, match="closed"):
        queue.send(b"1")
    assert not [thread for thread in threading.enumerate() if thread.name == "avow-client"]


def test_a_blocking_client_that_reaches_no_peer_leaves_no_thread() -> None:
    with pytest.raises(Offline):
        avow.connect_blocking("http://127.0.0.1:1", timeout_s=0.2)
    assert not [thread for thread in threading.enumerate() if thread.name == "avow-client"]


def test_a_program_that_forgets_to_close_its_client_still_exits(addresses: str) -> None:
    code = (
        f"import avow; q = avow.connect_blocking({addresses!r}).queue('q'); q.enqueue(b'1'); it = q.follow(); next(it)"
    )
    ended = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_a_thread_waiting_for_messages_gets_an_error_when_its_client_is_closed(addresses: str) -> None:
    client = avow.connect_blocking(addresses)
    queue = client.queue("q")
    queue.enqueue(b"1")
    heard: list[BaseException] = []
    began = threading.Event()

    def follow() -> None:
        try:
            for _ in queue.follow():
                began.set()
        except InvalidRequest as error:
            heard.append(error)

    thread = threading.Thread(target=follow)
    thread.start()
    assert began.wait(10)
    client.close()
    thread.join(10)
    assert not thread.is_alive()
    assert len(heard) == 1

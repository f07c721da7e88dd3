"""A peer's budget of bytes under clients that send or ask for much: bounded, and everybody is answered."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from uuid import uuid4

from tests.integration.http_peer import PeerProcess, cluster, serving, wait_until
from tests.integration.peer_channels import open_to, run

from avow.channel.protocol.events import Bounds
from avow.limits import CHANNEL_CAP_SIZE_BYTES, MIB
from avow.wire.batch import encode_batch

RAW = {"content-type": "application/vnd.avow.batch"}
MEMORY = 32 * MIB
READERS = 60
WRITERS = 24
CHANNELS = 16
MESSAGES = 14  # of each, before its first commit: 7 MB
PAUSED = "avow_channels_paused "


def held(peer: PeerProcess, metric: str = "avow_held_bytes", kind: str = "answers") -> int:
    start = f'{metric}{{kind="{kind}"}} '
    lines = peer.ask("GET", "/metrics").body.decode().splitlines()
    (found,) = [line.removeprefix(start) for line in lines if line.startswith(start)]
    return int(float(found))


def write(peer: PeerProcess, values: list[bytes], write_id: bytes, *, age_ms: int = 0) -> int:
    record = bytes(encode_batch(values, write_id=write_id, created_ms=1))
    headers = {**RAW, "avow-age-ms": str(age_ms)} if age_ms else RAW
    return peer.ask("POST", "/v1/queues/q/messages", record, headers=headers).status


def write_until_done(peer: PeerProcess, values: list[bytes]) -> None:
    """Repeats the same write after every refusal and every lost answer."""
    write_id, since = uuid4().bytes, time.monotonic()
    wait_until(lambda: write(peer, values, write_id, age_ms=int((time.monotonic() - since) * 1000)) == 200)


def test_slow_readers_of_large_ranges_hold_a_bounded_number_of_bytes(tmp_path: Path) -> None:
    with serving(tmp_path, memory_bytes_max=MEMORY) as peer, ExitStack() as open_:
        wait_until(lambda: peer.ask("GET", "/readyz").status == 200)
        assert peer.ask("POST", "/v1/queues", {"name": "q"}).status == 201
        large = [bytes(MIB - 1000)] * 4
        for _ in range(4):
            assert write(peer, large, uuid4().bytes) == 200
        for _ in range(READERS):
            reader = open_.enter_context(socket.socket())
            reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            reader.connect(peer.address)
            path = f"/v1/queues/q/messages?after=0&max=100000&max_bytes={8 * MIB}"
            accept = "application/vnd.avow.batches"
            reader.sendall(f"GET {path} HTTP/1.1\r\nhost: here\r\naccept: {accept}\r\n\r\n".encode())
        bound = held(peer, "avow_held_bytes_max")
        assert bound < MEMORY
        wait_until(lambda: held(peer, "avow_held_waiting") > READERS // 2)
        assert 0 < held(peer) <= bound
        assert write(peer, [b"small"], uuid4().bytes) == 200
        answer = peer.ask("GET", "/v1/queues/q/messages?after=16")
        assert [line["value"] for line in answer.lines] == ["small"]
        refused = peer.ask("GET", "/v1/queues/q/messages?after=0&timeout_s=1", headers={"accept": accept})
        assert (refused.status, refused.code, refused.headers["retry-after"]) == (503, "BUSY", "1")
        open_.close()
        wait_until(lambda: held(peer) == 0)
        assert peer.ask("GET", "/v1/queues/q/messages?after=0", headers={"accept": accept}).status == 200


def test_many_clients_with_large_batches_all_finish_and_small_writes_in_between_are_answered(tmp_path: Path) -> None:
    with cluster(tmp_path, 3) as peers:
        assert peers[0].ask("POST", "/v1/queues", {"name": "q"}).status == 201
        wait_until(lambda: all(peer.ask("GET", "/v1/queues/q").status == 200 for peer in peers))
        large = [bytes(1_000_000)] * 8
        writers = [threading.Thread(target=write_until_done, args=(peers[n % 3], large)) for n in range(WRITERS)]
        for writer in writers:
            writer.start()
        small = 0
        while any(writer.is_alive() for writer in writers):
            write_until_done(peers[small % 3], [b"small"])
            small += 1
        for writer in writers:
            writer.join()
        assert small > 0
        wait_until(lambda: all(_end(peer) == 8 * WRITERS + small for peer in peers))
        for peer in peers:
            assert held(peer, kind="requests") == 0


def test_channels_with_much_that_is_not_committed_are_paused_and_all_commit(tmp_path: Path) -> None:
    message = b'{"value":"%b"}' % (b"x" * 500_000)

    async def scenario(peer: PeerProcess) -> None:
        opened = []
        for _ in range(CHANNELS):
            parameters: dict[str, Any] = {"role": "producer", "queue": "q", "format": "json", "producer": uuid4().hex}
            opened.append(await open_to(peer.url, options={"bounds": Bounds(pending_bytes=64 * MIB)}, **parameters))
            for _ in range(MESSAGES):
                opened[-1].send(message)
        most = await asyncio.to_thread(held, peer, "avow_held_bytes_max", "received")
        await until_true(lambda: paused(peer) > 0)
        assert await asyncio.to_thread(held, peer, "avow_held_bytes", "received") <= most + CHANNEL_CAP_SIZE_BYTES
        for commit in [channel.commit() for channel in opened]:
            await commit
        await until_true(lambda: held(peer, kind="received") == 0)

    with serving(tmp_path, memory_bytes_max=MEMORY) as peer:
        wait_until(lambda: peer.ask("GET", "/readyz").status == 200)
        assert peer.ask("POST", "/v1/queues", {"name": "q"}).status == 201
        run(scenario(peer))
        assert _end(peer) == CHANNELS * MESSAGES


def paused(peer: PeerProcess) -> int:
    (line,) = [line for line in peer.ask("GET", "/metrics").body.decode().splitlines() if line.startswith(PAUSED)]
    return int(float(line.removeprefix(PAUSED)))


async def until_true(true: Callable[[], bool]) -> None:
    await asyncio.to_thread(wait_until, true)


def _end(peer: PeerProcess) -> int:
    answer = peer.ask("GET", f"/v1/queues/q/messages?after={1 << 40}")
    return int(answer.headers["avow-end"])

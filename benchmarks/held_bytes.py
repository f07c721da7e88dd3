"""What a peer holds for clients that ask for much and read nothing, send much, or never commit.

    python -m benchmarks held                       the working tree
    python -m benchmarks held --before 28dc821      beside a commit

    readers    300 connections ask a peer for 8 MiB each and read nothing; how long /healthz takes meanwhile
    batches    24 clients send three batches of 8 MB each to a cluster of three, and repeat what fails; one more client
               sends small writes
    channels   48 channels send 7 MB each before their first commit

Memory is the highest resident size of a peer. The figures are those of one run: compare them with each other only.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import socket
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Final
from uuid import uuid4

from msgspec import Struct

from avow.channel.connector import open_channel
from avow.channel.endpoint import Channel
from avow.channel.protocol.events import Bounds
from avow.channel.transports.socket import Socket, SocketUser
from avow.channel.transports.websocket_handshake import dial
from avow.errors import ChannelFailed
from avow.limits import MIB
from avow.testing.cluster import LocalCluster
from avow.wire.batch import encode_batch
from benchmarks import builds
from benchmarks.builds import BuildError

READERS: Final = 300
WRITERS: Final = 24
ROUNDS: Final = 3
CHANNELS: Final = 48
GIVE_UP_S: Final = 60.0
_RAW: Final = {"content-type": "application/vnd.avow.batch"}
_MESSAGE: Final = b'{"value":"%b"}' % (b"x" * 500_000)
_MESSAGES: Final = 14  # of a channel, before it commits


class Row(Struct, frozen=True):
    situation: str
    what: str
    figure: str


class Api:
    """Plain HTTP to the peers of a cluster."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster
        self.addresses = [one.removeprefix("http://") for one in cluster.addresses.split(",")]

    def ask(self, at: int, method: str, path: str, body: bytes | None = None, headers: dict[str, str] = {}) -> int:  # noqa: B006
        connection = http.client.HTTPConnection(self.addresses[at % len(self.addresses)], timeout=GIVE_UP_S)
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            answer.read()
            return answer.status
        except OSError:
            return 0
        finally:
            connection.close()

    def create(self) -> None:
        self.ask(0, "POST", "/v1/queues", json.dumps({"name": "q"}).encode(), {"content-type": "application/json"})
        while any(self.ask(at, "GET", "/v1/queues/q") != 200 for at in range(len(self.addresses))):
            time.sleep(0.05)

    def write(self, at: int, values: list[bytes], write_id: bytes, age_ms: int = 0) -> int:
        record = bytes(encode_batch(values, write_id=write_id, created_ms=1))
        headers = {**_RAW, "avow-age-ms": str(age_ms)} if age_ms else _RAW
        return self.ask(at, "POST", "/v1/queues/q/messages", record, headers)

    def memory(self) -> str:
        """The highest resident size of any peer."""
        peaks = []
        for serving in [process.serving for process in self.cluster.processes.values()]:
            assert serving is not None
            status = Path(f"/proc/{serving.pid}/status").read_text("ascii")
            peaks += [int(line.split()[1]) // 1024 for line in status.splitlines() if line.startswith("VmHWM")]
        return f"{max(peaks)} MiB" if peaks else "the peer ended"


def readers(code: Path | None) -> list[Row]:
    with LocalCluster(1, code=code) as cluster, ExitStack() as opened:
        api = Api(cluster)
        api.create()
        for _ in range(20):
            api.write(0, [bytes(1_000_000)] * 7, uuid4().bytes)
        before = api.memory()
        host, _, port = api.addresses[0].rpartition(":")
        for number in range(READERS):
            one = opened.enter_context(socket.socket())
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            one.connect((host, int(port)))
            path = f"/v1/queues/q/messages?after={number % 130}&max=100000&max_bytes={8 * MIB}"
            accept = "accept: application/vnd.avow.batches"
            one.sendall(f"GET {path} HTTP/1.1\r\nhost: here\r\n{accept}\r\n\r\n".encode())
        since, slowest = time.monotonic(), 0.0
        while time.monotonic() - since < 10.0:
            began = time.monotonic()
            api.ask(0, "GET", "/healthz")
            slowest = max(slowest, time.monotonic() - began)
            time.sleep(0.1)
        return [
            Row("readers", "memory before", before),
            Row("readers", "memory with them", api.memory()),
            Row("readers", "longest wait for /healthz", f"{slowest:.2f} s"),
        ]


def batches(code: Path | None) -> list[Row]:
    with LocalCluster(3, code=code) as cluster:
        api = Api(cluster)
        api.create()
        outcomes: Counter[str] = Counter()
        began = time.monotonic()

        def write(at: int, values: list[bytes]) -> str:
            write_id, since = uuid4().bytes, time.monotonic()
            while time.monotonic() - began < GIVE_UP_S:
                status = api.write(at, values, write_id, round((time.monotonic() - since) * 1000))
                if status == 200:
                    return "done"
                outcomes["repeated"] += 1
                time.sleep(0.2)
                at += 1
            return "given up"

        def large(at: int) -> None:
            for _ in range(ROUNDS):
                outcomes[write(at, [bytes(1_000_000)] * 8)] += 1

        writers = [threading.Thread(target=large, args=(at,)) for at in range(WRITERS)]
        for one in writers:
            one.start()
        slowest = 0.0
        while any(one.is_alive() for one in writers):
            since = time.monotonic()
            write(0, [b"small"])
            slowest = max(slowest, time.monotonic() - since)
            time.sleep(0.1)
        return [
            Row("batches", "all finished after", f"{time.monotonic() - began:.1f} s"),
            Row("batches", "done, given up", f"{outcomes['done']}, {outcomes['given up']}"),
            Row("batches", "sent again after an error", str(outcomes["repeated"])),
            Row("batches", "longest small write", f"{slowest:.2f} s"),
            Row("batches", "memory", api.memory()),
        ]


def channels(code: Path | None) -> list[Row]:
    with LocalCluster(1, code=code) as cluster:
        api = Api(cluster)
        api.create()
        began = time.monotonic()
        committed = asyncio.run(_produce(f"ws://{api.addresses[0]}"))
        return [
            Row("channels", "memory", api.memory()),
            Row("channels", "committed", f"{committed} of {CHANNELS} after {time.monotonic() - began:.1f} s"),
        ]


async def _produce(url: str) -> int:
    async def connect(user: SocketUser) -> Socket:
        target = f"{url}/v1/channel?role=producer&queue=q&format=json&producer={uuid4().hex}"
        return await dial(target, user, timeout_s=GIVE_UP_S)

    opened: list[Channel] = []
    for _ in range(CHANNELS):
        opened.append(await open_channel(connect, bounds=Bounds(pending_bytes=64 * MIB)))
        for _ in range(_MESSAGES):
            opened[-1].send(_MESSAGE)
    await asyncio.sleep(5.0)

    async def commit(channel: Channel) -> bool:
        try:
            await channel.commit()
        except ChannelFailed:
            return False
        return True

    done = await asyncio.gather(*(commit(channel) for channel in opened))
    for channel in opened:
        channel.close()
        await channel.wait_ended()
    return sum(done)


def measure(code: Path | None) -> list[Row]:
    return [*readers(code), *batches(code), *channels(code)]


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks held", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--before", metavar="COMMIT", help="a build to measure beside the working tree")
    options = parser.parse_args(words)
    with tempfile.TemporaryDirectory() as folder:
        try:
            trees = [builds.copy_tree(Path(folder) / "after")]
            if options.before:
                build = builds.describe_commit(options.before)
                trees.insert(0, builds.unpack_commit(build, Path(folder) / "before"))
        except BuildError as error:
            print(f"held: {error}", file=sys.stderr)
            return 2
        columns = [measure(tree) for tree in trees]
    names = ["before", "after"] if options.before else ["now"]
    print(f"| | | {' | '.join(names)} |\n|---|---|{'---|' * len(names)}")
    for row in zip(*columns, strict=True):
        print(f"| {row[0].situation} | {row[0].what} | {' | '.join(one.figure for one in row)} |")
    return 0

"""The other ends of the channel's figures, each in a process of its own, told what to do over its standard input.

    serve      counts what comes: over the library alone, message by message, and over channels
    flood      sends as fast as it may over a channel, and says when it was suspended and when it went on
    withhold   receives over channels and acknowledges nothing until it is told to

Each answers a line with a line of JSON; the first line comes unasked, when it is ready. Run by `benchmarks.channel`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from struct import Struct as Layout
from typing import Any, Final

import uvloop
from websockets.asyncio.server import ServerConnection, serve

from avow.channel.connector import connect_channel
from avow.channel.endpoint import Channel
from avow.channel.listener import listen
from avow.errors import ChannelFailed

Answer = dict[str, Any]
_LINE_BYTES: Final = 4_096
_PAGE_BYTES: Final = 4_096
_NUMBER: Final = Layout("<Q")


def say(answer: Answer) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


async def answer_lines(answer: Callable[[str], Answer]) -> None:
    """Until the other end of the pipe is closed."""
    reader = asyncio.StreamReader(limit=_LINE_BYTES)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        say(answer(line.decode().strip()))


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE_BYTES


# ---------------------------------------------------------------------- throughput


async def count_messages(socket: ServerConnection) -> None:
    """As a user of the library would write it. Text asks for the count."""
    messages = size = 0
    async for message in socket:
        if isinstance(message, str):
            await socket.send(json.dumps({"messages": messages, "bytes": size}))
            messages = size = 0
        else:
            messages += 1
            size += len(message)


class Counting:
    """Channels that count, and acknowledge what they counted."""

    def __init__(self) -> None:
        self.messages = self.bytes = 0

    def begin(self, channel: Channel) -> None:
        channel.on_messages = self._count
        channel.on_commit = channel.ack_commit

    def _count(self, values: list[memoryview]) -> None:
        self.messages += len(values)
        self.bytes += sum(map(len, values))


async def serve_counts() -> None:
    counting = Counting()
    listener = await listen(counting.begin)
    async with serve(count_messages, "127.0.0.1", 0, compression=None) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        say({"library": f"ws://127.0.0.1:{port}/", "channel": listener.url})
        await answer_lines(
            lambda _: {"cpu_s": time.process_time(), "messages": counting.messages, "bytes": counting.bytes}
        )
    await listener.close()


# ---------------------------------------------------------------------- acks withheld


class Flood:
    """Every value has memory of its own, as those of an application have."""

    def __init__(self, channel: Channel, *, value_bytes: int) -> None:
        self._channel, self._padding = channel, bytes(value_bytes - 8)
        self.sent = self.suspensions = 0
        self.suspended_at = self.resumed_at = 0.0

    async def run(self) -> None:
        channel, padding = self._channel, self._padding
        while True:
            if channel.suspended:
                self.suspensions += 1
                self.suspended_at = time.monotonic()
                await channel.writable()
                self.resumed_at = time.monotonic()
            channel.send(_NUMBER.pack(self.sent) + padding)
            self.sent += 1

    def report(self, _: str) -> Answer:
        return {
            "sent": self.sent,
            "suspensions": self.suspensions,
            "suspended": self._channel.suspended,
            "resumed_at": self.resumed_at,
            "resident_bytes": resident_bytes(),
            **{name: self._channel.statistics()[name] for name in ("pending", "pending_bytes", "acked")},
        }


async def flood(url: str, value_bytes: str) -> None:
    channel = await connect_channel(url)
    flooding = Flood(channel, value_bytes=int(value_bytes))
    say({"ready": True, "resident_bytes": resident_bytes()})
    task = asyncio.create_task(flooding.run())
    await answer_lines(flooding.report)
    task.cancel()
    channel.abort()


class Withholding:
    """Keeps what comes in the channel's inbox until it is told to take it: the most a receiver ever holds."""

    def __init__(self) -> None:
        self.channels: list[Channel] = []
        self.taken = 0
        self.acked_at = 0.0
        self._tasks: list[asyncio.Task[None]] = []

    def answer(self, line: str) -> Answer:
        if line == "ack":
            self.acked_at = time.monotonic()
            self._tasks += [asyncio.create_task(self._take(channel)) for channel in self.channels]
        inbox = sum(channel.statistics()["inbox"] for channel in self.channels)
        return {
            "taken": self.taken,
            "inbox": inbox,
            "acked_at": self.acked_at,
            "resident_bytes": resident_bytes(),
        }

    async def _take(self, channel: Channel) -> None:
        """All of it, and of all that follows: commits are acknowledged on the way."""
        with contextlib.suppress(ChannelFailed):  # the sender is stopped in the end
            async for _ in channel:
                self.taken += 1


async def withhold() -> None:
    withholding = Withholding()
    listener = await listen(withholding.channels.append)
    say({"url": listener.url, "resident_bytes": resident_bytes()})
    await answer_lines(withholding.answer)
    await listener.close()


ENDS: Final[dict[str, Callable[..., Awaitable[None]]]] = {
    "serve": serve_counts,
    "flood": flood,
    "withhold": withhold,
}


async def _main(name: str, *arguments: str) -> None:
    await ENDS[name](*arguments)


if __name__ == "__main__":
    uvloop.run(_main(*sys.argv[1:]))

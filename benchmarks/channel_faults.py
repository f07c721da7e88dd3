"""A channel under resets, and a channel without acknowledgements. Tests run the short forms of both.

*Resets.* Both ends send numbered messages at once, commit at random, acknowledge now or a little later, and every
connection between them is reset after a random number of bytes, in either direction, in the middle of anything. Each
end checks each message as it comes: the next number, and nothing else. Every commit's callback must be called, once and
in order.

*Withheld.* A sender that never waits of its own accord, a receiver that takes nothing out of its channel. The sender
has to stop by itself, and neither process may hold more than the bounds say: what is pending, once, and what a socket
buffers. `SLACK_BYTES` is for the interpreter's allocator, which rounds up.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from struct import Struct as Layout
from typing import Any, Final

from msgspec import Struct
from tests.integration.reset_proxy import ResetProxy

from avow import limits
from avow.channel.connector import connect_channel
from avow.channel.endpoint import Channel
from avow.channel.listener import listen
from avow.channel.transports.websocket import OUTPUT_SIZE_BYTES
from avow.errors import Offline
from benchmarks.channel_far import Far

MESSAGE_BYTES: Final = 100
WITHHELD_BYTES: Final = 2_000
SLACK_BYTES: Final = 4 * limits.MIB
GROWTH_BYTES_MAX: Final = (
    limits.CHANNEL_PENDING_SIZE_BYTES + OUTPUT_SIZE_BYTES + 4 * limits.CHANNEL_PACKET_SIZE_BYTES + SLACK_BYTES
)
RESUMED_S_MAX: Final = 0.5
_NUMBER: Final = Layout("<Q")
_PADDING: Final = bytes(MESSAGE_BYTES - 8)
_CARRIED: Final = 2.2  # bytes on the wire for each byte of a message that a connection gets through, about


# ---------------------------------------------------------------------- resets


class Resets(Struct, frozen=True, kw_only=True):
    messages: int
    seconds: float
    resets: int
    sockets: int
    commits: int
    suspensions: int


class End:
    """One of the two applications."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.received = self.suspensions = 0
        self.issued: list[int] = []
        self.completed: list[int] = []
        self.channel: Channel

    def begin(self, channel: Channel) -> None:
        self.channel = channel
        channel.on_messages = self._check
        channel.on_commit = self._acknowledge

    def _check(self, values: list[memoryview]) -> None:
        for value in values:
            self.received += 1
            number = _NUMBER.unpack_from(value)[0]
            if number != self.received or len(value) != MESSAGE_BYTES:
                raise AssertionError(f"message {number} of {len(value)} bytes came instead of {self.received}")

    def _acknowledge(self, commit_id: int) -> None:
        if self.chance.random() < 0.5:
            self.channel.ack_commit(commit_id)
        else:
            delay_s = self.chance.random() * 0.005
            asyncio.get_running_loop().call_later(delay_s, self.channel.ack_commit, commit_id)

    async def send_all(self, messages: int) -> None:
        channel = self.channel
        for number in range(1, messages + 1):
            if channel.suspended:
                self.suspensions += 1
                await channel.writable()
            channel.send(_NUMBER.pack(number) + _PADDING)
            if self.chance.random() < 0.02:
                self.commit()
            if self.chance.random() < 0.01:
                await asyncio.sleep(0)
        self.commit()
        await channel.commit()

    def commit(self) -> None:
        number = len(self.issued) + 1
        self.issued.append(number)
        self.channel.commit(lambda: self.completed.append(number))


async def run_resets(*, messages: int, resets: int, seed: int = 1) -> Resets:
    """Raises when a message was lost, doubled or out of order, a commit did not complete, or resets were too few."""
    chance = random.Random(seed)
    mean_bytes = messages * 2 * MESSAGE_BYTES * _CARRIED / (resets * 2)
    near, far = End(seed + 1), End(seed + 2)
    listener = await listen(far.begin)
    proxy = ResetProxy(listener.address, budget=lambda: chance.randrange(1, int(2 * mean_bytes)))
    began = time.perf_counter()
    channel = await _connected(await proxy.start(), near)
    await asyncio.gather(near.send_all(messages), far.send_all(messages))
    found = Resets(
        messages=messages,
        seconds=time.perf_counter() - began,
        resets=proxy.resets,
        sockets=channel.statistics()["sockets"],
        commits=len(near.completed) + len(far.completed),
        suspensions=near.suspensions + far.suspensions,
    )
    channel.close()
    await listener.close()
    await proxy.close()
    for one in (near, far):
        _require(one.received == messages, f"{one.received} of {messages} messages came")
        _require(one.completed == one.issued, f"{len(one.completed)} of {len(one.issued)} commits completed, in order")
    _require(proxy.resets >= resets, f"there were {proxy.resets} resets, and {resets} were wanted")
    return found


async def _connected(url: str, end: End) -> Channel:
    """The first connection is the application's to try again."""
    for _ in range(100):
        try:
            return await connect_channel(url, begin=end.begin, patience_s=120.0)
        except Offline:
            continue
    raise AssertionError("no first connection was had in 100 tries")


def _require(held: bool, what: str) -> None:  # noqa: FBT001
    if not held:
        raise AssertionError(what)


# ---------------------------------------------------------------------- acks withheld


class Withheld(Struct, frozen=True, kw_only=True):
    seconds: float
    sent: int  # while nothing was acknowledged
    pending_bytes: int
    sender_growth_bytes: int
    receiver_growth_bytes: int
    resumed_s: float  # from the first acknowledgement to the next message
    sent_after: int
    growth_after_bytes: int  # of either, while messages flow


def run_withheld(*, seconds: float, after_s: float = 1.0) -> Withheld:
    """Raises when a sender goes on without an acknowledgement, memory grows, or it does not go on with one."""
    with Far("withhold") as receiver, Far("flood", receiver.ready["url"], str(WITHHELD_BYTES)) as sender:
        started = (sender.ready["resident_bytes"], receiver.ready["resident_bytes"])
        held = _watch(sender, receiver, seconds, started)
        stopped = sender.ask()
        _require(bool(stopped["suspended"]), "the sender was not suspended")
        _require(stopped["acked"] == 0, "something was acknowledged")
        acked_at = receiver.ask("ack")["acked_at"]
        resumed_at = _until(lambda: sender.ask()["resumed_at"])
        flowing = _watch(sender, receiver, after_s, started)
        after = sender.ask()
    found = Withheld(
        seconds=seconds,
        sent=stopped["sent"],
        pending_bytes=stopped["pending_bytes"],
        sender_growth_bytes=held[0],
        receiver_growth_bytes=held[1],
        resumed_s=resumed_at - acked_at,
        sent_after=after["sent"] - stopped["sent"],
        growth_after_bytes=max(flowing),
    )
    for growth in (*held, *flowing):
        _require(growth <= GROWTH_BYTES_MAX, f"a process grew by {growth} bytes, beyond {GROWTH_BYTES_MAX}: {found}")
    _require(found.resumed_s <= RESUMED_S_MAX, f"the sender went on after {found.resumed_s} s")
    _require(found.sent_after > found.sent, "the sender did not go on")
    return found


def _watch(sender: Far, receiver: Far, seconds: float, started: tuple[int, int]) -> tuple[int, int]:
    """The most by which each process grew."""
    most = [0, 0]
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        for place, (far, before) in enumerate(zip((sender, receiver), started, strict=True)):
            most[place] = max(most[place], far.ask()["resident_bytes"] - before)
        time.sleep(0.05)
    return most[0], most[1]


def _until(value: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        if found := value():
            return found
        time.sleep(0.001)
    raise AssertionError("the sender did not go on")

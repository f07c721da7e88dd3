"""Two cores with a perfect socket between them, driven by the test."""

from __future__ import annotations

from typing import Any

from avow import limits
from avow.channel.protocol.core import Core
from avow.channel.protocol.events import Bounds, Ended
from avow.channel.protocol.frames import Frame, Hello, read_packet

CHANNEL, TOKEN = b"c" * 16, b"t" * 16
CAP_COUNT, CAP_BYTES = limits.CHANNEL_CAP_COUNT_MIN, limits.CHANNEL_CAP_SIZE_BYTES_MIN


def core(*, initiator: bool = True, last_commit: int = 0, window_s: int = 0, **bounds: int) -> Core:
    return Core(
        channel=CHANNEL,
        token=TOKEN,
        initiator=initiator,
        bounds=Bounds(**bounds),
        last_commit=last_commit,
        window_s=window_s,
    )


def hello(generation: int, **fields: Any) -> Hello:
    """The Hello of an end that has received nothing and has the lowest cap."""
    return Hello(CHANNEL, TOKEN, generation, **{"cap_count": CAP_COUNT, "cap_bytes": CAP_BYTES, **fields})


def packet_of(end: Core, size_bytes: int = limits.CHANNEL_PACKET_SIZE_BYTES) -> bytes:
    return b"".join(end.packet(size_bytes))


def frames_of(end: Core, size_bytes: int = limits.CHANNEL_PACKET_SIZE_BYTES) -> list[Frame]:
    return list(read_packet(packet_of(end, size_bytes)))


def ended(end: Core) -> Ended:
    """The single Ended event."""
    (event,) = [event for event in end.take_events() if isinstance(event, Ended)]
    return event


class Pair:
    """`left` connects, `right` accepts."""

    def __init__(self, left: Core | None = None, right: Core | None = None) -> None:
        self.left = left or core()
        self.right = right or core(initiator=False)
        self.generation = 0

    def connect(self) -> Pair:
        self.generation = self.left.socket()
        (greeting,) = frames_of(self.left)
        assert isinstance(greeting, Hello)
        assert self.right.greeted(greeting) == self.generation
        self.flow()
        return self

    def flow(self) -> None:
        """Exchange packets until neither end has output."""
        for _ in range(100):
            if not (self.left.has_output or self.right.has_output):
                return
            self.right.received(self.generation, packet_of(self.left))
            self.left.received(self.generation, packet_of(self.right))
        raise AssertionError("they talk without an end")

    def cut(self) -> None:
        """Lose the socket: undelivered packets are dropped, and both ends notice."""
        self.left.lost(self.generation)
        self.right.lost(self.generation)

    def quiet(self) -> Pair:
        """Drop the events collected so far."""
        self.left.take_events()
        self.right.take_events()
        return self

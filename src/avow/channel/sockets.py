"""What a channel needs from whatever carries its packets, and what it offers in return.

A socket carries packets both ways, whole and in order, until it is lost; then it is lost for good and the channel goes
on over another. There are two kinds: a WebSocket (`avow.channel.websocket`) and a WebChannel session. Everything is
called on the event loop, nothing waits, and nobody has a task: a socket tells its user what happened, and the user
calls back.

    opened ──► packet, packet, writable, ... ──► lost         `lost` comes exactly once, and only after `opened`

After the user's own `close` or `abort` nothing but `lost` is told. What is sent to a socket that is closed or lost is
dropped: the channel still has it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias

Piece: TypeAlias = bytes | bytearray | memoryview


class Socket(Protocol):
    def send(self, packet: Sequence[Piece]) -> None:
        """The pieces are one packet. They are not copied where that can be had: leave their memory alone."""

    @property
    def full(self) -> bool:
        """Give it no more until `writable`. What is sent regardless is kept."""

    def close(self, *, code: int = 1000, reason: str = "") -> None:
        """What was sent before still leaves, as long as the other end takes it."""

    def abort(self) -> None:
        """At once; what was sent may not have left."""


class SocketUser(Protocol):
    def opened(self, socket: Socket) -> None:
        """The other end is there and packets may be sent."""

    def packet(self, socket: Socket, data: bytes | memoryview) -> None:
        """One whole packet. Its memory stays as it is for as long as somebody holds it."""

    def writable(self, socket: Socket) -> None:
        """It was full and is no more."""

    def lost(self, socket: Socket, reason: str) -> None:
        """Nothing more comes of it. `reason` is for people."""

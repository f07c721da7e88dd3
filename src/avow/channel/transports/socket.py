"""The interface between a channel and its transports: `Socket`, and the callbacks of its user, `SocketUser`.

A socket carries whole packets in order in both directions until it is lost. A lost socket never recovers; the channel
continues over another one. There are two implementations: a WebSocket (`websocket`) and a WebChannel session. All calls
and callbacks run on the event loop, do not block, and need no task.

    opened ──► packet, packet, writable, ... ──► lost         `lost` is called exactly once, and only after `opened`

After the user has called `close` or `abort`, only `lost` is called. Packets sent to a closed or lost socket are
dropped: the channel still has the messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias

Piece: TypeAlias = bytes | bytearray | memoryview


class Socket(Protocol):
    def send(self, packet: Sequence[Piece]) -> None:
        """Send one packet, given in pieces. The pieces may not be copied: do not modify their memory."""

    @property
    def full(self) -> bool:
        """If true, wait for `writable` before sending more. Packets that are sent regardless are buffered."""

    @property
    def unfinished_bytes(self) -> int:
        """Bytes received of a packet that has not arrived completely."""

    def pause_reading(self) -> None:
        """Deliver no more packets until `resume_reading`, apart from those that were parsed already. Idempotent."""

    def resume_reading(self) -> None: ...

    def close(self, *, code: int = 1000, reason: str = "") -> None:
        """Close after what was sent before has left, as long as the other end accepts it."""

    def abort(self) -> None:
        """Close at once; packets already sent may be lost."""


class SocketUser(Protocol):
    def opened(self, socket: Socket) -> None:
        """The connection is established; packets may be sent."""

    def packet(self, socket: Socket, data: bytes | memoryview) -> None:
        """One whole packet. Its memory is not reused while it is referenced."""

    def writable(self, socket: Socket) -> None:
        """The socket was `full` and accepts packets again."""

    def lost(self, socket: Socket, reason: str) -> None:
        """The connection is gone; no more callbacks follow. `reason` is text for logs and errors."""

"""An open WebSocket that carries packets, driven by the calls of a transport.

The rules of RFC 6455 are those of the `websockets` library, which offers them without IO: bytes in, frames out. Around
them this class does what a coroutine per message would do, for a third to two thirds of the price: it hands each binary
message to its user from within `data_received`, and writes from within `send`.

    handshake (`websocket`) ──► open ──► closing ──► lost
                                 └── reset, silence ──┘

*Life*: a socket whose other end has vanished looks like one on which nothing happens. So an end that has not sent or
not heard anything for `ping_s` sends a ping, which every WebSocket answers by itself. Without a byte heard for
`silent_s` the socket is lost, unless the other end still takes what is sent: a large packet may take long.
*Closing*: the other end has `close_s` to answer, longer only while it takes what was sent before.
*Bounds*: one message has at most MESSAGE_SIZE_BYTES_MAX. Beyond OUTPUT_SIZE_BYTES of unsent bytes the socket is `full`,
which its user must heed. Pongs nobody reads are bounded by cutting off who asks for them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from os import urandom
from struct import Struct as Layout
from typing import Final, cast

from msgspec import Struct
from websockets.frames import Frame, Opcode
from websockets.protocol import Event, Protocol, Side, State

from avow.channel.sockets import Piece, SocketUser
from avow.limits import CHANNEL_PACKET_SIZE_BYTES_MAX, KIB, MIB

try:
    from websockets.speedups import apply_mask
except ImportError:
    from websockets.utils import apply_mask

MESSAGE_SIZE_BYTES_MAX: Final = CHANNEL_PACKET_SIZE_BYTES_MAX + 4 * KIB
OUTPUT_SIZE_BYTES: Final = 256 * KIB  # more leaves more slowly: it is no longer in the processor's cache by then
_UNSENT_SIZE_BYTES_MAX: Final = MESSAGE_SIZE_BYTES_MAX + 4 * MIB
_JOINED_SIZE_BYTES_MAX: Final = 16 * KIB  # below this one copy costs less than a gathering write
_REASON_SIZE_BYTES_MAX: Final = 120

#: For the library, whose lines for each socket and each frame are of use to nobody here.
QUIET: Final = logging.getLogger("avow.websocket")
QUIET.setLevel(logging.WARNING)

_SMALL: Final = Layout("!BB")
_MEDIUM: Final = Layout("!BBH")
_LARGE: Final = Layout("!BBQ")
_BINARY: Final = 0x82  # a whole message in one frame


class Patience(Struct, frozen=True):
    """In seconds."""

    ping_s: float = 10.0
    silent_s: float = 20.0
    close_s: float = 5.0
    handshake_s: float = 10.0


class WebSocket(asyncio.Protocol):
    """`protocol` has its handshake behind it. `connection_made` opens the socket."""

    def __init__(self, protocol: Protocol, user: SocketUser, *, patience: Patience) -> None:
        self._protocol = protocol
        self._user = user
        self._patience = patience
        self._masks = _masks() if protocol.side is Side.CLIENT else None
        self._fragments = bytearray()
        self._full = False
        self._over = False  # the user hears nothing more but `lost`
        self._why = ""
        self._heard = self._due = 0.0
        self._spoke = False  # since the last tick
        self._written = 0  # given to the transport, in bytes
        self._unsent = self._taken = 0  # of that, when it was looked at last: what it still held, what it was rid of

    # ------------------------------------------------------------------ the user calls

    def send(self, packet: Sequence[Piece]) -> None:
        """Frames are made here and not by the library, which copies each packet once or twice more. Measured, in the
        sender's CPU time: packets of 65 KB leave a server 1.9 times as fast, a client 1.2 times, those of 200 B both
        1.5 times. What arrives is read by the library."""
        if self._over or self._protocol.state is not State.OPEN:
            return
        size = sum(map(len, packet))
        if self._masks is None:
            head = _head(size, masked=0)
        else:
            mask = next(self._masks)
            head = _head(size, masked=0x80) + mask
            packet = (apply_mask(packet[0] if len(packet) == 1 else b"".join(packet), mask),)
        self._spoke = True
        self._written += len(head) + size
        if size <= _JOINED_SIZE_BYTES_MAX:
            self._transport.write(b"".join((head, *packet)))
        else:
            self._transport.writelines((head, *packet))

    @property
    def full(self) -> bool:
        return self._full or self._over

    def close(self, *, code: int = 1000, reason: str = "") -> None:
        if self._over:
            return
        self._over = True
        self._why = self._why or "closed by this end"
        if self._protocol.state is State.OPEN:
            self._protocol.send_close(code, _short(reason))
            self._speak()
        self._wait_for_the_end()

    def abort(self) -> None:
        self._over = True
        self._why = self._why or "aborted by this end"
        self._transport.abort()

    # ------------------------------------------------------------------ the transport calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but name
        self._transport.set_write_buffer_limits(high=OUTPUT_SIZE_BYTES, low=OUTPUT_SIZE_BYTES // 4)
        loop = asyncio.get_running_loop()
        self._now: Callable[[], float] = loop.time
        self._later = loop.call_later
        self._heard = self._now()
        self._wait(self._patience.ping_s)
        self._user.opened(self)

    def data_received(self, data: bytes) -> None:
        self._heard = self._now()
        self._protocol.receive_data(data)
        self.hear(self._protocol.events_received())

    def eof_received(self) -> None:
        """Whatever is to be said still leaves, then the transport closes itself."""
        self._protocol.receive_eof()
        self._speak()

    def pause_writing(self) -> None:
        self._full = True

    def resume_writing(self) -> None:
        self._full = False
        if not self._over:
            self._user.writable(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._over = True
        self._timer.cancel()
        self._user.lost(self, self._why or self._reason(exc))

    def _reason(self, exc: Exception | None) -> str:
        protocol = self._protocol
        if protocol.close_rcvd is not None:
            return f"closed by the other end: {protocol.close_rcvd}"
        if protocol.parser_exc is not None and not isinstance(protocol.parser_exc, EOFError):
            return f"the other end broke the rules: {protocol.parser_exc}"
        return f"the connection was lost: {exc}" if exc is not None else "the other end hung up"

    # ------------------------------------------------------------------ frames

    def hear(self, events: list[Event]) -> None:
        """Frames that were received. What came whole before a close or a mistake is still delivered."""
        self._speak()
        for event in events:
            if self._over:
                return
            if isinstance(event, Frame):
                self._frame(event)
        if self._protocol.state is not State.OPEN and not self._over:
            self._over = True
            self._wait_for_the_end()

    def _frame(self, frame: Frame) -> None:
        if frame.opcode is Opcode.BINARY and frame.fin:
            self._deliver(frame.data)
        elif frame.opcode is Opcode.BINARY or frame.opcode is Opcode.CONT:
            self._fragments += frame.data
            if frame.fin:
                whole, self._fragments = self._fragments, bytearray()
                self._deliver(whole)
        elif frame.opcode is Opcode.TEXT:
            self._why = "the other end sent text; packets are binary"
            self._over = True
            self._protocol.fail(1003, "packets are binary")
            self._speak()
            self._wait_for_the_end()

    def _deliver(self, data: Piece) -> None:
        self._user.packet(self, memoryview(data) if isinstance(data, bytearray) else data)

    def _speak(self) -> None:
        """What the library says of its own accord: pings, pongs, the closing handshake, the end of the stream."""
        transport = self._transport
        for data in self._protocol.data_to_send():
            if transport.is_closing():
                return
            if data:
                self._spoke = True
                self._written += len(data)
                transport.write(data)
            elif transport.can_write_eof():
                transport.write_eof()
            else:
                transport.close()
        if self._full and transport.get_write_buffer_size() > _UNSENT_SIZE_BYTES_MAX:
            self._why = self._why or "the other end asks and does not read"
            self.abort()

    # ------------------------------------------------------------------ time

    def _wait(self, seconds: float) -> None:
        self._due = self._now() + seconds
        self._timer = self._later(seconds, self._tick)

    def _wait_for_the_end(self) -> None:
        self._takes()
        self._timer.cancel()
        self._wait(self._patience.close_s)

    def _takes(self) -> bool:
        """The other end has taken something since this was asked last.

        That the kernel takes something says nothing, unless it was full before: then the other end made room there.
        """
        unsent = self._transport.get_write_buffer_size()
        moved = self._unsent > 0 and self._written - unsent > self._taken
        self._unsent, self._taken = unsent, self._written - unsent
        return moved

    def _tick(self) -> None:
        if not self._over:
            self._check_life()
        elif self._takes():
            self._wait(self._patience.close_s)
        else:
            self._transport.abort()

    def _check_life(self) -> None:
        now, ping_s, silent_s = self._now(), self._patience.ping_s, self._patience.silent_s
        if self._takes():
            self._heard = now
        quiet = now - self._heard
        late = now - self._due > ping_s / 2  # the loop was held up, and has not read yet what came meanwhile
        if quiet >= silent_s and not late:
            self._why = f"nothing was heard for {silent_s:g} s"
            self.abort()
            return
        if quiet >= ping_s or not self._spoke:
            self._protocol.send_ping(b"")
            self._speak()
        self._spoke = False
        self._wait(ping_s / 2 if late else ping_s - quiet if quiet < ping_s else silent_s - quiet)


def _head(size: int, *, masked: int) -> bytes:
    if size < 126:
        return _SMALL.pack(_BINARY, masked | size)
    if size < 65536:
        return _MEDIUM.pack(_BINARY, masked | 126, size)
    return _LARGE.pack(_BINARY, masked | 127, size)


def _masks() -> Iterator[bytes]:
    """Each is used once and cannot be foreseen; drawing them singly costs more than masking a small packet."""
    while True:
        drawn = urandom(4 * KIB)
        for at in range(0, len(drawn), 4):
            yield drawn[at : at + 4]


def _short(reason: str) -> str:
    return reason.encode()[:_REASON_SIZE_BYTES_MAX].decode(errors="ignore")

"""An open WebSocket that carries packets, driven by the callbacks of an asyncio transport.

The `websockets` library implements RFC 6455 without IO: bytes in, frames out. This class passes each binary message to
its user from within `data_received` and writes from within `send`, which costs a third to two thirds of a coroutine per
message.

    handshake (`websocket`) ──► open ──► closing ──► lost
                                 └── reset, silence ──┘

*Keep-alive*: a socket whose other end has vanished looks like an idle one. So an end that has not sent or not received
anything for `ping_s` sends a ping, which every WebSocket implementation answers. Without a byte received for `silent_s`
the socket is lost, unless the other end still reads what is sent: a large packet may take long.
*Closing*: the other end has `close_s` to answer, longer only while it reads what was sent before.
*Turns*: after CHANNEL_TURN_WS_FRAMES frames reading is paused, and the rest of what was received is parsed in the next
turn of the loop. The library parses all that it is given, so it gets pieces.
*Bounds*: one message has at most MESSAGE_SIZE_BYTES_MAX. Beyond OUTPUT_SIZE_BYTES of unsent bytes the socket is `full`,
and its user must wait. An other end that sends pings without reading the pongs is disconnected.
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

from avow.channel.transports.socket import Piece, SocketUser
from avow.limits import CHANNEL_PACKET_SIZE_BYTES_MAX, CHANNEL_TURN_WS_FRAMES, KIB, MIB

try:
    from websockets.speedups import apply_mask
except ImportError:
    from websockets.utils import apply_mask

MESSAGE_SIZE_BYTES_MAX: Final = CHANNEL_PACKET_SIZE_BYTES_MAX + 4 * KIB
OUTPUT_SIZE_BYTES: Final = 256 * KIB  # a larger buffer is slower to send, because it has left the processor's cache
_UNSENT_SIZE_BYTES_MAX: Final = MESSAGE_SIZE_BYTES_MAX + 4 * MIB
_JOINED_SIZE_BYTES_MAX: Final = 16 * KIB  # below this one copy costs less than a gathering write
_REASON_SIZE_BYTES_MAX: Final = 120
_PIECE_SIZE_BYTES: Final = 8 * KIB  # received bytes parsed at once: up to 1,365 empty frames of a client

#: For the library, whose log lines for each socket and frame are not useful here.
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
    """The handshake of `protocol` is complete. `connection_made` opens the socket."""

    def __init__(self, protocol: Protocol, user: SocketUser, *, patience: Patience) -> None:
        self._protocol = protocol
        self._user = user
        self._patience = patience
        self._masks = _masks() if protocol.side is Side.CLIENT else None
        self._fragments = bytearray()
        self._unparsed = memoryview(b"")
        self._turn_frames = 0  # parsed since other connections had a turn
        self._turn_due = False
        self._held = False  # the user has paused reading
        self._reading = True
        self._full = False
        self._over = False  # of the user's callbacks only `lost` is still called
        self._why = ""
        self._received_at = self._tick_at = 0.0
        self._sent_something = False  # since the last tick
        self._written = 0  # given to the transport, in bytes
        self._unsent = self._sent = 0  # at the last check: bytes the transport still held, and bytes it had sent

    # ------------------------------------------------------------------ the user calls

    def send(self, packet: Sequence[Piece]) -> None:
        """Frames are built here and not by the library, which copies each packet once or twice more. Measured in the
        sender's CPU time: sending 65 KB packets is 1.9 times as fast on a server and 1.2 times on a client, 200 B
        packets 1.5 times on both. Received frames are parsed by the library."""
        if self._over or self._protocol.state is not State.OPEN:
            return
        size = sum(map(len, packet))
        if self._masks is None:
            head = _head(size, masked=0)
        else:
            mask = next(self._masks)
            head = _head(size, masked=0x80) + mask
            packet = (apply_mask(packet[0] if len(packet) == 1 else b"".join(packet), mask),)
        self._sent_something = True
        self._written += len(head) + size
        if size <= _JOINED_SIZE_BYTES_MAX:
            self._transport.write(b"".join((head, *packet)))
        else:
            self._transport.writelines((head, *packet))

    @property
    def full(self) -> bool:
        return self._full or self._over

    @property
    def unfinished_bytes(self) -> int:
        return len(self._protocol.reader.buffer) + len(self._fragments)

    def pause_reading(self) -> None:
        self._held = True
        self._stop_reading()

    def resume_reading(self) -> None:
        if self._held:
            self._held = False
            self._take_turn_soon()

    def close(self, *, code: int = 1000, reason: str = "") -> None:
        if self._over:
            return
        self._over = True
        self.resume_reading()  # the other end's close must be read
        self._why = self._why or "closed by this end"
        if self._protocol.state is State.OPEN:
            self._protocol.send_close(code, _short(reason))
            self._write_output()
        self._wait_for_close()

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
        self._later, self._soon = loop.call_later, loop.call_soon
        self._received_at = self._now()
        self._wait(self._patience.ping_s)
        self._user.opened(self)

    def data_received(self, data: bytes) -> None:
        self._received_at = self._now()
        self._unparsed = memoryview(self._unparsed.tobytes() + data if self._unparsed else data)
        self._parse()

    def eof_received(self) -> None:
        """Pending output is still written, if the other end goes on reading; then the transport closes itself."""
        while self._unparsed:  # a transport with TLS may have read ahead
            self._held, self._turn_frames = False, 0
            self._parse()
        self._protocol.receive_eof()
        self.receive([])

    def pause_writing(self) -> None:
        self._full = True

    def resume_writing(self) -> None:
        self._full = False
        if not self._over:
            self._user.writable(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._over = True
        self._unparsed = memoryview(b"")
        self._timer.cancel()
        self._user.lost(self, self._why or self._reason(exc))

    def _reason(self, exc: Exception | None) -> str:
        protocol = self._protocol
        if protocol.close_rcvd is not None:
            return f"closed by the other end: {protocol.close_rcvd}"
        if protocol.parser_exc is not None and not isinstance(protocol.parser_exc, EOFError):
            return f"the other end violated the WebSocket protocol: {protocol.parser_exc}"
        return f"the connection was lost: {exc}" if exc is not None else "the other end closed the connection"

    # ------------------------------------------------------------------ turns

    def _parse(self) -> None:
        """Parse what was received, until nothing is left or it is another connection's turn."""
        while self._unparsed and not self._held and self._turn_frames < CHANNEL_TURN_WS_FRAMES:
            piece, self._unparsed = self._unparsed[:_PIECE_SIZE_BYTES], self._unparsed[_PIECE_SIZE_BYTES:]
            self._protocol.receive_data(piece)  # type: ignore[arg-type]  # it is appended to a bytearray
            events = self._protocol.events_received()
            self._turn_frames += len(events)
            self.receive(events)
        if self._unparsed and not self._held:
            self._stop_reading()
            self._take_turn_soon()

    def _take_turn_soon(self) -> None:
        if not self._turn_due:
            self._turn_due = True
            self._soon(self._take_turn)

    def _take_turn(self) -> None:
        self._turn_due, self._turn_frames = False, 0
        self._parse()
        if not (self._unparsed or self._held or self._reading or self._transport.is_closing()):
            self._reading = True
            self._transport.resume_reading()

    def _stop_reading(self) -> None:
        if self._reading and not self._transport.is_closing():
            self._reading = False
            self._transport.pause_reading()

    # ------------------------------------------------------------------ frames

    def receive(self, events: list[Event]) -> None:
        """Process received frames. Messages that are complete before a close or an error are still delivered."""
        self._write_output()
        for event in events:
            if self._over:
                return
            if isinstance(event, Frame):
                self._frame(event)
        if self._protocol.state is not State.OPEN and not self._over:
            self._over = True
            self._wait_for_close()

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
            self._write_output()
            self._wait_for_close()

    def _deliver(self, data: Piece) -> None:
        self._user.packet(self, memoryview(data) if isinstance(data, bytearray) else data)

    def _write_output(self) -> None:
        """Write what the library has to send: pings, pongs, the closing handshake, the end of the stream."""
        transport = self._transport
        for data in self._protocol.data_to_send():
            if transport.is_closing():
                return
            if data:
                self._sent_something = True
                self._written += len(data)
                transport.write(data)
            elif transport.can_write_eof():
                transport.write_eof()
            else:
                transport.close()
        if self._full and transport.get_write_buffer_size() > _UNSENT_SIZE_BYTES_MAX:
            self._why = self._why or "the other end sends pings and does not read the pongs"
            self.abort()

    # ------------------------------------------------------------------ time

    def _wait(self, seconds: float) -> None:
        self._tick_at = self._now() + seconds
        self._timer = self._later(seconds, self._tick)

    def _wait_for_close(self) -> None:
        self._other_end_reads()
        self._timer.cancel()
        self._wait(self._patience.close_s)

    def _other_end_reads(self) -> bool:
        """Whether the other end has read something since the last call.

        Bytes that move to the kernel prove nothing, unless its buffer was full before: then the other end made room.
        """
        unsent = self._transport.get_write_buffer_size()
        moved = self._unsent > 0 and self._written - unsent > self._sent
        self._unsent, self._sent = unsent, self._written - unsent
        return moved

    def _tick(self) -> None:
        if not self._over:
            self._check_alive()
        elif self._other_end_reads():
            self._wait(self._patience.close_s)
        else:
            self._transport.abort()

    def _check_alive(self) -> None:
        now, ping_s, silent_s = self._now(), self._patience.ping_s, self._patience.silent_s
        if self._other_end_reads() or not self._reading:
            self._received_at = now
        quiet = now - self._received_at
        late = now - self._tick_at > ping_s / 2  # the loop was blocked and has not read yet what arrived meanwhile
        if quiet >= silent_s and not late:
            self._why = f"nothing was received for {silent_s:g} s"
            self.abort()
            return
        if quiet >= ping_s or not self._sent_something:
            self._protocol.send_ping(b"")
            self._write_output()
        self._sent_something = False
        self._wait(ping_s / 2 if late else ping_s - quiet if quiet < ping_s else silent_s - quiet)


def _head(size: int, *, masked: int) -> bytes:
    if size < 126:
        return _SMALL.pack(_BINARY, masked | size)
    if size < 65536:
        return _MEDIUM.pack(_BINARY, masked | 126, size)
    return _LARGE.pack(_BINARY, masked | 127, size)


def _masks() -> Iterator[bytes]:
    """Each mask is used once and unpredictable; drawing them one by one costs more than masking a small packet."""
    while True:
        drawn = urandom(4 * KIB)
        for at in range(0, len(drawn), 4):
            yield drawn[at : at + 4]


def _short(reason: str) -> str:
    return reason.encode()[:_REASON_SIZE_BYTES_MAX].decode(errors="ignore")

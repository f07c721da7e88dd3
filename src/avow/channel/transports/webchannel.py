"""One WebChannel session, version 8 of that protocol: the second transport of a channel, over plain HTTP requests.

To the rest of Avow a session is a socket: packets go in and come out in order, each once, until it is lost. On the wire
it is a handshake, POSTs that carry packets up (*maps*, numbered from 0) and hanging GETs that carry packets down
(*arrays*, numbered from 1; the handshake is array 0). A request may fail, arrive twice, overtake another, or its answer
may be lost; the numbers of maps and arrays restore order.

                  back channel opened           back channel gone,      no back channel    terminate, abort;
                  CI=0            CI=1          or ended by its last    for `expiry_s`     `close` acknowledged,
                                                chunk                                      or not for `close_s`
    WAITING       STREAMING       POLLING       -                       OVER               OVER
    STREAMING     STREAMING, new  POLLING       WAITING                 -                  OVER
    POLLING       STREAMING       POLLING, new  WAITING                 -                  OVER
    OVER          refused         refused       -                       -                  -

*Up*: a retried POST carries the same maps, perhaps followed by more, and with several POSTs in flight a later one may
arrive first. So maps are identified by number, and those that arrive early are held.
*Down*: an array is kept until the client reports it, or a later one, as the last it has seen (`AID`). A new back
channel starts after that. The client reports it only with a request, so the server ends a back channel after some
bytes, arrays or minutes: the next one acknowledges. That also detects clients that have vanished.
*Bounds*: `full` asks the channel above to stop sending; it overshoots by one packet at most. While the channel above
takes no packets, they are kept up to a limit, and then POSTs are refused as BUSY. The client repeats them.

Nothing here reads a clock or a socket. Invalid input raises an error and leaves the session unchanged.

The body of a POST of a WebChannel client: a form with numbered maps, each of which is one packet.

    count=2&ofs=7&req0_f=<base64>&req1___data__=%7B%22f%22%3A%22<base64>%22%7D          maps 7 and 8

A map's number is `ofs` plus the number in the field's name; within a form the numbers may be in any order and have
gaps, because a form that is posted again may carry more than the first time. A map is written as separate fields or as
JSON in the one field `__data__`, depending on an option of the client; both mean the same. A handshake may also carry
`headers`, for clients that cannot set HTTP headers.

A form is parsed completely before it is applied, so an invalid form has no effect.
"""

from __future__ import annotations

import re
from binascii import Error as NotBase64
from binascii import a2b_base64, b2a_base64
from collections import deque
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Final
from urllib.parse import unquote_to_bytes

import msgspec
from msgspec import Struct

from avow.channel.transports.socket import Piece
from avow.errors import Busy, InvalidRequest, Malformed, TooLarge
from avow.limits import CHANNEL_PACKET_SIZE_BYTES_MAX, KIB, MIB

NUMBER_MAX: Final = (1 << 53) - 1  # the largest integer that JavaScript represents exactly
MAPS_PER_POST_MAX: Final = 1_000  # the client's own maximum

_FIELDS_MAX: Final = MAPS_PER_POST_MAX + 3  # count, ofs, headers
_MAP: Final = re.compile(rb"req(\d{1,16})_(.*)", re.DOTALL)


class Form(Struct, frozen=True):
    """Packets by map number, and headers as lines of text."""

    maps: Mapping[int, bytes]
    headers: bytes = b""


class _Message(Struct, forbid_unknown_fields=True):
    f: bytes  # base64 in JSON


_decode: Final = msgspec.json.Decoder(_Message).decode


def read_form(body: bytes) -> Form:
    """Raises Malformed or TooLarge."""
    if body.count(b"&") >= _FIELDS_MAX:
        raise TooLarge(
            f"the WebChannel POST has more than {MAPS_PER_POST_MAX} maps; nothing was received. Send fewer per request"
        )
    fields: dict[bytes, bytes] = {}
    for field in body.split(b"&"):
        name, _, value = field.partition(b"=")
        if name in fields:
            raise Malformed("a WebChannel form", expected="each field once", found=name[:40])
        fields[name] = value
    count, first = _number(fields.pop(b"count", b""), "count"), _number(fields.pop(b"ofs", b"0"), "ofs")
    headers = _unquoted(fields.pop(b"headers", b""))
    maps = dict(_read_map(first, name, value) for name, value in fields.items())
    if len(maps) != count:
        raise Malformed("maps of a WebChannel form", expected=count, found=len(maps))
    return Form(maps, headers)


def _read_map(first: int, name: bytes, value: bytes) -> tuple[int, bytes]:
    match = _MAP.fullmatch(name)
    if match is None:
        raise Malformed("a field of a WebChannel form", expected="reqN_f or reqN___data__", found=name[:40])
    number = first + int(match[1])
    if number > NUMBER_MAX:
        raise Malformed("the number of a map", expected=f"at most {NUMBER_MAX}", found=number)
    packet = _read_packet(match[2], _unquoted(value), number)
    if len(packet) > CHANNEL_PACKET_SIZE_BYTES_MAX:
        raise TooLarge(
            f"the packet has {len(packet)} bytes, the maximum is {CHANNEL_PACKET_SIZE_BYTES_MAX}; nothing was received"
        )
    return number, packet


def _read_packet(key: bytes, value: bytes, number: int) -> bytes:
    try:
        if key == b"f":
            return a2b_base64(value, strict_mode=True)
        if key == b"__data__":
            return _decode(value).f
    except (NotBase64, msgspec.DecodeError, UnicodeDecodeError) as cause:
        raise Malformed(f"map {number}", expected='{"f":"<base64>"}', found=str(cause)) from cause
    raise Malformed(f"map {number}", expected='{"f":"<base64>"}', found=key[:40])


def _number(digits: bytes, what: str) -> int:
    if not (digits.isdigit() and len(digits) <= 16):
        raise Malformed(f"`{what}` of a WebChannel form", expected="a number", found=digits[:40])
    return int(digits)


def _unquoted(value: bytes) -> bytes:
    return unquote_to_bytes(value.replace(b"+", b" ")) if b"%" in value or b"+" in value else value


VERSION: Final = 8
SERVER_VERSION: Final = 1

MAPS_HELD_MAX: Final = 10 * MAPS_PER_POST_MAX  # a client has up to 10 POSTs in flight
MAPS_HELD_SIZE_BYTES_MAX: Final = 16 * MIB
ARRAYS_FULL_COUNT: Final = 4_096
ARRAYS_FULL_SIZE_BYTES: Final = 4 * MIB
BACK_ARRAYS_MAX: Final = 1_024  # on one back channel
BACK_SIZE_BYTES_MAX: Final = 1 * MIB
CHUNK_SIZE_BYTES: Final = 64 * KIB  # a chunk is closed at this size

_NOOP: Final = b'["noop"]'
_CLOSE: Final = b'["close"]'
_STOP: Final = b'["stop"]'


class State(Enum):
    WAITING = "waiting"
    STREAMING = "streaming"
    POLLING = "polling"
    OVER = "over"


class Timing(Struct, frozen=True):
    """In seconds. Clients abandon a silent back channel after 1.5 times `keep_alive_s`. `close_s` is how long a closed
    session waits for a client that does not read what was sent before."""

    keep_alive_s: float = 30.0
    expiry_s: float = 60.0
    close_s: float = 5.0
    back_age_s_max: float = 120.0


class Chunk(Struct, frozen=True):
    """The next bytes for the back channel. With `last` the caller ends its response; no back channel is open then."""

    data: bytes
    last: bool


def framed(text: bytes) -> bytes:
    """A chunk with its length. Clients count UTF-16 code units, which equal bytes while the JSON is ASCII."""
    return b"%d\n%b" % (len(text), text)


# ---------------------------------------------------------------------- both directions


class _Maps:
    """Packets from the client: puts maps in order and drops duplicates."""

    def __init__(self) -> None:
        self._next = 0
        self._held: dict[int, bytes] = {}

    def take(self, maps: Mapping[int, bytes]) -> list[bytes]:
        """Add maps. Returns the packets that are now in order. Raises TooLarge; nothing was taken then."""
        known = {**self._held, **maps}
        upto = self._next
        while upto in known:
            upto += 1
        early = {number: packet for number, packet in known.items() if number >= upto}
        if len(early) > MAPS_HELD_MAX or sum(map(len, early.values())) > MAPS_HELD_SIZE_BYTES_MAX:
            raise TooLarge(f"too many maps arrived ahead of map {upto}, which is missing; nothing was received")
        ready = [known[number] for number in range(self._next, upto)]
        self._next, self._held = upto, early
        return ready

    @property
    def held(self) -> int:
        return len(self._held)


class _Arrays:
    """Packets to the client: numbered, kept until acknowledged, resent from the client's position."""

    def __init__(self) -> None:
        self.acked = self.written_to = self.ever_written_to = self.last = 0
        self.size_bytes = 0  # of the arrays that are not acknowledged
        self._kept: list[bytes] = []  # from acked + 1

    def add(self, payload: bytes) -> None:
        self.last += 1
        array = b"[%d,%b]" % (self.last, payload)
        self._kept.append(array)
        self.size_bytes += len(array)

    def ack(self, upto: int) -> None:
        if upto > self.acked:
            self.size_bytes -= sum(map(len, self._kept[: upto - self.acked]))
            del self._kept[: upto - self.acked]
            self.acked = upto
            self.written_to = max(self.written_to, upto)

    def rewind(self) -> None:
        self.written_to = self.acked

    def take(self) -> list[bytes]:
        """The next arrays to write, enough for one chunk."""
        at = self.written_to - self.acked
        size, end = 0, at
        while end < len(self._kept) and size < CHUNK_SIZE_BYTES:
            size += len(self._kept[end])
            end += 1
        self.written_to += end - at
        self.ever_written_to = max(self.ever_written_to, self.written_to)
        return self._kept[at:end]

    @property
    def unwritten(self) -> bool:
        return self.written_to < self.last

    @property
    def full(self) -> bool:
        return self.size_bytes >= ARRAYS_FULL_SIZE_BYTES or self.last - self.acked >= ARRAYS_FULL_COUNT


class Session:
    """The caller does the IO: it answers requests with the returned bytes, passes packets on, writes `chunk`s to the
    back channel while there are any and it accepts them, and checks `state` after every input: OVER is final."""

    def __init__(self, sid: str, *, now: float, timing: Timing | None = None) -> None:
        self.sid = sid
        self.state = State.WAITING
        self.reason = ""  # why it ended
        self._timing = timing or Timing()
        self._maps, self._arrays = _Maps(), _Arrays()
        self._packets: deque[bytes] = deque()  # in order, not taken by the channel above
        self._packets_bytes = 0
        self._close_id = 0  # the number of the `close` array; 0: not sent
        self._close_seen: tuple[tuple[int, int], float] = ((-1, -1), now)  # position of the arrays, and since when
        self._back = 0  # the number of the latest back channel
        self._back_since = self._noop_at = 0.0
        self._back_arrays = self._back_bytes = 0
        self._silent_since = now

    # ------------------------------------------------------------------ requests

    def open(self, form: Form) -> bytes:
        """The handshake. Returns array 0, which clients expect unframed."""
        self._put(self._maps.take(form.maps))
        keep_alive_ms = round(self._timing.keep_alive_s * 1000)
        return b'[[0,["c","%b","",%d,%d,%d]]]' % (self.sid.encode("ascii"), VERSION, SERVER_VERSION, keep_alive_ms)

    def forward(self, form: Form, *, aid: int, now: float) -> bytes:
        """A POST with maps. Returns the body of its answer."""
        self._check(aid)
        if len(self._packets) >= MAPS_HELD_MAX or self._packets_bytes >= MAPS_HELD_SIZE_BYTES_MAX:
            raise Busy(
                f"{len(self._packets)} packets of this session wait to be processed; nothing of this POST was "
                "received. Send it again"
            )
        self._put(self._maps.take(form.maps))
        self._silent_since = now
        self._acknowledged(aid)
        arrays = self._arrays
        return framed(b"[%d,%d,%d]" % (self.hanging, arrays.written_to, arrays.size_bytes))

    def back(self, *, aid: int, streaming: bool, now: float, wait_s: float | None = None) -> int:
        """A hanging GET. Returns its number; the caller ends the previous one if it still hangs.

        A stream sends something at once; otherwise a client whose streams are cut off again and again would give up.
        `wait_s`: how long a long poll may hang.
        """
        self._check(aid)
        if aid < self._arrays.acked:
            acked = self._arrays.acked
            raise InvalidRequest(
                f"the request continues after array {aid}, but array {acked} was acknowledged already; nothing was done"
            )
        if self._acknowledged(aid):
            raise unknown_session(self.sid)
        self._arrays.rewind()
        self._back += 1
        self._back_since, self._back_arrays, self._back_bytes = now, 0, 0
        self.state = State.STREAMING if streaming else State.POLLING
        patience_s = self._timing.keep_alive_s
        if not streaming and wait_s is not None:
            patience_s = min(patience_s, wait_s)
        self._noop_at = now if streaming else now + patience_s
        return self._back

    def gone(self, back: int, *, now: float) -> None:
        """That back channel was closed. Ignored for one that was replaced."""
        if back == self._back and self.hanging:
            self.state = State.WAITING
            self._silent_since = now

    def terminate(self) -> None:
        self._end("the client closed it")

    # ------------------------------------------------------------------ the channel above

    def send(self, packet: Sequence[Piece]) -> None:
        """Send one packet, given in pieces. Dropped after `close` or the end of the session."""
        if self.state is State.OVER or self._close_id:
            return
        whole = packet[0] if len(packet) == 1 else b"".join(packet)
        self._arrays.add(b'[{"f":"%b"}]' % b2a_base64(whole, newline=False))

    def close(self) -> None:
        """Ask the client to close after it has read everything before this."""
        if self.state is not State.OVER and not self._close_id:
            self._arrays.add(_CLOSE)
            self._close_id = self._arrays.last

    def abort(self) -> bytes:
        """End the session at once. Returns the bytes that tell the client, if a back channel is open."""
        hanging = self.hanging
        self._end("this end aborted it")
        return framed(b"[[%d,%b]]" % (self._arrays.last + 1, _STOP)) if hanging else b""

    @property
    def full(self) -> bool:
        return self._arrays.full

    # ------------------------------------------------------------------ time and output

    def tick(self, now: float) -> None:
        if self.state is State.WAITING and now - self._silent_since > self._timing.expiry_s:
            self._end(f"no request from the client for {self._timing.expiry_s:g} s")
        if self._close_id:
            far, since = (self._arrays.acked, self._arrays.written_to), self._close_seen[1]
            if far != self._close_seen[0]:
                self._close_seen = far, now
            elif now - since > self._timing.close_s:
                self._end("this end closed it")

    def _put(self, packets: list[bytes]) -> None:
        self._packets.extend(packets)
        self._packets_bytes += sum(map(len, packets))

    def take_packet(self) -> bytes | None:
        """The next packet from the client; None if there is none now."""
        if not self._packets:
            return None
        packet = self._packets.popleft()
        self._packets_bytes -= len(packet)
        return packet

    def chunk(self, now: float) -> Chunk | None:
        """The next chunk; None if there is nothing to write now. Call it again after `send`, `back` and `tick`."""
        if not self.hanging:
            return None
        if not self._arrays.unwritten:
            if now < self._noop_at:
                return None
            self._arrays.add(_NOOP)
        arrays = self._arrays.take()
        data = framed(b"[%b]" % b",".join(arrays))
        self._back_arrays += len(arrays)
        self._back_bytes += len(data)
        self._noop_at = now + self._timing.keep_alive_s
        last = (self.state is State.POLLING and not self._arrays.unwritten) or self._should_end(now)
        if last:
            self.state = State.WAITING
            self._silent_since = now
        return Chunk(data, last)

    def _should_end(self, now: float) -> bool:
        if now - self._back_since > self._timing.back_age_s_max:
            return True
        return self._back_arrays >= BACK_ARRAYS_MAX or self._back_bytes >= BACK_SIZE_BYTES_MAX

    @property
    def hanging(self) -> bool:
        """Whether a back channel is open."""
        return self.state is State.STREAMING or self.state is State.POLLING

    def statistics(self) -> dict[str, int]:
        arrays = self._arrays
        return {"unacked": arrays.last - arrays.acked, "unacked_bytes": arrays.size_bytes, "held": self._maps.held}

    # ------------------------------------------------------------------ inside

    def _check(self, aid: int) -> None:
        if self.state is State.OVER:
            raise unknown_session(self.sid)
        if not 0 <= aid <= self._arrays.ever_written_to:
            sent = self._arrays.ever_written_to
            raise InvalidRequest(f"array {aid} was never sent, the last one is {sent}; nothing was done")

    def _acknowledged(self, aid: int) -> bool:
        """Process an acknowledgement. True if it ends a session that was being closed."""
        self._arrays.ack(aid)
        if not self._close_id or aid < self._close_id:
            return False
        self._end("this end closed it")
        return True

    def _end(self, reason: str) -> None:
        if self.state is not State.OVER:
            self.state, self.reason = State.OVER, reason


def unknown_session(sid: str) -> InvalidRequest:
    """Clients look for the words "Unknown SID", and then open a new session."""
    return InvalidRequest(
        f"Unknown SID {sid[:64]!r}: the session has ended or never existed here; nothing was done. Open a new session"
    )

"""One WebChannel session, version 8 of that protocol: the second transport of a channel, made of plain HTTP requests.

What a session is to the rest of Avow is a socket: packets go in and come out in order, each once, until it is lost for
good. Underneath it is a handshake, POSTs that carry packets up (*maps*, numbered from 0) and GETs that hang while
packets come down (*arrays*, numbered from 1; the handshake is array 0). Any request may fail, be answered without the
client hearing it, come twice or overtake another; what holds the session together are the two kinds of numbers.

                  back channel asked for        back channel gone,      no back channel    terminate, abort;
                  CI=0            CI=1          or ended by its last    for `expiry_s`     `close` acknowledged,
                                                chunk                                      or not for `close_s`
    WAITING       STREAMING       POLLING       -                       OVER               OVER
    STREAMING     STREAMING, new  POLLING       WAITING                 -                  OVER
    POLLING       STREAMING       POLLING, new  WAITING                 -                  OVER
    OVER          refused         refused       -                       -                  -

*Up*: a POST that is tried again carries the same maps, perhaps with more behind them, and with several POSTs in flight
a later one may arrive first. So maps are told apart by their number, and those that came too early are held.
*Down*: an array is kept until the client has named it, or a later one, as the last it has seen (`AID`). A new back
channel begins behind that. The client says it only when it asks for something, so a back channel ends by itself after
some bytes, arrays or minutes: the next one acknowledges. That also finds out clients that vanished without a word.
*Bounds*: `full` asks the channel above to stop sending; it overshoots by one packet at most.

Nothing here reads a clock or a socket. Input that cannot be raises an error with a name, and the session is as before.
"""

from __future__ import annotations

from binascii import b2a_base64
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Final

from msgspec import Struct

from avow.channel.sockets import Piece
from avow.channel.webchannel_forms import MAPS_PER_POST_MAX, Form
from avow.errors import InvalidRequest, TooLarge
from avow.limits import KIB, MIB

VERSION: Final = 8
SERVER_VERSION: Final = 1

MAPS_HELD_MAX: Final = 10 * MAPS_PER_POST_MAX  # as many POSTs as a client has in flight
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
    """In seconds. Clients give a silent back channel up after 1.5 times `keep_alive_s`. `close_s` is how long a closed
    session waits for a client that takes nothing of what was sent before."""

    keep_alive_s: float = 30.0
    expiry_s: float = 60.0
    close_s: float = 5.0
    back_age_s_max: float = 120.0


class Chunk(Struct, frozen=True):
    """What the back channel gets next. With `last` its response is to be ended, and there is no back channel now."""

    data: bytes
    last: bool


def framed(text: bytes) -> bytes:
    """A chunk. Clients count UTF-16 code units, which are bytes as long as the JSON is ASCII."""
    return b"%d\n%b" % (len(text), text)


# ---------------------------------------------------------------------- both directions


class _Maps:
    """What came up: in order, each once."""

    def __init__(self) -> None:
        self._next = 0
        self._held: dict[int, bytes] = {}

    def take(self, maps: Mapping[int, bytes]) -> list[bytes]:
        """What can be given out now. Raises TooLarge, and then nothing was taken."""
        known = {**self._held, **maps}
        upto = self._next
        while upto in known:
            upto += 1
        early = {number: packet for number, packet in known.items() if number >= upto}
        if len(early) > MAPS_HELD_MAX or sum(map(len, early.values())) > MAPS_HELD_SIZE_BYTES_MAX:
            raise TooLarge(f"too much came before map {upto}, which is missing; nothing was received")
        ready = [known[number] for number in range(self._next, upto)]
        self._next, self._held = upto, early
        return ready

    @property
    def held(self) -> int:
        return len(self._held)


class _Arrays:
    """What goes down: numbered, kept until acknowledged, written again from wherever the client stands."""

    def __init__(self) -> None:
        self.acked = self.written_to = self.ever_written_to = self.last = 0
        self.size_bytes = 0  # of what is not acknowledged
        self._kept: list[bytes] = []  # acked + 1 and on

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
        """The next ones to write, as many as make a chunk."""
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
    """The caller performs: it answers requests with what inputs return, hands `packets` on, writes `chunk`s to the back
    channel while there are any and it takes them, and looks at `state` after every input: OVER is for good."""

    def __init__(self, sid: str, *, now: float, timing: Timing | None = None) -> None:
        self.sid = sid
        self.state = State.WAITING
        self.reason = ""  # why it is over
        self._timing = timing or Timing()
        self._maps, self._arrays = _Maps(), _Arrays()
        self._packets: list[bytes] = []
        self._close_id = 0  # the array that says `close`; 0: none was sent
        self._close_seen: tuple[tuple[int, int], float] = ((-1, -1), now)  # how far the arrays were, and since when
        self._back = 0  # the number of the latest back channel
        self._back_since = self._noop_at = 0.0
        self._back_arrays = self._back_bytes = 0
        self._silent_since = now

    # ------------------------------------------------------------------ requests

    def open(self, form: Form) -> bytes:
        """The handshake. Returns array 0 as a client wants it, without a frame."""
        self._packets += self._maps.take(form.maps)
        keep_alive_ms = round(self._timing.keep_alive_s * 1000)
        return b'[[0,["c","%b","",%d,%d,%d]]]' % (self.sid.encode("ascii"), VERSION, SERVER_VERSION, keep_alive_ms)

    def forward(self, form: Form, *, aid: int, now: float) -> bytes:
        """A POST with maps. Returns the body of its answer."""
        self._check(aid)
        self._packets += self._maps.take(form.maps)
        self._silent_since = now
        self._acknowledged(aid)
        arrays = self._arrays
        return framed(b"[%d,%d,%d]" % (self.hanging, arrays.written_to, arrays.size_bytes))

    def back(self, *, aid: int, streaming: bool, now: float, wait_s: float | None = None) -> int:
        """A GET that is to hang. Returns its number; the one before, if it still hangs, is to be ended.

        A stream says something at once, or at a client that is cut off again and again its patience would run out.
        `wait_s`: how long a long poll may hang.
        """
        self._check(aid)
        if aid < self._arrays.acked:
            acked = self._arrays.acked
            raise InvalidRequest(f"this begins behind array {aid}, but {acked} was acknowledged; nothing was done")
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
        """That back channel is no more. Of one that was replaced this says nothing."""
        if back == self._back and self.hanging:
            self.state = State.WAITING
            self._silent_since = now

    def terminate(self) -> None:
        self._end("the client closed it")

    # ------------------------------------------------------------------ the channel above

    def send(self, packet: Sequence[Piece]) -> None:
        """One packet in pieces. After `close`, or when it is over, it goes nowhere."""
        if self.state is State.OVER or self._close_id:
            return
        whole = packet[0] if len(packet) == 1 else b"".join(packet)
        self._arrays.add(b'[{"f":"%b"}]' % b2a_base64(whole, newline=False))

    def close(self) -> None:
        """The client closes when it has read everything before this."""
        if self.state is not State.OVER and not self._close_id:
            self._arrays.add(_CLOSE)
            self._close_id = self._arrays.last

    def abort(self) -> bytes:
        """It is over. Returns what tells the client so, if a back channel hangs."""
        told = self.hanging
        self._end("this end aborted it")
        return framed(b"[[%d,%b]]" % (self._arrays.last + 1, _STOP)) if told else b""

    @property
    def full(self) -> bool:
        return self._arrays.full

    # ------------------------------------------------------------------ time, and what is to be done

    def tick(self, now: float) -> None:
        if self.state is State.WAITING and now - self._silent_since > self._timing.expiry_s:
            self._end(f"the client asked for nothing for {self._timing.expiry_s:g} s")
        if self._close_id:
            far, since = (self._arrays.acked, self._arrays.written_to), self._close_seen[1]
            if far != self._close_seen[0]:
                self._close_seen = far, now
            elif now - since > self._timing.close_s:
                self._end("this end closed it")

    def packets(self) -> list[bytes]:
        """What came since the last call."""
        packets, self._packets = self._packets, []
        return packets

    def chunk(self, now: float) -> Chunk | None:
        """None: nothing to write now. Ask again after `send`, `back` and `tick`."""
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
        last = (self.state is State.POLLING and not self._arrays.unwritten) or self._worn(now)
        if last:
            self.state = State.WAITING
            self._silent_since = now
        return Chunk(data, last)

    def _worn(self, now: float) -> bool:
        if now - self._back_since > self._timing.back_age_s_max:
            return True
        return self._back_arrays >= BACK_ARRAYS_MAX or self._back_bytes >= BACK_SIZE_BYTES_MAX

    @property
    def hanging(self) -> bool:
        """There is a back channel."""
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
            raise InvalidRequest(f"array {aid} was never sent, only arrays up to {sent}; nothing was done")

    def _acknowledged(self, aid: int) -> bool:
        """Whether that was the last thing to wait for."""
        self._arrays.ack(aid)
        if not self._close_id or aid < self._close_id:
            return False
        self._end("this end closed it")
        return True

    def _end(self, reason: str) -> None:
        if self.state is not State.OVER:
            self.state, self.reason = State.OVER, reason


def unknown_session(sid: str) -> InvalidRequest:
    """Clients look for these two words, and then open a new session."""
    return InvalidRequest(f"Unknown SID {sid[:64]!r}: it is over, or was never here; nothing was done. Open a new one")

"""The end of a channel that is dialled: all channels of a process by id, with or without a socket.

A new socket says Hello, and that decides what it is for: a channel that begins, one that goes on, one that is over.

    the channel is here      higher generation: it goes on, and the socket before is fenced.  Else FENCED
    it is over               the tombstone's End, with what was acknowledged and received last
    it was never here        `fresh`: it begins.  Else UNKNOWN_CHANNEL: this process was restarted, or has forgotten

A channel without a socket is kept for its window, then it is EXPIRED. Tombstones are for initiators that come back
later, or whose last socket was lost with the End in it; the oldest is forgotten first. One timer sweeps over what
waits: sockets for their Hello, channels for a socket.

A channel can be resumed only with the token it began with, and for the purpose it began for: who may not read a queue
does not get there by way of another one's channel.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping
from hmac import compare_digest
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from avow.channel.endpoint import Attachment, Channel
from avow.channel.frames import Buffer, End, EndCode, Hello, end_bytes, read_packet
from avow.channel.protocol import Bounds, Core, Ended
from avow.errors import AvowError, Busy, Malformed

if TYPE_CHECKING:
    from avow.channel.sockets import Socket

HELLO_S: Final = 10.0
SWEEP_S: Final = 0.25
_SWEEP_S_MIN: Final = 0.01
TOMBSTONES_MAX: Final = 4_096


class Tombstone(Struct, frozen=True):
    token: bytes
    end: End


class Kept(Struct):
    """`until`: when it expires, 0 while it has a socket."""

    channel: Channel
    purpose: str
    window_s: float
    until: float = 0.0


class Keeper:
    """Call `accept` for each new socket. All on the loop's thread."""

    def __init__(
        self,
        *,
        window_s: float,
        channels_max: int,
        tombstones_max: int = TOMBSTONES_MAX,
        bounds: Bounds | None = None,
        hello_s: float = HELLO_S,
    ) -> None:
        self._window_s, self._channels_max, self._tombstones_max = window_s, channels_max, tombstones_max
        self._bounds, self._hello_s = bounds, hello_s
        self._loop = asyncio.get_running_loop()
        self._kept: dict[bytes, Kept] = {}
        self._tombstones: dict[bytes, Tombstone] = {}  # in the order in which they were put up
        self._arrivals: set[Arrival] = set()  # all that are not lost
        self._silent: dict[Arrival, float] = {}  # those without a Hello, and until when
        self._closed: EndCode | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._begun = self._resumed = self._fenced = self._expired = self._refused = 0

    @property
    def channels(self) -> Mapping[bytes, Channel]:
        return MappingProxyType({key: kept.channel for key, kept in self._kept.items()})

    def accept(self, purpose: str, begin: Callable[[Channel], None]) -> Arrival:
        """What a new socket talks to. `begin` is called at most once, before any message is delivered.

        It sets hooks, and may raise AvowError: then the other end hears REFUSED, and why.
        """
        return Arrival(self, purpose, begin)

    def close(self, code: EndCode = EndCode.GOING) -> None:
        """End all channels, and tell sockets that come later the same. For good."""
        self._closed = code
        for kept in list(self._kept.values()):
            kept.channel.end(code, text="this process is shutting down")
            kept.channel.turn()
        for arrival in list(self._silent):
            arrival.refuse(End(code, text="this process is shutting down"))
        self._silent.clear()

    def cut(self) -> None:
        """Lose all sockets, also those that are still being closed."""
        for arrival in list(self._arrivals):
            arrival.socket.abort()

    # ------------------------------------------------------------------ sockets

    def arrived(self, arrival: Arrival) -> None:
        self._arrivals.add(arrival)
        if self._closed is not None:
            arrival.refuse(End(self._closed, text="this process is shutting down"))
        elif len(self._silent) >= self._channels_max:
            arrival.refuse(self._too_many())
        else:
            self._silent[arrival] = self._loop.time() + self._hello_s
            self._arm()

    def left(self, arrival: Arrival) -> None:
        self._arrivals.discard(arrival)
        self._silent.pop(arrival, None)

    def said_wrong(self, arrival: Arrival, text: str) -> None:
        self._silent.pop(arrival, None)
        arrival.refuse(End(EndCode.PROTOCOL, text=text))

    def greeted(self, arrival: Arrival, hello: Hello) -> Attachment | None:
        """The channel's end of that socket; None when it was refused."""
        self._silent.pop(arrival, None)
        kept = self._kept.get(hello.channel)
        if kept is not None and kept.channel.ended:
            kept.channel.turn()  # its end is not dispatched yet, and then there is a tombstone
            kept = None
        if kept is not None:
            return self._resume(kept, arrival, hello)
        tombstone = self._tombstones.get(hello.channel)
        if tombstone is not None and compare_digest(tombstone.token, hello.token):
            arrival.refuse(tombstone.end)
        elif tombstone is not None or not hello.fresh:
            arrival.refuse(_unknown())
        elif len(self._kept) >= self._channels_max:
            arrival.refuse(self._too_many())
        else:
            return self._begin(arrival, hello)
        return None

    def _resume(self, kept: Kept, arrival: Arrival, hello: Hello) -> Attachment | None:
        channel = kept.channel
        if not channel.core.knows(hello) or kept.purpose != arrival.purpose:
            arrival.refuse(_unknown())
            return None
        generation = channel.greet(arrival.socket, hello)
        if not generation:
            self._fenced += 1
            arrival.answer(channel.core.fenced())
            return None
        kept.until = 0.0
        self._resumed += 1
        return Attachment(channel, generation=generation)

    def _begin(self, arrival: Arrival, hello: Hello) -> Attachment | None:
        window_s = min(hello.window_s or self._window_s, self._window_s)
        core = Core(
            channel=hello.channel,
            token=hello.token,
            initiator=False,
            bounds=self._bounds,
            window_s=math.ceil(window_s),
        )
        channel = Channel(core, self)
        generation = channel.greet(arrival.socket, hello)
        if not generation:
            arrival.refuse(End(EndCode.PROTOCOL, text="generations begin with 1"))
            return None
        self._kept[hello.channel] = Kept(channel, arrival.purpose, window_s)
        try:
            arrival.begin(channel)
        except AvowError as error:
            self._refused += 1
            channel.on_end = None  # the application never had it
            channel.fail(error)
        except Exception as error:
            channel.on_end = None
            channel.broke(error)
        else:
            self._begun += 1
        return Attachment(channel, generation=generation)

    def _too_many(self) -> End:
        self._refused += 1
        error = Busy(
            f"{self._channels_max} channels are open here, which is the limit; nothing was done. Try again later"
        )
        return End(EndCode.REFUSED, name=error.code, text=str(error))

    # ------------------------------------------------------------------ channels call

    def connected(self, channel: Channel) -> None:
        pass

    def detached(self, channel: Channel, reason: str) -> None:  # noqa: ARG002
        kept = self._kept.get(channel.core.channel)
        if kept is not None:
            kept.until = self._loop.time() + kept.window_s
            self._arm()

    def over(self, channel: Channel, ended: Ended) -> None:
        """An end that came from the initiator needs no tombstone: it will not come back."""
        core = channel.core
        self._kept.pop(core.channel, None)
        if ended.remote:
            return
        if len(self._tombstones) >= self._tombstones_max:
            del self._tombstones[next(iter(self._tombstones))]
        end = End(ended.code, core.incoming.acked, core.incoming.received_to, ended.name, ended.text)
        self._tombstones[core.channel] = Tombstone(core.token, end)

    # ------------------------------------------------------------------ time

    def _arm(self) -> None:
        if self._timer is None:
            self._timer = self._loop.call_later(max(_SWEEP_S_MIN, min(SWEEP_S, self._window_s / 4)), self._sweep)

    def _sweep(self) -> None:
        self._timer = None
        now = self._loop.time()
        for arrival in [one for one, until in self._silent.items() if until <= now]:
            del self._silent[arrival]
            arrival.refuse(End(EndCode.PROTOCOL, text=f"no Hello came within {self._hello_s:g} s"))
        waiting = [kept for kept in self._kept.values() if kept.until]
        for kept in waiting:
            if kept.until <= now:
                self._expired += 1
                text = f"it was without a socket for longer than its window, {kept.window_s:g} s"
                kept.channel.end(EndCode.EXPIRED, text=text)
        if waiting or self._silent:
            self._arm()

    def statistics(self) -> dict[str, int]:
        detached = sum(1 for kept in self._kept.values() if kept.until)
        return {
            "open": len(self._kept),
            "attached": len(self._kept) - detached,
            "detached": detached,
            "sockets": len(self._arrivals),
            "silent": len(self._silent),
            "tombstones": len(self._tombstones),
            "begun": self._begun,
            "resumed": self._resumed,
            "fenced": self._fenced,
            "expired": self._expired,
            "refused": self._refused,
        }


class Arrival:
    """A new socket: silent, then a channel's, or refused. It implements SocketUser."""

    __slots__ = ("_attachment", "_gone", "_keeper", "begin", "purpose", "socket")

    def __init__(self, keeper: Keeper, purpose: str, begin: Callable[[Channel], None]) -> None:
        """`socket` is there from `opened` on."""
        self._keeper, self.purpose, self.begin = keeper, purpose, begin
        self._attachment: Attachment | None = None
        self._gone = False
        self.socket: Socket

    def opened(self, socket: Socket) -> None:
        self.socket = socket
        self._keeper.arrived(self)

    def packet(self, socket: Socket, data: Buffer) -> None:
        if self._attachment is not None:
            self._attachment.packet(socket, data)
        elif not self._gone:
            self._read_hello(data)

    def _read_hello(self, data: Buffer) -> None:
        try:
            frames = list(read_packet(data))
        except Malformed as error:
            self._keeper.said_wrong(self, str(error))
            return
        if len(frames) == 1 and type(frames[0]) is Hello:
            self._attachment = self._keeper.greeted(self, frames[0])
        else:
            self._keeper.said_wrong(self, "a Hello must come first on a socket, and alone")

    def writable(self, socket: Socket) -> None:
        if self._attachment is not None:
            self._attachment.writable(socket)

    def lost(self, socket: Socket, reason: str) -> None:
        self._gone = True
        self._keeper.left(self)
        if self._attachment is not None:
            self._attachment.lost(socket, reason)

    def refuse(self, end: End) -> None:
        self.answer(end_bytes(end))

    def answer(self, packet: bytes) -> None:
        """The last word on this socket."""
        self._gone = True
        self.socket.send([packet])
        self.socket.close()


def _unknown() -> End:
    text = "no such channel is kept here for this purpose: it was never opened here, or it is forgotten"
    return End(EndCode.UNKNOWN_CHANNEL, text=text)

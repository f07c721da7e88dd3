"""The accepting end of channels: all channels of a process by id, with or without a socket.

The Hello on a new socket decides whether the socket starts a channel, resumes one, or is refused.

    the channel is registered   higher generation: it resumes, and the socket before is fenced.  Otherwise FENCED
    the channel has ended       its stored End, with the last acknowledged and received positions
    the channel is unknown      `fresh`: it starts.  Otherwise UNKNOWN_CHANNEL: this process was restarted, or the
                                stored End was dropped

A channel without a socket is kept for its window, then it ends with EXPIRED. The End of a channel is stored for
initiators that reconnect later, or whose last socket was lost with the End in it; the oldest is dropped first. One
timer checks the deadlines of sockets without a Hello and of channels without a socket.

A channel can be resumed only with the token and for the purpose it was started with, so a client that may not read a
queue cannot read it through another client's channel.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping
from hmac import compare_digest
from itertools import islice
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from avow.channel.endpoint import Attachment, Channel
from avow.channel.protocol.core import Core
from avow.channel.protocol.events import Bounds, Ended
from avow.channel.protocol.frames import POSITION_UNKNOWN, Buffer, End, EndCode, Hello, end_bytes, read_packet
from avow.errors import AvowError, Busy, Malformed

if TYPE_CHECKING:
    from avow.channel.transports.socket import Socket

HELLO_S: Final = 10.0
SWEEP_S: Final = 0.25
_SWEEP_S_MIN: Final = 0.01
ENDED_CHANNELS_MAX: Final = 4_096


class EndedChannel(Struct, frozen=True):
    token: bytes
    end: End


class RegisteredChannel(Struct):
    """`until`: when it expires, 0 while it has a socket."""

    channel: Channel
    purpose: str
    window_s: float
    until: float = 0.0


class Registry:
    """Call `accept` for each new socket. All calls are made on the event loop's thread."""

    def __init__(
        self,
        *,
        window_s: float,
        channels_max: int,
        ended_channels_max: int = ENDED_CHANNELS_MAX,
        bounds: Bounds | None = None,
        hello_s: float = HELLO_S,
    ) -> None:
        self._window_s, self._channels_max, self._ended_channels_max = window_s, channels_max, ended_channels_max
        self._bounds, self._hello_s = bounds, hello_s
        self._loop = asyncio.get_running_loop()
        self._channels: dict[bytes, RegisteredChannel] = {}
        self._ended: dict[bytes, EndedChannel] = {}  # oldest first
        self._sockets: set[IncomingSocket] = set()  # all that are not lost
        self._silent: dict[IncomingSocket, float] = {}  # those without a Hello yet: its deadline
        self._closed: EndCode | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._begun = self._resumed = self._fenced = self._expired = self._refused = 0

    @property
    def channels(self) -> Mapping[bytes, Channel]:
        return MappingProxyType({key: registered.channel for key, registered in self._channels.items()})

    def accept(self, purpose: str, begin: Callable[[Channel], None]) -> IncomingSocket:
        """The user of a new socket. `begin` is called at most once, before any message is delivered.

        `begin` sets the channel's hooks. If it raises AvowError, the other end receives REFUSED with the error.
        """
        return IncomingSocket(self, purpose, begin)

    def close(self, code: EndCode = EndCode.GOING) -> None:
        """End all channels with `code`; every later socket receives the same. Permanent."""
        self._closed = code
        for registered in list(self._channels.values()):
            registered.channel.end(code, text="this process is shutting down")
            registered.channel.turn()
        for incoming in list(self._silent):
            incoming.refuse(_stranger(code, text="this process is shutting down"))
        self._silent.clear()

    def cut(self) -> None:
        """Abort all sockets, including those that are being closed."""
        for incoming in list(self._sockets):
            incoming.socket.abort()

    # ------------------------------------------------------------------ sockets

    def opened(self, incoming: IncomingSocket) -> None:
        self._sockets.add(incoming)
        if self._closed is not None:
            incoming.refuse(_stranger(self._closed, text="this process is shutting down"))
        elif len(self._silent) >= self._channels_max:
            incoming.refuse(self._too_many())
        else:
            self._silent[incoming] = self._loop.time() + self._hello_s
            self._arm()

    def lost(self, incoming: IncomingSocket) -> None:
        self._sockets.discard(incoming)
        self._silent.pop(incoming, None)

    def violated(self, incoming: IncomingSocket, text: str) -> None:
        self._silent.pop(incoming, None)
        incoming.refuse(_stranger(EndCode.PROTOCOL, text=text))

    def greeted(self, incoming: IncomingSocket, hello: Hello) -> Attachment | None:
        """Attach a socket by its Hello. Returns the channel's side of the socket; None if it was refused."""
        self._silent.pop(incoming, None)
        registered = self._channels.get(hello.channel)
        if registered is not None and registered.channel.ended:
            registered.channel.turn()  # dispatches its end, which stores an EndedChannel
            registered = None
        if registered is not None:
            return self._resume(registered, incoming, hello)
        ended = self._ended.get(hello.channel)
        if ended is not None and compare_digest(ended.token, hello.token):
            incoming.refuse(ended.end)
        elif ended is not None or not hello.fresh:
            incoming.refuse(_unknown())
        elif len(self._channels) >= self._channels_max:
            incoming.refuse(self._too_many())
        else:
            return self._begin(incoming, hello)
        return None

    def _resume(self, registered: RegisteredChannel, incoming: IncomingSocket, hello: Hello) -> Attachment | None:
        channel = registered.channel
        if not channel.core.matches(hello) or registered.purpose != incoming.purpose:
            incoming.refuse(_unknown())
            return None
        generation = channel.greet(incoming.socket, hello)
        if not generation:
            self._fenced += 1
            incoming.answer(channel.core.fenced())
            return None
        registered.until = 0.0
        self._resumed += 1
        return Attachment(channel, generation=generation)

    def _begin(self, incoming: IncomingSocket, hello: Hello) -> Attachment | None:
        window_s = min(hello.window_s or self._window_s, self._window_s)
        core = Core(
            channel=hello.channel,
            token=hello.token,
            initiator=False,
            bounds=self._bounds,
            window_s=math.ceil(window_s),
        )
        channel = Channel(core, self)
        generation = channel.greet(incoming.socket, hello)
        if not generation:
            incoming.refuse(_stranger(EndCode.PROTOCOL, text="the generation of the first socket must be at least 1"))
            return None
        self._channels[hello.channel] = RegisteredChannel(channel, incoming.purpose, window_s)
        try:
            incoming.begin(channel)
        except AvowError as error:
            self._refused += 1
            channel.on_end = None  # the application never received the channel
            channel.fail(error)
        except Exception as error:
            channel.on_end = None
            channel.application_raised(error)
        else:
            self._begun += 1
        return Attachment(channel, generation=generation)

    def _too_many(self) -> End:
        self._refused += 1
        error = Busy(
            f"the limit of {self._channels_max} open channels is reached; no channel was opened. Try again later"
        )
        return _stranger(EndCode.REFUSED, name=error.code, text=str(error))

    # ------------------------------------------------------------------ channels call

    def connected(self, channel: Channel) -> None:
        pass

    def detached(self, channel: Channel, reason: str) -> None:  # noqa: ARG002
        registered = self._channels.get(channel.core.channel)
        if registered is not None:
            registered.until = self._loop.time() + registered.window_s
            self._arm()

    def channel_ended(self, channel: Channel, ended: Ended) -> None:
        """The End of a channel that the initiator ended is not stored: the initiator will not reconnect."""
        core = channel.core
        self._channels.pop(core.channel, None)
        if ended.remote:
            return
        if len(self._ended) >= self._ended_channels_max:
            del self._ended[next(iter(self._ended))]
        end = End(ended.code, core.incoming.acked, core.incoming.received_to, ended.name, ended.text)
        self._ended[core.channel] = EndedChannel(core.token, end)

    # ------------------------------------------------------------------ time

    def _arm(self) -> None:
        if self._timer is None:
            self._timer = self._loop.call_later(max(_SWEEP_S_MIN, min(SWEEP_S, self._window_s / 4)), self._sweep)

    def _sweep(self) -> None:
        self._timer = None
        now = self._loop.time()
        for incoming in [one for one, until in self._silent.items() if until <= now]:
            del self._silent[incoming]
            incoming.refuse(_stranger(EndCode.PROTOCOL, text=f"no Hello arrived within {self._hello_s:g} s"))
        waiting = [registered for registered in self._channels.values() if registered.until]
        for registered in waiting:
            if registered.until <= now:
                self._expired += 1
                text = f"the channel had no socket for longer than its window of {registered.window_s:g} s"
                registered.channel.end(EndCode.EXPIRED, text=text)
        if waiting or self._silent:
            self._arm()

    def statistics(self) -> dict[str, int]:
        detached = sum(1 for registered in self._channels.values() if registered.until)
        return {
            "open": len(self._channels),
            "attached": len(self._channels) - detached,
            "detached": detached,
            "sockets": len(self._sockets),
            "silent": len(self._silent),
            "ended": len(self._ended),
            "begun": self._begun,
            "resumed": self._resumed,
            "fenced": self._fenced,
            "expired": self._expired,
            "refused": self._refused,
        }


class IncomingSocket:
    """A new socket: waits for its Hello, then belongs to a channel or is refused. Implements SocketUser."""

    __slots__ = ("_attachment", "_gone", "_registry", "begin", "purpose", "socket")

    def __init__(self, registry: Registry, purpose: str, begin: Callable[[Channel], None]) -> None:
        """`socket` is set by `opened`."""
        self._registry, self.purpose, self.begin = registry, purpose, begin
        self._attachment: Attachment | None = None
        self._gone = False
        self.socket: Socket

    def opened(self, socket: Socket) -> None:
        self.socket = socket
        self._registry.opened(self)

    def packet(self, socket: Socket, data: Buffer) -> None:
        if self._attachment is not None:
            self._attachment.packet(socket, data)
        elif not self._gone:
            self._read_hello(data)

    def _read_hello(self, data: Buffer) -> None:
        try:
            frames = list(islice(read_packet(data), 2))
        except Malformed as error:
            self._registry.violated(self, str(error))
            return
        if len(frames) == 1 and type(frames[0]) is Hello:
            self._attachment = self._registry.greeted(self, frames[0])
        else:
            self._registry.violated(self, "the first packet on a socket must be a single Hello")

    def writable(self, socket: Socket) -> None:
        if self._attachment is not None:
            self._attachment.writable(socket)

    def lost(self, socket: Socket, reason: str) -> None:
        self._gone = True
        self._registry.lost(self)
        if self._attachment is not None:
            self._attachment.lost(socket, reason)

    def refuse(self, end: End) -> None:
        self.answer(end_bytes(end))

    def answer(self, packet: bytes) -> None:
        """Send the last packet on this socket and close it."""
        self._gone = True
        self.socket.send([packet])
        self.socket.close()


class RefusedSocket:
    """The user of a socket that was opened only to send the reason of a refusal. Implements SocketUser."""

    def __init__(self, error: AvowError) -> None:
        self._error = error

    def opened(self, socket: Socket) -> None:
        socket.send([end_bytes(_stranger(EndCode.REFUSED, name=self._error.code, text=str(self._error)))])
        socket.close()

    def packet(self, socket: Socket, data: Buffer) -> None: ...

    def writable(self, socket: Socket) -> None: ...

    def lost(self, socket: Socket, reason: str) -> None: ...


def _unknown() -> End:
    text = "this process has no such channel for this purpose: it was never opened here, or it has expired"
    return _stranger(EndCode.UNKNOWN_CHANNEL, text=text)


def _stranger(code: EndCode, *, text: str, name: str = "") -> End:
    """The End on a socket whose channel is not known here. It decides nothing about messages sent on other sockets."""
    return End(code, received_to=POSITION_UNKNOWN, name=name, text=text)

"""Permanent links to the other peers: one TCP connection for each pair, frames in both directions.

The peer with the higher number dials, so that two peers never end up with two connections and a newcomer needs no one
to know its address. Each side speaks first with a Hello: cluster, identity, number, run. A link carries nothing else
before both Hellos are checked, and it ends with the run of either end:

    the other's run is older than one heard before   refused: frames of a dead process must not arrive after its heir's
    the other's run is newer                         the old link is cut, with whatever of it was not read yet
    another identity under a known number            refused: an emptied folder is not the peer that promised

Protocols above expect loss, so a link never waits: when a peer reads too slowly, frames to it are dropped and counted,
and the cores send again what was not answered. Frames of one turn of the event loop leave in one write.

A Malformed frame closes the link and names what was wrong; the dialler tries again after a moment.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, Protocol, cast

from avow.errors import AvowError, FolderUnusable, Malformed
from avow.limits import FRAME_SIZE_BYTES_MAX, MIB
from avow.peer.settings import address
from avow.wire.frames import Hello, decode, decode_hello, encode
from avow.wire.messages import Message
from avow.wire.record import Buffer
from avow.wire.stream import Decoder

log = logging.getLogger("avow.links")

UNSENT_SIZE_BYTES_MAX: Final = 64 * MIB  # to one peer; more than the largest frame
HELLO_WAIT_S: Final = 3.0
STOP_WAIT_S: Final = 1.0  # for what is still unsent
_DIAL_AFTER_S: Final = (0.02, 0.05, 0.1, 0.2, 0.4)
_HELLO_SIZE_BYTES: Final = sum(map(len, encode(0, Hello(bytes(16), bytes(16), 0, 0))))
_STRANGERS_MAX: Final = 64  # connections that have not said Hello yet


class Receiver(Protocol):
    """What links need of the peer they belong to."""

    def hello(self) -> Hello: ...

    def greeted(self, hello: Hello) -> None:
        """Raises FolderUnusable unless this is a peer to speak with."""
        ...

    def received(self, source: int, route: int, message: Message) -> None: ...


class Link(asyncio.BufferedProtocol):
    """One connection. `peer` is 0 until its Hello was accepted."""

    def __init__(self, links: Links, *, dialled: int = 0) -> None:
        self._links, self._dialled = links, dialled
        self._decoder = Decoder(length_max=_HELLO_SIZE_BYTES)
        self._hello_left = _HELLO_SIZE_BYTES  # nothing beyond it is read before it was accepted
        self._transport: asyncio.Transport | None = None
        self._outbox: list[Buffer] = []
        self.peer = self.incarnation = 0
        self.address = ""
        self.dropped = 0
        self.closed = asyncio.Event()

    # ------------------------------------------------------------------ what asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport = cast(asyncio.Transport, transport)  # uvloop's is none by inheritance
        self.address = str(transport.get_extra_info("peername"))
        transport.set_write_buffer_limits(high=UNSENT_SIZE_BYTES_MAX)
        transport.writelines(encode(0, self._links.receiver.hello()))
        self._links.strangers.add(self)
        asyncio.get_running_loop().call_later(HELLO_WAIT_S, self._expect_hello)

    def get_buffer(self, sizehint: int) -> memoryview:
        room = self._decoder.get_buffer(sizehint)
        return room if self.peer else room[: self._hello_left]

    def buffer_updated(self, count: int) -> None:
        self._hello_left -= count
        try:
            for frame in self._decoder.buffer_updated(count):
                if self.peer:
                    route, message = decode(frame)
                    self._links.receiver.received(self.peer, route, message)
                else:
                    self._introduced(decode_hello(frame))
            self._decoder.buffer_updated(0)  # raises now if what follows the last whole frame cannot be one
        except (Malformed, FolderUnusable) as error:
            self.close(str(error))

    def eof_received(self) -> None:
        return None

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._links.lost(self, error)
        self.closed.set()

    # ------------------------------------------------------------------ Hello

    def _introduced(self, message: Hello) -> None:
        if self._dialled and message.peer != self._dialled:
            raise FolderUnusable(f"peer {self._dialled} was dialled and peer {message.peer} answered")
        self._links.receiver.greeted(message)
        self.peer, self.incarnation = message.peer, message.incarnation
        self._decoder.length_max = FRAME_SIZE_BYTES_MAX
        self._links.established(self)

    def _expect_hello(self) -> None:
        if not self.peer and self._transport is not None:
            self.close("no Hello in time")

    # ------------------------------------------------------------------ sending

    def send(self, pieces: Sequence[Buffer]) -> None:
        self._outbox += pieces

    def flush(self) -> None:
        outbox, self._outbox = self._outbox, []
        transport = self._transport
        if transport is None or not outbox:
            return
        if transport.get_write_buffer_size() > UNSENT_SIZE_BYTES_MAX:
            self.dropped += len(outbox)
            return
        transport.writelines(outbox)

    def finish(self) -> None:
        """Send what is waiting, then close."""
        self.flush()
        if self._transport is not None:
            self._transport.close()

    def close(self, reason: str) -> None:
        if self._transport is not None:
            log.warning("link to peer %s at %s closed: %s", self.peer or "?", self.address, reason)
            self._transport.abort()


class Links:
    """All links of one peer. `addresses` is asked before each dial, so that a peer that moved is found again.

    `told`: where the operator says that peers are, as of this start. What the cluster knows may be older: a quorum that
    is back before the last of the peers that moved remembers where that one was. So both are tried in turn.
    """

    def __init__(
        self,
        receiver: Receiver,
        *,
        me: int,
        addresses: Callable[[], dict[int, str]],
        told: Mapping[int, str] = MappingProxyType({}),
        accepting: ssl.SSLContext | None = None,
        dialling: ssl.SSLContext | None = None,
    ) -> None:
        self.receiver, self._me, self._addresses, self._told = receiver, me, addresses, told
        self._accepting, self._dialling = accepting, dialling
        self._by_peer: dict[int, Link] = {}
        self._unflushed: dict[int, Link] = {}
        self._runs: dict[int, int] = {}  # the newest run heard of each peer
        self._diallers: dict[int, asyncio.Task[None]] = {}
        self._server: asyncio.Server | None = None
        self.strangers: set[Link] = set()
        self._closing = False
        self._frames = self._refused = self._dropped = 0

    async def listen(self, host: str, port: int) -> tuple[str, int]:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._accept, host, port, ssl=self._accepting)
        found = self._server.sockets[0].getsockname()
        return found[0], found[1]

    def _accept(self) -> Link:
        link = Link(self)
        if len(self.strangers) >= _STRANGERS_MAX:
            asyncio.get_running_loop().call_soon(link.close, "too many connections without a Hello")
        return link

    def dial_all(self) -> None:
        """Keep a link to every peer with a lower number; call again when the addresses have changed."""
        for peer in self._addresses():
            if peer < self._me and peer not in self._diallers and not self._closing:
                self._diallers[peer] = asyncio.create_task(self._keep(peer), name=f"link to peer {peer}")

    async def _keep(self, peer: int) -> None:
        attempt = 0
        while peer in (known := self._addresses()):
            link = await self._dial(peer, self._told.get(peer, known[peer]) if attempt % 2 else known[peer])
            if link is not None:
                await link.closed.wait()
                attempt = 0 if link.peer else attempt
            await asyncio.sleep(_DIAL_AFTER_S[min(attempt, len(_DIAL_AFTER_S) - 1)])
            attempt += 1
        del self._diallers[peer]

    async def _dial(self, peer: int, where: str) -> Link | None:
        host, port = address(where, name=f"peer {peer}")
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(HELLO_WAIT_S):
                _, link = await loop.create_connection(
                    lambda: Link(self, dialled=peer), host, port, ssl=self._dialling, server_hostname=self._name(host)
                )
        except (OSError, TimeoutError, ssl.SSLError) as error:
            log.debug("peer %d at %s: %s", peer, where, error)
            return None
        return link

    def _name(self, host: str) -> str | None:
        return host if self._dialling is not None else None

    def established(self, link: Link) -> None:
        """Its Hello was accepted. Raises FolderUnusable when it is of a run that is over."""
        self.strangers.discard(link)
        if link.incarnation < self._runs.get(link.peer, 0):
            raise FolderUnusable(f"run {link.incarnation} of peer {link.peer} is over; a later one was heard")
        self._runs[link.peer] = link.incarnation
        before = self._by_peer.get(link.peer)
        self._by_peer[link.peer] = link
        if before is not None:
            before.close("replaced by a newer connection")
        log.info("linked to peer %d at %s", link.peer, link.address)

    def lost(self, link: Link, error: Exception | None) -> None:
        self.strangers.discard(link)
        if not link.peer:
            self._refused += 1
        self._dropped += link.dropped
        if self._by_peer.get(link.peer) is link:
            del self._by_peer[link.peer]
            self._unflushed.pop(link.peer, None)
            if not self._closing:
                log.info("link to peer %d lost: %s", link.peer, error or "closed")

    def send(self, peer: int, route: int, message: Message) -> None:
        link = self._by_peer.get(peer)
        if link is None:
            return
        try:
            pieces = encode(route, message)
        except AvowError as error:
            log.error("a message to peer %d could not be sent: %s", peer, error)
            return
        self._frames += 1
        link.send(pieces)
        self._unflushed[peer] = link

    def flush(self) -> None:
        unflushed, self._unflushed = self._unflushed, {}
        for link in unflushed.values():
            link.flush()

    def cut(self, peer: int, reason: str) -> None:
        link = self._by_peer.get(peer)
        if link is not None:
            link.close(reason)

    @property
    def connected(self) -> list[int]:
        return sorted(self._by_peer)

    async def stop(self) -> None:
        self._closing = True
        for dialler in self._diallers.values():
            dialler.cancel()
        await asyncio.gather(*self._diallers.values(), return_exceptions=True)
        if self._server is not None:
            self._server.close()
        links = [*self._by_peer.values(), *self.strangers]
        for link in links:
            link.finish()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_WAIT_S):
                await asyncio.gather(*(link.closed.wait() for link in links))
        for link in links:
            link.close("this peer stops")

    def statistics(self) -> dict[str, object]:
        return {
            "connected": self.connected,
            "strangers": len(self.strangers),
            "frames_sent": self._frames,
            "refused": self._refused,
            "dropped": self._dropped + sum(link.dropped for link in self._by_peer.values()),
        }

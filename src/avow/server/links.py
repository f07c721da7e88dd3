"""Permanent links to the other peers: one TCP connection for each pair, frames in both directions.

The peer with the higher number dials, so two peers never have two connections, and a new peer can connect before the
others know its address. Each side first sends a Hello: cluster, identity, number, run. A link carries nothing else
before both Hellos are checked, and it ends when the run of either peer ends:

    an older run than one seen before       refused: frames of a dead process must not arrive after its successor's
    a newer run                             the old link is closed; what was not read from it yet is dropped
    another identity under a known number   refused: an emptied folder does not hold the promises of that peer

The protocols above tolerate loss, so a link never waits: when a peer reads too slowly, frames to it are dropped and
counted, and the cores resend what was not answered. All frames of one turn of the event loop are sent in one write.

A Malformed frame closes the link, with the error in the log. The dialling peer reconnects after a short pause. A frame
of a kind that this release does not know is intact, and skipped. A frame that is intact and cannot be right is refused
by the node (`node.admission`), and the link goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, Protocol, cast

from avow.channel.acceptor import Acceptor, open_acceptor
from avow.errors import AvowError, FolderUnusable, Malformed, UnknownKind, UnknownVersion
from avow.limits import FRAME_SIZE_BYTES_MAX, MIB
from avow.server.settings import address
from avow.wire.frames import Hello, decode, decode_hello, encode, route_of
from avow.wire.messages import Message
from avow.wire.record import Buffer
from avow.wire.stream import Decoder

log: Final = logging.getLogger("avow.links")

UNSENT_SIZE_BYTES_MAX: Final = 64 * MIB  # to one peer; more than the largest frame
HELLO_WAIT_S: Final = 3.0
STOP_WAIT_S: Final = 1.0  # for what is still unsent
_DIAL_AFTER_S: Final = (0.02, 0.05, 0.1, 0.2, 0.4)
_HELLO_SIZE_BYTES: Final = sum(map(len, encode(0, Hello(bytes(16), bytes(16), 0, 0))))
_STRANGERS_MAX: Final = 64  # connections that have not said Hello yet; and as many TLS handshakes
_BACKLOG: Final = 100


class Receiver(Protocol):
    """What links need from the peer they belong to."""

    def hello(self) -> Hello: ...

    def greeted(self, hello: Hello) -> None:
        """Checks the other peer's Hello. Raises FolderUnusable when the link must not be used."""
        ...

    def received(self, source: int, route: int, message: Message) -> None: ...

    def not_understood(self, source: int, route: int, reason: str) -> None:
        """A frame from a newer release was skipped."""
        ...


class Link(asyncio.BufferedProtocol):
    """One connection. `peer` is 0 until the other side's Hello is accepted."""

    def __init__(self, links: Links, *, dialled: int = 0) -> None:
        self._links, self._dialled = links, dialled
        self._decoder = Decoder(length_max=_HELLO_SIZE_BYTES)
        self._hello_left = _HELLO_SIZE_BYTES  # nothing after the Hello is read before it is accepted
        self._transport: asyncio.Transport | None = None
        self._outbox: list[Buffer] = []
        self.peer = self.incarnation = 0
        self.address = ""
        self.dropped = 0
        self.closed = asyncio.Event()

    # ------------------------------------------------------------------ what asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport = cast(asyncio.Transport, transport)  # uvloop's class does not inherit it
        self.address = str(transport.get_extra_info("peername"))
        transport.set_write_buffer_limits(high=UNSENT_SIZE_BYTES_MAX)
        transport.writelines(encode(0, self._links.receiver.hello()))
        self._links.strangers.add(self)
        if not self._dialled and len(self._links.strangers) > _STRANGERS_MAX:
            self.close("too many connections without a Hello")
            return
        asyncio.get_running_loop().call_later(HELLO_WAIT_S, self._expect_hello)

    def get_buffer(self, sizehint: int) -> memoryview:
        room = self._decoder.get_buffer(sizehint)
        return room if self.peer else room[: self._hello_left]

    def buffer_updated(self, count: int) -> None:
        self._hello_left -= count
        try:
            for frame in self._decoder.buffer_updated(count):
                if self.peer:
                    try:
                        route, message = decode(frame)
                    except (UnknownKind, UnknownVersion) as error:
                        self._links.skipped(self.peer, route_of(frame), error)
                        continue
                    self._links.receiver.received(self.peer, route, message)
                else:
                    self._introduced(decode_hello(frame))
            self._decoder.buffer_updated(0)  # raises now if the bytes after the last whole frame cannot be a frame
        except (AvowError, OSError) as error:  # OSError: the peer registry could not be written
            self.close(str(error))

    def eof_received(self) -> None:
        return None

    def connection_lost(self, error: Exception | None) -> None:
        if self.closed.is_set():  # by `abandon`
            return
        self._transport = None
        self._links.lost(self, error)
        self.closed.set()

    # ------------------------------------------------------------------ Hello

    def _introduced(self, message: Hello) -> None:
        if self._dialled and message.peer != self._dialled:
            raise FolderUnusable(f"dialled peer {self._dialled}, but peer {message.peer} answered")
        self._links.receiver.greeted(message)
        self.peer, self.incarnation = message.peer, message.incarnation
        self._decoder.length_max = FRAME_SIZE_BYTES_MAX
        self._links.established(self)

    def _expect_hello(self) -> None:
        if not self.peer and self._transport is not None:
            self.close(f"no Hello within {HELLO_WAIT_S:g} s")

    # ------------------------------------------------------------------ sending

    def send(self, pieces: Sequence[Buffer]) -> None:
        self._outbox += pieces

    def flush(self) -> None:
        outbox, self._outbox = self._outbox, []
        transport = self._transport
        if transport is None or not outbox:
            return
        if transport.is_closing() or transport.get_write_buffer_size() > UNSENT_SIZE_BYTES_MAX:
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

    def abandon(self) -> None:
        """The dial was given up. The event loop may have closed the connection without calling `connection_lost`."""
        if self._transport is not None:
            self._transport.abort()
            self.connection_lost(None)


class Links:
    """All links of one peer. `addresses` is called before each dial, so a peer that moved is found again.

    `configured`: the addresses in the settings of this run. Those that the cluster has may be older: if several peers
    moved and a quorum is back before the last of them, it still has that peer's old address. Both are tried in turn.
    """

    def __init__(
        self,
        receiver: Receiver,
        *,
        me: int,
        addresses: Callable[[], dict[int, str]],
        configured: Mapping[int, str] = MappingProxyType({}),
        accepting: ssl.SSLContext | None = None,
        dialling: ssl.SSLContext | None = None,
    ) -> None:
        self.receiver, self._me, self._addresses, self._configured = receiver, me, addresses, configured
        self._accepting, self._dialling = accepting, dialling
        self._by_peer: dict[int, Link] = {}
        self._unflushed: dict[int, Link] = {}
        self._runs: dict[int, int] = {}  # the newest run seen of each peer
        self._diallers: dict[int, asyncio.Task[None]] = {}
        self._acceptor: Acceptor | None = None
        self.strangers: set[Link] = set()
        self._closing = False
        self._frames = self._refused = self._dropped = self._skipped = 0

    async def listen(self, host: str, port: int) -> tuple[str, int]:
        self._acceptor = await open_acceptor(
            lambda: Link(self),
            host,
            port,
            tls=self._accepting,
            backlog=_BACKLOG,
            handshake_s=HELLO_WAIT_S,
            handshakes_max=_STRANGERS_MAX,
        )
        return self._acceptor.address

    def dial_all(self) -> None:
        """Keep a link to every peer with a lower number. Call it again when the addresses have changed."""
        for peer in self._addresses():
            if peer < self._me and peer not in self._diallers and not self._closing:
                self._diallers[peer] = asyncio.create_task(self._keep(peer), name=f"link to peer {peer}")

    async def _keep(self, peer: int) -> None:
        attempt = 0
        while peer in (known := self._addresses()):
            link = await self._dial(peer, self._configured.get(peer, known[peer]) if attempt % 2 else known[peer])
            if link is not None:
                await link.closed.wait()
                attempt = 0 if link.peer else attempt
            await asyncio.sleep(_DIAL_AFTER_S[min(attempt, len(_DIAL_AFTER_S) - 1)])
            attempt += 1
        del self._diallers[peer]

    async def _dial(self, peer: int, where: str) -> Link | None:
        host, port = address(where, name=f"peer {peer}")
        loop = asyncio.get_running_loop()
        link = Link(self, dialled=peer)
        try:
            async with asyncio.timeout(HELLO_WAIT_S):
                await loop.create_connection(
                    lambda: link, host, port, ssl=self._dialling, server_hostname=self._name(host)
                )
        except OSError as error:  # includes TimeoutError and ssl.SSLError
            link.abandon()
            log.debug("cannot connect to peer %d at %s: %s", peer, where, error)
            return None
        except asyncio.CancelledError:
            link.abandon()
            raise
        return link

    def _name(self, host: str) -> str | None:
        return host if self._dialling is not None else None

    def established(self, link: Link) -> None:
        """The Hello was accepted. Raises FolderUnusable when it comes from a run that has ended."""
        self.strangers.discard(link)
        if link.incarnation < self._runs.get(link.peer, 0):
            raise FolderUnusable(f"run {link.incarnation} of peer {link.peer} has ended; a newer run was seen")
        self._runs[link.peer] = link.incarnation
        before = self._by_peer.get(link.peer)
        self._by_peer[link.peer] = link
        if before is not None:
            before.close("replaced by a newer connection")
        log.info("link to peer %d at %s established", link.peer, link.address)

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

    def skipped(self, peer: int, route: int, error: Malformed) -> None:
        self._skipped += 1
        self.receiver.not_understood(peer, route, str(error))

    def send(self, peer: int, route: int, message: Message) -> None:
        link = self._by_peer.get(peer)
        if link is None:
            return
        try:
            pieces = encode(route, message)
        except AvowError as error:
            log.error("cannot encode a message to peer %d; it was not sent: %s", peer, error)
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
        """Send what is waiting, then close every connection, also those being set up."""
        self._closing = True
        for dialler in self._diallers.values():
            dialler.cancel()
        await asyncio.gather(*self._diallers.values(), return_exceptions=True)
        if self._acceptor is not None:
            await self._acceptor.close()
        links = [*self._by_peer.values(), *self.strangers]
        for link in links:
            link.finish()
        await _closed(links)
        for link in links:
            link.close("this peer is stopping")
        await _closed(links)

    def statistics(self) -> dict[str, object]:
        return {
            "connected": self.connected,
            "strangers": len(self.strangers),
            "frames_sent": self._frames,
            "refused": self._refused,
            "skipped": self._skipped,
            "dropped": self._dropped + sum(link.dropped for link in self._by_peer.values()),
        }


async def _closed(links: Sequence[Link]) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(STOP_WAIT_S):
            await asyncio.gather(*(link.closed.wait() for link in links))

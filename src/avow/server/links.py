"""Permanent links to the other peers: one TCP connection for each pair, frames in both directions.

The peer with the higher number dials, so two peers never have two connections, and a new peer can connect before the
others know its address. Each side first sends a Hello: cluster, identity, number, run. A link carries nothing else
before both Hellos are checked, and it ends when the run of either peer ends:

    an older run than one seen before       refused: frames of a dead process must not arrive after its successor's
    a newer run                             the old link is closed; what was not read from it yet is dropped
    another identity under a known number   refused: an emptied folder does not hold the promises of that peer

The protocols above tolerate loss, so a link never waits: when a peer reads too slowly, frames to it are dropped and
counted, and the cores resend what was not answered. All frames of one turn of the event loop are sent in one write.

A link on which nothing arrives is closed by both ends (`link_pulse`), because a new connection works at once after a
partition and the old one does not. For the same reason the dialling peer does not wait for an attempt that is not
answered: it begins another one beside it every `LINK_DIAL_EVERY_S`. The first that connects is used. Only on this one
it says Hello, so the other peer never sees two links of one run at a time; should it, the newer one replaces the older.

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
from avow.errors import AvowError, FolderUnusable, Malformed, PeerRemoved, UnknownKind, UnknownVersion
from avow.limits import FRAME_SIZE_BYTES_MAX, LINK_BEAT_S, LINK_DIAL_EVERY_S, LINK_SILENT_S, MIB
from avow.server.link_pulse import Due, Pulse, is_acknowledged
from avow.server.settings import address
from avow.wire.frames import Alive, Hello, LinkRefused, decode, decode_hello, encode, route_of
from avow.wire.messages import Message
from avow.wire.record import Buffer
from avow.wire.stream import Decoder
from avow.wire.versions import ALIVE

log: Final = logging.getLogger("avow.links")

UNSENT_SIZE_BYTES_MAX: Final = 64 * MIB  # to one peer; more than the largest frame
HELLO_WAIT_S: Final = 3.0
ALONE_S: Final = 3.0
STOP_WAIT_S: Final = 1.0  # for what is still unsent
_DIAL_AFTER_S: Final = (0.02, 0.05, 0.1, LINK_DIAL_EVERY_S)
_REFUSED_AFTER_S: Final = (*_DIAL_AFTER_S, 0.5, 1.0, 2.0, 5.0)  # after Hellos that were refused, one after the other
_REFUSALS_SAID_MAX: Final = 256  # different ones in the log
_DIALS_AT_ONCE: Final = round(HELLO_WAIT_S / LINK_DIAL_EVERY_S)  # to one peer: each may take as long as a Hello
_HELLO_SIZE_BYTES: Final = sum(map(len, encode(0, Hello(bytes(16), bytes(16), 0, 0))))
_STRANGERS_MAX: Final = 64  # connections that have not said Hello yet; and as many TLS handshakes
_BACKLOG: Final = 100


class Receiver(Protocol):
    """What links need from the peer they belong to."""

    def hello(self) -> Hello: ...

    def greeted(self, hello: Hello) -> int:
        """Checks the other peer's Hello; returns the version of the protocol to use. Raises FolderUnusable when the
        link must not be used."""
        ...

    def received(self, source: int, route: int, message: Message) -> None: ...

    def dismissed(self) -> None:
        """Another peer says that this one was removed from the cluster."""
        ...

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
        self._pulse = Pulse(answered=False)
        self._aborted = False  # by this end
        self._refusing = False  # the other peer's Hello was refused
        self._greeted = False  # this end has said Hello
        self._early: Hello | None = None  # arrived before that: a dialled connection is not used until it is chosen
        self._beats = 0  # since the connection was made
        self._outbox: list[Buffer] = []
        self.peer = self.incarnation = 0
        self.address = ""
        self.dropped = 0
        self.ended_by_other = False  # soon after it was made: this peer is not welcome there
        self.closed = asyncio.Event()

    # ------------------------------------------------------------------ what asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport = cast(asyncio.Transport, transport)  # uvloop's class does not inherit it
        self.address = str(transport.get_extra_info("peername"))
        transport.set_write_buffer_limits(high=UNSENT_SIZE_BYTES_MAX)
        self._links.strangers.add(self)
        if self._dialled:
            return  # it may not be the only attempt
        if len(self._links.strangers) > _STRANGERS_MAX:
            self.close("too many connections without a Hello")
            return
        self.greet()

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._refusing or self._early is not None:
            return memoryview(bytearray(_HELLO_SIZE_BYTES))  # dropped
        room = self._decoder.get_buffer(sizehint)
        return room if self.peer else room[: self._hello_left]

    def buffer_updated(self, count: int) -> None:
        if self._refusing:
            return
        if self._early is not None:
            self.close("it sent more than its Hello before it had one")
            return
        self._hello_left -= count
        self._pulse.heard()
        try:
            for frame in self._decoder.buffer_updated(count):
                if self.peer:
                    try:
                        route, message = decode(frame)
                    except (UnknownKind, UnknownVersion) as error:
                        self._links.skipped(self.peer, route_of(frame), error)
                        continue
                    if isinstance(message, LinkRefused):
                        self._links.refused_by(self, message)
                    elif not isinstance(message, Alive):
                        self._links.receiver.received(self.peer, route, message)
                elif self._greeted:
                    self._introduced(decode_hello(frame))
                else:
                    self._early = decode_hello(frame)
            self._decoder.buffer_updated(0)  # raises now if the bytes after the last whole frame cannot be a frame
        except (AvowError, OSError) as error:  # OSError: the peer registry could not be written
            self.close(str(error))

    def eof_received(self) -> None:
        return None

    def connection_lost(self, error: Exception | None) -> None:
        if self.closed.is_set():  # by `abandon`
            return
        self.ended_by_other = not self._aborted and self._beats * LINK_BEAT_S < LINK_SILENT_S
        self._transport = None
        self._links.lost(self, error)
        self.closed.set()

    # ------------------------------------------------------------------ Hello

    def greet(self) -> None:
        """Say Hello. On a dialled connection the caller decides when, and until then nothing else is sent or read."""
        if self._transport is None or self._transport.is_closing():
            return
        self._transport.writelines(encode(0, self._links.receiver.hello()))
        self._greeted = True
        early, self._early = self._early, None
        if early is not None:
            try:
                self._introduced(early)
            except (AvowError, OSError) as error:
                self.close(str(error))

    def _introduced(self, message: Hello) -> None:
        if self._dialled and message.peer != self._dialled:
            raise FolderUnusable(f"dialled peer {self._dialled}, but peer {message.peer} answered")
        try:
            version = self._links.receiver.greeted(message)
        except (FolderUnusable, PeerRemoved) as error:
            self._refuse(message, error)
            return
        self._pulse = Pulse(answered=version >= ALIVE)
        self.peer, self.incarnation = message.peer, message.incarnation
        self._decoder.length_max = FRAME_SIZE_BYTES_MAX
        self._links.established(self)

    def _refuse(self, hello: Hello, error: FolderUnusable | PeerRemoved) -> None:
        """Say why, if the other end can read it, and close."""
        self._links.say_once(f"the link of peer {hello.peer} is refused: {error}")
        self._dismiss(error, readable=hello.newest >= ALIVE)

    def dismiss(self, error: PeerRemoved) -> None:
        self._dismiss(error, readable=self._pulse.answered)

    def _dismiss(self, error: FolderUnusable | PeerRemoved, *, readable: bool) -> None:
        self._refusing = True  # nothing that arrives is read
        if self._transport is None:
            return
        if readable:
            self.send(encode(0, LinkRefused(isinstance(error, PeerRemoved), str(error))))
            self.flush()
        self._transport.close()

    # ------------------------------------------------------------------ time

    def beat(self) -> None:
        """Called once in every LINK_BEAT_S in which this peer reads."""
        self._beats += 1
        if not self.peer:
            if self._beats * LINK_BEAT_S > HELLO_WAIT_S:
                self.close(f"no Hello within {HELLO_WAIT_S:g} s")
            return
        due = self._pulse.beat()
        if due is Due.CLOSE and not self._is_acknowledged():
            self.close(f"nothing was received for {LINK_SILENT_S:g} s; connecting again")
        elif due is not Due.NOTHING:
            self.send(encode(0, Alive()))
            self.flush()

    def _is_acknowledged(self) -> bool:
        sock = None if self._transport is None else self._transport.get_extra_info("socket")
        return sock is not None and is_acknowledged(sock)

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
        self._pulse.said()

    def finish(self) -> None:
        """Send what is waiting, then close."""
        self.flush()
        if self._transport is not None:
            self._transport.close()

    def close(self, reason: str) -> None:
        if self._transport is not None:
            log.warning("link to peer %s at %s closed: %s", self.peer or "?", self.address, reason)
            self._aborted = True
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
        self._ticker: asyncio.TimerHandle | None = None
        self._said: set[str] = set()
        self._beats_alone = 0
        self._frames = self._refused = self._dropped = self._skipped = 0

    async def listen(self, host: str, port: int) -> tuple[str, int]:
        if self._ticker is None:
            self._beat()
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

    @property
    def _alone(self) -> bool:
        """No peer has been linked for a while. Those with higher numbers do not dial a peer that was removed, so it
        asks them."""
        return self._beats_alone * LINK_BEAT_S > ALONE_S

    def _beat(self) -> None:
        self._beats_alone = 0 if self._by_peer else self._beats_alone + 1
        for link in [*self.strangers, *self._by_peer.values()]:
            link.beat()
        self._ticker = asyncio.get_running_loop().call_later(LINK_BEAT_S, self._beat)

    def dial_all(self) -> None:
        """Keep a link to every peer with a lower number, and find the others if no peer is linked. Call it again when
        the addresses have changed."""
        if self._ticker is None:
            self._beat()
        for peer in self._addresses():
            if peer != self._me and peer not in self._diallers and not self._closing:
                self._diallers[peer] = asyncio.create_task(self._keep(peer), name=f"link to peer {peer}")

    async def _keep(self, peer: int) -> None:
        attempts: list[asyncio.Task[Link]] = []
        tried = refused = 0
        try:
            while peer in (known := self._addresses()):
                if peer > self._me and not self._alone:
                    await asyncio.sleep(LINK_SILENT_S)  # it dials; but not a peer that it knows to be removed
                    continue
                where = self._configured.get(peer, known[peer]) if tried % 2 else known[peer]
                attempts.append(asyncio.create_task(self._dial(peer, where), name=f"dial peer {peer}"))
                pause_s = _DIAL_AFTER_S[min(tried, len(_DIAL_AFTER_S) - 1)]
                tried += 1
                link = await _first(attempts, within_s=pause_s)
                if link is None:
                    await _give_up(attempts, keep=_DIALS_AT_ONCE)
                    continue
                await _give_up(attempts, keep=0)
                if peer > self._me and not self._alone:
                    link.abandon()
                    continue
                link.greet()
                await link.closed.wait()
                tried = 0 if link.peer else tried
                refused = refused + 1 if link.ended_by_other else 0
                pauses_s, times = (_REFUSED_AFTER_S, refused) if refused else (_DIAL_AFTER_S, tried)
                await asyncio.sleep(pauses_s[min(times, len(pauses_s) - 1)])
        finally:
            await _give_up(attempts, keep=0)
        del self._diallers[peer]

    async def _dial(self, peer: int, where: str) -> Link:
        """One attempt. Raises OSError."""
        host, port = address(where, name=f"peer {peer}")
        loop = asyncio.get_running_loop()
        link = Link(self, dialled=peer)
        try:
            await loop.create_connection(lambda: link, host, port, ssl=self._dialling, server_hostname=self._name(host))
        except OSError as error:  # includes ssl.SSLError
            link.abandon()
            log.debug("cannot connect to peer %d at %s: %s", peer, where, error)
            raise
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

    def refused_by(self, link: Link, message: LinkRefused) -> None:
        self.say_once(f"peer {link.peer} refuses the link to this peer: {message.reason}")
        if message.gone:
            self.receiver.dismissed()

    def say_once(self, what: str) -> None:
        """A refused peer dials again and again, and each time for the same reason."""
        if what not in self._said and len(self._said) < _REFUSALS_SAID_MAX:
            self._said.add(what)
            log.error("%s. Said once; it is tried again every few seconds", what)

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

    def dismiss(self, peer: int, error: PeerRemoved) -> None:
        """The peer was removed: tell it, if it can read that, and close the link."""
        link = self._by_peer.get(peer)
        if link is not None:
            link.dismiss(error)

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
        if self._ticker is not None:
            self._ticker.cancel()
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


async def _first(attempts: list[asyncio.Task[Link]], *, within_s: float) -> Link | None:
    """The link of the first attempt that succeeds within this time. Attempts that have ended are taken out."""
    loop = asyncio.get_running_loop()
    until = loop.time() + within_s
    while True:
        if attempts:
            await asyncio.wait(attempts, timeout=max(until - loop.time(), 0), return_when=asyncio.FIRST_COMPLETED)
        else:
            await asyncio.sleep(until - loop.time())
        for attempt in [attempt for attempt in attempts if attempt.done()]:
            attempts.remove(attempt)
            if attempt.exception() is None:
                return attempt.result()
        if loop.time() >= until:
            return None


async def _give_up(attempts: list[asyncio.Task[Link]], *, keep: int) -> None:
    """Cancel all attempts but the last `keep`, and close what one of them connected meanwhile."""
    ended, attempts[:] = attempts[: len(attempts) - keep], attempts[len(attempts) - keep :]
    for attempt in ended:
        attempt.cancel()
    for link in await asyncio.gather(*ended, return_exceptions=True):
        if isinstance(link, Link):
            link.abandon()


async def _closed(links: Sequence[Link]) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(STOP_WAIT_S):
            await asyncio.gather(*(link.closed.wait() for link in links))

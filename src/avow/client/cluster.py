"""The peers that a client knows, and calls that are retried at one peer after another.

A client is given a few addresses and learns the others from any peer (`GET /v1/peers`); it asks again after a failure,
at most once a second. Given addresses are kept even if the cluster does not list them: behind port forwarding they may
be the only ones that work.

`call` is for everything except the hot path of writes: it tries one peer after another until its timeout. It may repeat
every call of the API, since each one is idempotent or carries a write id. A read has no effect, so its outcome is never
unknown: if no peer answers, it raises Offline.
"""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakSet

import msgspec
from msgspec import Struct

from avow.client.outcomes import final, reader_of, unreachable
from avow.client.peer_connection import JSON, PeerConnection, parse_address
from avow.client.routing import Backoff, Step, choose, hint_of, step_after
from avow.errors import AvowError, InvalidRequest, PeerRemoved, UnknownQueue
from avow.wire.http import Address, Answer, Lost

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from avow.channel.endpoint import Channel
    from avow.channel.transports.socket import Socket
    from avow.wire.record import Buffer

ATTEMPT_S: Final = 5.0
_REFRESH_S: Final = 1.0
_SWEEP_S: Final = 0.05
_CLOSE_TURNS: Final = 100
_READS: Final = frozenset({b"GET"})


class PeerInfo(Struct, frozen=True):
    """A peer as the cluster lists it. `state` is joining, ready, leaving or gone."""

    number: int
    identity: str = ""
    link: str = ""
    api: str = ""
    state: str = ""
    voter: bool = False
    connected: bool = False


class _Peers(Struct, frozen=True):
    peers: tuple[PeerInfo, ...] = ()


_read_peers: Final = reader_of(_Peers)


class Cluster:
    """Owns the connections to the peers. All methods are called on the event loop it was opened on."""

    def __init__(
        self, addresses: Sequence[Address], *, token: str | None, tls: ssl.SSLContext | None, timeout_s: float
    ) -> None:
        if not addresses:
            raise InvalidRequest("no address was given; nothing was opened. Pass the address of at least one peer")
        self.timeout_s = timeout_s
        self.now = asyncio.get_running_loop().time  # the one clock of a client
        self.random = random.Random()
        self._token, self._tls = token, tls
        self.peers: list[PeerConnection] = []
        self.channels: WeakSet[Channel] = WeakSet()
        self.sockets: set[Socket] = set()  # of channels
        for address in addresses:
            self._peer_at(address)
        self._refreshed_at = 0.0
        self._refreshing: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._sweeper: asyncio.TimerHandle | None = None
        self._watched: dict[Callable[[float], bool], None] = {}
        self.closed = False

    def _peer_at(self, address: Address) -> PeerConnection:
        for peer in self.peers:
            if peer.address.url == address.url:
                return peer
        peer = PeerConnection(address, token=self._token, tls=self._tls)
        self.peers.append(peer)
        return peer

    # ----------------------------------------------------------------- knowledge

    def choose(self, *, preferred: int = 0, after: PeerConnection | None = None) -> PeerConnection:
        return choose(self.peers, preferred=preferred, after=after, now=self.now())

    def by_number(self, number: int) -> PeerConnection | None:
        return next((peer for peer in self.peers if peer.number == number and number), None)

    def at(self, url: str) -> PeerConnection | None:
        """The connection for an address that a peer named; None if the address is invalid."""
        try:
            return self._peer_at(parse_address(url))
        except InvalidRequest:
            return None

    async def learn(self) -> tuple[PeerInfo, ...]:
        """Fetch the list of peers from any peer. Raises Offline if none answers in time."""
        answer = await self.call(b"GET", b"/v1/peers")
        infos = _read_peers(answer.body).peers
        self.absorb(infos)
        return infos

    def absorb(self, infos: Sequence[PeerInfo]) -> None:
        self._refreshed_at = self.now()
        for info in infos:
            peer = self.at(info.api) if info.api else None
            for other in self.peers:  # a peer that moved: its old address no longer belongs to it
                if other.number == info.number and other is not peer and peer is not None:
                    other.number = 0
            if peer is not None:
                peer.number, peer.gone = info.number, info.state == "gone"

    def refresh_soon(self) -> None:
        """Refresh the list of peers in the background after a failure, at most once a second."""
        if self.closed or self._refreshing is not None or self.now() - self._refreshed_at < _REFRESH_S:
            return
        self._refreshed_at = self.now()
        self._refreshing = self.spawn(self._refresh())

    async def _refresh(self) -> None:
        try:
            await self.learn()
        except AvowError:
            return  # no peer answers: keep the known peers; the next failure triggers another refresh
        finally:
            self._refreshing = None

    # --------------------------------------------------------------------- calls

    async def call(
        self,
        method: bytes,
        target: bytes,
        *,
        headers: bytes = b"",
        body: Buffer = b"",
        preferred: int = 0,
        wait_s: float = 0.0,
        timeout_s: float | None = None,
        write_id: bytes = b"",
    ) -> Answer:
        """The first success. Raises the last peer's error, or Unknown if an attempt may have happened.

        `wait_s` is how long the peer may intentionally delay its answer (a long poll).
        """
        self.require_open()
        deadline = self.now() + (self.timeout_s if timeout_s is None else timeout_s) + wait_s
        backoff, peer, maybe, said_unknown = Backoff(self.random), None, False, 0
        error: AvowError | None = None
        while (left_s := deadline - self.now()) > 0:
            peer = self.choose(preferred=preferred, after=peer)
            limit_s = min(left_s, ATTEMPT_S + wait_s)
            answer = await peer.call(method, target, headers=headers, body=body, timeout_s=limit_s)
            self.note(peer, answer)
            step, error = step_after(answer)
            if step is Step.DONE or error is None:
                assert isinstance(answer, Answer)
                return answer
            maybe = maybe or (step is Step.UNCERTAIN and method not in _READS)
            said_unknown += isinstance(error, UnknownQueue)
            if step is Step.REFUSED or said_unknown >= len(self.peers):
                break
            self.require_open()
            preferred = self.follow_hint(error)
            await asyncio.sleep(min(backoff.next_s(named=preferred > 0), max(deadline - self.now(), 0)))
        if error is None or (method in _READS and not error.definite):
            error = unreachable(", ".join(peer.address.url for peer in self.peers), str(error or "the timeout was 0"))
        raise final(error, maybe=maybe, write_id=write_id)

    def note(self, peer: PeerConnection, answer: Answer | Lost) -> None:
        if isinstance(answer, Answer):
            peer.answered(answer.status)
            if peer.gone:
                self.refresh_soon()
            return
        if answer.sent:
            peer.failed()
        self.refresh_soon()

    def follow_hint(self, error: AvowError | None) -> int:
        """The number of the peer that an error names as the one to ask, if there is a connection for it; else 0. A peer
        that was removed names all others."""
        if isinstance(error, PeerRemoved):
            for url in error.peers:
                self.at(url)
            return 0
        number, api = hint_of(error)
        peer = self.by_number(number) or (self.at(api) if api else None)
        if peer is None:
            return 0
        peer.number = number
        return number

    async def send_json(self, method: bytes, target: bytes, value: object) -> Answer:
        return await self.call(method, target, headers=JSON, body=msgspec.json.encode(value))

    # ------------------------------------------------------------ tasks and time

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start a task that this client owns: it is cancelled when the client is closed."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def watch(self, sweep: Callable[[float], bool]) -> None:
        """Call `sweep(now)` about every 50 ms until it returns False: one timer for all of a client."""
        self._watched[sweep] = None
        if self._sweeper is None and not self.closed:
            self._sweeper = asyncio.get_running_loop().call_later(_SWEEP_S, self._sweep)

    def _sweep(self) -> None:
        now = self.now()
        self._sweeper = None
        for sweep in tuple(self._watched):
            if not sweep(now):
                self._watched.pop(sweep, None)
        if self._watched and self._sweeper is None and not self.closed:  # a sweep may have asked to be watched again
            self._sweeper = asyncio.get_running_loop().call_later(_SWEEP_S, self._sweep)

    def require_open(self) -> None:
        if self.closed:
            raise InvalidRequest("this client is closed; nothing was sent. Open a new client")

    async def close(self) -> None:
        self.closed = True
        if self._sweeper is not None:
            self._sweeper.cancel()
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for peer in self.peers:
            await peer.close()
        await self._close_channels()

    async def _close_channels(self) -> None:
        for channel in tuple(self.channels):
            channel.abort("the client was closed")
        await asyncio.sleep(0)  # each sends its End at the end of the turn
        for socket in tuple(self.sockets):
            socket.abort()
        for _ in range(_CLOSE_TURNS):
            if not self.sockets:
                return
            await asyncio.sleep(0)

    def statistics(self) -> dict[str, object]:
        return {
            "links": [peer.statistics() for peer in self.peers],
            "tasks": len(self._tasks),
            "sockets": len(self.sockets),
        }

"""The peers a client knows, and calls that reach whichever of them answers.

A client is given a few addresses and learns the rest from any peer that answers (`GET /v1/peers`); it asks again when
something failed, at most once a second. Addresses it was given are kept even if the cluster does not list them: behind
a port forwarding they may be the only ones that work.

`call` is for everything but the hot path of writes: it tries one peer after another until its time is over. What it may
repeat is every call of the API, since each one is idempotent or carries a write id. A call that reads has no effect, so
it is never "unknown": when nobody answered, that is Offline.
"""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import Sequence
from time import monotonic
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakSet

import msgspec
from msgspec import Struct

from avow.client.http import Answer, Lost
from avow.client.links import JSON, Address, Link, parse_address
from avow.client.outcomes import final, reader_of, unreachable
from avow.client.routing import Backoff, Step, choose, hint_of, step_after
from avow.errors import AvowError, InvalidRequest, UnknownQueue

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from avow.channel.endpoint import Channel
    from avow.channel.sockets import Socket
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
    """Owns the links. All methods are called on the event loop it was opened on."""

    def __init__(
        self, addresses: Sequence[Address], *, token: str | None, tls: ssl.SSLContext | None, timeout_s: float
    ) -> None:
        if not addresses:
            raise InvalidRequest("a client needs the address of at least one peer; nothing was opened")
        self.timeout_s = timeout_s
        self.random = random.Random()
        self._token, self._tls = token, tls
        self.links: list[Link] = []
        self.channels: WeakSet[Channel] = WeakSet()
        self.sockets: set[Socket] = set()  # of channels
        for address in addresses:
            self._link_to(address)
        self._refreshed_at = 0.0
        self._refreshing: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._sweeper: asyncio.TimerHandle | None = None
        self._watched: dict[Callable[[float], bool], None] = {}
        self.closed = False

    def _link_to(self, address: Address) -> Link:
        for link in self.links:
            if link.address.url == address.url:
                return link
        link = Link(address, token=self._token, tls=self._tls)
        self.links.append(link)
        return link

    # ----------------------------------------------------------------- knowledge

    def choose(self, *, preferred: int = 0, after: Link | None = None) -> Link:
        return choose(self.links, preferred=preferred, after=after, now=monotonic())

    def by_number(self, number: int) -> Link | None:
        return next((link for link in self.links if link.number == number and number), None)

    def at(self, url: str) -> Link | None:
        """The link to an address a peer named. One it cannot parse is as good as none."""
        try:
            return self._link_to(parse_address(url))
        except InvalidRequest:
            return None

    async def learn(self) -> tuple[PeerInfo, ...]:
        """Ask any peer for all of them. Raises when nobody answers in time."""
        answer = await self.call(b"GET", b"/v1/peers")
        peers = _read_peers(answer.body).peers
        self.absorb(peers)
        return peers

    def absorb(self, peers: Sequence[PeerInfo]) -> None:
        self._refreshed_at = monotonic()
        for peer in peers:
            link = self.at(peer.api) if peer.api else None
            for other in self.links:  # a peer that moved: its old address no longer stands for it
                if other.number == peer.number and other is not link and link is not None:
                    other.number = 0
            if link is not None:
                link.number, link.gone = peer.number, peer.state == "gone"

    def refresh_soon(self) -> None:
        """Something failed: the list of peers may be out of date. Never waits, at most once a second."""
        if self.closed or self._refreshing is not None or monotonic() - self._refreshed_at < _REFRESH_S:
            return
        self._refreshed_at = monotonic()
        self._refreshing = self.spawn(self._refresh())

    async def _refresh(self) -> None:
        try:
            await self.learn()
        except AvowError:
            return  # nobody answers: what is known stays, and the next failure asks again
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
        """The first answer that settles it. Raises what the last peer said, or Unknown if an attempt may have happened.

        `wait_s` is how long the peer itself may take on purpose (a long poll).
        """
        self.require_open()
        deadline = monotonic() + (self.timeout_s if timeout_s is None else timeout_s) + wait_s
        backoff, link, maybe, said_unknown = Backoff(self.random), None, False, 0
        error: AvowError | None = None
        while (left_s := deadline - monotonic()) > 0:
            link = self.choose(preferred=preferred, after=link)
            limit_s = min(left_s, ATTEMPT_S + wait_s)
            answer = await link.call(method, target, headers=headers, body=body, timeout_s=limit_s)
            self.note(link, answer)
            step, error = step_after(answer)
            if step is Step.DONE or error is None:
                assert isinstance(answer, Answer)
                return answer
            maybe = maybe or (step is Step.UNCERTAIN and method not in _READS)
            said_unknown += isinstance(error, UnknownQueue)
            if step is Step.REFUSED or said_unknown >= len(self.links):
                break
            self.require_open()
            preferred = self.follow_hint(error)
            await asyncio.sleep(min(backoff.next_s(named=preferred > 0), max(deadline - monotonic(), 0)))
        if error is None or (method in _READS and not error.definite):
            error = unreachable(", ".join(link.address.url for link in self.links), str(error or "no time was left"))
        raise final(error, maybe=maybe, write_id=write_id)

    def note(self, link: Link, answer: Answer | Lost) -> None:
        if isinstance(answer, Answer):
            link.answered()
            return
        if answer.sent:
            link.failed()
        self.refresh_soon()

    def follow_hint(self, error: AvowError | None) -> int:
        """The number of the peer that an error names as the one to ask, with a link to it; 0 if it names none."""
        number, api = hint_of(error)
        link = self.by_number(number) or (self.at(api) if api else None)
        if link is None:
            return 0
        link.number = number
        return number

    async def send_json(self, method: bytes, target: bytes, value: object) -> Answer:
        return await self.call(method, target, headers=JSON, body=msgspec.json.encode(value))

    # ------------------------------------------------------------ tasks and time

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """A task this client owns: it is ended when the client is closed."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def watch(self, sweep: Callable[[float], bool]) -> None:
        """Call `sweep(now)` about every 50 ms until it answers False: one timer for all deadlines of a client."""
        self._watched[sweep] = None
        if self._sweeper is None and not self.closed:
            self._sweeper = asyncio.get_running_loop().call_later(_SWEEP_S, self._sweep)

    def _sweep(self) -> None:
        now = monotonic()
        self._sweeper = None
        for link in self.links:
            link.check_silence(now)
        for sweep in tuple(self._watched):
            if not sweep(now):
                self._watched.pop(sweep, None)
        if self._watched and not self.closed:
            self._sweeper = asyncio.get_running_loop().call_later(_SWEEP_S, self._sweep)

    def require_open(self) -> None:
        if self.closed:
            raise InvalidRequest("this client is closed; nothing was sent. Connect again")

    async def close(self) -> None:
        self.closed = True
        if self._sweeper is not None:
            self._sweeper.cancel()
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for link in self.links:
            await link.close()
        await self._close_channels()

    async def _close_channels(self) -> None:
        for channel in tuple(self.channels):
            channel.abort("the client was closed")
        await asyncio.sleep(0)  # each says so at the end of a turn
        for socket in tuple(self.sockets):
            socket.abort()
        for _ in range(_CLOSE_TURNS):
            if not self.sockets:
                return
            await asyncio.sleep(0)

    def statistics(self) -> dict[str, object]:
        return {
            "links": [link.statistics() for link in self.links],
            "tasks": len(self._tasks),
            "sockets": len(self.sockets),
        }

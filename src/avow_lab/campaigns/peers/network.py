"""Proxies between the peers: every link passes through one, which can cut, hold or slow it.

A peer advertises the address of its proxy instead of its own. The proxy reads the number of the dialling peer from the
link's first frame, a Hello, so one proxy for each peer can treat every ordered pair of peers differently:

    hold    bytes from a to b wait in the proxy, in order, and arrive after the heal: a partition as TCP sees it
    cut     the same, and existing links are closed: a partition that was detected
    slow    bytes from a to b arrive that much later

When too much is held, the proxy stops reading from the sender, as a full pipe does. Bytes are never dropped, changed or
reordered within a link, just as with TCP.

The API of each founder has a proxy as well, and founders advertise it. To the faults, clients are peer 0. So a campaign
can hold a peer's answers, close its clients' connections, or delay what they send, around the stop of that peer.

The proxies run in a thread with an event loop of its own, so that a busy campaign does not delay heartbeats.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias, TypeVar

from avow.errors import Malformed
from avow.limits import MIB
from avow.testing.cluster import LocalCluster
from avow.wire.frames import decode_hello
from avow.wire.stream import Decoder

HELD_SIZE_BYTES_MAX: Final = 4 * MIB
_CONNECT_S: Final = 3.0

CLIENTS: Final = 0  # as one end of a pair

Pair: TypeAlias = tuple[int, int]  # from, to
T = TypeVar("T")


class Network(Protocol):
    """The network between the peers of a campaign. `note`: a fault that it does not support. `clients`: whether faults
    apply to clients, too."""

    kind: str
    note: str
    slows: bool
    clients: bool

    def client_url(self, url: str) -> str:
        """Where clients find the API that listens here."""

    def cluster(self, peers: int) -> LocalCluster: ...

    def add(self, cluster: LocalCluster, folder: Path) -> int: ...

    def hold(self, pairs: Iterable[Pair], *, cut: bool) -> str: ...

    def lose(self, pairs: Iterable[Pair], percent: int) -> str: ...

    def slow(self, pairs: Iterable[Pair], delay_s: float) -> None: ...

    def heal(self) -> None: ...

    def close(self) -> None: ...


class LinkFaults:
    """The faults of links, by ordered pair of peers. Any thread may change them; the proxies' thread reads them."""

    def __init__(self) -> None:
        self.held: frozenset[Pair] = frozenset()
        self.delays_s: dict[Pair, float] = {}

    def delay_s(self, pair: Pair) -> float:
        return self.delays_s.get(pair, 0.0)


class Pipe(asyncio.Protocol):
    """One end of a link: bytes that arrive here leave at the `other` end."""

    def __init__(self, proxy: Proxy) -> None:
        self.proxy = proxy
        self.other: Pipe | None = None
        self.transport: asyncio.Transport | None = None
        self.pair: Pair = (0, 0)
        self._waiting: deque[tuple[float, bytes]] = deque()  # when it may be sent, in order
        self._waiting_bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        self._stopped = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.proxy.pipes.add(self)

    def data_received(self, data: bytes) -> None:
        loop = asyncio.get_running_loop()
        self._waiting.append((loop.time() + self.proxy.faults.delay_s(self.pair), data))
        self._waiting_bytes += len(data)
        self.forward()

    def forward(self) -> None:
        """Send what is due; set a timer for the next."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        loop = asyncio.get_running_loop()
        while self._waiting and self.other is not None and self.pair not in self.proxy.faults.held:
            due, data = self._waiting[0]
            if due > loop.time():
                self._timer = loop.call_at(due, self.forward)
                break
            self._waiting.popleft()
            self._waiting_bytes -= len(data)
            if self.other.transport is not None:
                self.other.transport.write(data)
        self._regulate(stop=self._waiting_bytes > HELD_SIZE_BYTES_MAX)

    def _regulate(self, *, stop: bool) -> None:
        if self.transport is None or stop == self._stopped or self.transport.is_closing():
            return
        self._stopped = stop
        if stop:
            self.transport.pause_reading()
        else:
            self.transport.resume_reading()

    def connection_lost(self, _error: Exception | None) -> None:
        self.transport = None
        self.proxy.pipes.discard(self)
        if self.other is not None and self.other.transport is not None:
            self.other.transport.close()

    def close(self) -> None:
        if self.transport is not None:
            self.transport.abort()


class Dialled(Pipe):
    """The end that a peer dialled. Its number is known when its Hello is complete."""

    def __init__(self, proxy: Proxy) -> None:
        super().__init__(proxy)
        self._decoder = Decoder()
        self._greeted = False
        self._connecting: asyncio.Task[None] | None = None

    def data_received(self, data: bytes) -> None:
        if not self._greeted:
            try:
                self._read_hello(data)
            except Malformed:
                self.close()
                return
        super().data_received(data)

    def _read_hello(self, data: bytes) -> None:
        for frame in self._decoder.receive(data)[:1]:
            self.identify(decode_hello(frame).peer)

    def identify(self, peer: int) -> None:
        self._greeted = True
        self.pair = (peer, self.proxy.peer)
        self._connecting = asyncio.get_running_loop().create_task(self._connect())

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(_CONNECT_S):
                _, other = await loop.create_connection(lambda: Pipe(self.proxy), *self.proxy.target)
        except (OSError, TimeoutError):
            self.close()
            return
        other.pair = (self.pair[1], self.pair[0])
        other.other = self
        if self.transport is None:
            other.close()
            return
        self.other = other
        other.forward()
        self.forward()


class ClientConnection(Dialled):
    """A client's connection: it sends no Hello."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.identify(CLIENTS)


class Proxy:
    """Listens for links to one peer, whose number is `peer`."""

    def __init__(self, faults: LinkFaults, *, peer: int, target: tuple[str, int]) -> None:
        self.faults, self.peer, self.target = faults, peer, target
        self.pipes: set[Pipe] = set()
        self.server: asyncio.Server | None = None

    async def listen(self, host: str, port: int) -> None:
        self.server = await asyncio.get_running_loop().create_server(self._dialled, host, port)

    def _dialled(self) -> Dialled:
        return Dialled(self)

    async def close(self) -> None:
        if self.server is not None:
            self.server.close()
        for pipe in list(self.pipes):
            pipe.close()


class ApiProxy(Proxy):
    """For the API of a peer that is reached at our host."""

    def _dialled(self) -> Dialled:
        return ClientConnection(self)


class ProxyNetwork:
    """A `Network` of proxies. Every method may be called from any thread."""

    kind = "proxy"
    note = ""
    slows = True
    clients = True

    def __init__(self, folder: Path | None = None, *, host: str = "127.0.0.2") -> None:
        self._folder, self.host = folder, host
        self.faults = LinkFaults()
        self._proxies: list[Proxy] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="avow-proxies", daemon=True)
        self._thread.start()

    def cluster(self, peers: int) -> LocalCluster:
        """Founders that know the proxies' addresses instead of each other's and their own."""
        cluster = LocalCluster(peers, folder=self._folder, settings={"advertise": self.host})
        for number in cluster.founders:
            self.proxy_link(cluster.link(number), peer=number)
            self.proxy_api(cluster.api(number), peer=number)
            cluster.link_addresses[number] = self.address(cluster.link(number))
        return cluster

    def add(self, cluster: LocalCluster, folder: Path) -> int:
        """A joining peer advertises our host."""
        number = cluster.add(folder=folder, ready=False)
        self.proxy_link(cluster.link(number), peer=number)
        self.proxy_api(cluster.api(number), peer=number)
        return number

    def proxy_link(self, link: str, *, peer: int) -> Proxy:
        """Listen on our host, at the port of this link address."""
        host, _, port = link.rpartition(":")
        return self._open(Proxy(self.faults, peer=peer, target=(host, int(port))))

    def proxy_api(self, url: str, *, peer: int) -> Proxy:
        """The same for an API address."""
        host, _, port = url.rpartition("/")[2].rpartition(":")
        return self._open(ApiProxy(self.faults, peer=peer, target=(host, int(port))))

    def client_url(self, url: str) -> str:
        return f"http://{self.address(url)}"

    def _open(self, proxy: Proxy) -> Proxy:
        self._run(proxy.listen(self.host, proxy.target[1]))
        self._proxies.append(proxy)
        return proxy

    def address(self, link: str) -> str:
        return f"{self.host}:{link.rpartition(':')[2]}"

    def hold(self, pairs: Iterable[Pair], *, cut: bool) -> str:
        """Returns a description of the fault."""
        self.faults.held = self.faults.held | frozenset(pairs)
        if not cut:
            return "bytes held"
        self._on_pipes(lambda pipe: pipe.close() if self._is_held(pipe) else None)
        return "links closed"

    def lose(self, pairs: Iterable[Pair], percent: int) -> str:
        """A proxy has bytes and no packets: it holds them, whatever the share is."""
        del percent
        return self.hold(pairs, cut=False)

    def slow(self, pairs: Iterable[Pair], delay_s: float) -> None:
        self.faults.delays_s = {**self.faults.delays_s, **dict.fromkeys(pairs, delay_s)}

    def heal(self) -> None:
        self.faults.held, self.faults.delays_s = frozenset(), {}
        self._on_pipes(Pipe.forward)

    def close(self) -> None:
        for proxy in self._proxies:
            self._run(proxy.close())
        self._run(asyncio.sleep(0))  # aborted transports call connection_lost in the next turn
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=5)
        self._loop.close()

    def _is_held(self, pipe: Pipe) -> bool:
        return pipe.pair in self.faults.held or (pipe.pair[1], pipe.pair[0]) in self.faults.held

    def _on_pipes(self, act: Callable[[Pipe], None]) -> None:
        async def visit() -> None:
            for proxy in self._proxies:
                for pipe in list(proxy.pipes):
                    act(pipe)

        self._run(visit())

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(timeout=10)

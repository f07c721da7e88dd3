"""The store in the cluster itself as a place for pledges: peers in this process, with real files and links.

    lane:FOLDER?peers=1        what `Place.open` gives is the store of the one peer
    lane:FOLDER?peers=3        each `open` stands for the next peer. What needs a pledge's claim is asked where its lane
                               is coordinated, as the coordinator there would ask it; the rest at its own peer

Peers live as long as a store on them is open, in the loop of the test; a place that is opened again finds their files.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from tests.contract.pledges.pledge_places import Kind, Place
from tests.services import Server

from avow.limits import MIB
from avow.pledge.record import NEVER_MS, Pledge, Progress
from avow.pledge.store import Filter, Page, PledgeStore, Topic
from avow.pledge.stores.lane.operations import run_of
from avow.pledge.stores.lane.store import QUEUE, LaneStore
from avow.server.links import Links
from avow.server.process import Peer
from avow.server.serve import claim_folder
from avow.server.settings import Settings
from avow.storage.file_store import FileStore
from avow.storage.store import Sizes
from avow.testing.cluster_ports import Ports

_PORTS = Ports()  # held to the end of the process: a place is opened again on its ports
SIZES = Sizes(wal_segment_bytes=16 * MIB)  # many peers are made here, and a log is filled with zeros at once


class LanePeers:
    """Peers 1 to `count` of one cluster, each with a store of pledges."""

    def __init__(self, folder: Path, count: int) -> None:
        self._folder, self._count = folder, count
        self._users = 0
        self._starting = asyncio.Lock()
        self._peers: list[Peer] = []
        self.stores: list[LaneStore] = []

    async def enter(self) -> None:
        async with self._starting:
            self._users += 1
            if self._users == 1:
                await self._start()

    async def leave(self) -> None:
        async with self._starting:
            self._users -= 1
            if self._users == 0:
                await asyncio.gather(*[store.close() for store in self.stores])
                for peer in self._peers:
                    await peer.stop()
                self._peers, self.stores = [], []

    async def _start(self) -> None:
        founders = self._founders()
        for number in range(1, self._count + 1):
            self._peers.append(await _peer(self._folder / str(number), number, founders))
        for peer in self._peers:
            await _until(lambda peer=peer: peer.node.metadata.core.live_coordinator(peer.now()))  # type: ignore[misc]
        runs = [run_of(peer=peer.number, incarnation=peer.node.incarnation) for peer in self._peers]
        self.stores = [
            LaneStore(peer, run=run, is_gone=lambda _: False) for peer, run in zip(self._peers, runs, strict=True)
        ]
        await asyncio.gather(*[store.start() for store in self.stores])
        await _until(lambda: all(map(self._coordinated, self._peers)))

    def _founders(self) -> dict[int, str]:
        """Kept from one start to the next: the peers know each other by them."""
        known = self._folder / "founders"
        if not known.exists():
            self._folder.mkdir(parents=True, exist_ok=True)
            ports = [_PORTS.take() for _ in range(self._count)]
            known.write_text(" ".join(map(str, ports)))
        return {n: f"127.0.0.1:{port}" for n, port in enumerate(known.read_text().split(), 1)}

    def _coordinated(self, peer: Peer) -> bool:
        """By peers whose tables are read already."""
        queue = peer.node.metadata.state.catalog.by_name[QUEUE]
        numbers = range(queue.first_lane, queue.first_lane + queue.lanes)
        known = all(peer.node.lanes[number].core.live_coordinator(peer.now()) for number in numbers)
        return known and sum(store.statistics()["lanes_coordinated"] for store in self.stores) == queue.lanes

    def coordinating(self, gid: str) -> LaneStore:
        return next((store for store in self.stores if store._replica(gid).coordinates()), self.stores[0])


async def _peer(folder: Path, number: int, founders: dict[int, str]) -> Peer:
    listed = ",".join(f"{n}={address}" for n, address in founders.items())
    settings = Settings(data=str(folder), peer_listen=founders[number], number=number, founders=listed)
    cluster, identity, opened, registry = await asyncio.to_thread(claim_folder, settings)
    store = FileStore(opened.files, sizes=SIZES, call_soon=asyncio.get_running_loop().call_soon_threadsafe)
    image = await asyncio.to_thread(store.load)
    peer = Peer(
        settings=settings,
        cluster=cluster,
        identity=identity,
        folder=opened,
        store=store,
        image=image,
        registry=registry,
    )
    links = Links(peer, me=peer.number, addresses=peer.addresses, accepting=None, dialling=None)
    await peer.start(links)
    host, _, port = founders[number].rpartition(":")
    await links.listen(host, int(port))
    peer.introduce(link=founders[number], api="")
    return peer


class AnyPeersStore:
    """A store on one of the peers: see the head of this module."""

    def __init__(self, peers: LanePeers, number: int) -> None:
        self._peers, self._number = peers, number
        self._open = False

    @property
    def _own(self) -> LaneStore:
        stores = self._peers.stores
        return stores[self._number % len(stores)]

    async def start(self) -> None:
        await self._peers.enter()
        self._open = True

    async def close(self) -> None:
        if self._open:
            self._open = False
            await self._peers.leave()

    async def insert(self, pledge: Pledge) -> Pledge | None:
        known = await self._own.insert(pledge)
        return None if known is None else await self.load(pledge.gid)

    async def load(self, gid: str) -> Pledge | None:
        return await self._peers.coordinating(gid).load(gid)

    async def swap(self, before: Pledge, progress: Progress, *, release: bool = False) -> Pledge | None:
        store = self._peers.coordinating(before.gid) if before.fence else self._own
        return await store.swap(before, progress, release=release)

    async def claim(self, *, owner: str, now_ms: int, lease_ms: int, limit: int) -> list[Pledge]:
        claimed: list[Pledge] = []
        while len(claimed) < limit:
            due = [(await store.next_due_ms(), number) for number, store in enumerate(self._peers.stores)]
            store = self._peers.stores[min(due)[1]]
            found = await store.claim(owner=owner, now_ms=now_ms, lease_ms=lease_ms, limit=1)
            if not found:
                break
            claimed += found
        return claimed

    async def claim_one(self, gid: str, *, owner: str, now_ms: int, lease_ms: int) -> Pledge | None:
        store = self._peers.coordinating(gid)
        return await store.claim_one(gid, owner=owner, now_ms=now_ms, lease_ms=lease_ms)

    async def next_due_ms(self) -> int:
        return min([await store.next_due_ms() for store in self._peers.stores], default=NEVER_MS)

    async def find(self, wanted: Filter, *, position: str = "", limit: int = 100) -> Page:
        return await self._own.find(wanted, position=position, limit=limit)

    async def forget(self, *, finished_before_ms: int, limit: int) -> int:
        forgotten = 0
        for store in self._peers.stores:
            forgotten += await store.forget(finished_before_ms=finished_before_ms, limit=limit - forgotten)
        return forgotten

    async def load_topic(self, name: str) -> Topic | None:
        return await self._own.load_topic(name)

    async def swap_topic(
        self, before: Topic | None, subscribers: Sequence[tuple[str, str]], *, name: str, now_ms: int
    ) -> bool:
        return await self._own.swap_topic(before, subscribers, name=name, now_ms=now_ms)

    async def list_topics(self, *, position: str = "", limit: int = 100) -> tuple[list[Topic], str]:
        return await self._own.list_topics(position=position, limit=limit)

    def statistics(self) -> dict[str, int]:
        return self._own.statistics()


class LanePlace(Place):
    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.loses_claims = not url.endswith("peers=1")
        self._peers: LanePeers | None = None
        self._numbers = itertools.count()

    def open(self) -> PledgeStore:
        """Called in the test's loop."""
        if self._peers is None:
            parts = urlsplit(self.url)
            self._peers = LanePeers(Path(parts.path), int(parts.query.partition("=")[2]))
        return AnyPeersStore(self._peers, next(self._numbers))


@contextlib.contextmanager
def _one_peer(server: Server | None, folder: Path) -> Iterator[Place]:
    yield LanePlace(f"lane:{folder}?peers=1")


@contextlib.contextmanager
def _three_peers(server: Server | None, folder: Path) -> Iterator[Place]:
    yield LanePlace(f"lane:{folder}?peers=3")


LANE_PLACES = {"lane": Kind(_one_peer), "lane of three peers": Kind(_three_peers)}


async def _until(true: Callable[[], object], *, timeout_s: float = 60.0) -> None:
    for _ in range(int(timeout_s / 0.01)):
        if true():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it did not come true in time")

"""A running peer: feeds the node, performs what it drains, keeps the time. No decision is made here.

    socket, disk, clock ──► node input ──► wake() ──► once per turn of the loop: drain, write, send, answer

Everything that happened in one turn of the event loop is drained together: one write to storage, one write to each
link, one write to each client. Storage syncs in its own thread and calls back on the loop.

Effects are performed in the order they were drained. When the disk has no room for them they wait, with everything that
was drained after them, and are tried again at each tick; meanwhile nothing that depends on them leaves this peer.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final
from uuid import UUID

from avow.errors import DiskFull, FolderUnusable
from avow.peer.answers import Answer, Stored
from avow.peer.book import Book, Known
from avow.peer.links import Links
from avow.peer.node import Node
from avow.peer.parts import NodeEffects
from avow.peer.settings import Settings
from avow.replication.effects import SaveRun
from avow.replication.tuning import Tuning
from avow.storage.filestore import FileStore
from avow.storage.folder import Folder
from avow.storage.store import StoreImage, Synced
from avow.wire.frames import PROTOCOL_VERSION, Hello
from avow.wire.messages import Message

log = logging.getLogger("avow.peer")

TICK_S: Final = 0.02
_EXIT_STATUS: Final = 70  # EX_SOFTWARE of sysexits.h


def _supervised(work: Callable[..., None], *arguments: Any) -> None:
    """After an error here nobody knows what of it was done, so the process must not go on; a new one reads the disk."""
    try:
        work(*arguments)
    except Exception as error:
        log.critical("this peer ends because it can no longer tell what it has done", exc_info=error)
        logging.shutdown()
        os._exit(_EXIT_STATUS)


class Peer:
    """Made with its folder locked and its store loaded; `start` brings it to life on the running loop."""

    def __init__(
        self,
        *,
        settings: Settings,
        cluster: UUID,
        identity: UUID,
        folder: Folder,
        store: FileStore,
        image: StoreImage,
        book: Book,
        tuning: Tuning | None = None,
    ) -> None:
        self.settings, self.cluster, self.identity = settings, cluster, identity
        self.number = book.number
        self._folder, self.store, self._image, self.book = folder, store, image, book
        self._tuning = tuning or Tuning()
        self._callbacks: dict[int, Callable[[Answer], None]] = {}
        self._request = 0
        self._scheduled = self._dialled = False
        self._undone: deque[NodeEffects] = deque()  # drained, and not yet synced; in that order
        self._unwritten: deque[NodeEffects] = deque()  # those of them that the disk had no room for
        self._ticker: asyncio.TimerHandle | None = None
        self.failed: asyncio.Future[str] | None = None  # resolved with a reason when this peer must end
        self.on_turn: Callable[[], None] | None = None  # called when what a turn of the loop led to is on its way
        self.links: Links | None = None
        self.runs: dict[int, int] = {}  # of other peers: the incarnation that last greeted
        self.node: Node

    # ------------------------------------------------------------------ life

    async def start(self, links: Links) -> None:
        """The number of this run is durable before anything else happens."""
        self._loop = asyncio.get_running_loop()
        self.failed = self._loop.create_future()
        run = self._image.incarnation + 1
        synced = self._loop.create_future()
        self.store.write([SaveRun(run)], synced.set_result)
        await synced
        self.node = Node(
            me=self.number,
            incarnation=run,
            image=self._image,
            founders=self.book.founders,
            disk=self.store,
            rng=random.random,
            tuning=self._tuning,
            now=self.now(),
        )
        self._image = StoreImage(0, {}, [])
        self.links = links
        self._learn_peers()
        self._tick()

    def introduce(self, *, link: str, api: str) -> None:
        """Where others reach this peer; from here on it announces itself."""
        keeping = self.node.housekeeping
        keeping.identity, keeping.link, keeping.api = self.identity.bytes, link, api

    async def stop(self) -> None:
        if self._ticker is not None:
            self._ticker.cancel()
        if self.links is not None:
            await self.links.stop()
        self.store.close()
        self._folder.close()

    # ------------------------------------------------------------------ clients of this process

    def now(self) -> float:
        return time.monotonic()

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def expect(self, callback: Callable[[Answer], None]) -> int:
        """A number for a request to the node; its answer is given to `callback` on the loop.

        A pub-sub write is answered twice: Stored, then its outcome.
        """
        self._request += 1
        self._callbacks[self._request] = callback
        return self._request

    def forget(self, request: int, *, lane: int | None = None) -> None:
        """Nobody waits for that answer any more. `lane`: where it was asked, if that is known."""
        if self._callbacks.pop(request, None) is not None:
            self.node.cancel(request, lane=lane)

    def wake(self) -> None:
        """After an input: whatever it led to happens at the end of this turn of the loop."""
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._perform)

    # ------------------------------------------------------------------ what links call

    def hello(self) -> Hello:
        return Hello(self.cluster.bytes, self.identity.bytes, self.number, self.node.incarnation)

    def greeted(self, hello: Hello) -> None:
        if hello.cluster != self.cluster.bytes:
            raise FolderUnusable(f"it belongs to cluster {UUID(bytes=hello.cluster)}, this is {self.cluster}")
        if hello.protocol < PROTOCOL_VERSION:
            raise FolderUnusable(f"it speaks protocol {hello.protocol}, this peer needs {PROTOCOL_VERSION}")
        if hello.peer == self.number:
            raise FolderUnusable(f"it calls itself {hello.peer}, which is this peer's own number")
        self.book.meet(hello.peer, hello.identity)
        self.runs[hello.peer] = hello.incarnation

    def received(self, source: int, route: int, message: Message) -> None:
        _supervised(self.node.receive, source, route, message, time.monotonic())
        self.wake()

    def addresses(self) -> dict[int, str]:
        return {known.number: known.link for known in self.book.peers.values() if known.link and not known.gone}

    # ------------------------------------------------------------------ drain, write, send, answer

    def _perform(self) -> None:
        self._scheduled = False
        _supervised(self._drain)
        if self.on_turn is not None:
            self.on_turn()

    def _drain(self) -> None:
        """Storage last: its thread starts as soon as this one lets go of the interpreter, and not in the middle."""
        node, links = self.node, self.links
        assert links is not None
        effects = node.drain()
        if effects is not None:
            for peer, route, message in effects.sends_now:
                links.send(peer, route, message)
        if node.answers:
            self._answer()
        links.flush()
        if effects is None or not effects.ticket:
            return
        self._undone.append(effects)
        if not effects.persist:  # it waits for what was drained before it, and costs no sync of its own
            if self._undone[0] is effects:
                self._finish()
        elif self._unwritten:
            self._unwritten.append(effects)
        elif not self._write(effects):
            log.warning("the disk is full: writes are refused here until there is room, reads go on")
            self._unwritten.append(effects)

    def _write(self, effects: NodeEffects) -> bool:
        """False: there is no room."""
        try:
            self.store.write(effects.persist, self._synced)
        except DiskFull:
            self.node.disk_full(full=True)
            return False
        return True

    def _synced(self, _receipt: Synced) -> None:
        """Of the oldest write that is not done: receipts come in the order of writes."""
        _supervised(self._finish)
        while self._undone and not self._undone[0].persist:
            _supervised(self._finish)
        self.wake()

    def _finish(self) -> None:
        effects, links = self._undone.popleft(), self.links
        assert links is not None
        for peer, route, message in effects.sends_synced:
            links.send(peer, route, message)
        self.node.persisted(effects.ticket)
        self.wake()

    def _answer(self) -> None:
        answers, self.node.answers = self.node.answers, []
        callbacks = self._callbacks
        for request, answer in answers:
            callback = callbacks.get(request) if type(answer) is Stored else callbacks.pop(request, None)
            if callback is not None:
                callback(answer)

    # ------------------------------------------------------------------ time

    def _tick(self) -> None:
        _supervised(self._mind_time)
        self.wake()
        self._ticker = self._loop.call_later(TICK_S, self._tick)

    def _mind_time(self) -> None:
        node = self.node
        while self._unwritten and self._write(self._unwritten[0]):
            self._unwritten.popleft()
            if not self._unwritten:
                log.warning("there is room on the disk again; nothing that was acknowledged was lost")
        self.store.rest_if_idle(time.monotonic())
        node.disk_full(full=self.store.full or bool(self._unwritten))
        node.tick(time.monotonic(), self.now_ms())
        self._learn_peers()
        if node.housekeeping.refused and self.failed is not None and not self.failed.done():
            self.failed.set_result(node.housekeeping.refused)

    def _learn_peers(self) -> None:
        """What the metadata lane says of peers goes into the book, and links follow it."""
        table = self.node.metadata.state.peers.by_number
        changed = False
        for info in table.values():
            known = Known(info.number, info.link, info.identity, info.api, gone=info.state == "gone")
            if self.book.peers.get(info.number) != known and self.book.learn(known):
                changed = True
                if known.gone and self.links is not None:
                    self.links.cut(info.number, "it left the cluster")
        if (changed or not self._dialled) and self.links is not None:
            self._dialled = True
            self.links.dial_all()

    # ------------------------------------------------------------------ what others may ask

    def statistics(self) -> dict[str, Any]:
        storage = self.store.statistics()
        return {
            "waiting_requests": len(self._callbacks),
            "unwritten": len(self._unwritten),
            "node": self.node.statistics(),
            "links": self.links.statistics() if self.links is not None else {},
            "storage": {name: getattr(storage, name) for name in storage.__struct_fields__},
        }

"""A running peer: it feeds the node, performs the effects it drains and calls its timer. No decision is made here.

    socket, disk, clock ──► node input ──► wake() ──► once per turn of the loop: drain, write, send, answer

The effects of all inputs of one turn of the event loop are drained together: one write to storage, one write to each
link, one write to each client. Storage syncs in its own thread and calls back on the loop.

Effects are written in the order in which they were drained. When the disk has no room for them they wait, together with
everything drained after them, and are retried at each tick. Meanwhile nothing that depends on them leaves this peer,
because the node does not release it before it has the proof of their sync.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final
from uuid import UUID

from msgspec.structs import replace

from avow.errors import DiskFull, FolderUnusable, PeerRemoved
from avow.node.answers import Answer, Stored
from avow.node.founding import Founding
from avow.node.metadata_lane import METADATA_LANE
from avow.node.node import Node
from avow.node.roles import SHIPPED
from avow.replication.durable import StoreImage, Synced
from avow.replication.effects import Persist, SaveRun
from avow.replication.pieces import store_writes
from avow.replication.tuning import Tuning
from avow.server.links import Links
from avow.server.peer_registry import KnownPeer, PeerRegistry
from avow.server.settings import Settings
from avow.storage.data_folder import Folder
from avow.storage.file_store import FileStore
from avow.storage.store import Then
from avow.wire.frames import Hello
from avow.wire.messages import Message, Welcome, describe
from avow.wire.versions import FIRST, NEWEST, WELCOME, common

log: Final = logging.getLogger("avow.server")

TICK_S: Final = 0.02
_EXIT_STATUS: Final = 70  # EX_SOFTWARE of sysexits.h
REMOVED_LINGER_S: Final = 10.0  # a removed peer answers PEER_REMOVED for this long, then its process ends
_NOT_UNDERSTOOD_MAX: Final = 1024  # lanes of which it is said


def _supervised(work: Callable[..., None], *arguments: Any) -> None:
    """After an error here the state of the node is undefined, so the process must end; the next one reads the disk.

    Nothing that arrives from a link leads here: `node.admission` refuses it before a core is called.
    """
    try:
        work(*arguments)
    except Exception as error:
        log.critical("this peer stops now: an internal error left its state undefined. Restart it", exc_info=error)
        logging.shutdown()
        os._exit(_EXIT_STATUS)


def _covered_by_the_last(proof: Synced) -> None:
    """Parts of one drained record become durable in order; the sync of the last part covers them all."""


class Peer:
    """It is made with its folder locked and its store loaded; `start` starts it on the running loop."""

    def __init__(
        self,
        *,
        settings: Settings,
        cluster: UUID,
        identity: UUID,
        folder: Folder,
        store: FileStore,
        image: StoreImage,
        registry: PeerRegistry,
        tuning: Tuning | None = None,
    ) -> None:
        self.settings, self.cluster, self.identity = settings, cluster, identity
        self.number = registry.number
        self._folder, self.store, self._image, self.registry = folder, store, image, registry
        self._tuning = tuning or Tuning()
        self._callbacks: dict[int, Callable[[Answer], None]] = {}
        self._request = 0
        self._scheduled = self._performing = self._released = self._dialled = False
        self._learned_to = -1  # position of the metadata lane
        self._unwritten: deque[tuple[Sequence[Persist], Then]] = deque()  # waiting for disk space; oldest first
        self._ticker: asyncio.TimerHandle | None = None
        self.removed = ""  # why this peer serves nothing any more: it was removed from the cluster
        self.failed: asyncio.Future[str] | None = None  # resolved with the reason when this peer must stop
        self.on_turn: Callable[[], None] | None = None  # called after the effects of a turn of the loop were performed
        self.links: Links | None = None
        self.runs: dict[int, int] = {}  # of other peers: the incarnation in their last Hello,
        self._refused_for: set[int] = set()  # lanes
        self._refused_count = 0  # frames that the node did not admit
        self.newest: dict[int, int] = {}  # and the newest version of the protocol that they can read
        self._to_welcome: dict[int, int] = {}  # peers whose Hello was accepted, and the version of the link
        self.node: Node
        self.founding: Founding

    # ------------------------------------------------------------------ start and stop

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
            founders=self.registry.founders,
            level=self.registry.level,
            disk=self.store,
            rng=random.random,
            tuning=self._tuning,
            now=self.now(),
            roles=SHIPPED,
        )
        self._damage_logged = len(self.store.damage)  # what was found at the start was logged
        self.founding = Founding(me=self.number, founders=self.registry.founders, image=self._image)
        self._is_founding = bool(self.founding.waiting_for)
        if self._is_founding:
            log.warning(
                "this folder is new: this peer takes no part before founders %s were there. If the cluster was founded "
                "earlier, the folder was emptied or its volume is not mounted: stop this peer, and bring the folder "
                "back",
                self.founding.waiting_for,
            )
        self._image = StoreImage(0, {}, [])
        self.links = links
        self._learn_peers()
        self._tick()

    def introduce(self, *, link: str, api: str) -> None:
        """Sets the addresses under which others reach this peer; from here on housekeeping announces them."""
        housekeeping = self.node.housekeeping
        housekeeping.identity, housekeeping.link, housekeeping.api = self.identity.bytes, link, api

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
        """A new number for a request to the node. Its answer is passed to `callback` on the loop.

        A pub-sub write is answered twice: Stored, then its outcome.
        """
        self._request += 1
        self._callbacks[self._request] = callback
        return self._request

    def forget(self, request: int, *, lane: int | None = None) -> None:
        """Its answer is not needed any more. `lane`: the lane the request was for, if known."""
        if self._callbacks.pop(request, None) is not None:
            self.node.cancel(request, lane=lane)

    def wake(self) -> None:
        """Call it after an input: the effects are performed at the end of this turn of the loop."""
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._perform)

    # ------------------------------------------------------------------ what links call

    def hello(self) -> Hello:
        return Hello(self.cluster.bytes, self.identity.bytes, self.number, self.node.incarnation)

    def greeted(self, hello: Hello) -> int:
        if hello.cluster != self.cluster.bytes:
            raise FolderUnusable(f"it belongs to cluster {UUID(bytes=hello.cluster)}, this peer to {self.cluster}")
        version = common(max(hello.oldest, FIRST), hello.newest, level=self.node.metadata.state.level)
        if hello.peer == self.number:
            raise FolderUnusable(f"it has number {hello.peer}, which is this peer's own number")
        self.registry.meet(hello.peer, hello.identity)
        self.runs[hello.peer], self.newest[hello.peer] = hello.incarnation, hello.newest
        self.node.met(hello.peer, run=hello.incarnation, version=version)
        self._to_welcome[hello.peer] = version
        return version

    def received(self, source: int, route: int, message: Message) -> None:
        _supervised(self._receive, source, route, message)
        self.wake()

    def _receive(self, source: int, route: int, message: Message) -> None:
        if self._is_founding:
            self.founding.heard(source, message)
            return  # what is dropped here is repeated
        if type(message) is Welcome:
            return
        objection = self.node.receive(source, route, message, time.monotonic())
        if not objection:
            return
        self._refused_count += 1
        if route not in self._refused_for and len(self._refused_for) < _NOT_UNDERSTOOD_MAX:  # said once for each lane
            self._refused_for.add(route)
            log.error(
                "lane %d: a frame of peer %d was refused and changed nothing: %s; it was %.200s. No peer sends this in "
                "normal operation: check the release and the memory of peer %d. Later ones are only counted",
                *(route, source, objection, describe(message), source),
            )

    def dismissed(self) -> None:
        self._leave()

    def not_understood(self, source: int, route: int, reason: str) -> None:
        """Said once for each lane: the sender repeats what is not answered."""
        known = self.node.not_understood
        if route not in known and len(known) < _NOT_UNDERSTOOD_MAX:
            known[route] = f"peer {source} sent what this release cannot read: {reason}. Upgrade this peer"
            log.error("lane %d is not served here: %s", route, known[route])

    def addresses(self) -> dict[int, str]:
        return {known.number: known.link for known in self.registry.peers.values() if known.link and not known.gone}

    # ------------------------------------------------------------------ drain, write, send, answer

    def _perform(self) -> None:
        self._scheduled, self._performing, self._released = False, True, True
        while self._released:  # a sync in place releases answers and messages: they leave in this turn, too
            self._released = False
            _supervised(self._drain)
        self._performing = False
        if self.on_turn is not None:
            self.on_turn()

    def _drain(self) -> None:
        """Storage comes last: its thread starts when this one releases the interpreter lock, not before."""
        node, links = self.node, self.links
        assert links is not None
        effects = node.drain()
        if self._is_founding:
            if node.answers:
                self._answer()
            if effects is not None and effects.persist:
                self._unwritten.append((effects.persist, self._synced))  # a founder that waits keeps an empty disk
            return
        if node.mux.touched:  # an answer was for the node itself, and led to the next step of a transaction
            self._released = True
        if effects is not None:
            for peer, route, message in effects.sends:
                links.send(peer, route, message)
        if node.answers:
            self._answer()
        if effects is None:
            return
        if effects.sends:
            links.flush()
        if not effects.persist:
            return
        *parts, last = store_writes(effects.persist)
        for part in parts:
            self._write_in_order(part, _covered_by_the_last)
        self._write_in_order(last, self._synced)

    def _write_in_order(self, operations: Sequence[Persist], then: Then) -> None:
        if self._unwritten:
            self._unwritten.append((operations, then))
        elif not self._write(operations, then):
            log.warning("the disk is full: this peer refuses writes until there is space; reads continue")
            self._unwritten.append((operations, then))

    def _write(self, operations: Sequence[Persist], then: Then) -> bool:
        """False: the disk is full."""
        try:
            self.store.write(operations, then)
        except DiskFull:
            self.node.disk_full(full=True)
            return False
        return True

    def _synced(self, proof: Synced) -> None:
        """The oldest write that was not synced is synced now: proofs come in the order of the writes."""
        _supervised(self.node.persisted, proof)
        if self._performing:
            self._released = True
        else:
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
        _supervised(self._run_timers)
        self.wake()
        self._ticker = self._loop.call_later(TICK_S, self._tick)

    def _run_timers(self) -> None:
        node = self.node
        self._send_welcomes()
        if self._is_founding:
            if self.founding.waiting_for:
                return
            self._is_founding = False
            log.info("all founders were there: this peer takes part")
            while self._unwritten and self._write(*self._unwritten[0]):
                self._unwritten.popleft()
        while self._unwritten and self._write(*self._unwritten[0]):
            self._unwritten.popleft()
            if not self._unwritten:
                log.warning("the disk has space again and writes are accepted; no acknowledged message was lost")
        self.store.rest_if_idle(time.monotonic())
        node.disk_full(full=self.store.full or bool(self._unwritten))
        node.tick(time.monotonic(), self.now_ms())
        self._log_damage()
        if node.metadata.applied != self._learned_to:
            self._learned_to = node.metadata.applied
            self._learn_peers()
            self._learn_level()
        if node.housekeeping.refused:
            self._fail(node.housekeeping.refused)

    def _send_welcomes(self) -> None:
        assert self.links is not None
        for peer in self._to_welcome.keys() & set(self.links.connected):
            if self._to_welcome.pop(peer) >= WELCOME:
                self.links.send(peer, METADATA_LANE, Welcome())
                self.links.flush()

    def _log_damage(self) -> None:
        """What was found when entries were read."""
        found = self.store.damage
        while self._damage_logged < len(found):
            log.warning("%s", found[self._damage_logged])
            self._damage_logged += 1

    def _learn_peers(self) -> None:
        """Copies what the metadata lane says about peers to the registry, and adjusts the links."""
        table = self.node.metadata.state.peers.by_number
        changed = False
        for info in table.values():
            known = KnownPeer(info.number, info.link, info.identity, info.api, gone=info.state == "gone")
            before = self.registry.peers.get(info.number)
            if before is not None and before.gone:
                continue  # for ever; this copy of the metadata lane may lag
            if before != known and self.registry.learn(known):
                changed = True
                if known.gone and info.number == self.number:
                    self._leave()
                elif known.gone and self.links is not None:
                    self.links.dismiss(info.number, self.registry.refusal(info.number))
        if (changed or not self._dialled) and self.links is not None:
            self._dialled = True
            self.links.dial_all()

    def _leave(self) -> None:
        """This peer was removed. Its folder remembers that, and its process ends after it has told its clients."""
        if self.removed:
            return
        self.removed = str(self.registry.refusal(self.number))
        own = self.registry.peers.get(self.number, KnownPeer(self.number, ""))
        self.registry.learn(replace(own, gone=True))
        log.error("%s. Nothing is served here any more; the process ends in %g s", self.removed, REMOVED_LINGER_S)
        self._loop.call_later(REMOVED_LINGER_S, self._fail, self.removed)

    def check_member(self) -> None:
        """Raises PeerRemoved, with the addresses of the other peers."""
        if self.removed:
            others = [known.api for known in self.registry.peers.values() if known.api and not known.gone]
            raise PeerRemoved(f"{self.removed}. Nothing was done; use another peer", peers=tuple(others))

    def _learn_level(self) -> None:
        """Once the level is raised, older peers are not linked to, and older releases do not open the folder."""
        level = self.node.metadata.state.level
        if level <= self.registry.level:
            return
        if level > NEWEST:
            self._fail(
                f"the cluster was raised to version {level} of the protocol and this release reads up to {NEWEST}: "
                "this peer stops. Start it with a newer release"
            )
            return
        self.registry.raise_to(level)
        log.info("the cluster uses version %d of the protocol from here on", level)
        for number in [number for number, newest in self.newest.items() if newest < level]:
            if self.links is not None:
                self.links.cut(number, f"it reads the protocol up to version {self.newest[number]} only")

    def _fail(self, reason: str) -> None:
        if self.failed is not None and not self.failed.done():
            self.failed.set_result(reason)

    # ------------------------------------------------------------------ statistics

    def statistics(self) -> dict[str, Any]:
        storage = self.store.statistics()
        return {
            "waiting_requests": len(self._callbacks),
            "unwritten": len(self._unwritten),
            "frames_refused": self._refused_count,
            "node": self.node.statistics(),
            "links": self.links.statistics() if self.links is not None else {},
            "storage": {name: getattr(storage, name) for name in storage.__struct_fields__},
        }

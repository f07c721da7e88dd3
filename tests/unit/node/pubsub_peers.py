"""Nodes with one pub-sub queue, without IO: messages arrive in order, disks sync at once, time is a number."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from random import Random
from typing import Any

from avow.node.answers import Answer
from avow.node.effect_mux import NodeEffects
from avow.node.lane.two_phase_lane import Write
from avow.node.metadata_lane import METADATA_LANE, MetadataLane, founding_snapshot
from avow.node.node import Node
from avow.node.pubsub.lane_index import PubSubBounds
from avow.node.pubsub.queue import PubSubQueue
from avow.node.roles import NodeRoles
from avow.queue.commands import LaneCursorsCommand, LaneTrimCommand, QueueCommand, encode
from avow.replication.durable import Synced
from avow.replication.effects import SaveRun, SaveSnapshot
from avow.replication.membership import Members
from avow.replication.pubsub.core import PubSubCore
from avow.replication.tuning import Tuning
from avow.storage.memory import MemoryStore
from avow.wire.batch import encode_batch, unpack_entry
from avow.wire.messages import Kind, Message

TINY = PubSubBounds(
    memory_entries=2, memory_bytes=1 << 20, write_ids=4, snapshot_entries=3, snapshot_bytes=1 << 20,
    snapshot_bytes_per_entry=1 << 20,
)  # fmt: skip


def _with(constructor: Callable[..., Any], **changed: Any) -> Callable[..., Any]:
    return lambda **given: constructor(**{**given, **changed})


class NoHousekeeping:
    """Members change only when a test asks for it."""

    def __init__(self, node: Node) -> None:
        self.identity = b""

    def tick(self, now: float) -> None:
        pass

    def hear(self, request: int, answer: Answer) -> None:
        pass


class Peer:
    """A node and its one queue, by the calls that tests make."""

    def __init__(self, node: Node) -> None:
        self.node, self.me = node, node.me

    @property
    def queue(self) -> PubSubQueue:
        return self.node.pubsub["q"]

    @property
    def core(self) -> PubSubCore:
        return self.queue.core

    @property
    def metadata(self) -> MetadataLane:
        return self.node.metadata

    @property
    def answers(self) -> list[tuple[int, Answer]]:
        return self.node.answers

    @answers.setter
    def answers(self, answers: list[tuple[int, Answer]]) -> None:
        self.node.answers = answers

    @property
    def open_lane(self) -> int:
        return self.queue.open_lane if "q" in self.node.pubsub else 0

    @property
    def readable(self) -> dict[int, int]:
        return self.queue.readable

    def receive(self, source: int, message: Message, now: float) -> None:
        """About the queue."""
        self.node.receive(source, self.queue.route, message, now)

    def drain(self) -> NodeEffects | None:
        return self.node.drain()

    def persisted(self, proof: Synced) -> None:
        self.node.persisted(proof)

    def write(self, request: int, write: Write, now: float, **more: int) -> None:
        self.node.write_pubsub(request, "q", write, now, **more)

    def lookup(self, request: int, lane: int, write_id: bytes, *, since: int = 0) -> None:
        self.node.lookup(request, "q", lane, write_id, since=since)

    def read_at_least(self, request: int, lane: int, version: int, now: float) -> None:
        self.node.reach(request, lane, level="at_least", version=version, now=now)

    def read_linearizable(self, request: int) -> None:
        self.queue.read_linearizable(request)
        self.node.touch(self.queue.route)

    def move_cursor(
        self, request: int, subscriber: str, versions: Mapping[int, int], *, write_id: bytes, now: float
    ) -> None:
        command = LaneCursorsCommand("q", subscriber, tuple(sorted(versions.items())))
        self.node.command(request, Kind.CURSOR, encode(command), write_id=write_id, now=now)

    def trim(self, request: int, lane: int, upto: int, *, write_id: bytes, now: float) -> None:
        self.node.command(request, Kind.TRIM, encode(LaneTrimCommand(lane, upto)), write_id=write_id, now=now)

    def command(self, request: int, write: Write, now: float) -> None:
        self.node.command(request, write.kind, write.control, write_id=write.write_id, now=now)

    def cursor(self, subscriber: str) -> dict[int, int]:
        queue = self.metadata.state.queue("q")
        assert queue is not None
        found = queue.subscribers.get(subscriber)
        return dict(found.versions) if found is not None else {}

    def change_members(self, request: int, wanted: Members) -> None:
        self.metadata.change_members(request, wanted)
        self.node.touch(METADATA_LANE)

    def statistics(self) -> dict[str, object]:
        return self.queue.statistics()


class Cluster:
    """Peers whose messages arrive in order and whose disks sync at once; time moves only when a test moves it."""

    def __init__(self, size: int, *, bounds: PubSubBounds | None = None, spare: tuple[int, ...] = ()) -> None:
        self.now = 0.0
        self.bounds = bounds
        self.cut: set[tuple[int, int]] = set()
        self.rng = Random(7)
        self.stores: dict[int, MemoryStore] = {}
        self.peers: dict[int, Peer] = {}
        self.answers: dict[int, list[Answer]] = {}
        self.links: deque[tuple[int, int, int, Message]] = deque()
        founding = founding_snapshot(tuple(range(1, size + 1)), (QueueCommand("create", "q", "pub-sub"),))
        for number in range(1, size + 1):
            store = self.stores[number] = MemoryStore()
            store.write([SaveSnapshot(METADATA_LANE, founding, reset=True)], lambda _proof: None)
            store.sync()
            self.start(number)
        for number in spare:
            self.stores[number] = MemoryStore()
            self.start(number)

    def start(self, number: int) -> Peer:
        store = self.stores[number]
        image = store.load()
        store.write([SaveRun(image.incarnation + 1)], lambda _proof: None)
        store.sync()
        node = Node(
            me=number,
            incarnation=image.incarnation + 1,
            image=image,
            founders=(),
            disk=store,
            rng=self.rng.random,
            tuning=Tuning(),
            now=self.now,
            roles=NodeRoles(
                housekeeping=NoHousekeeping,  # type: ignore[arg-type]
                metadata_lane=_with(MetadataLane, snapshot_every=4),
                pubsub_queue=_with(PubSubQueue, bounds=self.bounds),
            ),
        )
        peer = self.peers[number] = Peer(node)
        return peer

    def kill(self, number: int) -> None:
        del self.peers[number]
        self.stores[number] = self.stores[number].crash()

    def run(self, seconds: float) -> None:
        until = self.now + seconds
        while self.now < until:
            self.now += 0.01
            for peer in list(self.peers.values()):
                peer.node.tick(self.now, int(self.now * 1000))
            self.settle()

    def settle(self) -> None:
        for number in self.peers:
            self._perform(number)
        while self.links or any(self._perform(number) for number in self.peers):
            while self.links:
                source, target, route, message = self.links.popleft()
                if target in self.peers and (source, target) not in self.cut:
                    self.peers[target].node.receive(source, route, message, self.now)
                    self._perform(target)

    def _perform(self, number: int) -> bool:
        peer, store = self.peers[number], self.stores[number]
        effects = peer.drain()
        for request, answer in peer.answers:
            self.answers.setdefault(request, []).append(answer)
        peer.answers = []
        if effects is None:
            return False
        self.links += [(number, target, route, message) for target, route, message in effects.sends]
        if effects.persist:
            store.write(effects.persist, peer.persisted)
            store.sync()
        return True

    def write(self, request: int, peer: int, write_id: bytes, *, count: int = 1, lane: int = 0) -> list[Answer]:
        self.peers[peer].write(request, Write(Kind.DATA, write_id, count), self.now, lane=lane)
        self.settle()
        return self.answers.get(request, [])

    def ask(self, request: int, write: Write, *, at: int) -> list[Answer]:
        self.peers[at].write(request, write, self.now)
        self.settle()
        return self.answers.get(request, [])

    def write_all(self, peer: int, values: str, *, first_request: int = 1000) -> int:
        """One write for each letter, which is also its id; returns the lane."""
        lane = self.peers[peer].open_lane
        for request, letter in enumerate(values, first_request):
            self.peers[peer].write(request, data(letter), self.now)
            self.settle()
        self.run(0.2)
        return lane

    def trim(self, request: int, lane: int, upto: int, *, at: int = 1) -> list[Answer]:
        self.peers[at].trim(request, lane, upto, write_id=b"trim%012d" % request, now=self.now)
        self.run(0.3)
        return self.answers.get(request, [])

    def lookup(self, request: int, lane: int, letter: str, *, at: int, since: int = 0) -> Answer:
        self.peers[at].lookup(request, lane, write_id(letter), since=since)
        self.settle()
        return self.answers[request][-1]

    def values(self, peer: int, lane: int, *, after: int = 0) -> str:
        """The messages that a reader at this peer gets."""
        queue = self.peers[peer].queue
        found = ""
        for part in queue.ranges(lane, after, 1000):
            (entry,) = queue.reader(lane)(part.position - 1, 1, 1)
            found += entry.batch.decode() if entry.count == 1 else "?"
        return found


def write_id(letter: str) -> bytes:
    return letter.encode() * 16


def data(letter: str) -> Write:
    return Write(Kind.DATA, write_id(letter), 1, batch=letter.encode())


def small(letter: str, *, count: int = 1) -> Write:
    """One that may be merged with others."""
    section = unpack_entry(bytes(encode_batch([b"%s%d" % (letter.encode(), number) for number in range(count)]))).batch
    return Write(Kind.DATA, write_id(letter), count, batch=section, mergeable=True)

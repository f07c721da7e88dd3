"""Peers with one pub-sub queue each, joined by hand: messages arrive in order, disks sync at once, time is told."""

from __future__ import annotations

from collections import deque
from functools import partial
from random import Random

from avow.peer.answers import Answer
from avow.peer.lane import Write
from avow.peer.metadata_lane import METADATA_LANE, founding_snapshot
from avow.peer.pubsub_book import PubSubBounds
from avow.peer.pubsub_run import PubSubPeer
from avow.queue.commands import QueueCommand
from avow.replication.effects import SaveSnapshot
from avow.replication.tuning import Tuning
from avow.storage.memory import MemoryStore
from avow.wire.batch import encode_batch, unpack_entry
from avow.wire.messages import Entry, Kind, Message

TINY = PubSubBounds(
    memory_entries=2, memory_bytes=1 << 20, write_ids=4, snapshot_entries=3, snapshot_bytes=1 << 20,
    snapshot_bytes_per_entry=1 << 20,
)  # fmt: skip


class Cluster:
    """Peers whose messages arrive in order and whose disks sync at once; time moves when a test says so."""

    def __init__(self, size: int, *, bounds: PubSubBounds | None = None, spare: tuple[int, ...] = ()) -> None:
        self.now = 0.0
        self.bounds = bounds
        self.cut: set[tuple[int, int]] = set()
        self.rng = Random(7)
        self.stores: dict[int, MemoryStore] = {}
        self.peers: dict[int, PubSubPeer] = {}
        self.answers: dict[int, list[Answer]] = {}
        self.links: deque[tuple[int, int, Message]] = deque()
        founding = founding_snapshot(tuple(range(1, size + 1)), (QueueCommand("create", "q", "pub-sub"),))
        for number in range(1, size + 1):
            store = self.stores[number] = MemoryStore()
            store.write([SaveSnapshot(METADATA_LANE, founding, reset=True)], lambda _proof: None)
            store.sync()
            self.start(number)
        for number in spare:
            self.stores[number] = MemoryStore()
            self.start(number)

    def start(self, number: int) -> PubSubPeer:
        peer = PubSubPeer(
            me=number,
            queue="q",
            image=self.stores[number].load(),
            rng=self.rng.random,
            tuning=Tuning(),
            now=self.now,
            snapshot_every=4,
            read=partial(self._read, number),
            bounds=self.bounds,
        )
        self.peers[number] = peer
        return peer

    def _read(self, number: int, lane: int, after: int, max_entries: int) -> list[Entry]:
        return self.stores[number].read(lane, after=after, max_entries=max_entries, max_bytes=1 << 20)

    def kill(self, number: int) -> None:
        del self.peers[number]
        self.stores[number] = self.stores[number].crash()

    def run(self, seconds: float) -> None:
        until = self.now + seconds
        while self.now < until:
            self.now += 0.01
            for peer in list(self.peers.values()):
                peer.tick(self.now)
            self.settle()

    def settle(self) -> None:
        for number in self.peers:
            self._perform(number)
        while self.links or any(self._perform(number) for number in self.peers):
            while self.links:
                source, target, message = self.links.popleft()
                if target in self.peers and (source, target) not in self.cut:
                    self.peers[target].receive(source, message, self.now)
                    self._perform(target)

    def _perform(self, number: int) -> bool:
        peer, store = self.peers[number], self.stores[number]
        effects = peer.drain()
        for request, answer in peer.answers:
            self.answers.setdefault(request, []).append(answer)
        peer.answers = []
        if effects is None:
            return False
        self.links += [(number, target, message) for target, message in effects.sends_now]
        if effects.ticket:
            store.write(effects.persist, lambda _proof: None)
            store.sync()
            self.links += [(number, target, message) for target, message in effects.sends_synced]
            peer.persisted(effects.ticket)
        return True

    def write(self, request: int, peer: int, write_id: bytes, *, count: int = 1, lane: int = 0) -> list[Answer]:
        self.peers[peer].write(request, Write(Kind.DATA, write_id, count), self.now, lane=lane)
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
        """What a reader at this peer is given, message by message."""
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

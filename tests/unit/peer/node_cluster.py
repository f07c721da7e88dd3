"""Nodes that talk to each other in one process: virtual time, memory for disks, no sockets."""

from __future__ import annotations

from collections import deque
from random import Random
from uuid import UUID

from avow.peer.answers import Answer, Done
from avow.peer.lane import Write
from avow.peer.node import Node
from avow.peer.parts import NodeEffects
from avow.queue.commands import Command, PeerCommand, QueueCommand, RetentionRules, encode
from avow.queue.retention import StoredFile
from avow.replication.effects import SaveRun
from avow.replication.tuning import Tuning
from avow.storage.memory import MemoryStore
from avow.storage.segments import Place
from avow.wire.batch import encode_batch
from avow.wire.messages import Kind, Message
from avow.wire.record import unpack_entry

STEP_S = 0.01


class Disk:
    """A memory store with the three questions a node asks."""

    def __init__(self, store: MemoryStore) -> None:
        self.store = store

    def read(self, lane, *, after, max_entries, max_bytes):
        return self.store.read(lane, after=after, max_entries=max_entries, max_bytes=max_bytes)

    def places(self, lane: int, *, after: int, upto: int) -> list[Place]:
        return []

    def stored_files(self, lane: int) -> list[StoredFile]:
        return []


class NodeCluster:
    def __init__(self, founders: int = 3, *, seed: int = 1) -> None:
        self.now = 1.0
        self.rng = Random(seed)
        self.founders = tuple(range(1, founders + 1))
        self.stores: dict[int, MemoryStore] = {}
        self.nodes: dict[int, Node] = {}
        self.cut: set[tuple[int, int]] = set()
        self._frames: deque[tuple[int, int, int, Message]] = deque()
        self._answers: dict[int, Answer] = {}
        self._request = 0
        for number in self.founders:
            self.start(number, founders=self.founders)

    def start(self, number: int, *, founders: tuple[int, ...] = ()) -> Node:
        store = self.stores.setdefault(number, MemoryStore())
        image = store.load()
        store.write([SaveRun(image.incarnation + 1)], lambda _: None)
        store.sync()
        node = self.nodes[number] = Node(
            me=number,
            incarnation=image.incarnation + 1,
            image=image,
            founders=founders,
            disk=Disk(store),
            rng=self.rng.random,
            tuning=Tuning(),
            now=self.now,
        )
        keeping = node.housekeeping
        keeping.identity, keeping.link, keeping.api = identity_of(number), f"h:{number}", f"http://h:{number}"
        return node

    def kill(self, number: int) -> None:
        del self.nodes[number]
        self.stores[number] = self.stores[number].crash()

    def run(self, seconds: float) -> None:
        until = self.now + seconds
        while self.now < until:
            self.now += STEP_S
            for node in list(self.nodes.values()):
                node.tick(self.now, int(self.now * 1000))
            self.settle()

    def run_until(self, predicate, *, seconds: float = 20.0) -> None:
        until = self.now + seconds
        while not predicate():
            assert self.now < until, "it did not come to pass"
            self.run(STEP_S)

    def settle(self) -> None:
        for _ in range(200):
            for number, node in list(self.nodes.items()):
                self._perform(number, node)
            if not self._frames:
                return
            while self._frames:
                source, target, route, message = self._frames.popleft()
                if target in self.nodes and source in self.nodes and (source, target) not in self.cut:
                    self.nodes[target].receive(source, route, message, self.now)

    def _perform(self, number: int, node: Node) -> None:
        for _ in range(50):
            effects = node.drain()
            answers, node.answers = node.answers, []
            self._answers.update(answers)
            if effects is None:
                return
            self._send(number, effects.sends_now)
            if effects.ticket:
                self.stores[number].write(effects.persist, lambda _, done=effects: self._synced(number, node, done))
                self.stores[number].sync()

    def _synced(self, number: int, node: Node, effects: NodeEffects) -> None:
        self._send(number, effects.sends_synced)
        node.persisted(effects.ticket)

    def _send(self, source: int, sends) -> None:
        self._frames.extend((source, target, route, message) for target, route, message in sends)

    # ------------------------------------------------------------------ clients

    def ask(self, number: int, ask, *, seconds: float = 10.0) -> Answer:
        """`ask(node, request)` once; its answer."""
        self._request += 1
        request = self._request
        ask(self.nodes[number], request)
        self.run_until(lambda: request in self._answers, seconds=seconds)
        return self._answers.pop(request)

    def command(self, kind: int, command: Command, *, at: int = 1) -> Answer:
        def ask(node: Node, request: int) -> None:
            node.command(request, kind, encode(command), write_id=b"", now=self.now)

        return self.ask(at, ask)

    def create(self, name: str, *, strategy: str = "two-phase", lanes: int = 1, peers=()) -> int:
        """Its first lane (two-phase) or route (pub-sub)."""
        command = QueueCommand("create", name, strategy, lanes, RetentionRules(), peers)
        answer = self.command(Kind.QUEUE, command)
        assert isinstance(answer, Done), answer
        self.run(1.0)
        return self.nodes[1].metadata.state.catalog.by_name[name].first_lane

    def write(self, lane: int, value: bytes, *, at: int = 1, write_id: bytes = b"") -> Answer:
        return self.ask(at, lambda node, request: node.write(request, lane, data(value, write_id), self.now))

    def write_until_done(self, lane: int, value: bytes, *, at: int = 1) -> Done:
        write_id = self.rng.randbytes(16)
        for _ in range(200):
            answer = self.write(lane, value, at=at, write_id=write_id)
            if isinstance(answer, Done):
                return answer
            self.run(0.05)
        raise AssertionError(f"never done: {answer}")

    def join(self, number: int) -> None:
        answer = self.command(Kind.PEER, PeerCommand("join", 0, identity_of(number), f"h:{number}", ""))
        assert answer == Done(number, number), answer
        self.start(number)

    def members(self, lane: int, *, at: int = 1) -> tuple[int, ...]:
        return self.nodes[at].lanes[lane].core.members.voters

    def values(self, lane: int, *, at: int) -> list[bytes]:
        from avow.wire.batch import Batch
        from avow.wire.record import pack_entry

        found: list[bytes] = []
        while True:
            served = self.nodes[at].read(lane, after=len(found), max_count=1000, max_bytes=1 << 20)
            if not served:
                return found
            for item in served:
                batch = Batch(pack_entry(item.entry))
                found += [bytes(batch.value(item.offset + i)) for i in range(item.count)]


def identity_of(number: int) -> bytes:
    return UUID(int=number).bytes


def data(value: bytes, write_id: bytes = b"") -> Write:
    entry = unpack_entry(bytes(encode_batch([value], write_id=write_id)))
    return Write(Kind.DATA, entry.write_id, 1, batch=entry.batch)

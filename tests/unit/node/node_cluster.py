"""Nodes that talk to each other in one process: virtual time, memory for disks, no sockets."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from random import Random
from typing import cast
from uuid import UUID

from avow.node.answers import Answer, Done
from avow.node.lane.two_phase_lane import Write
from avow.node.node import Node
from avow.node.roles import SHIPPED, NodeRoles
from avow.queue.commands import Command, PeerCommand, QueueCommand, RetentionRules, Strategy, encode
from avow.replication.durable import Synced
from avow.replication.effects import SaveRun
from avow.replication.tuning import Tuning
from avow.storage.memory import MemoryStore
from avow.wire.batch import encode_batch
from avow.wire.messages import Kind, Message
from avow.wire.record import unpack_entry

STEP_S = 0.01


class NodeCluster:
    def __init__(self, founders: int = 3, *, seed: int = 1, roles: NodeRoles = SHIPPED) -> None:
        self._roles = roles
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
            disk=store,
            rng=self.rng.random,
            tuning=Tuning(),
            now=self.now,
            roles=self._roles,
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

    def run_until(self, predicate: Callable[[], object], *, seconds: float = 20.0) -> None:
        until = self.now + seconds
        while not predicate():
            assert self.now < until, "it did not come to pass"
            self.run(STEP_S)

    def settle(self) -> None:
        for _ in range(200):
            if not self.turn():
                return

    def turn(self) -> bool:
        """Each node performs once, and what it sent arrives. False: nothing was sent."""
        for number, node in list(self.nodes.items()):
            self._perform(number, node)
        if not self._frames:
            return False
        while self._frames:
            source, target, route, message = self._frames.popleft()
            if target in self.nodes and source in self.nodes and (source, target) not in self.cut:
                self.nodes[target].receive(source, route, message, self.now)
        return True

    def deliver(self, source: int, target: int) -> None:
        """Delivers present messages of one node to another, which handles them; all others wait."""
        self._perform(source, self.nodes[source])
        for frame in [frame for frame in self._frames if frame[:2] == (source, target)]:
            self._frames.remove(frame)
            self.nodes[target].receive(source, frame[2], frame[3], self.now)
        self._perform(target, self.nodes[target])

    def _perform(self, number: int, node: Node) -> None:
        for _ in range(50):
            effects = node.drain()
            answers, node.answers = node.answers, []
            self._answers.update(answers)
            if effects is None:
                return
            self._send(number, effects.sends)
            if effects.persist:
                self.stores[number].write(effects.persist, partial(self._synced, node))
                self.stores[number].sync()

    def _synced(self, node: Node, proof: Synced) -> None:
        node.persisted(proof)

    def _send(self, source: int, sends: Iterable[tuple[int, int, Message]]) -> None:
        self._frames.extend((source, target, route, message) for target, route, message in sends)

    # ------------------------------------------------------------------ clients

    def ask(self, number: int, ask: Callable[[Node, int], object], *, seconds: float = 10.0) -> Answer:
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

    def create(self, name: str, *, strategy: str = "two-phase", lanes: int = 1, peers: tuple[int, ...] = ()) -> int:
        """Its first lane (two-phase) or route (pub-sub)."""
        command = QueueCommand("create", name, cast(Strategy, strategy), lanes, RetentionRules(), peers)
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

"""The first description of the two-phase strategy, taken literally: no ballots, and uncommitted values are overwritten.

    EnqueueAsync   compare the cursor, store the values at the next index (over whatever is not committed there),
                   post them to every peer
    on the values  store them likewise, and send all peers the cursor that this peer has accepted now
    UpdateCursor   count the peers that accepted this cursor; with a quorum it is the current one here, and missing
                   values are read from a peer that accepted it

Two peers that accept writes at the same time can both find a majority for index 3, each for its own value: the indexes
are equal, so no peer notices. This core exists only to show that the checkers find it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Final

from msgspec.structs import replace

from avow.node.answers import Answer, Done
from avow.node.records import NodeEffects
from avow.queue.entry_outcome import Outcome
from avow.queue.state import QueueState
from avow.replication.durable import Synced
from avow.replication.effect_buffer import EffectBuffer
from avow.replication.effects import SaveEntries
from avow.replication.quorum import quorum
from avow.wire.messages import Enqueue, Entry, Fetch, Fetched, Heartbeat, Kind, Message
from avow_lab.checkers.two_phase import Expectation, Ledger, Violation
from avow_lab.simulator.driver import DrivenClient, Driver, Submit
from avow_lab.simulator.plan import TWO_PHASE, draw_plan
from avow_lab.simulator.simulation import Verdict
from avow_lab.simulator.world import Machine, World

LANE: Final = 1


class NaivePeer:
    def __init__(self, *, me: int, peers: tuple[int, ...], entries: list[Entry]) -> None:
        self.me, self.peers = me, peers
        self.values = {entry.position: entry for entry in entries}
        self.state = QueueState()
        self.cursor = 0
        self.accepted = dict.fromkeys(peers, 0)
        self.accepted[me] = len(entries)
        self.answers: list[tuple[int, Answer]] = []
        self.on_applied: Callable[[Entry, Outcome], None] = lambda _entry, _outcome: None
        self._waiting: dict[int, tuple[int, bytes]] = {}  # index -> (request, write id)
        self._effects: EffectBuffer[None] = EffectBuffer()

    def write(self, request: int, write_id: bytes) -> None:
        known = self.state.outcome_of(write_id)
        if known is not None:
            self.answers.append((request, Done(known.first_version, known.last_version)))
            return
        index = self.cursor + 1
        entry = Entry(index, 0, Kind.DATA, 1, write_id, 0, b"", write_id)
        self._waiting[index] = (request, write_id)
        self._keep(entry)
        self._effects.send_all(self._others(), Enqueue(0, self.cursor, 0, (entry,), 0, self.cursor))

    def met(self, peer: int, *, run: int, version: int) -> None:
        """A run is as good as another."""

    def receive(self, source: int, route: int, message: Message, now: float) -> None:  # noqa: ARG002
        if isinstance(message, Enqueue):
            if message.after == self.cursor and message.entries:
                self._keep(message.entries[0])
        elif isinstance(message, Heartbeat):
            self.accepted[source] = max(self.accepted[source], message.cursor)
            self._count()
        elif isinstance(message, Fetch) and message.after < self.cursor:
            entry = self.values[message.after + 1]
            self._effects.send(source, Fetched(0, message.after, 0, (entry,), self.cursor, self.cursor))
        elif isinstance(message, Fetched) and message.after == self.cursor:
            self._keep(message.entries[0])

    def _keep(self, entry: Entry) -> None:
        """Store it at its index, over any uncommitted value."""
        self.values[entry.position] = entry
        self._effects.persist(SaveEntries(LANE, (entry,)))
        self.accepted[self.me] = max(self.accepted[self.me], entry.position)
        for peer in self._others():
            self._effects.send_synced(peer, Heartbeat(0, False, self.accepted[self.me]))

    def _count(self) -> None:
        while True:
            index = self.cursor + 1
            holders = [peer for peer in self.peers if self.accepted[peer] >= index]
            if len(holders) < quorum(len(self.peers)):
                return
            if index not in self.values:
                self._effects.send(holders[0], Fetch(0, self.cursor, 0))
                return
            self._commit(self.values[index])

    def _commit(self, entry: Entry) -> None:
        self.cursor = entry.position
        outcome = self.state.apply(entry)
        self.on_applied(entry, outcome)
        request, write_id = self._waiting.pop(entry.position, (0, b""))
        if request and write_id == entry.write_id:
            self.answers.append((request, Done(outcome.first_version, outcome.last_version)))

    def tick(self, now: float, now_ms: int) -> None:  # noqa: ARG002
        self._effects.send_all(self._others(), Heartbeat(0, False, self.accepted[self.me]))

    def persisted(self, proof: Synced) -> None:
        self._effects.persisted(proof)

    def disk_full(self, *, full: bool) -> None:
        """This core ignores it."""

    def cancel(self, request: int) -> None:
        """This core answers nevertheless."""

    def drain(self) -> NodeEffects | None:
        effects = self._effects.drain(None)
        if effects is None:
            return None
        return NodeEffects([(peer, LANE, message) for peer, message in effects.sends], effects.persist)

    def _others(self) -> list[int]:
        return [peer for peer in self.peers if peer != self.me]


class NaiveClient:
    """Writes one value after another to random peers, and checks the answers."""

    def __init__(self, *, number: int, operations: int, rng: Random, ledger: Ledger) -> None:
        self.number, self.left = number, operations
        self._rng, self._ledger = rng, ledger
        self._counter = self.attempt = 0
        self._asked: Expectation | None = None

    @property
    def busy(self) -> bool:
        return self._asked is not None

    @property
    def finished(self) -> bool:
        return not self.busy and not self.left

    def begin(self, now_ms: int) -> bool:  # noqa: ARG002
        self.attempt += 1
        if self.left:
            self.left -= 1
            self._counter += 1
            write_id = b"%08d%08d" % (self.number, self._counter)
            self._asked = self._ledger.ask(write_id=write_id, kind=Kind.DATA, count=1, expected=-1)
        return self.busy

    def outdated(self) -> bool:
        return False

    def target(self, machines: dict[int, Machine[NaivePeer]], addresses: list[int]) -> Machine[NaivePeer] | None:
        return machines[addresses[int(self._rng.random() * len(addresses))]]

    def parcel(self, target: Machine[NaivePeer], now_ms: int) -> Submit[NaivePeer]:  # noqa: ARG002
        assert self._asked is not None
        return partial(self._submit, self._asked.write_id)

    @staticmethod
    def _submit(write_id: bytes, replica: NaivePeer, request: int, now: float) -> None:  # noqa: ARG004
        replica.write(request, write_id)

    def hears_more(self, answer: Answer) -> bool:  # noqa: ARG002
        return False

    def give_up(self) -> None:
        """The write id is the same in every attempt."""

    def hear(self, answer: Answer) -> bool:
        assert self._asked is not None
        if not isinstance(answer, Done):
            return False
        self._ledger.acknowledge(self._asked, answer.first_version, answer.last_version)
        self._asked = None
        return True


def simulate_naive(seed: int) -> Verdict:
    """Without any fault: two peers that accept writes at the same time are enough."""
    drawn = draw_plan(seed, strategy=TWO_PHASE)
    plan = replace(drawn, spare_peers=0, loss=0.0, duplicate=0.0, fault_every_s=1e9)
    peers = tuple(range(1, plan.peers + 1))
    ledger = Ledger(lambda _peer, _entry: True)  # the check of divergence must find it

    def boot(_world: World[NaivePeer], machine: Machine[NaivePeer]) -> NaivePeer:
        peer = NaivePeer(me=machine.number, peers=peers, entries=[])
        peer.on_applied = partial(ledger.committed, machine.number)
        return peer

    world: World[NaivePeer] = World(plan, boot=boot)
    for number in peers:
        world.start(world.add_machine(number))
    clients = [
        NaiveClient(number=number, operations=plan.ops_per_client, rng=world.rng, ledger=ledger)
        for number in range(1, plan.clients + 1)
    ]
    Driver(world, list[DrivenClient[NaivePeer]](clients), addresses=lambda: list(peers))
    violation = ""
    try:
        world.run(plan.duration_s)
    except Violation as broken:
        violation = str(broken)
    results = (world.events, ledger.acknowledged, world.trace_hash(violation), world.counts, violation)
    return Verdict(seed, "naive", plan.peers, *results)

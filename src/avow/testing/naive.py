"""The first description of the two-phase strategy, taken literally: no ballots, and uncommitted values are overwritten.

    EnqueueAsync   compare the cursor, store the values at the next index (over whatever is not committed there),
                   post them to every peer
    on the values  store them likewise, and tell everybody the cursor this peer has accepted now
    UpdateCursor   count the peers that accepted this cursor; from a quorum on it is the current one here, and missing
                   values are read from a peer that accepted it

Two peers that accept writes at the same time can both find a majority for index 3, each for its own value: the numbers
are equal, so nobody notices. This core exists for one purpose: the checkers must see that. Nothing else uses it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from avow.peer.answers import Answer, Done, Refusal
from avow.queue.outcomes import Outcome
from avow.queue.state import QueueState
from avow.replication.effects import Effects, Persist, SaveEntries
from avow.replication.quorum import quorum
from avow.testing.clients import Client, Operation
from avow.testing.driver import Driver
from avow.testing.ledger import Ledger
from avow.testing.plan import Plan
from avow.testing.two_phase import LANE, TwoPhaseSimulation
from avow.testing.world import Machine, World
from avow.wire.messages import Enqueue, Entry, Fetch, Fetched, Heartbeat, Kind, Message


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
        self._sends: list[tuple[int, Message]] = []
        self._synced: list[tuple[int, Message]] = []
        self._persist: list[Persist] = []
        self._ticket = 0

    def write(self, request: int, operation: Operation) -> None:
        write = operation.write
        assert write is not None
        if write.kind != Kind.DATA or write.expected >= 0:  # plain writes are enough to show it
            self.answers.append((request, Refusal("INVALID_REQUEST")))
            return
        known = self.state.outcome_of(write.write_id)
        if known is not None:
            self.answers.append((request, Done(known.first_version, known.last_version)))
            return
        index = self.cursor + 1
        entry = Entry(index, 0, Kind.DATA, write.count, write.write_id, 0, b"", write.batch)
        self._waiting[index] = (request, write.write_id)
        self._keep(entry)
        self._to_all(self._sends, Enqueue(0, self.cursor, 0, (entry,), 0, self.cursor))

    def receive(self, source: int, message: Message, now: float) -> None:  # noqa: ARG002
        if isinstance(message, Enqueue):
            if message.after == self.cursor and message.entries:
                self._keep(message.entries[0])
        elif isinstance(message, Heartbeat):
            self.accepted[source] = max(self.accepted[source], message.cursor)
            self._count()
        elif isinstance(message, Fetch) and message.after < self.cursor:
            entry = self.values[message.after + 1]
            self._sends.append((source, Fetched(0, message.after, 0, (entry,), self.cursor, self.cursor)))
        elif isinstance(message, Fetched) and message.after == self.cursor:
            self._keep(message.entries[0])

    def _keep(self, entry: Entry) -> None:
        """At its index, over whatever is not committed there."""
        self.values[entry.position] = entry
        self._persist.append(SaveEntries(LANE, (entry,)))
        self.accepted[self.me] = max(self.accepted[self.me], entry.position)
        self._to_all(self._synced, Heartbeat(0, False, self.accepted[self.me]))

    def _count(self) -> None:
        while True:
            index = self.cursor + 1
            holders = [peer for peer in self.peers if self.accepted[peer] >= index]
            if len(holders) < quorum(len(self.peers)):
                return
            if index not in self.values:
                self._sends.append((holders[0], Fetch(0, self.cursor, 0)))
                return
            self._commit(self.values[index])

    def _commit(self, entry: Entry) -> None:
        self.cursor = entry.position
        outcome = self.state.apply(entry)
        self.on_applied(entry, outcome)
        request, write_id = self._waiting.pop(entry.position, (0, b""))
        if request and write_id == entry.write_id:
            self.answers.append((request, Done(outcome.first_version, outcome.last_version)))

    def tick(self, now: float) -> None:  # noqa: ARG002
        self._to_all(self._sends, Heartbeat(0, False, self.accepted[self.me]))

    def persisted(self, ticket: int) -> None:
        """The text does not say what waits for a disk."""

    def disk_full(self, *, full: bool) -> None:
        """Nor what a full one means."""

    def drain(self) -> Effects | None:
        if not (self._sends or self._persist):
            return None
        self._ticket += 1
        effects = Effects(self._ticket if self._persist else 0, self._sends, self._persist, self._synced)
        self._sends, self._persist, self._synced = [], [], []
        return effects

    def _to_all(self, sends: list[tuple[int, Message]], message: Message) -> None:
        sends.extend((peer, message) for peer in self.peers if peer != self.me)


class NaiveDriver(Driver[NaivePeer, Client]):
    def _parcel(self, client: Client) -> Callable[[NaivePeer, int, Machine[NaivePeer]], None]:
        assert client.operation is not None
        return partial(self._submit, client.operation)

    @staticmethod
    def _submit(operation: Operation, peer: NaivePeer, request: int, _target: Machine[NaivePeer]) -> None:
        if operation.write is not None:
            peer.write(request, operation)
        else:
            peer.answers.append((request, Refusal("INVALID_REQUEST")))


class NaiveSimulation(TwoPhaseSimulation):
    """No faults, no crash, no loss: two peers that take writes at the same time are enough."""

    strategy = "naive"

    def __init__(self, plan: Plan, *, tracing: bool = False) -> None:
        calm = {
            "spare_peers": 0,
            "loss": 0.0,
            "duplicate": 0.0,
            "fault_every_s": 1e9,
            "faults": ("crash",),
            "heal_s": 0.0,
        }
        super().__init__(_replaced(plan, calm), tracing=tracing)
        self.ledger._stored_by_quorum = lambda _peer, _entry: True  # divergence is what it must be caught by

    def _boot(self, world: World, machine: Machine) -> NaivePeer:  # type: ignore[override, type-arg]  # noqa: ARG002
        peer = NaivePeer(me=machine.number, peers=tuple(range(1, self.plan.peers + 1)), entries=[])
        number, ledger = machine.number, self.ledger
        peer.on_applied = lambda entry, outcome: _committed(ledger, number, entry, outcome)
        return peer

    def _clients(self) -> NaiveDriver:  # type: ignore[override]
        clients = [
            Client(number=number, operations=self.plan.ops_per_client, rng=self.world.rng, ledger=self.ledger)
            for number in range(1, self.plan.clients + 1)
        ]
        return NaiveDriver(self.world, clients, addresses=self._addresses)  # type: ignore[arg-type]

    def _addresses(self) -> list[int]:
        return list(range(1, self.plan.peers + 1))

    def _settled(self) -> bool:
        return True

    def _leading_machine(self) -> None:
        """Everybody leads."""

    def _compare_states(self) -> None:
        """The ledger has compared every entry."""

    @staticmethod
    def _fingerprint(machine: Machine) -> tuple[object, ...]:  # type: ignore[type-arg]
        return (machine.number, machine.replica.cursor if machine.replica is not None else "down")


def _committed(ledger: Ledger, peer: int, entry: Entry, outcome: Outcome) -> None:
    ledger.committed(peer, entry, outcome)


def _replaced(plan: Plan, changes: dict[str, object]) -> Plan:
    from msgspec.structs import replace

    return replace(plan, **changes)

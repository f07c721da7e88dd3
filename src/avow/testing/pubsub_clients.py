"""Clients of a simulated pub-sub queue, and the rule by which they never write twice.

Every peer takes writes, so a client that hears nothing could simply try the next one, and its message would be in two
lanes. A client therefore binds a write to one lane before it sends, and stays with that lane until it knows:

    nothing outstanding, refused     it did not happen: choose any lane, also another one
    an attempt without an answer     ask the same run again with the same lane and write id (it remembers), or ask the
                                     others what became of the lane
    Done                             it happened
    LANE_ENDED                       not in this lane and never will be: choose another one

Attempts to move a cursor go anywhere: they are entries of the metadata lane, which knows write ids.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Final

from avow.peer.answers import Answer, Done, Reached, Refusal, Stored
from avow.peer.lane import Write
from avow.peer.pubsub_queue import PubSubPeer
from avow.testing.ledger import Violation
from avow.testing.pubsub_ledger import PubSubLedger
from avow.testing.world import Machine, World
from avow.wire.messages import Kind

ATTEMPT_S: Final = 0.4

WRITE: Final = "write"
CURSOR: Final = "cursor"
LOCAL: Final = "local"
AT_LEAST: Final = "at_least"
PASSING: Final = frozenset({"OFFLINE", "DISK_FULL", "TOO_MANY"})  # refusals of an attempt, not of the operation


class Operation:
    """One thing a client wants. `lane` and `owner` are where a write is bound to; 0: nowhere yet."""

    __slots__ = ("count", "kind", "lane", "owner", "unsure", "versions", "write_id")

    def __init__(self, kind: str, *, write_id: bytes = b"", count: int = 0, versions: dict[int, int]) -> None:
        self.kind, self.write_id, self.count, self.versions = kind, write_id, count, versions
        self.lane = self.owner = 0
        self.unsure = False  # an attempt in this lane got no answer


class PubSubClient:
    __slots__ = ("_counter", "_ledger", "_rng", "attempt", "left", "number", "operation", "seen")

    def __init__(self, *, number: int, operations: int, rng: Random, ledger: PubSubLedger) -> None:
        self.number, self.left = number, operations
        self._rng, self._ledger = rng, ledger
        self._counter = 0
        self.operation: Operation | None = None
        self.attempt = 0
        self.seen: dict[int, int] = {}  # lane -> version: its own writes, and all it was shown

    @property
    def finished(self) -> bool:
        return self.operation is None and not self.left

    def begin(self) -> Operation | None:
        if self.left:
            self.left -= 1
            self.operation = self._draw()
        self.attempt += 1
        return self.operation

    def _draw(self) -> Operation:
        chance = self._rng.random()
        seen = dict(self.seen)
        if chance < 0.75:
            count = 1 + int(chance * 40) % 3
            operation = Operation(WRITE, write_id=self._write_id(), count=count, versions=seen)
            self._ledger.ask(operation.write_id, count)
            return operation
        if chance < 0.82:
            return Operation(CURSOR, write_id=self._write_id(), versions=seen)
        return Operation(AT_LEAST if chance < 0.95 else LOCAL, versions=seen)

    def _write_id(self) -> bytes:
        self._counter += 1
        return b"%08d%08d" % (self.number, self._counter)

    def hear(self, answer: Answer) -> bool:
        """The answer to the current attempt; True when the operation is over, False when it must be tried again."""
        operation = self.operation
        assert operation is not None
        if isinstance(answer, Refusal):
            self._refused(operation, answer)
            return False
        if isinstance(answer, Done):
            self._done(operation, answer)
        elif isinstance(answer, Reached):
            self._reached(operation, answer)
        else:
            operation.unsure = True
            return False
        self.operation = None
        return True

    def _done(self, operation: Operation, answer: Done) -> None:
        if operation.kind == WRITE:
            lane, last = operation.lane, answer.last_version
            self._ledger.acknowledge(operation.write_id, lane=lane, first=answer.first_version, last=last)
            self.seen[lane] = max(last, self.seen.get(lane, 0))

    def _reached(self, operation: Operation, answer: Reached) -> None:
        floor = operation.versions if operation.kind == AT_LEAST else {}
        self._ledger.read(level=operation.kind, floor=floor, versions=answer.versions)
        if operation.kind == AT_LEAST:
            for lane, version in answer.versions.items():
                self.seen[lane] = max(version, self.seen.get(lane, 0))

    def _refused(self, operation: Operation, answer: Refusal) -> None:
        if operation.kind == WRITE and answer.code == "LANE_ENDED":
            self._ledger.refuse(operation.write_id, lane=operation.lane)
            operation.lane, operation.unsure = 0, False
        elif answer.code not in PASSING:
            raise Violation("refused", f"client {self.number}: {operation.kind} was refused with {answer}")
        elif not operation.unsure:
            operation.lane = 0  # this attempt did not happen, and there was no other


class PubSubDriver:
    """Carries attempts to peers and answers back; both get lost and come late."""

    def __init__(
        self, world: World[PubSubPeer], clients: list[PubSubClient], *, addresses: Callable[[], list[int]]
    ) -> None:
        self._world, self.clients, self._addresses = world, clients, addresses
        self._requests: dict[int, tuple[PubSubClient, int]] = {}
        self._next_request = 0
        world.on_answer = self._answered
        for client in clients:
            world.call(world.rng.random() * world.plan.think_s, partial(self._step, client))

    @property
    def finished(self) -> bool:
        return all(client.finished for client in self.clients)

    def _step(self, client: PubSubClient) -> None:
        if client.begin() is not None:
            self._attempt(client)

    def _attempt(self, client: PubSubClient) -> None:
        world, operation = self._world, client.operation
        assert operation is not None
        client.attempt += 1
        target = self._target(operation)
        if target is None:
            world.call(0.02 + 0.1 * world.rng.random(), partial(self._retry, client, client.attempt))
            return
        self._next_request += 1
        request = self._next_request
        self._requests[request] = (client, client.attempt)
        if world.rng.random() >= world.loss:
            world.call(world._delay(), partial(self._arrives, target, request, operation, operation.lane))
        world.call(ATTEMPT_S, partial(self._given_up, client, client.attempt, request))

    def _target(self, operation: Operation) -> Machine[PubSubPeer] | None:
        """Where the next attempt goes. A write that is not bound yet is bound here, as by a session."""
        world = self._world
        if operation.lane and world.rng.random() < 0.6:
            return world.machines[operation.owner]
        addresses = self._addresses()
        machine = world.machines[addresses[int(world.rng.random() * len(addresses))]]
        if operation.kind != WRITE or operation.lane:
            return machine
        if machine.replica is None or not machine.replica.open_lane:
            return None
        operation.lane, operation.owner = machine.replica.open_lane, machine.number
        return machine

    def _arrives(self, target: Machine[PubSubPeer], request: int, operation: Operation, lane: int) -> None:
        world, peer = self._world, target.replica
        if peer is None or world.now < target.paused_until_s:
            return
        now = target.clock(world.now)
        if operation.kind == WRITE and target.number == operation.owner:
            write = Write(Kind.DATA, operation.write_id, operation.count, batch=operation.write_id)
            peer.write(request, write, now, lane=lane)
        elif operation.kind == WRITE:
            peer.lookup(request, lane, operation.write_id)
        elif operation.kind == CURSOR:
            name = f"s{operation.write_id[7] % 2}"
            peer.move_cursor(request, name, operation.versions, write_id=operation.write_id, now=now)
        elif operation.kind == AT_LEAST:
            peer.read_at_least(request, operation.versions)
        else:
            peer.read_local(request)
        world.perform(target)

    def _answered(self, request: int, answer: Answer) -> None:
        world = self._world
        if request in self._requests and world.rng.random() >= world.loss:
            world.call(world._delay(), partial(self._heard, request, answer))

    def _heard(self, request: int, answer: Answer) -> None:
        known = self._requests.get(request)
        if known is None or known[0].attempt != known[1]:
            return
        client, world = known[0], self._world
        if world.trace is not None:
            world.note(f"client {client.number} hears {answer}")
        if isinstance(answer, Stored):
            self._check_place(client, answer)
            return  # the outcome follows
        del self._requests[request]
        if client.hear(answer):
            world.call(world.rng.random() * world.plan.think_s, partial(self._step, client))
        else:
            client.attempt += 1  # this one is over; the next after a moment
            world.call(0.02 + 0.1 * world.rng.random(), partial(self._retry, client, client.attempt))

    @staticmethod
    def _check_place(client: PubSubClient, answer: Stored) -> None:
        operation = client.operation
        assert operation is not None
        if answer.lane != operation.lane:
            raise Violation("agreement", f"{operation.write_id!r} was sent to {operation.lane} and stored as {answer}")

    def _given_up(self, client: PubSubClient, attempt: int, request: int) -> None:
        if client.attempt == attempt and client.operation is not None:
            self._requests.pop(request, None)
            client.operation.unsure = True
            self._attempt(client)

    def _retry(self, client: PubSubClient, attempt: int) -> None:
        if client.attempt == attempt and client.operation is not None:
            self._attempt(client)

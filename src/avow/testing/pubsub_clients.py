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
from avow.testing.driver import Driver
from avow.testing.ledger import Violation
from avow.testing.pubsub_ledger import PubSubLedger
from avow.testing.world import Machine
from avow.wire.messages import Kind

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

    def begin(self, now_ms: int) -> Operation | None:  # noqa: ARG002
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

    @property
    def busy(self) -> bool:
        return self.operation is not None

    def hears_more(self, answer: Answer) -> bool:
        """Where it is stored comes first, the outcome follows."""
        operation = self.operation
        if not isinstance(answer, Stored) or operation is None:
            return False
        if answer.lane != operation.lane:
            raise Violation("agreement", f"{operation.write_id!r} was sent to {operation.lane} and stored as {answer}")
        return True

    def give_up(self) -> None:
        if self.operation is not None:
            self.operation.unsure = True

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


class PubSubDriver(Driver[PubSubPeer, PubSubClient]):
    """A write that is not bound to a lane yet is bound when it is sent, as by a session."""

    def _target(self, client: PubSubClient) -> Machine[PubSubPeer] | None:
        world, operation = self._world, client.operation
        assert operation is not None
        if operation.lane and world.rng.random() < 0.6:
            return world.machines[operation.owner]
        machine = super()._target(client)
        assert machine is not None
        if operation.kind != WRITE or operation.lane:
            return machine
        if machine.replica is None or not machine.replica.open_lane:
            return None
        operation.lane, operation.owner = machine.replica.open_lane, machine.number
        return machine

    def _parcel(self, client: PubSubClient) -> Callable[[PubSubPeer, int, Machine[PubSubPeer]], None]:
        operation = client.operation
        assert operation is not None
        return partial(self._submit, operation, operation.lane)

    def _submit(
        self, operation: Operation, lane: int, peer: PubSubPeer, request: int, target: Machine[PubSubPeer]
    ) -> None:
        now = target.clock(self._world.now)
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

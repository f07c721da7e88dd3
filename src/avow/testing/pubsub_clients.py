"""Clients of a simulated pub-sub queue, and the rule by which they never write twice.

Every peer takes writes, so a client that hears nothing could simply try the next one, and its message would be in two
lanes. A client therefore binds a write to one lane before it sends, and stays with that lane until it knows:

    nothing outstanding, refused     it did not happen: choose any lane, also another one
    an attempt without an answer     ask the same run again with the same lane and write id (it remembers), or ask the
                                     others what became of the lane
    Done                             it happened
    LANE_ENDED                       not in this lane and never will be: choose another one
    OFFLINE, again and again         if the lane was trimmed, or is longer than what peers remember of it, nobody will
                                     ever know: the write is given up, without a word about what became of it

A write says which version its lane had when it was bound to it, so that no peer takes a late retry for a new write.

Attempts to move a cursor go anywhere: they are entries of the metadata lane, which knows write ids.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Final

from avow.errors import Trimmed
from avow.peer.answers import Answer, Done, Reached, Refusal, Stored
from avow.peer.lane import Write
from avow.peer.pubsub_run import PubSubPeer
from avow.testing.driver import Driver
from avow.testing.ledger import Violation, value_of
from avow.testing.pubsub_ledger import PubSubLedger
from avow.testing.world import Machine
from avow.wire.batch import encode_batch, unpack_entry
from avow.wire.messages import Kind

WRITE: Final = "write"
CURSOR: Final = "cursor"
LOCAL: Final = "local"
AT_LEAST: Final = "at_least"
TRIM: Final = "trim"
PATIENCE: Final = 12  # refusals, before a write is given up that nobody can know of
PASSING: Final = frozenset({"OFFLINE", "DISK_FULL", "TOO_MANY"})  # refusals of an attempt, not of the operation


class Operation:
    """One thing a client wants. `lane` and `owner` are where a write is bound to; 0: nowhere yet."""

    __slots__ = (
        "count",
        "kind",
        "lane",
        "owner",
        "refusals",
        "since",
        "unsure",
        "versions",
        "write",
        "write_id",
    )

    def __init__(self, kind: str, *, write_id: bytes = b"", count: int = 0, versions: dict[int, int]) -> None:
        self.kind, self.write_id, self.count, self.versions = kind, write_id, count, versions
        self.lane = self.owner = 0
        self.write = Write(Kind.DATA, write_id, count, batch=write_id)
        self.unsure = False  # an attempt in this lane got no answer
        self.since = 0  # the version the lane had at least when it was first sent there
        self.refusals = 0


def _section(write_id: bytes, count: int) -> bytes:
    return unpack_entry(bytes(encode_batch([value_of(write_id, number) for number in range(count)]))).batch


class PubSubClient:
    __slots__ = ("_counter", "_ledger", "_rng", "_trims", "attempt", "left", "number", "operation", "seen")

    def __init__(self, *, number: int, operations: int, rng: Random, ledger: PubSubLedger, trims: bool) -> None:
        self.number, self.left, self._trims = number, operations, trims
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
            if self.number % 4:
                section = _section(operation.write_id, count)
                operation.write = Write(Kind.DATA, operation.write_id, count, batch=section, mergeable=True)
            return operation
        if chance < 0.8:
            return Operation(CURSOR, write_id=self._write_id(), versions=seen)
        if chance < 0.83 and seen and self._trims:
            lane = list(seen)[int(self._rng.random() * len(seen))]
            return Operation(TRIM, write_id=self._write_id(), versions={lane: seen[lane]})
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
            if self._refused(operation, answer):
                self.operation = None
                return True
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

    def _refused(self, operation: Operation, answer: Refusal) -> bool:
        """True when that is the end of it."""
        if operation.kind == TRIM and answer.code == "INVALID_REQUEST":
            return True  # somebody else trimmed the lane to its end
        if operation.kind == WRITE and answer.code == "LANE_ENDED":
            self._ledger.refuse(operation.write_id, lane=operation.lane)
            operation.lane, operation.unsure = 0, False
        elif answer.code not in PASSING:
            raise Violation("refused", f"client {self.number}: {operation.kind} was refused with {answer}")
        elif not operation.unsure:
            operation.lane = 0  # this attempt did not happen, and there was no other
        else:
            operation.refusals += 1
            return (
                operation.refusals > PATIENCE and bool(operation.lane) and self._ledger.beyond_knowing(operation.lane)
            )
        return False


class PubSubDriver(Driver[PubSubPeer, PubSubClient]):
    """A write that is not bound to a lane yet is bound when it is sent, as by a session."""

    ledger: PubSubLedger  # set by the simulation

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
        self._bind(operation, machine, machine.replica)
        return machine

    def _bind(self, operation: Operation, machine: Machine[PubSubPeer], peer: PubSubPeer) -> None:
        operation.lane, operation.owner = peer.open_lane, machine.number
        operation.since, operation.refusals = peer.readable.get(peer.open_lane, 0), 0

    def _parcel(self, client: PubSubClient) -> Callable[[PubSubPeer, int, Machine[PubSubPeer]], None]:
        operation = client.operation
        assert operation is not None
        return partial(self._submit, operation, operation.lane)

    def _submit(
        self, operation: Operation, lane: int, peer: PubSubPeer, request: int, target: Machine[PubSubPeer]
    ) -> None:
        now = target.clock(self._world.now)
        if operation.kind == WRITE and target.number == operation.owner:
            peer.write(request, operation.write, now, lane=lane, since=operation.since)
        elif operation.kind == WRITE:
            since = operation.since if self._world.rng.random() < 0.7 else 0
            peer.lookup(request, lane, operation.write_id, since=since)
        elif operation.kind == TRIM:
            ((number, version),) = operation.versions.items()
            peer.trim(request, number, version, write_id=operation.write_id, now=now)
        elif operation.kind == CURSOR:
            name = f"s{operation.write_id[7] % 2}"
            peer.move_cursor(request, name, operation.versions, write_id=operation.write_id, now=now)
        elif operation.kind == AT_LEAST:
            peer.read_at_least(request, operation.versions)
        else:
            peer.read_local(request)
            self._read(peer)

    def _read(self, peer: PubSubPeer) -> None:
        """Some messages of some lane, from memory or from disk, as a reader of this peer is given them."""
        rng, queue = self._world.rng, peer.queue
        lanes = list(peer.readable)
        lane = lanes[int(rng.random() * len(lanes))] if lanes else 0
        book = queue.book(lane)
        if book is None:
            return
        floor, end = book.index.trimmed_to, book.index.end
        after = floor + int(rng.random() * (end - floor + 1))
        for part in queue.ranges(lane, after, 5):
            try:
                (entry,) = queue.reader(lane)(part.position - 1, 1, 1)
            except Trimmed:  # a peer that has just started may not have been told of it again
                self.ledger.missing(lane, part.position)
                continue
            self.ledger.served(lane, entry, offset=part.offset, first_version=part.first_version, count=part.count)

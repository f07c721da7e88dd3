"""Clients of a simulated pub-sub queue, and the rule by which they never write twice.

Every peer accepts writes. A client that got no answer and tried the next peer could have its message in two lanes. A
client therefore binds a write to one lane before it sends, and stays with that lane until the outcome is known:

    nothing outstanding, refused     it did not happen: choose any lane, also another one
    an attempt without an answer     repeat it at the same run with the same lane and write id (it remembers), or ask
                                     the other peers for the outcome in that lane
    Done                             it happened
    LANE_ENDED                       not in this lane and never will be: choose another one
    OFFLINE, again and again         if the lane was trimmed, or is longer than what peers remember of it, the outcome
                                     can never be known: the write is given up with an unknown outcome

A write contains the version that its lane had when it was bound, so that no peer takes a late retry for a new write.

A cursor may be moved through any peer: that is an entry of the metadata lane, which remembers write ids.
"""

from __future__ import annotations

from functools import partial
from random import Random
from typing import Final

from avow.errors import InvalidRequest, Offline, StorageDamaged, Trimmed
from avow.node.answers import Answer, Done, Refusal, Stored
from avow.node.lane.two_phase_lane import Write
from avow.node.node import Node
from avow.queue.commands import LaneCursorsCommand, LaneTrimCommand, encode
from avow.wire.batch import encode_batch, unpack_entry
from avow.wire.messages import Kind
from avow_lab.checkers.metadata import Incarnation, MetadataLedger
from avow_lab.checkers.pubsub import PubSubLedger
from avow_lab.checkers.two_phase import Violation, value_of
from avow_lab.simulator.driver import Submit
from avow_lab.simulator.two_phase_clients import NO_QUEUE, is_transient_refusal
from avow_lab.simulator.world import Machine

WRITE: Final = "write"
CURSOR: Final = "cursor"
LOCAL: Final = "local"
AT_LEAST: Final = "at_least"
TRIM: Final = "trim"
REFUSALS_MAX: Final = 12  # before a write whose outcome cannot be known is given up


class Operation:
    """One operation of a client. A write is bound to `lane` and `owner`; 0: not bound yet."""

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
        self.since = 0  # a lower bound of the lane's version when the write was first sent there
        self.refusals = 0


def _section(write_id: bytes, count: int) -> bytes:
    return bytes(unpack_entry(bytes(encode_batch([value_of(write_id, number) for number in range(count)]))).batch)


class PubSubClient:
    __slots__ = (
        "_counter", "_ledger", "_metadata", "_name", "_now_ms", "_queue", "_rng", "_trims", "attempt", "left", "number",
        "operation", "seen",
    )  # fmt: skip

    def __init__(
        self, *, number: int, operations: int, rng: Random, metadata: MetadataLedger, queue: str, trims: bool
    ) -> None:
        self.number, self.left, self._trims = number, operations, trims
        self._rng, self._metadata, self._name = rng, metadata, queue
        self._queue: Incarnation | None = None
        self._ledger: PubSubLedger
        self._counter = self._now_ms = 0
        self.operation: Operation | None = None
        self.attempt = 0
        self.seen: dict[int, int] = {}  # lane -> version, of its own writes and of what it has read

    @property
    def finished(self) -> bool:
        return self.operation is None and not self.left

    @property
    def busy(self) -> bool:
        return self.operation is not None

    def outdated(self) -> bool:
        if self._queue is not None and (self._queue.deleted or self._waits_for_removed_lane()):
            self.operation = None
        return self.operation is None

    def _waits_for_removed_lane(self) -> bool:
        operation = self.operation
        return operation is not None and operation.kind == AT_LEAST and self._ledger.lanes[operation.lane].forgotten

    def begin(self, now_ms: int) -> bool:
        queue = self._metadata.current.get(self._name)
        if queue is None or not self.left:
            return False
        if queue is not self._queue:
            assert queue.pubsub is not None
            self._queue, self._ledger, self.seen = queue, queue.pubsub, {}
        self._now_ms = now_ms
        self.left -= 1
        self.operation = self._draw()
        self.attempt += 1
        return True

    def _draw(self) -> Operation:
        chance = self._rng.random()
        seen = dict(self.seen)
        if chance < 0.75:
            count = 1 + int(chance * 40) % 3
            operation = Operation(WRITE, write_id=self._write_id(), count=count, versions=seen)
            self._ledger.ask(operation.write_id, count)
            if self.number % 4:
                section = _section(operation.write_id, count)
                operation.write = Write(
                    Kind.DATA, operation.write_id, count, created_ms=self._now_ms, batch=section, mergeable=True
                )
            return operation
        if chance < 0.8:
            return Operation(CURSOR, write_id=self._write_id(), versions=seen)
        if chance < 0.83 and seen and self._trims:
            lane = list(seen)[int(self._rng.random() * len(seen))]
            return Operation(TRIM, write_id=self._write_id(), versions={lane: seen[lane]})
        if chance < 0.95 and seen:
            operation = Operation(AT_LEAST, versions=seen)
            operation.lane = list(seen)[int(self._rng.random() * len(seen))]
            return operation
        return Operation(LOCAL, versions=seen)

    def _write_id(self) -> bytes:
        self._counter += 1
        return b"%08d%08d" % (self.number, self._counter)

    def hears_more(self, answer: Answer) -> bool:
        """The answer Stored comes first, the outcome follows."""
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
        """True: the operation is over. False: it must be tried again."""
        operation = self.operation
        assert operation is not None
        if isinstance(answer, Refusal):
            if self._refused(operation, answer):
                self.operation = None
                return True
            return False
        if isinstance(answer, Done):
            self._done(operation, answer)
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
        elif operation.kind in (AT_LEAST, LOCAL) and operation.lane:
            lane, version = operation.lane, answer.last_version
            floor = {lane: operation.versions[lane]} if operation.kind == AT_LEAST else {}
            self._ledger.read(level=operation.kind, floor=floor, versions={lane: version})
            if operation.kind == AT_LEAST:
                self.seen[lane] = max(version, self.seen.get(lane, 0))
        elif operation.write_id:
            self._metadata.acknowledge(operation.write_id, answer.first_version, answer.last_version)

    def _refused(self, operation: Operation, answer: Refusal) -> bool:
        """True: the operation is over."""
        if operation.kind == TRIM and answer.code == "INVALID_REQUEST":
            return True  # another client trimmed the lane to its end
        if operation.kind == WRITE and answer.code == "LANE_ENDED":
            self._ledger.refuse(operation.write_id, lane=operation.lane)
            operation.lane, operation.unsure = 0, False
        elif not is_transient_refusal(answer.code):
            raise Violation("refused", f"client {self.number}: {operation.kind} was refused with {answer}")
        elif operation.kind != WRITE:
            pass  # it may be repeated at any peer
        elif not operation.unsure:
            operation.lane = 0  # this attempt did not happen, and there was no other
        else:
            operation.refusals += 1
            return (
                operation.refusals > REFUSALS_MAX
                and bool(operation.lane)
                and self._ledger.beyond_knowing(operation.lane)
            )
        return False

    # ------------------------------------------------------------------ requests

    def target(self, machines: dict[int, Machine[Node]], addresses: list[int]) -> Machine[Node] | None:
        """Binds a write to a lane when it is first sent, as a session does."""
        operation, queue = self.operation, self._queue
        assert operation is not None
        assert queue is not None
        if operation.kind == WRITE and operation.lane and self._rng.random() < 0.6:
            return machines[operation.owner]
        machine = machines[addresses[int(self._rng.random() * len(addresses))]]
        if operation.kind != WRITE or operation.lane:
            return machine
        node = machine.replica
        held = node.pubsub.get(queue.name) if node is not None else None
        if held is None or held.route != queue.first_lane or not held.open_lane:
            return None
        operation.lane, operation.owner = held.open_lane, machine.number
        operation.since, operation.refusals = held.readable.get(held.open_lane, 0), 0
        return machine

    def parcel(self, target: Machine[Node], now_ms: int) -> Submit[Node]:  # noqa: ARG002
        operation, queue = self.operation, self._queue
        assert operation is not None
        assert queue is not None
        return partial(self._submit, operation, queue, operation.lane)

    def _submit(
        self, operation: Operation, queue: Incarnation, lane: int, node: Node, request: int, now: float
    ) -> Answer | None:
        name = queue.name
        known = node.metadata.state.queue(name)
        if known is None or known.first_lane != queue.first_lane:
            return NO_QUEUE
        if operation.kind == WRITE and node.me == operation.owner:
            node.write_pubsub(request, name, operation.write, now, lane=lane, since=operation.since)
        elif operation.kind == WRITE:
            since = operation.since if self._rng.random() < 0.7 else 0
            node.lookup(request, name, lane, operation.write_id, since=since)
        elif operation.kind == TRIM:
            ((number, version),) = operation.versions.items()
            trim = encode(LaneTrimCommand(number, version))
            node.command(request, Kind.TRIM, trim, write_id=operation.write_id, now=now)
        elif operation.kind == CURSOR:
            node.command(request, Kind.CURSOR, self._cursor(operation, name), write_id=operation.write_id, now=now)
        elif operation.kind == AT_LEAST:
            version = operation.versions[lane]
            node.reach(request, lane, level=AT_LEAST, version=version, now=now)
        else:
            return self._read_messages(operation, queue, node, request, now)
        return None

    def _cursor(self, operation: Operation, name: str) -> bytes:
        subscriber, hold = f"s{operation.write_id[7] % 2}", (None, None, True, False)[operation.write_id[15] % 4]
        return encode(LaneCursorsCommand(name, subscriber, tuple(sorted(operation.versions.items())), hold))

    def _read_messages(
        self, operation: Operation, queue: Incarnation, node: Node, request: int, now: float
    ) -> Answer | None:
        """Read some messages of a random lane of this peer, from memory or from disk."""
        held, ledger = node.pubsub[queue.name], queue.pubsub
        assert ledger is not None
        lanes = held.numbers
        if not lanes:
            return Done(0, 0)
        operation.lane = lane = lanes[int(self._rng.random() * len(lanes))]
        after = int(self._rng.random() * (held.readable.get(lane, 0) + 1))
        node.reach(request, lane, level=LOCAL, version=0, now=now)
        try:
            for served in node.read(lane, after=after, max_count=5, max_bytes=1 << 20):
                ledger.served(
                    lane,
                    served.entry,
                    offset=served.offset,
                    first_version=served.first_version,
                    count=served.count,
                )
            peeked = node.peek(lane, after + 1)
            if peeked is not None and peeked[2] and after < held.readable.get(lane, 0):
                ledger.served(lane, peeked[0], offset=peeked[1], first_version=after + 1, count=1)
        except Trimmed:
            ledger.missing(lane, after)
        except (Offline, StorageDamaged, InvalidRequest):
            pass  # the peer is fetching it, or has removed the lane
        return None

"""Clients of a simulated two-phase queue: they write, compare, stage, publish, subscribe and read.

A client does one operation at a time. An attempt that is not answered in time, or is answered with "unknown", is
repeated at another peer with the same write id; so is a transient refusal (no quorum now). Only a definite answer ends
an operation, so every client must have finished at the end of a run, when everything is healed. There is one exception:
where peers remember few write ids, a late retry may be answered "unknown" for ever, and is given up.

Two clients in three write batches that peers may merge, one of them with keys.

Where the plan says so, a transaction goes over all lanes of the queue: it is opened in its home lane, staged in each
lane with a deadline of its own, and published or discarded through the node, which takes the steps. Then a publish must
have one outcome in all lanes.

Otherwise a client uses one lane of one queue, by its name. When the queue is deleted it drops its operation, and goes
on with the next queue that is created under the name, which has a ledger of its own.
"""

from __future__ import annotations

from functools import cache, partial
from random import Random
from typing import Final

from msgspec.structs import replace

from avow.errors import Offline, StorageDamaged, Trimmed, UnknownQueue, is_transient
from avow.node.answers import Answer, Decided, Done, Lost, Refusal
from avow.node.lane.two_phase_lane import Write
from avow.node.node import Node
from avow.node.transactions import Wanted
from avow.queue import commands
from avow.queue.key_to_lane import lane_for
from avow.queue.records import Queue
from avow.queue.transactions import Parts
from avow.wire.batch import encode_batch, unpack_entry
from avow.wire.messages import Kind
from avow_lab.checkers.metadata import Incarnation, MetadataLedger
from avow_lab.checkers.two_phase import Expectation, Ledger, Violation, value_of
from avow_lab.simulator.driver import Submit
from avow_lab.simulator.world import Machine

LINEARIZABLE: Final = "linearizable"
AT_LEAST: Final = "at_least"
LOCAL: Final = "local"

UNKNOWN_MAX: Final = 6  # answers "unknown" to one write before it is given up, where write ids are forgotten
NO_QUEUE: Final = Refusal(UnknownQueue.code)
STAGE_DEADLINE_S: Final = 1.5


def is_transient_refusal(code: str) -> bool:
    """Whether the refusal is of the attempt and not of the operation. UNKNOWN_QUEUE may come from a peer that lags."""
    return is_transient(code) or code == UnknownQueue.code


class WideTransaction:
    """A transaction over several lanes that one client stages and decides. All its batches have to be decided."""

    __slots__ = ("kind", "lanes", "parts", "txn")

    def __init__(self, txn: bytes, kind: int, parts: Parts, lanes: tuple[Ledger, ...]) -> None:
        self.txn, self.kind, self.parts, self.lanes = txn, kind, parts, lanes

    def decided(self, answer: Decided) -> None:
        for lane in self.lanes:
            found = lane.rules.decided.get(self.txn)
            if self.kind == Kind.PUBLISH:
                versions = answer.versions.get(lane.number)
                if found is None or versions != (found.first_version, found.last_version) or not found.first_version:
                    raise Violation("lost", f"{self.txn!r} was published as {answer}; lane {lane.number} has {found}")
                lane.acked_end = max(lane.acked_end, found.last_version)
                lane.acknowledged += 1
            elif found is not None and found.first_version:
                raise Violation("two outcomes", f"{self.txn!r} was discarded, and is published in lane {lane.number}")

    def refused(self, answer: Refusal) -> None:
        shown = [lane.number for lane in self.lanes if (d := lane.rules.decided.get(self.txn)) and d.first_version]
        if shown and self.kind == Kind.PUBLISH:
            raise Violation("refused happened", f"{self.txn!r} was refused with {answer.code}; {shown} show it")


class Operation:
    """One operation of a client: a write with its expectation, a read with its floor, or the decision of a transaction
    over several lanes. `ledger`: of the lane that it is about."""

    __slots__ = ("asked", "began_ms", "decides", "ledger", "level", "unknown", "version", "write")

    def __init__(
        self,
        *,
        ledger: Ledger,
        write: Write | None = None,
        asked: Expectation | None = None,
        level: str = "",
        version: int = 0,
        decides: WideTransaction | None = None,
    ) -> None:
        self.ledger, self.decides = ledger, decides
        self.write, self.asked, self.level, self.version = write, asked, level, version
        self.began_ms = 0
        self.unknown = 0  # how often it was answered "unknown"


class Client:
    __slots__ = (
        "_counter",
        "_floor",
        "_gives_up",
        "_index",
        "_ledger",
        "_metadata",
        "_name",
        "_now_ms",
        "_queue",
        "_reuses",
        "_rng",
        "_steps",
        "_wide",
        "attempt",
        "left",
        "number",
        "operation",
        "seen_end",
    )

    def __init__(
        self,
        *,
        number: int,
        operations: int,
        rng: Random,
        metadata: MetadataLedger,
        queue: str,
        index: int = 0,
        gives_up: bool = False,
        reuses: bool = False,
        wide: bool = False,
    ) -> None:
        """`index`: of the lane in the queue. `gives_up`: a write may end with the answer "unknown". `reuses`: a message
        is written with the write id of a staged batch. `wide`: transactions go over all lanes."""
        self.number, self.left = number, operations
        self._metadata, self._name, self._index = metadata, queue, index
        self._gives_up, self._reuses, self._wide = gives_up, reuses, wide
        self._rng = rng
        self._queue: Incarnation | None = None
        self._ledger: Ledger
        # Of the current transaction: (kind, control, write id, lane or the decision)
        self._steps: list[tuple[int, bytes, bytes, Ledger | WideTransaction]] = []
        self._counter = self._floor = self._now_ms = 0
        self.operation: Operation | None = None
        self.attempt = 0
        self.seen_end = 0  # the highest version this client has seen: its session's floor

    @property
    def busy(self) -> bool:
        return self.operation is not None

    @property
    def finished(self) -> bool:
        return self.operation is None and not self.left and not self._steps

    def hears_more(self, answer: Answer) -> bool:  # noqa: ARG002
        return False

    def give_up(self) -> None:
        """Nothing to do: the write id is the same in every attempt."""

    # ------------------------------------------------------------------ queue and peer

    def outdated(self) -> bool:
        if self._queue is not None and self._queue.deleted:
            self.operation, self._steps = None, []
        return self.operation is None

    def _bind(self) -> bool:
        """Use the queue that has the name now. False: there is none."""
        queue = self._metadata.current.get(self._name)
        if queue is None:
            return False
        if queue is not self._queue:
            number = queue.first_lane + self._index % queue.command.lanes
            self._queue, self._ledger = queue, queue.lanes[number]
            self.seen_end, self._steps = 0, []
        return True

    def target(self, machines: dict[int, Machine[Node]], addresses: list[int]) -> Machine[Node] | None:
        return machines[addresses[int(self._rng.random() * len(addresses))]]

    def parcel(self, target: Machine[Node], now_ms: int) -> Submit[Node]:  # noqa: ARG002
        operation, queue = self.operation, self._queue
        assert operation is not None
        assert queue is not None
        return partial(self._submit, operation, queue, operation.ledger, now_ms - operation.began_ms)

    def _submit(
        self,
        operation: Operation,
        queue: Incarnation,
        ledger: Ledger,
        age_ms: int,
        node: Node,
        request: int,
        now: float,
    ) -> Answer | None:
        known = node.metadata.state.queue(queue.name)
        if known is None or known.first_lane != queue.first_lane:
            return NO_QUEUE
        if known.peers and node.me not in known.peers:
            return NO_QUEUE  # a peer passes such a request on to one that holds the lane
        number = ledger.number
        if operation.decides is not None:
            self._submit_decision(operation.decides, known, node, request)
            return None
        if operation.write is not None:
            node.write(request, number, replace(operation.write, age_ms=age_ms) if age_ms else operation.write, now)
            return None
        node.reach(request, number, level=operation.level, version=operation.version, now=now)
        if operation.level == LOCAL:
            self._read_messages(node, ledger)
        return None

    @staticmethod
    def _submit_decision(decides: WideTransaction, queue: Queue, node: Node, request: int) -> None:
        if decides.kind == Kind.PUBLISH:
            node.transactions.publish(request, queue, decides.txn, Wanted(parts=decides.parts))
        else:
            node.transactions.discard(request, queue, decides.txn)

    def _read_messages(self, node: Node, ledger: Ledger) -> None:
        """Read some messages of this peer, from memory or from disk."""
        lane = node.lanes.get(ledger.number)
        if lane is None:
            return
        after = int(self._rng.random() * (lane.state.end + 1))
        try:
            for served in node.read(ledger.number, after=after, max_count=5, max_bytes=1 << 20):
                ledger.served(
                    served.entry, offset=served.offset, first_version=served.first_version, count=served.count
                )
            peeked = node.peek(ledger.number, after + 1)
            if peeked is not None and peeked[2]:
                ledger.served(peeked[0], offset=peeked[1], first_version=after + 1, count=1)
        except Trimmed:
            ledger.missing(after)
        except (Offline, StorageDamaged):
            pass  # the peer is fetching it; another one has it

    # ------------------------------------------------------------------ operations

    def begin(self, now_ms: int) -> bool:
        """Start the next operation. False: there is none, or no queue."""
        self._now_ms = now_ms
        if not self._bind():
            self._steps = []
            return False
        if self._steps:
            kind, control, write_id, where = self._steps.pop(0)
            if isinstance(where, WideTransaction):
                self.operation = Operation(ledger=self._ledger, decides=where)
            else:
                self.operation = self._write(
                    kind, count=self._draw_count(kind, control), control=control, write_id=write_id, ledger=where
                )
        elif self.left:
            self.left -= 1
            self.operation = self._draw(now_ms)
        self.attempt += 1
        if self.operation is None:
            return False
        self.operation.began_ms = now_ms
        return True

    def _draw(self, now_ms: int) -> Operation:
        chance = self._rng.random()
        if chance < 0.55:
            return self._write(Kind.DATA, count=1 + int(chance * 40) % 3)
        if chance < 0.68:
            expected = self.seen_end if chance < 0.64 else self._ledger.acked_end
            return self._write(Kind.DATA, count=1, expected=expected)
        if chance < 0.78:
            return self._begin_transaction(now_ms, chance)
        if chance < 0.82:
            hold = (None, None, True, False)[int(chance * 1000) % 4]
            command = commands.CursorCommand(f"s{self.number}", self.seen_end, hold)
            return self._write(Kind.CURSOR, count=0, control=commands.encode(command))
        if chance < 0.86:
            kept = 3 + int(chance * 10_000) % 20
            trim = commands.TrimCommand(max(0, self.seen_end - kept))
            return self._write(Kind.TRIM, count=0, control=commands.encode(trim))
        if chance < 0.93:
            return self._read(LINEARIZABLE, 0, floor=self._ledger.acked_end)
        if chance < 0.97:
            return self._read(AT_LEAST, self.seen_end, floor=self.seen_end)
        return self._read(LOCAL, 0, floor=0)

    def _begin_transaction(self, now_ms: int, chance: float) -> Operation:
        """Every other transaction has parts: its second stage is an abandoned attempt, which the publish does not
        name."""
        assert self._queue is not None
        if self._wide and len(self._queue.lanes) > 1:
            return self._begin_wide(self._queue, now_ms, chance)
        txn, parted = b"t%d-%d" % (self.number, self._counter), self._counter % 2
        deadline_ms = now_ms + int(STAGE_DEADLINE_S * 1000)
        decide = commands.encode(commands.TransactionCommand(txn, parts=((1, 1),) if parted else ()))
        self._steps = [
            (
                Kind.STAGE,
                commands.encode(commands.StageCommand(txn, deadline_ms, part * parted)),
                self._write_id(),
                self._ledger,
            )
            for part in range(1, 2 + int(chance * 100) % 2)
        ]
        if chance < 0.75:
            self._steps.append((Kind.PUBLISH, decide, self._write_id(), self._ledger))
        elif chance < 0.77:
            self._steps.append((Kind.DISCARD, decide, self._write_id(), self._ledger))
        # else it is left undecided: the deadline discards it
        kind, control, write_id, _ = self._steps.pop(0)
        if self._reuses:
            self._steps.insert(0, (Kind.DATA, b"", write_id, self._ledger))
        return self._write(kind, count=1, control=control, write_id=write_id)

    def _begin_wide(self, queue: Incarnation, now_ms: int, chance: float) -> Operation:
        """The home lane first, without messages; then one batch in each lane. All batches are of one part, or none is.

        The deadlines differ from lane to lane, and some pass before the publish.
        """
        txn, part = b"t%d-%d" % (self.number, self._counter), self._counter % 2
        lanes = [queue.lanes[number] for number in sorted(queue.lanes)]
        home = lanes[lane_for(txn, len(lanes))]

        def stage(deadline_s: float) -> bytes:
            deadline_ms = now_ms + int(deadline_s * 1000)
            return commands.encode(commands.BoundStageCommand(txn, deadline_ms, part, home.number))

        shares = (0.02, 0.1, 1.0) if chance < 0.72 else (1.0, 1.0, 1.0)
        deadlines = [STAGE_DEADLINE_S * shares[int(self._rng.random() * 3)] for _ in lanes]
        self._steps = [
            (Kind.STAGE, stage(deadline_s), self._write_id(), lane)
            for lane, deadline_s in zip(lanes, deadlines, strict=True)
        ]
        if chance < 0.77:
            kind = Kind.PUBLISH if chance < 0.75 else Kind.DISCARD
            parts = ((1, len(lanes)),) if part else ()
            self._steps.append((kind, b"", b"", WideTransaction(txn, kind, parts, tuple(lanes))))
        return self._write(Kind.STAGE, count=0, control=stage(deadlines[0]), ledger=home)

    def _draw_count(self, kind: int, control: bytes) -> int:
        """One in each lane of a wide transaction, so that its publish can name how many it has."""
        if kind == Kind.STAGE and isinstance(commands.decode(kind, control), commands.BoundStageCommand):
            return 1
        return 1 + int(self._rng.random() * 3) if kind in (Kind.STAGE, Kind.DATA) else 0

    def _write_id(self) -> bytes:
        self._counter += 1
        return b"%08d%08d" % (self.number, self._counter)

    def _write(
        self,
        kind: int,
        *,
        count: int,
        expected: int = -1,
        control: bytes = b"",
        write_id: bytes = b"",
        ledger: Ledger | None = None,
    ) -> Operation:
        write_id, ledger = write_id or self._write_id(), ledger or self._ledger
        txn = b""
        if kind in (Kind.PUBLISH, Kind.DISCARD):
            command = commands.decode(kind, control)
            assert isinstance(command, commands.TransactionCommand)
            txn = command.txn
        asked = ledger.ask(write_id=write_id, kind=kind, count=count, expected=expected, txn=txn)
        mergeable = kind == Kind.DATA and self.number % 3 != 0
        batch = self._section(write_id, count) if mergeable else write_id if count else b""
        write = Write(kind, write_id, count, expected, self._now_ms, control, batch, mergeable)
        return Operation(ledger=ledger, write=write, asked=asked)

    def _section(self, write_id: bytes, count: int) -> bytes:
        values = [value_of(write_id, number) for number in range(count)]
        head, tail = _around(len(values[0]), count, keyed=self.number % 3 == 2)
        return b"".join((head, *values, tail))

    def _read(self, level: str, version: int, *, floor: int) -> Operation:
        self._floor = floor
        return Operation(ledger=self._ledger, level=level, version=version)

    def hear(self, answer: Answer) -> bool:
        """True: the operation is over. False: it must be tried again."""
        operation = self.operation
        assert operation is not None
        if isinstance(answer, Decided):
            assert operation.decides is not None
            operation.decides.decided(answer)
        elif isinstance(answer, Done):
            self._done(operation, answer)
        elif isinstance(answer, Refusal) and not is_transient_refusal(answer.code):
            self._refused(operation, answer)
        elif isinstance(answer, Lost) and self._gives_up and operation.unknown + 1 >= UNKNOWN_MAX:
            self._steps = []
        else:
            operation.unknown += isinstance(answer, Lost)
            return False
        self.operation = None
        return True

    def _done(self, operation: Operation, answer: Done) -> None:
        if operation.asked is None:
            operation.ledger.read(level=operation.level, floor=self._floor, end=answer.last_version)
            if operation.level != LOCAL:
                self.seen_end = max(self.seen_end, answer.last_version)
            return
        operation.ledger.acknowledge(operation.asked, answer.first_version, answer.last_version)
        if operation.asked.kind in (Kind.DATA, Kind.PUBLISH):
            self.seen_end = max(self.seen_end, answer.last_version)

    def _refused(self, operation: Operation, answer: Refusal) -> None:
        if operation.decides is not None:
            operation.decides.refused(answer)
        if operation.asked is not None:
            operation.ledger.refuse(operation.asked, answer.code, answer.cursor)
            if answer.code == "NOT_EQUAL":
                self.seen_end = max(self.seen_end, answer.cursor)
            if operation.asked.reuses:
                return  # the transaction goes on
        self._steps = []


@cache
def _around(size: int, count: int, *, keyed: bool) -> tuple[bytes, bytes]:
    """The bytes before and after the values in a section of `count` values of `size` bytes. Cached: encoding is
    slow."""
    values = b"v" * size * count
    section = unpack_entry(bytes(encode_batch([values[:size]] * count, keys=[b"k"] * count if keyed else None))).batch
    head, _, tail = bytes(section).partition(values)
    return head, tail

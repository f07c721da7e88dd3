"""Clients of a simulated queue: they write, compare, stage, publish, subscribe and read, and they never give up.

A client does one thing at a time. An attempt that is not answered in time, or is answered with "unknown", is repeated
at another peer with the same write id; a refusal that may pass (no quorum now) is repeated, too. Only a definite answer
ends an operation, so at the end of a run, when everything is healed, every client must have come to an end. There is
one exception: where peers remember few write ids, an old retry may be answered "unknown" for good, and is given up.

Two clients in three write batches that peers may merge, one of them with keys.
"""

from __future__ import annotations

from functools import cache
from random import Random
from typing import Final

from avow.peer.answers import Answer, Done, Lost, Refusal
from avow.peer.lane import Write
from avow.queue import commands
from avow.testing.ledger import Expectation, Ledger, value_of
from avow.wire.batch import encode_batch, unpack_entry
from avow.wire.messages import Kind

LINEARIZABLE: Final = "linearizable"
AT_LEAST: Final = "at_least"
LOCAL: Final = "local"

UNKNOWN_MAX: Final = 6  # answers "unknown" to one write before it is given up, where write ids are forgotten
RETRIED: Final = frozenset({"OFFLINE", "MEMBERSHIP_BUSY", "DISK_FULL"})
STAGE_DEADLINE_S: Final = 1.5


class Operation:
    """One thing a client wants: a write with its expectation, or a read with its floor."""

    __slots__ = ("asked", "began_ms", "level", "unknown", "version", "write")

    def __init__(self, *, write: Write | None, asked: Expectation | None, level: str = "", version: int = 0) -> None:
        self.write, self.asked, self.level, self.version = write, asked, level, version
        self.began_ms = 0
        self.unknown = 0  # how often it was answered "unknown"


class Client:
    __slots__ = (
        "_counter",
        "_floor",
        "_gives_up",
        "_ledger",
        "_rng",
        "_steps",
        "attempt",
        "left",
        "number",
        "operation",
        "seen_end",
    )

    def __init__(self, *, number: int, operations: int, rng: Random, ledger: Ledger, gives_up: bool = False) -> None:
        """`gives_up`: "unknown" may be the last word about a write."""
        self.number, self.left = number, operations
        self._gives_up = gives_up
        self._rng, self._ledger = rng, ledger
        self._steps: list[tuple[int, bytes, bytes]] = []  # of a transaction under way: (kind, control, write id)
        self._counter = 0
        self._floor = 0
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
        """The write id is the same in every attempt: nothing to remember."""

    def begin(self, now_ms: int) -> Operation | None:
        """The next operation, or None when there is nothing left to do."""
        if self._steps:
            kind, control, write_id = self._steps.pop(0)
            count = 1 + int(self._rng.random() * 3) if kind == Kind.STAGE else 0
            self.operation = self._write(kind, count=count, control=control, write_id=write_id)
        elif self.left:
            self.left -= 1
            self.operation = self._draw(now_ms)
        self.attempt += 1
        if self.operation is not None:
            self.operation.began_ms = now_ms
        return self.operation

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
            command = commands.CursorCommand(f"s{self.number}", self.seen_end)
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
        """Every other one is of parts: the second stage is an attempt that was given up, and is not named."""
        txn, parted = b"t%d-%d" % (self.number, self._counter), self._counter % 2
        deadline_ms = now_ms + int(STAGE_DEADLINE_S * 1000)
        decide = commands.encode(commands.TransactionCommand(txn, parts=((1, 1),) if parted else ()))
        self._steps = [
            (Kind.STAGE, commands.encode(commands.StageCommand(txn, deadline_ms, part * parted)), self._write_id())
            for part in range(1, 2 + int(chance * 100) % 2)
        ]
        if chance < 0.75:
            self._steps.append((Kind.PUBLISH, decide, self._write_id()))
        elif chance < 0.77:
            self._steps.append((Kind.DISCARD, decide, self._write_id()))
        # else it is left undecided: the deadline discards it
        kind, control, write_id = self._steps.pop(0)
        return self._write(kind, count=1, control=control, write_id=write_id)

    def _write_id(self) -> bytes:
        self._counter += 1
        return b"%08d%08d" % (self.number, self._counter)

    def _write(
        self, kind: int, *, count: int, expected: int = -1, control: bytes = b"", write_id: bytes = b""
    ) -> Operation:
        write_id = write_id or self._write_id()
        txn = b""
        if kind in (Kind.PUBLISH, Kind.DISCARD):
            command = commands.decode(kind, control)
            assert isinstance(command, commands.TransactionCommand)
            txn = command.txn
        asked = self._ledger.ask(write_id=write_id, kind=kind, count=count, expected=expected, txn=txn)
        mergeable = kind == Kind.DATA and self.number % 3 != 0
        batch = self._section(write_id, count) if mergeable else write_id if count else b""
        write = Write(kind, write_id, count, expected, 0, control, batch, mergeable)
        return Operation(write=write, asked=asked)

    def _section(self, write_id: bytes, count: int) -> bytes:
        values = [value_of(write_id, number) for number in range(count)]
        head, tail = _around(len(values[0]), count, keyed=self.number % 3 == 2)
        return b"".join((head, *values, tail))

    def _read(self, level: str, version: int, *, floor: int) -> Operation:
        self._floor = floor
        return Operation(write=None, asked=None, level=level, version=version)

    def hear(self, answer: Answer) -> bool:
        """The answer to the current operation; True when it is over, False when it must be tried again."""
        operation = self.operation
        assert operation is not None
        if isinstance(answer, Done):
            self._done(operation, answer)
        elif isinstance(answer, Refusal) and answer.code not in RETRIED:
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
            self._ledger.read(level=operation.level, floor=self._floor, end=answer.last_version)
            if operation.level != LOCAL:
                self.seen_end = max(self.seen_end, answer.last_version)
            return
        self._ledger.acknowledge(operation.asked, answer.first_version, answer.last_version)
        if operation.asked.kind in (Kind.DATA, Kind.PUBLISH):
            self.seen_end = max(self.seen_end, answer.last_version)

    def _refused(self, operation: Operation, answer: Refusal) -> None:
        if operation.asked is not None:
            self._ledger.refuse(operation.asked, answer.code, answer.cursor)
            if answer.code == "NOT_EQUAL":
                self.seen_end = max(self.seen_end, answer.cursor)
        self._steps = []


@cache
def _around(size: int, count: int, *, keyed: bool) -> tuple[bytes, bytes]:
    """What stands before and after the values in a section of `count` values of `size` bytes. Encoding costs time."""
    values = b"v" * size * count
    section = unpack_entry(bytes(encode_batch([values[:size]] * count, keys=[b"k"] * count if keyed else None))).batch
    head, _, tail = bytes(section).partition(values)
    return head, tail

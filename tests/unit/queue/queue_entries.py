"""Entries for tests of the queue package: built explicitly, or drawn at random from a small alphabet.

The alphabet is small on purpose: with five write ids, three transactions and windows of two or three, a random sequence
of thirty entries meets duplicates, evictions, refusals and late commands many times over.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from hypothesis import settings
from hypothesis import strategies as st

from avow.queue.commands import (
    Command,
    CursorCommand,
    MembersCommand,
    StageCommand,
    TransactionCommand,
    TrimCommand,
    encode,
)
from avow.queue.entry_outcome import Outcome
from avow.queue.ledger import Bounds, Ledger
from avow.wire.messages import Entry, Kind

TINY = Bounds(write_ids=3, decided_transactions=2, open_transactions=2, staged_batches=2, subscribers=2)
ORIGIN = 65537

# No deadline: how long an example takes says more about the machine than about the code.
PROPERTY = settings(max_examples=150, deadline=None)


class Step(NamedTuple):
    """An entry without its position, and the writes merged into it."""

    kind: int
    count: int = 0  # type: ignore[assignment]
    write_id: bytes = b""
    control: bytes = b""
    writes: tuple[tuple[bytes, int, int], ...] = ()

    def at(self, position: int) -> Entry:
        return Entry(position, ORIGIN, self.kind, self.count, self.write_id, 0, self.control, b"")


def write_id(number: int) -> bytes:
    return number.to_bytes(16, "big")


def data(count: int, write: int = 0) -> Step:
    return Step(Kind.DATA, count, write_id(write) if write else b"")


def command(kind: int, value: Command, *, count: int = 0, write: int = 0) -> Step:
    return Step(kind, count, write_id(write) if write else b"", encode(value))


def stage(txn: bytes, count: int, *, deadline_ms: int = 1000, write: int = 0) -> Step:
    return command(Kind.STAGE, StageCommand(txn, deadline_ms), count=count, write=write)


def publish(txn: bytes, *, write: int = 0) -> Step:
    return command(Kind.PUBLISH, TransactionCommand(txn), write=write)


def discard(txn: bytes, *, write: int = 0) -> Step:
    return command(Kind.DISCARD, TransactionCommand(txn), write=write)


def cursor(name: str, version: int, **fields: Any) -> Step:
    return command(Kind.CURSOR, CursorCommand(name, version, **fields))


def trim(upto: int) -> Step:
    return command(Kind.TRIM, TrimCommand(upto))


def merged(*writes: tuple[int, int]) -> Step:
    """(write id, count) pairs laid end to end in one batch."""
    rows, offset = [], 0
    for number, count in writes:
        rows.append((write_id(number) if number else b"", offset, count))
        offset += count
    return Step(Kind.DATA, offset, writes=tuple(rows))


def apply_all(state: Ledger, *steps: Step) -> list[Outcome]:
    return [state.apply(step.at(state.position + 1), step.writes) for step in steps]


_txns = st.sampled_from([b"a", b"a", b"b", b"c"])
_ids = st.integers(0, 5)
_counts = st.integers(0, 3)
_versions = st.integers(0, 12)
_flags = st.booleans()

_readable = st.one_of(
    st.builds(data, _counts, _ids),
    st.lists(st.tuples(_ids, _counts), min_size=1, max_size=4).map(lambda writes: merged(*writes)),
    st.builds(stage, _txns, _counts, deadline_ms=st.integers(0, 9), write=_ids),
    st.builds(stage, _txns, _counts),
    st.builds(publish, _txns),
    st.builds(publish, _txns, write=_ids),
    st.builds(discard, _txns, write=_ids),
    st.builds(cursor, st.sampled_from("xyz"), _versions, hold=_flags, reset=_flags, remove=_flags),
    st.builds(cursor, st.sampled_from("xyz"), st.sampled_from([0, 0, 1, 4]), epoch=st.integers(0, 4), hold=_flags),
    st.builds(trim, _versions),
    st.just(Step(Kind.NOOP)),
    st.just(command(Kind.MEMBERS, MembersCommand((1, 2, 3)))),
)
_unreadable = st.builds(
    Step,
    kind=st.integers(0, 12),
    count=_counts,
    write_id=_ids.map(lambda number: write_id(number) if number else b""),
    control=st.binary(max_size=8),
    writes=st.sampled_from([(), ((write_id(1), 1, 1),)]),
)

steps = st.one_of(_readable, _readable, _readable, _unreadable)
step_lists = st.lists(steps, max_size=40)
long_step_lists = st.lists(steps, min_size=15, max_size=60)
bounds = st.sampled_from([TINY, Bounds()])

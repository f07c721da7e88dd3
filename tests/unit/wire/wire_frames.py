"""A strategy for every message class, made from the table of layouts, so that a class cannot be forgotten."""

from __future__ import annotations

from typing import get_args

from hypothesis import strategies as st
from msgspec.structs import fields
from tests.unit.wire.wire_material import ENTRIES, POSITION, U64

from avow.wire import messages as m
from avow.wire.frames import encode

CLASSES = get_args(m.Message)

PEERS = st.lists(st.integers(0, 65_535), max_size=9).map(tuple)
SNAPSHOTS = st.builds(
    m.Snapshot, position=POSITION, origin=U64, voters=PEERS, learners=PEERS, state=st.binary(max_size=99)
)
# Where -1 has a meaning it must survive.
POSITIONS = st.just(-1) | POSITION

FIELDS = {
    int: POSITIONS,
    bool: st.booleans(),
    str: st.text(st.characters(codec="utf-8"), max_size=20),
    tuple[m.Entry, ...]: st.lists(ENTRIES, max_size=4).map(tuple),
    m.Entry: ENTRIES,
    m.Snapshot: SNAPSHOTS,
    tuple[tuple[int, int, int], ...]: st.lists(st.tuples(POSITIONS, POSITIONS, POSITIONS), max_size=9).map(tuple),
}
UNSIGNED = {"ballot", "promised", "stamped", "origin", "request", "round"}


def message_of(message: type) -> st.SearchStrategy[m.Message]:
    values = {
        field.name: U64 if field.name in UNSIGNED and field.type is int else FIELDS[field.type]
        for field in fields(message)
    }
    return st.builds(message, **values)


MESSAGES = st.sampled_from(CLASSES).flatmap(message_of)


def frame_of(route: int, message: m.Message) -> bytes:
    return b"".join(encode(route, message))

"""A strategy for every message class, made from the table of layouts, so that a class cannot be forgotten."""

from __future__ import annotations

from struct import pack_into
from typing import get_args

from crc32c import crc32c
from hypothesis import strategies as st
from msgspec.structs import fields
from tests.unit.wire.wire_material import ENTRIES, POSITION, U64

from avow.wire import messages as m
from avow.wire.frames import Hello, encode

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


def frame_of(route: int, message: m.Message | Hello) -> bytes:
    return b"".join(encode(route, message))


def resigned(frame: bytes | bytearray, layout: str, at: int, *numbers: int | bytes) -> bytearray:
    """Other numbers in a frame's head, with a true checksum."""
    copy = bytearray(frame)
    pack_into("<" + layout, copy, at, *numbers)
    head_end = int.from_bytes(copy[16:20], "little") + 7 & ~7
    pack_into("<I", copy, 0, crc32c(memoryview(copy)[4:head_end]))
    return copy

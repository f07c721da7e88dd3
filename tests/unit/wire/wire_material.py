"""Values the wire tests share: strategies for entries and batches, and hand-made damage with true checksums.

A flipped bit is caught by a checksum. To reach the checks behind the checksums, a test changes a field and then signs
the record again, as a client with a bug (or an attacker) would.
"""

from __future__ import annotations

from struct import pack_into

from crc32c import crc32c
from hypothesis import strategies as st

from avow.wire.batch import HEADER_SIZE_BYTES
from avow.wire.messages import Entry, Kind

U64 = st.integers(0, 2**64 - 1)
POSITION = st.integers(0, 2**62)
WRITE_ID = st.just(b"") | st.binary(min_size=16, max_size=16)

ENTRIES = st.builds(
    Entry,
    position=U64,
    origin=U64,
    kind=st.integers(0, len(Kind.NAMES) - 1),
    count=st.integers(0, 65_536),
    write_id=WRITE_ID,
    created_ms=U64,
    control=st.binary(max_size=40),
    batch=st.binary(max_size=70),
)


def messages_of(size: int) -> dict[str, st.SearchStrategy[object]]:
    def per_message(item: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
        return st.none() | st.lists(item, min_size=size, max_size=size)

    header = st.tuples(st.text(st.characters(codec="utf-8"), max_size=5), st.binary(max_size=8))
    return {
        "values": st.lists(st.binary(max_size=40), min_size=size, max_size=size),
        "keys": per_message(st.none() | st.binary(max_size=9)),
        "headers": per_message(st.lists(header, max_size=3)),
        "times": per_message(st.integers(-(2**63), 2**63 - 1)),
    }


#: The arguments of `encode_batch` for 0 to 20 messages, each column present or not.
BATCHES = st.integers(0, 20).flatmap(lambda size: st.fixed_dictionaries(messages_of(size)))


def sign(record: bytearray) -> bytearray:
    """Make both checksums true for whatever the record now holds."""
    pack_into("<I", record, 12, crc32c(memoryview(record)[HEADER_SIZE_BYTES:]))
    pack_into("<I", record, 4, crc32c(memoryview(record)[8:HEADER_SIZE_BYTES]))
    return record


def forged(record: bytes | bytearray, layout: str, at: int, *numbers: int | bytes) -> bytearray:
    """A copy with other numbers at a place, signed again."""
    copy = bytearray(record)
    pack_into("<" + layout, copy, at, *numbers)
    return sign(copy)

"""From what a client sends to what a lane stores: raw batches checked once, JSON messages encoded once.

`take_batch` is on the path of every raw write. `wire.batch.check` verifies all there is to verify and names what is
wrong; for a batch of one message that costs more than the rest of the request. So small batches of plain values, the
common case, are verified by comparing their numbers directly. Whatever does not fit in the least goes to `check`, which
decides: the short way can only say yes, and a test holds it against the long one.

`take_messages` spreads JSON messages over the lanes of a queue: a key decides its lane, messages without one stay
together in the lane that the write id gives, and a lane that was asked for takes all.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct as Layout
from typing import Final

from crc32c import crc32c
from msgspec import Struct

from avow import limits
from avow.errors import InvalidRequest
from avow.peer.http.shapes import NewMessage
from avow.queue.lanes import lane_for
from avow.wire.batch import Batch, check, encode_batch
from avow.wire.messages import Kind
from avow.wire.record import FORMAT_VERSION, HAS_WRITE_ID, HEADER_SIZE_BYTES, MAGIC, Buffer, unpack_entry

_WHOLE: Final = Layout("<4sIBBHIIIIIQQQQ16sHBBIIIIIII")  # record header, then preamble of the batch
_COLUMNS_AT: Final = _WHOLE.size
_ONE: Final = Layout("<ii")


class Taken(Struct, frozen=True, gc=False):
    """A batch that may be stored. `section` is what follows header and control of its record."""

    write_id: bytes
    count: int
    created_ms: int
    section: bytes
    mergeable: bool


def take_batch(record: Buffer) -> Taken:
    """Raises Malformed or InvalidRequest, and then nothing was stored."""
    size = len(record)
    if _COLUMNS_AT <= size <= limits.MERGEABLE_SIZE_BYTES_MAX:
        taken = _take_plain(record, size)
        if taken is not None:
            return taken
    return _take_checked(check(record), record)


def _take_plain(record: Buffer, size: int) -> Taken | None:
    head = _WHOLE.unpack_from(record)
    (magic, header_crc, version, kind, flags, body_crc, body, control, reserved, count) = head[:10]
    value_bytes = head[20]
    values_at = _COLUMNS_AT + ((4 * count + 11) & ~7)
    if (
        (magic, version, kind, flags, control, reserved) != (MAGIC, FORMAT_VERSION, Kind.DATA, HAS_WRITE_ID, 0, 0)
        or body != size - HEADER_SIZE_BYTES
        or values_at + ((value_bytes + 7) & ~7) != size
        or head[11]  # position
        or head[15:20] != (0, 0, 0, count, 0)  # no other columns, no codec, as many messages, no writes
        or any(head[21:])  # bytes of columns that are not there
        or not count
    ):
        return None
    if crc32c(record[8:HEADER_SIZE_BYTES]) != header_crc or crc32c(record[HEADER_SIZE_BYTES:]) != body_crc:
        return None
    if count == 1:
        sound = record[_COLUMNS_AT : _COLUMNS_AT + 8] == _ONE.pack(0, value_bytes)
    else:
        offsets = memoryview(record)[_COLUMNS_AT : _COLUMNS_AT + 4 * count + 4].cast("i").tolist()
        sound = offsets[0] == 0 and offsets[-1] == value_bytes and offsets == sorted(offsets)
    return Taken(head[14], count, head[13], bytes(record[HEADER_SIZE_BYTES:]), mergeable=True) if sound else None


def _take_checked(batch: Batch, record: Buffer) -> Taken:
    if batch.kind != Kind.DATA or batch.position or batch.control:
        raise InvalidRequest(
            "a batch to write is of kind data, at position 0 and without a command; nothing was stored"
        )
    if not batch.count:
        raise InvalidRequest("a batch to write has at least one message; nothing was stored")
    writes = batch.writes()
    if len(writes) > 1 or writes[0].write_id != batch.write_id:
        raise InvalidRequest("a batch to write is one write; send merged ones singly. Nothing was stored")
    return _taken(record, mergeable=batch.mergeable)


def _taken(record: Buffer, *, mergeable: bool) -> Taken:
    """Small sections are copied: a view costs as much, and keeps the whole request in memory."""
    entry = unpack_entry(memoryview(record), verify=False)
    small = len(entry.batch) <= limits.MERGEABLE_SIZE_BYTES_MAX
    section = bytes(entry.batch) if small else entry.batch
    return Taken(entry.write_id, entry.count, entry.created_ms, section, mergeable=small and mergeable)


# ---------------------------------------------------------------------- JSON


def take_messages(
    messages: Sequence[NewMessage], *, write_id: bytes, lane: int | None, lanes: int, now_ms: int
) -> dict[int, Taken]:
    """One batch for each lane that gets something, in the order of lanes."""
    by_lane: dict[int, list[NewMessage]] = {}
    keyless = crc32c(write_id) % lanes
    for message in messages:
        if lane is not None:
            at = lane
        else:
            key = key_of(message)
            at = keyless if key is None else lane_for(key, lanes)
        by_lane.setdefault(at, []).append(message)
    return {at: _encoded(by_lane[at], write_id=write_id, now_ms=now_ms) for at in sorted(by_lane)}


def _encoded(messages: Sequence[NewMessage], *, write_id: bytes, now_ms: int) -> Taken:
    keys = [key_of(message) for message in messages]
    headers = [[(name, text.encode()) for name, text in message.headers.items()] for message in messages]
    times = [message.time_ms for message in messages]
    record = encode_batch(
        [_value_of(message) for message in messages],
        keys=keys if any(key is not None for key in keys) else None,
        headers=headers if any(headers) else None,
        times=[now_ms if at is None else at for at in times] if any(at is not None for at in times) else None,
        write_id=write_id,
        created_ms=now_ms,
    )
    return _taken(record, mergeable=True)


def check_message(message: NewMessage) -> None:
    """Raises InvalidRequest for what its shape alone does not tell."""
    _value_of(message)
    key_of(message)


def _value_of(message: NewMessage) -> bytes:
    return _one_of("value", message.value, message.value_base64) or b""


def key_of(message: NewMessage) -> bytes | None:
    if message.key is None and message.key_base64 is None:
        return None
    return _one_of("key", message.key, message.key_base64)


def _one_of(name: str, text: str | None, raw: bytes | None) -> bytes:
    if (text is None) == (raw is None):
        raise InvalidRequest(f"a message has `{name}` or `{name}_base64`, one of them; nothing was stored")
    return text.encode() if text is not None else raw or b""

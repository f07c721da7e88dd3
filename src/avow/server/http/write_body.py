"""Turns the body of a write into a batch for a lane: raw batches are checked once, JSON messages are encoded once.

`take_batch` is on the path of every raw write. `wire.batch.check` verifies everything and names the error, but for a
batch of one message that costs more than the rest of the request. So small batches of plain values, the common case,
are verified by comparing their header fields directly. All others go to `check`. The fast path only accepts batches; it
never refuses one. A test compares it with `check`.

`take_messages` distributes JSON messages over the lanes of a queue: by key; messages without a key together to the lane
that the write id selects; or all of them to the lane that was asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct as Layout
from typing import Final

from crc32c import crc32c
from msgspec import Struct

from avow import limits
from avow.errors import InvalidRequest
from avow.queue.key_to_lane import lane_for
from avow.server.http.schemas import NewMessage
from avow.wire.batch import Batch, check, encode_batch
from avow.wire.messages import Kind, Section
from avow.wire.record import FORMAT_VERSION, HAS_WRITE_ID, HEADER_SIZE_BYTES, MAGIC, Buffer, unpack_entry

_WHOLE: Final = Layout("<4sIBBHIIIIIQQQQ16sHBBIIIIIII")  # record header, then preamble of the batch
_COLUMNS_AT: Final = _WHOLE.size
_ONE: Final = Layout("<ii")


class WriteBody(Struct, frozen=True, gc=False):
    """A valid batch. `section` is the part of its record after header and control."""

    write_id: bytes
    count: int
    created_ms: int
    section: Section
    mergeable: bool


def take_batch(record: Buffer) -> WriteBody:
    """Raises Malformed or InvalidRequest."""
    size = len(record)
    if _COLUMNS_AT <= size <= limits.MERGEABLE_SIZE_BYTES_MAX:
        taken = _take_plain(record, size)
        if taken is not None:
            return taken
    return _take_checked(check(record), record)


def _take_plain(record: Buffer, size: int) -> WriteBody | None:
    head = _WHOLE.unpack_from(record)
    (magic, header_crc, version, kind, flags, body_crc, body, control, reserved, count) = head[:10]
    value_bytes = head[20]
    values_at = _COLUMNS_AT + ((4 * count + 11) & ~7)
    if (
        (magic, version, kind, flags, control, reserved) != (MAGIC, FORMAT_VERSION, Kind.DATA, HAS_WRITE_ID, 0, 0)
        or body != size - HEADER_SIZE_BYTES
        or values_at + ((value_bytes + 7) & ~7) != size
        or head[11]  # position
        or head[15:20] != (0, 0, 0, count, 0)  # no other columns, no codec, the same count, no writes
        or any(head[21:])  # sizes of the other columns
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
    return WriteBody(head[14], count, head[13], bytes(record[HEADER_SIZE_BYTES:]), mergeable=True) if sound else None


def _take_checked(batch: Batch, record: Buffer) -> WriteBody:
    if batch.kind != Kind.DATA or batch.position or batch.control:
        raise InvalidRequest(
            "a batch to write must be of kind data, at position 0 and without a command; nothing was stored"
        )
    if not batch.count:
        raise InvalidRequest("a batch to write must have at least one message; nothing was stored")
    writes = batch.writes()
    if len(writes) > 1 or writes[0].write_id != batch.write_id:
        raise InvalidRequest("a batch to write must be a single write, not a merged one; nothing was stored")
    return _taken(record, mergeable=batch.mergeable)


def _taken(record: Buffer, *, mergeable: bool) -> WriteBody:
    """Small sections are copied: a view costs as much and would keep the whole request in memory."""
    entry = unpack_entry(memoryview(record), verify=False)
    small = len(entry.batch) <= limits.MERGEABLE_SIZE_BYTES_MAX
    section = bytes(entry.batch) if small else entry.batch
    return WriteBody(entry.write_id, entry.count, entry.created_ms, section, mergeable=small and mergeable)


def age_since(created_ms: int | None, now_ms: int) -> int:
    """The age of a write that may be a repetition: since it was created, or unknown. Never 0, a first attempt's."""
    if not created_ms or created_ms > now_ms + limits.CLOCK_AHEAD_MS_MAX:
        return limits.WRITE_AGE_UNKNOWN_MS
    return max(now_ms - created_ms, 1)


# ---------------------------------------------------------------------- JSON


def take_messages(
    messages: Sequence[NewMessage], *, write_id: bytes, lane: int | None, lanes: int, now_ms: int
) -> dict[int, WriteBody]:
    """One batch for each lane that gets messages, in the order of lanes."""
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


def _encoded(messages: Sequence[NewMessage], *, write_id: bytes, now_ms: int) -> WriteBody:
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
    """Checks what the type alone does not. Raises InvalidRequest."""
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
        raise InvalidRequest(f"a message must have either `{name}` or `{name}_base64`; nothing was stored")
    return text.encode() if text is not None else raw or b""

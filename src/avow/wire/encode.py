"""The encoder of batches: makes a record of a client's messages.

A client that sends thousands of messages spends its time here, so loops over messages run in C where possible: lengths
by `map(len, ...)`, offsets by `accumulate` into an `array`, bytes by one `join`. Mistakes of the caller are found here,
before anything is sent, and raise TooLarge or InvalidRequest; `batch.check` verifies records from other processes.
"""

from __future__ import annotations

from array import array
from itertools import accumulate, chain
from typing import TYPE_CHECKING, Final

from avow import limits
from avow.errors import InvalidRequest, TooLarge
from avow.wire.columns import HEADERS, KEYS, TIMES, Columns, Write, join_section
from avow.wire.messages import Entry, Kind
from avow.wire.record import Buffer, build_record

if TYPE_CHECKING:
    from collections.abc import Sequence

_NOTHING: Final = b""
_DIGITS: Final = bytes.maketrans(b"\0\1", b"01")


def encode_batch(
    values: Sequence[Buffer],
    *,
    keys: Sequence[Buffer | None] | None = None,
    headers: Sequence[Sequence[tuple[str, Buffer]]] | None = None,
    times: Sequence[int] | None = None,
    write_id: bytes = b"",
    created_ms: int = 0,
    compression: str | None = None,
    kind: int = Kind.DATA,
    control: bytes = b"",
) -> bytearray:
    """A record whose ballot, position and first version are 0 until a peer sets them with `patch_header`.

    `keys`, `headers` and `times` have one item for each value. `times` are milliseconds since 1970. `compression` is
    "zstd" or "lz4". Raises TooLarge or InvalidRequest, and TypeError for a value that is not bytes.
    """
    for name, column in (("keys", keys), ("headers", headers), ("times", times)):
        if column is not None and len(column) != len(values):
            raise InvalidRequest(f"{len(values)} values but {len(column)} {name}; nothing was encoded")
    if len(values) > limits.BATCH_COUNT_MAX:
        raise TooLarge(
            f"a batch has at most {limits.BATCH_COUNT_MAX} messages, not {len(values)}; nothing was encoded. Split it"
        )
    columns = Columns(0, len(values), *_encode_binaries(values))
    if keys is not None:
        columns = _with_keys(columns, keys)
    if headers is not None:
        columns = _with_headers(columns, headers)
    if times is not None:
        columns = columns._replace(sections=columns.sections | TIMES, times=array("q", times).tobytes())
    return record_of(
        columns, write_id=write_id, created_ms=created_ms, compression=compression, kind=kind, control=control
    )


def record_of(
    columns: Columns,
    *,
    writes: Sequence[Write] = (),
    write_id: bytes = b"",
    created_ms: int = 0,
    compression: str | None = None,
    kind: int = Kind.DATA,
    control: bytes = b"",
) -> bytearray:
    """A record of valid columns. The size limit applies before compression, because readers expand the batch."""
    size = sum(map(len, columns[2:]))
    if size > limits.BATCH_SIZE_BYTES_MAX:
        raise TooLarge(
            f"a batch has at most {limits.BATCH_SIZE_BYTES_MAX} bytes, not {size}; nothing was encoded. Split it"
        )
    entry = Entry(
        position=0,
        origin=0,
        kind=kind,
        count=columns.messages,
        write_id=write_id,
        created_ms=created_ms,
        control=control,
    )
    return build_record(entry, join_section(columns, writes=writes, compression=compression))


def _encode_binaries(items: Sequence[Buffer]) -> tuple[bytes, bytes]:
    """Offsets and bytes of one binary column."""
    sizes = list(map(len, items))
    if (largest := max(sizes, default=0)) > limits.MESSAGE_SIZE_BYTES_MAX:
        raise TooLarge(
            f"a message has at most {limits.MESSAGE_SIZE_BYTES_MAX} bytes, not {largest}; nothing was encoded"
        )
    if (total := sum(sizes)) > limits.BATCH_SIZE_BYTES_MAX:
        raise TooLarge(
            f"a batch has at most {limits.BATCH_SIZE_BYTES_MAX} bytes, not {total}; nothing was encoded. Split it"
        )
    joined = b"".join(items)
    if len(joined) != total:
        raise InvalidRequest(
            "a message is a view whose items are larger than one byte; nothing was encoded. Cast it to bytes"
        )
    return array("i", accumulate(sizes, initial=0)).tobytes(), joined


def _with_keys(columns: Columns, keys: Sequence[Buffer | None]) -> Columns:
    present = [key is not None for key in keys]
    offsets, joined = _encode_binaries([_NOTHING if key is None else key for key in keys])
    return columns._replace(
        sections=columns.sections | KEYS, key_validity=_bitmap(present), key_offsets=offsets, keys=joined
    )


def _bitmap(present: Sequence[bool]) -> bytes:
    """One bit per item, the first item in the lowest bit of the first byte."""
    size = (len(present) + 7) >> 3
    digits = bytes(present[::-1]).translate(_DIGITS)
    return int(digits or b"0", 2).to_bytes(size, "little")


def _with_headers(columns: Columns, headers: Sequence[Sequence[tuple[str, Buffer]]]) -> Columns:
    pairs = list(chain.from_iterable(headers))
    # Surrogates represent bytes that are not UTF-8, so that a name read from a record can be written unchanged.
    name_offsets, names = _encode_binaries([name.encode("utf-8", "surrogateescape") for name, _ in pairs])
    header_offsets, header_values = _encode_binaries([value for _, value in pairs])
    return columns._replace(
        sections=columns.sections | HEADERS,
        list_offsets=array("i", accumulate(map(len, headers), initial=0)).tobytes(),
        name_offsets=name_offsets,
        names=names,
        header_offsets=header_offsets,
        header_values=header_values,
    )

"""The record: a fixed header, a command, a batch. The same bytes on disk, between peers and at the client.

A client encodes a batch once. Every copy of it (in the write-ahead log, in a lane's file, in a frame to a follower, in
an answer to a reader) is this record, byte for byte, except for three header fields that a peer sets: ballot, position
and first version. The header has a checksum of its own, so setting them does not require a pass over the values.

The header is always 80 bytes and contains the length of the rest. The rest, the body, is a control section (the msgpack
of a command, for kinds that have one) and a batch section (see `columns`). The batch is opaque here: peers store it and
pass it on without reading it. Numbers are little-endian; each section starts on a multiple of 8 bytes and the record's
length is one, so concatenated records keep every array in them aligned.
"""

from __future__ import annotations

from struct import Struct, error
from typing import TYPE_CHECKING, Final, TypeAlias, cast

from crc32c import crc32c

from avow import limits
from avow.errors import (
    BadChecksum,
    BadMagic,
    BadOffsets,
    CountOverflow,
    InvalidRequest,
    TooLarge,
    TooLong,
    TooShort,
    UnknownKind,
    UnknownVersion,
)
from avow.wire.messages import Entry, Kind, Section

if TYPE_CHECKING:
    from collections.abc import Sequence

# byte  size  field
#    0     4  magic "AVOW"
#    4     4  header crc32c, of bytes 8 to 80
#    8     1  format version, 1
#    9     1  kind, see messages.Kind
#   10     2  flags: bit 0 = the write id is present
#   12     4  body crc32c, of every byte after the header, padding included
#   16     4  body length: padded control section + batch section, without the padding at the record's end
#   20     4  control length, without padding
#   24     4  reserved, 0
#   28     4  count of messages in the batch
#   32     8  ballot (two-phase) or owner run (pub-sub) that first appended it   } filled in by
#   40     8  position of the entry in its lane, from 1                          } `patch_header`,
#   48     8  version of the first message, 0 = not known yet                    } 0 until then
#   56     8  created, milliseconds since 1970
#   64    16  write id
#   80        control section, padded to 8; batch section, padded to 8
#
# Checked in this order, and the first failure is the answer: enough bytes for a header (TooShort), magic (BadMagic),
# format version (UnknownVersion), header crc (BadChecksum), kind (UnknownKind), flags and reserved bits this version
# does not know (UnknownVersion), limits (CountOverflow), control inside body (BadOffsets), then the length of the whole
# record (TooShort, TooLong) and last the body crc (BadChecksum).

Buffer: TypeAlias = bytes | bytearray | memoryview

MAGIC: Final = b"AVOW"
FORMAT_VERSION: Final = 1
HAS_WRITE_ID: Final = 1
HEADER: Final = Struct("<4sIBBHIIIIIQQQQ16s")
HEADER_SIZE_BYTES: Final = HEADER.size
NO_WRITE_ID: Final = bytes(limits.WRITE_ID_SIZE_BYTES)

_CHECKED_FROM: Final = 8  # the header crc covers everything after itself
_PATCHED: Final = Struct("<QQQ")
_PATCHED_AT: Final = 32
_COVERED: Final = Struct("<BBHIIIIIQQQQ16s")
_HEADER_CRC: Final = Struct("<I")
_HEADER_CRC_AT: Final = 4
_KINDS: Final = len(Kind.NAMES)
_PADDING: Final = tuple(bytes(-size % 8) for size in range(8))

Header: TypeAlias = tuple[bytes, int, int, int, int, int, int, int, int, int, int, int, int, int, bytes]


def padded(size: int) -> int:
    return (size + 7) & ~7


def padding(size: int) -> bytes:
    return _PADDING[size & 7]


def plain_view(buffer: Buffer) -> memoryview:
    """Unsigned bytes, whatever the exporter calls them (Arrow's buffers are signed, and -1 is not 255)."""
    view = memoryview(buffer)
    return view if view.format == "B" else view.cast("B")


def read_header(buffer: Buffer, *, verify: bool = True) -> Header:
    """The header's fields in the order drawn above. `verify=False` skips the checksum, no other check."""
    if len(buffer) < HEADER_SIZE_BYTES:
        raise TooShort("record header", expected=f"{HEADER_SIZE_BYTES} bytes", found=len(buffer))
    fields: Header = HEADER.unpack_from(buffer)
    magic, header_crc, version, kind, flags, _, body, control, reserved, count = fields[:10]
    if magic != MAGIC:
        raise BadMagic("record", expected=MAGIC, found=magic, at=0)
    if version != FORMAT_VERSION:
        raise UnknownVersion("record format", expected=FORMAT_VERSION, found=version, at=8)
    if verify and (found := crc32c(memoryview(buffer)[_CHECKED_FROM:HEADER_SIZE_BYTES])) != header_crc:
        raise BadChecksum("record header", expected=f"{header_crc:08x}", found=f"{found:08x}", at=4)
    if kind >= _KINDS:
        raise UnknownKind("record", expected=f"a kind below {_KINDS}", found=kind, at=9)
    if flags & ~HAS_WRITE_ID or reserved:
        raise UnknownVersion("record flags", expected="flags of version 1", found=f"{flags:#x}, {reserved:#x}", at=10)
    _check_sizes(body=body, control=control, count=count)
    return fields


def _check_sizes(*, body: int, control: int, count: int) -> None:
    if control > limits.CONTROL_SIZE_BYTES_MAX:
        raise CountOverflow("control length", expected=f"<= {limits.CONTROL_SIZE_BYTES_MAX}", found=control, at=20)
    batch = body - padded(control)
    if batch < 0:
        raise BadOffsets("control section", expected=f"inside a body of {body} bytes", found=control, at=20)
    if batch > limits.BATCH_SIZE_BYTES_MAX:
        raise CountOverflow("batch length", expected=f"<= {limits.BATCH_SIZE_BYTES_MAX}", found=batch, at=16)
    if count > limits.BATCH_COUNT_MAX:
        raise CountOverflow("message count", expected=f"<= {limits.BATCH_COUNT_MAX}", found=count, at=28)


def header_crc(header: Buffer) -> int:
    """The checksum that a header claims to have: different in two records of a lane, and in those of two lanes. Not
    verified."""
    return int.from_bytes(header[_HEADER_CRC_AT : _HEADER_CRC_AT + 4], "little")


def record_size(header: Buffer) -> int:
    """The length in bytes of the record with this header. Only the header is read and verified."""
    return HEADER_SIZE_BYTES + padded(read_header(header)[6])


def read_record(record: Buffer, *, verify: bool = True) -> Header:
    """The header of exactly one whole record; with `verify`, both checksums are verified."""
    fields = read_header(record, verify=verify)
    size = HEADER_SIZE_BYTES + padded(fields[6])
    if len(record) < size:
        raise TooShort("record", expected=f"{size} bytes", found=len(record))
    if len(record) > size:
        raise TooLong("record", expected=f"{size} bytes", found=len(record), at=size)
    if verify and (found := crc32c(memoryview(record)[HEADER_SIZE_BYTES:])) != fields[5]:
        raise BadChecksum("record body", expected=f"{fields[5]:08x}", found=f"{found:08x}", at=HEADER_SIZE_BYTES)
    return fields


def patch_header(record: bytearray | memoryview, *, position: int, ballot: int, first_version: int) -> None:
    """Set the fields that only a peer knows, in place. The body and its checksum do not change."""
    _PATCHED.pack_into(record, _PATCHED_AT, ballot, position, first_version)
    crc = crc32c(memoryview(record)[_CHECKED_FROM:HEADER_SIZE_BYTES])
    _HEADER_CRC.pack_into(record, _HEADER_CRC_AT, crc)


def entry_parts(entry: Entry) -> list[Buffer]:
    """The record of an entry as pieces for one gathering write; the batch is not copied."""
    control, batch = entry.control, entry.batch
    head, end = control + padding(len(control)), padding(len(batch))
    body_crc = 0
    for piece in (head, batch, end):
        if piece:
            body_crc = crc32c(piece, body_crc)
    header = _header(entry, body_crc=body_crc, batch_size=len(batch))
    return [header + head, batch, end] if batch else [header + head]


def build_record(entry: Entry, batch: Sequence[Buffer]) -> bytearray:
    """The record of an entry whose batch is in pieces (`entry.batch` is ignored). Each piece is copied once."""
    size = sum(map(len, batch))
    control = entry.control
    body = (control, padding(len(control)), *batch, padding(size))
    body_crc = 0
    for piece in body:
        if piece:
            body_crc = crc32c(piece, body_crc)
    return bytearray().join((_header(entry, body_crc=body_crc, batch_size=size), *body))


def _header(entry: Entry, *, body_crc: int, batch_size: int) -> bytes:
    control, write_id = len(entry.control), entry.write_id
    _check_entry(entry, batch_size=batch_size)
    try:
        covered = _COVERED.pack(
            *(FORMAT_VERSION, entry.kind, HAS_WRITE_ID if write_id else 0, body_crc, padded(control) + batch_size),
            *(control, 0, entry.count, entry.origin, entry.position, 0, entry.created_ms, write_id),
        )
    except error as cause:
        raise InvalidRequest(
            f"a number of the entry is negative or does not fit in 64 bits: {entry!r:.300}; nothing was encoded"
        ) from cause
    return MAGIC + _HEADER_CRC.pack(crc32c(covered)) + covered


def _check_entry(entry: Entry, *, batch_size: int) -> None:
    """Check the arguments of a caller. In contrast to Malformed, an error here is misuse in this process."""
    if len(entry.write_id) not in (0, limits.WRITE_ID_SIZE_BYTES):
        raise InvalidRequest(
            f"a write id has {limits.WRITE_ID_SIZE_BYTES} bytes or none, not {len(entry.write_id)}; nothing was encoded"
        )
    if not 0 <= entry.kind < _KINDS:
        raise InvalidRequest(f"kind {entry.kind} is none of {', '.join(Kind.NAMES)}; nothing was encoded")
    if len(entry.control) > limits.CONTROL_SIZE_BYTES_MAX:
        raise TooLarge(
            f"a command has at most {limits.CONTROL_SIZE_BYTES_MAX} bytes, not {len(entry.control)}; nothing was "
            "encoded"
        )
    if batch_size > limits.BATCH_SIZE_BYTES_MAX:
        raise TooLarge(
            f"a batch has at most {limits.BATCH_SIZE_BYTES_MAX} bytes, not {batch_size}; nothing was encoded. Split it"
        )
    if entry.count > limits.BATCH_COUNT_MAX:
        raise TooLarge(
            f"a batch has at most {limits.BATCH_COUNT_MAX} messages, not {entry.count}; nothing was encoded. Split it"
        )


def pack_entry(entry: Entry) -> bytes:
    """One whole record. Its first version is 0: versions are assigned when entries are applied, not when stored."""
    return b"".join(entry_parts(entry))


def unpack_entry(record: Buffer, *, verify: bool = True) -> Entry:
    """The entry in exactly one record.

    Given a memoryview, `batch` of the entry is a memoryview over the same memory, which it keeps alive: the record's
    memory must not be written again. Given bytes, `batch` is bytes.
    """
    fields = read_record(record, verify=verify)
    _, _, _, kind, flags, _, body, control, _, count, origin, position, _, created_ms, write_id = fields
    batch_at = HEADER_SIZE_BYTES + padded(control)
    batch = record[batch_at : HEADER_SIZE_BYTES + body]
    return Entry(
        position=position,
        origin=origin,
        kind=kind,
        count=count,
        write_id=write_id if flags & HAS_WRITE_ID else b"",
        created_ms=created_ms,
        control=bytes(record[HEADER_SIZE_BYTES : HEADER_SIZE_BYTES + control]),
        batch=cast(Section, batch if batch else b""),
    )

"""The frames on a link between two peers, each with one message for one lane or queue.

TCP delivers a stream of bytes in arbitrary pieces. A frame has its length near the front, so `stream.Decoder` can cut
the stream into whole frames. A frame's fixed part has its own crc; entries follow as whole records with theirs. So
every byte is covered exactly once, and a follower can store or pass on a record exactly as it came (`raw_records`).

The encoding is defined by data: one line of `_LAYOUTS` for each class of `messages`. During an upgrade peers of
different releases use the same kinds: never reuse a number. `versions` says when a new kind may be sent.

`decode` raises UnknownKind or UnknownVersion for a frame that is intact but not of this release: skip it, the link can
go on. After any other Malformed, and any of the decoder, the link must be closed, because the stream cannot be
resynchronised. The other side reconnects, and the protocols above repeat what was not answered.
"""

from __future__ import annotations

from struct import Struct as Layout
from struct import error
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, cast

from crc32c import crc32c
from msgspec import Struct
from msgspec.structs import astuple

from avow import limits
from avow.errors import (
    BadChecksum,
    BadMagic,
    BadOffsets,
    CountOverflow,
    InvalidRequest,
    Malformed,
    TooLarge,
    TooLong,
    TooShort,
    UnknownKind,
    UnknownVersion,
)
from avow.wire import messages as m
from avow.wire.record import HEADER_SIZE_BYTES, Buffer, entry_parts, padded, padding, plain_view, unpack_entry
from avow.wire.versions import NEWEST, OLDEST

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

# byte  size  field
#    0     4  crc32c of bytes 4 to the end of the head, padding included
#    4     2  magic "Av"
#    6     1  version of this layout, 1
#    7     1  kind, see _LAYOUTS
#    8     4  length of the whole frame, a multiple of 8
#   12     4  route: the lane (two-phase) or the queue (pub-sub) the message is for
#   16     4  head length: these 24 bytes, the fixed fields and the tail, without padding
#   20     2  count of records
#   22     2  flags, 0
#   24        fixed fields of the message, in the order of its class, little-endian without gaps
#             tail    lanes    : (lane, stored to, cursor) int64 x 3 each
#                     text     : UTF-8
#                     snapshot : position i64, origin u64, voters u32, learners u32; their numbers u32 each; state
#             padding to 8; then the records
#
# Checked in this order: 24 bytes (TooShort), magic (BadMagic), version (UnknownVersion), length within limits
# (CountOverflow, TooShort, BadOffsets) and equal to what is there (TooShort, TooLong), head inside frame (BadOffsets),
# crc (BadChecksum), kind (UnknownKind), flags (UnknownVersion), count of records (CountOverflow), fixed fields and tail
# (TooShort, TooLong, BadOffsets), each record (as in `record`), nothing after the last (TooLong).

LAYOUT_VERSION: Final = 1
FRAME_HEADER_SIZE_BYTES: Final = 24

_MAGIC: Final = b"Av"
_HEADER: Final = Layout("<I2sBBIIIHH")
_COVERED: Final = Layout("<2sBBIIIHH")
_CRC: Final = Layout("<I")
_START: Final = Layout("<4x2sBxI")  # what the decoder needs to find the next frame
_RECORD_BODY: Final = Layout("<16xI")
_SNAPSHOT: Final = Layout("<qQII")
_LANE: Final = Layout("<qqq")
_RECORD_TAILS: Final = ("entries", "entry")
_COPIED_SIZE_BYTES_MAX: Final = 4 * limits.KIB  # below this, copying costs less than another piece to write


class Hello(Struct, frozen=True, gc=False):
    """The first frame of each side: its identity. The receiver closes the link unless it expects exactly this peer."""

    cluster: bytes  # uuid, 16 bytes
    identity: bytes  # uuid of the peer's data folder, 16 bytes: after a wipe it is another peer
    peer: int
    incarnation: int
    newest: int = NEWEST  # version of the protocol that this peer can read, and
    oldest: int = OLDEST  # the oldest one; 0 in the first release, whose Hello had no range


class Alive(Struct, frozen=True, gc=False):
    """The sender has nothing else to send and is alive. For the link, not for a lane (`server.link_pulse`)."""


class LinkRefused(Struct, frozen=True, gc=False):
    """The sender does not accept the receiver's Hello, and closes the link."""

    gone: bool  # the receiver was removed from the cluster
    reason: str


LinkFrame: TypeAlias = Hello | Alive | LinkRefused  # for the link itself, not for a lane

# Q: ballots, owner runs, requests, rounds. q: positions, versions, lanes; in some -1 has a meaning. ?: yes or no.
_LAYOUTS: Final[tuple[tuple[int, type[Struct], str, str], ...]] = (
    # kind, class, fixed fields, tail
    (1, m.Probe, "Q", ""),
    (2, m.ProbeAnswer, "Q?Q", ""),
    (3, m.Claim, "Q", ""),
    (4, m.Promise, "QQqq", ""),
    (5, m.Nack, "QQ", ""),
    (6, m.Fetch, "QqQ", ""),
    (7, m.Fetched, "QqQqq", "entries"),
    (8, m.Enqueue, "QqQqq", "entries"),
    (9, m.Ready, "Qq?", ""),
    (10, m.Reject, "Qqq", ""),
    (11, m.Install, "Qqq", "snapshot"),
    (12, m.Heartbeat, "Q?q", ""),
    (13, m.Confirm, "QQ", ""),
    (14, m.Confirmed, "QQ", ""),
    (15, m.ReadIndex, "Q", ""),
    (16, m.ReadIndexAnswer, "Qq", ""),
    (17, m.Forward, "Qqq?", "entry"),
    (18, m.Forwarded, "Qqq", "code"),
    (19, m.LaneEnqueue, "qqq", "entries"),
    (20, m.Stored, "qq", ""),
    (21, m.LaneReject, "qq", ""),
    (22, m.LaneFetch, "qq", ""),
    (23, m.LaneFetched, "qq", "entries"),
    (24, m.Fence, "qq", ""),
    (25, m.Fenced, "qqqq", ""),
    (26, m.Refill, "qqq", "entries"),
    (27, m.Refilled, "qqq", ""),
    (28, m.LaneHeartbeat, "", "lanes"),
    (29, m.Welcome, "", ""),
    (253, LinkRefused, "?", "reason"),
    (254, Alive, "", ""),
    (255, Hello, "16s16sIQBB", ""),
)


class _Shape(NamedTuple):
    kind: int
    message: type[Struct]
    fixed: Layout
    tail: str  # the name of the field of variable length, which determines its encoding
    tail_at: int  # its index among the class's fields


def _shape(kind: int, message: type[Struct], fixed: str, tail: str) -> _Shape:
    fields = message.__struct_fields__
    return _Shape(kind, message, Layout("<" + fixed), tail, fields.index(tail) if tail else len(fields))


_BY_CLASS: Final = {line[1]: _shape(*line) for line in _LAYOUTS}
_BY_KIND: Final = {shape.kind: shape for shape in _BY_CLASS.values()}


# ------------------------------------------------------------------- encoding


def encode(route: int, message: m.Message | LinkFrame, *, records: Sequence[Buffer] | None = None) -> list[Buffer]:
    """The pieces of one frame for one gathering write; large batches are not copied.

    `records`, if given, are the records of the message's entries as they are in a log or came in another frame; they
    are sent unchanged instead of being encoded again from the entries.
    """
    shape = _BY_CLASS[type(message)]
    fields, at = astuple(message), shape.tail_at
    writer = _TAIL_WRITERS.get(shape.tail)
    try:
        fixed = shape.fixed.pack(*fields[:at], *fields[at + 1 :])
        head: list[Buffer] = [fixed, *(writer(fields[at]) if writer else ())]
    except error as cause:
        raise InvalidRequest(
            f"a field of {m.describe(message):.200} is out of range: {cause}; nothing was sent"
        ) from cause
    if shape.tail not in _RECORD_TAILS:
        return _assemble(shape.kind, route, count=0, head=head, records=[])
    entries = fields[at] if shape.tail == "entries" else (fields[at],)
    if records is not None and len(records) != len(entries):
        raise InvalidRequest(f"{len(entries)} entries but {len(records)} records; nothing was sent")
    pieces = _record_pieces(entries) if records is None else list(records)
    return _assemble(shape.kind, route, count=len(entries), head=head, records=pieces)


def _record_pieces(entries: Sequence[m.Entry]) -> list[Buffer]:
    pieces: list[Buffer] = []
    for entry in entries:
        parts = entry_parts(entry)
        if len(entry.batch) < _COPIED_SIZE_BYTES_MAX:
            pieces.append(b"".join(parts))
        else:
            pieces += parts
    return pieces


def _assemble(kind: int, route: int, *, count: int, head: list[Buffer], records: list[Buffer]) -> list[Buffer]:
    head_length = FRAME_HEADER_SIZE_BYTES + sum(map(len, head))
    length = padded(head_length) + sum(map(len, records))
    if length > limits.FRAME_SIZE_BYTES_MAX or count > limits.ENQUEUE_ENTRIES_MAX:
        raise TooLarge(
            f"a frame has at most {limits.FRAME_SIZE_BYTES_MAX} bytes and {limits.ENQUEUE_ENTRIES_MAX} records, "
            f"not {length} and {count}; nothing was sent"
        )
    try:
        covered = _COVERED.pack(_MAGIC, LAYOUT_VERSION, kind, length, route, head_length, count, 0)
    except error as cause:
        raise InvalidRequest(f"route {route} is not an unsigned 32-bit number; nothing was sent") from cause
    head.append(padding(head_length))
    crc = crc32c(covered)
    for piece in head:
        crc = crc32c(piece, crc)
    return [b"".join((_CRC.pack(crc), covered, *head)), *records]


def _write_lanes(lanes: Sequence[tuple[int, int, int]]) -> list[Buffer]:
    numbers = [number for lane in lanes for number in lane]
    return [Layout(f"<{len(numbers)}q").pack(*numbers)]


def _write_text(text: str) -> list[Buffer]:
    return [text.encode("utf-8", "replace")]


def _write_snapshot(snapshot: m.Snapshot) -> list[Buffer]:
    voters, learners = snapshot.voters, snapshot.learners
    fixed = _SNAPSHOT.pack(snapshot.position, snapshot.origin, len(voters), len(learners))
    return [fixed, Layout(f"<{len(voters) + len(learners)}I").pack(*voters, *learners), snapshot.state]


_TAIL_WRITERS: Final[dict[str, Callable[[Any], list[Buffer]]]] = {
    "lanes": _write_lanes,
    "code": _write_text,
    "reason": _write_text,
    "snapshot": _write_snapshot,
}


# ------------------------------------------------------------------- decoding


class _Head(NamedTuple):
    shape: _Shape
    route: int
    body: memoryview  # fixed fields and tail
    records: memoryview
    record_count: int


def decode(frame: Buffer) -> tuple[int, m.Message | Alive | LinkRefused]:
    """Route and message of one whole frame. Entries' batches are views of the frame's memory, which they keep alive."""
    head = _read_head(plain_view(frame))
    if head.shape.message is Hello:
        raise Malformed("frame", expected="a message", found="a second Hello", at=7)
    return head.route, cast("m.Message | Alive | LinkRefused", _read_message(head))


def decode_hello(frame: Buffer) -> Hello:
    """Decode the first frame of a link, which must be a Hello."""
    head = _read_head(plain_view(frame))
    if head.shape.message is not Hello:
        raise Malformed("first frame of a link", expected="Hello", found=head.shape.message.__name__, at=7)
    return cast(Hello, _read_message(head))


def route_of(frame: Buffer) -> int:
    """The route of a whole frame, also of one that `decode` does not know."""
    return cast(int, _HEADER.unpack_from(frame)[5])


def raw_records(frame: Buffer) -> list[memoryview]:
    """The records in a frame, unchanged and not verified (`decode` verifies them)."""
    head = _read_head(plain_view(frame))
    return list(_cut_records(head.records, head.record_count))


def _read_head(frame: memoryview) -> _Head:
    if len(frame) < FRAME_HEADER_SIZE_BYTES:
        raise TooShort("frame", expected=f"{FRAME_HEADER_SIZE_BYTES} bytes", found=len(frame))
    expected_crc, _, _, kind, _, route, head_length, count, flags = _HEADER.unpack_from(frame)
    length = next_length(frame, 0)
    if len(frame) < length:
        raise TooShort("frame", expected=f"{length} bytes", found=len(frame))
    if len(frame) > length:
        raise TooLong("frame", expected=f"{length} bytes", found=len(frame), at=length)
    if not FRAME_HEADER_SIZE_BYTES <= head_length <= length:
        raise BadOffsets("frame head", expected=f"24 to {length} bytes", found=head_length, at=16)
    crc = crc32c(frame[4 : padded(head_length)])
    if crc != expected_crc:
        raise BadChecksum("frame head", expected=f"{expected_crc:08x}", found=f"{crc:08x}", at=0)
    shape = _BY_KIND.get(kind)
    if shape is None:
        raise UnknownKind("frame", expected=f"a kind of protocol version {NEWEST}", found=kind, at=7)
    if flags:
        raise UnknownVersion("frame flags", expected=0, found=f"{flags:#x}", at=22)
    _check_record_count(shape, count)
    body = frame[FRAME_HEADER_SIZE_BYTES:head_length]
    return _Head(shape, route, body, frame[padded(head_length) :], count)


def _check_record_count(shape: _Shape, count: int) -> None:
    most = {"entries": limits.ENQUEUE_ENTRIES_MAX, "entry": 1}.get(shape.tail, 0)
    if count > most or (shape.tail == "entry" and not count):
        raise CountOverflow(f"records in {shape.message.__name__}", expected=f"at most {most}", found=count, at=20)


def next_length(view: memoryview, at: int) -> int:
    """The length of the frame that starts at `at`; at least 12 bytes of it must have arrived."""
    magic, version, length = _START.unpack_from(view, at)
    if magic != _MAGIC:
        raise BadMagic("frame", expected=_MAGIC, found=magic, at=4)
    if version != LAYOUT_VERSION:
        raise UnknownVersion("frame layout", expected=LAYOUT_VERSION, found=version, at=6)
    if length > limits.FRAME_SIZE_BYTES_MAX:
        raise CountOverflow("frame length", expected=f"<= {limits.FRAME_SIZE_BYTES_MAX}", found=length, at=8)
    if length < FRAME_HEADER_SIZE_BYTES:
        raise TooShort("frame length", expected=f">= {FRAME_HEADER_SIZE_BYTES}", found=length, at=8)
    if length % 8:
        raise BadOffsets("frame length", expected="a multiple of 8", found=length, at=8)
    return cast(int, length)


def _read_message(head: _Head) -> Struct:
    _, message, fixed, tail, tail_at = head.shape
    body = head.body
    if len(body) < fixed.size:
        raise TooShort(message.__name__, expected=f"{fixed.size} bytes of fixed fields", found=len(body))
    fields = fixed.unpack_from(body)
    rest = body[fixed.size :]
    reader = _TAIL_READERS.get(tail)
    if reader is None and len(rest):
        raise TooLong(message.__name__, expected=f"{fixed.size} bytes of fixed fields", found=len(body))
    value: object = reader(rest) if reader else None
    entries = tuple([unpack_entry(record) for record in _cut_records(head.records, head.record_count)])
    if not tail:
        return message(*fields)
    if tail in _RECORD_TAILS:
        value = entries if tail == "entries" else entries[0]
    return message(*fields[:tail_at], value, *fields[tail_at:])


def _cut_records(records: memoryview, count: int) -> Iterator[memoryview]:
    """Cut the records by the length in each header; the record's checksum verifies that later."""
    at = 0
    for _ in range(count):
        if len(records) - at < HEADER_SIZE_BYTES:
            raise TooShort("records of a frame", expected=f"{count} records", found=f"{len(records)} bytes")
        end = at + HEADER_SIZE_BYTES + padded(_RECORD_BODY.unpack_from(records, at)[0])
        yield records[at:end]
        at = end
    if at < len(records):
        raise TooLong("records of a frame", expected=f"{count} records in {at} bytes", found=len(records))


def _read_lanes(tail: memoryview) -> tuple[tuple[int, int, int], ...]:
    if len(tail) % 24:
        raise BadOffsets("lanes of a heartbeat", expected="24 bytes each", found=f"{len(tail)} bytes")
    return tuple(_LANE.iter_unpack(tail))


def _read_text(tail: memoryview) -> str:
    return str(tail, "utf-8", "replace")


def _read_snapshot(tail: memoryview) -> m.Snapshot:
    if len(tail) < _SNAPSHOT.size:
        raise TooShort("snapshot", expected=f"{_SNAPSHOT.size} bytes", found=len(tail))
    position, origin, voters, learners = _SNAPSHOT.unpack_from(tail)
    if voters + learners > 2 * limits.PEERS_MAX:
        raise CountOverflow("peers of a snapshot", expected=f"<= {2 * limits.PEERS_MAX}", found=voters + learners)
    state_at = _SNAPSHOT.size + 4 * (voters + learners)
    if len(tail) < state_at:
        raise TooShort("snapshot", expected=f"{state_at} bytes", found=len(tail))
    peers = Layout(f"<{voters + learners}I").unpack_from(tail, _SNAPSHOT.size)
    return m.Snapshot(position, origin, peers[:voters], peers[voters:], bytes(tail[state_at:]))


_TAIL_READERS: Final[dict[str, Callable[[memoryview], object]]] = {
    "lanes": _read_lanes,
    "code": _read_text,
    "reason": _read_text,
    "snapshot": _read_snapshot,
}

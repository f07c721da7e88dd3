"""Encoding and decoding of channel frames. docs/reference/channel-wire.md draws the layouts.

A packet is what a socket carries as one message: whole frames, one after another, without padding. It is decoded in
one pass. Values are slices of the packet's memory, valid as long as they are referenced; nothing is copied.

A packet that violates a layout raises a Malformed. The protocol core decides what a well-formed frame means and whether
it is allowed in the current state.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import IntEnum
from itertools import accumulate, pairwise
from struct import Struct as Layout
from struct import pack, unpack_from
from typing import Any, Final, TypeAlias

from msgspec import Struct

from avow.errors import BadMagic, CountOverflow, TooShort, UnknownKind, UnknownVersion
from avow.limits import CHANNEL_FRAME_COUNT_MAX, CHANNEL_VALUE_SIZE_BYTES_MAX

Buffer: TypeAlias = bytes | bytearray | memoryview

HELLO: Final = 1
DATA: Final = 2
COMMIT: Final = 3
ACK: Final = 4
END: Final = 5
VERSION: Final = 1
NUMBER_MAX: Final = (1 << 53) - 1  # the largest integer that JavaScript represents exactly
POSITION_UNKNOWN: Final = NUMBER_MAX  # `received_to` of an End whose sender does not know the channel
CAP_MAX: Final = (1 << 32) - 1

_FRESH: Final = 1
_MAGIC: Final = b"AvCh"
_HELLO: Final = Layout("<B4sBB16s16sIQQQIII")
_DATA: Final = Layout("<BQI")
_COMMIT: Final = Layout("<BQQ")
_ACK: Final = Layout("<BQ")
_END: Final = Layout("<BBQQHH")
_TEXT_SIZE_BYTES_MAX: Final = 4_096


class EndCode(IntEnum):
    """Why a channel ended, or with FENCED, why a socket did."""

    CLOSED = 0
    ABORTED = 1
    UNKNOWN_CHANNEL = 2
    EXPIRED = 3
    IMPOSSIBLE = 4
    PROTOCOL = 5
    CAP_EXCEEDED = 6
    FENCED = 7
    REFUSED = 8
    MOVED = 9
    GOING = 10


class Hello(Struct, frozen=True, gc=False):
    channel: bytes
    token: bytes
    generation: int
    received_to: int = 0
    commits_received_to: int = 0
    acked: int = 0
    cap_count: int = 0
    cap_bytes: int = 0
    window_s: int = 0
    fresh: bool = False


class Data(Struct, frozen=True):
    first: int
    values: list[memoryview]


class Commit(Struct, frozen=True, gc=False):
    id: int
    upto: int


class Ack(Struct, frozen=True, gc=False):
    id: int


class End(Struct, frozen=True, gc=False):
    code: int
    acked: int = 0
    received_to: int = 0
    name: str = ""
    text: str = ""


Frame: TypeAlias = Hello | Data | Commit | Ack | End


# ---------------------------------------------------------------------- writing


def hello_bytes(hello: Hello) -> bytes:
    return _HELLO.pack(
        HELLO,
        _MAGIC,
        VERSION,
        _FRESH if hello.fresh else 0,
        hello.channel,
        hello.token,
        hello.generation,
        hello.received_to,
        hello.commits_received_to,
        hello.acked,
        hello.cap_count,
        hello.cap_bytes,
        hello.window_s,
    )


def data_parts(first: int, values: Sequence[Buffer]) -> list[Buffer]:
    """The frame in pieces: its head, then the values, uncopied."""
    count = len(values)
    return [pack(f"<BQI{count}I", DATA, first, count, *map(len, values)), *values]


def commit_bytes(commit_id: int, upto: int) -> bytes:
    return _COMMIT.pack(COMMIT, commit_id, upto)


def ack_bytes(commit_id: int) -> bytes:
    return _ACK.pack(ACK, commit_id)


def end_bytes(end: End) -> bytes:
    name, text = (one.encode("utf-8", "replace")[:_TEXT_SIZE_BYTES_MAX] for one in (end.name, end.text))
    return _END.pack(END, end.code, end.acked, end.received_to, len(name), len(text)) + name + text


# ---------------------------------------------------------------------- reading


def read_packet(packet: Buffer) -> Iterator[Frame]:
    """Yields the frames in order. Raises a Malformed at the first invalid one, after yielding those before it."""
    view = memoryview(packet)
    at, size = 0, len(view)
    while at < size:
        kind = view[at]
        if kind == DATA:
            at, frame = _read_data(view, at)
        elif kind == COMMIT:
            frame = Commit(*map(_number, _fields(_COMMIT, view, at)[1:]))
            at += _COMMIT.size
        elif kind == ACK:
            frame = Ack(_number(_fields(_ACK, view, at)[1]))
            at += _ACK.size
        elif kind == HELLO:
            at, frame = _read_hello(view, at)
        elif kind == END:
            at, frame = _read_end(view, at)
        else:
            raise UnknownKind("kind of a channel's frame", expected="1 to 5", found=kind, at=at)
        yield frame


def _fields(layout: Layout, view: memoryview, at: int) -> tuple[Any, ...]:
    if at + layout.size > len(view):
        raise TooShort("a channel's frame", expected=f"{layout.size} bytes", found=len(view) - at, at=at)
    return layout.unpack_from(view, at)


def _number(value: int) -> int:
    if value > NUMBER_MAX:
        raise CountOverflow("a number in a channel's frame", expected=f"at most {NUMBER_MAX}", found=value)
    return value


def _read_data(view: memoryview, at: int) -> tuple[int, Frame]:
    _, first, count = _fields(_DATA, view, at)
    start = at + _DATA.size + 4 * count
    if not 0 < count <= CHANNEL_FRAME_COUNT_MAX or start > len(view):
        expected = f"1 to {CHANNEL_FRAME_COUNT_MAX}, all inside"
        raise CountOverflow("messages in a frame", expected=expected, found=count, at=at)
    lengths = unpack_from(f"<{count}I", view, at + _DATA.size)
    if max(lengths) > CHANNEL_VALUE_SIZE_BYTES_MAX:
        raise CountOverflow("a value", expected=f"at most {CHANNEL_VALUE_SIZE_BYTES_MAX} bytes", found=max(lengths))
    bounds = list(accumulate(lengths, initial=start))
    if bounds[-1] > len(view):
        raise TooShort("values of a frame", expected=f"{bounds[-1]} bytes", found=len(view), at=at)
    return bounds[-1], Data(_number(first), [view[a:b] for a, b in pairwise(bounds)])


def _read_hello(view: memoryview, at: int) -> tuple[int, Frame]:
    fields = _fields(_HELLO, view, at)
    _, magic, version, flags, channel, token, generation, *positions, cap_count, cap_bytes, window_s = fields
    if magic != _MAGIC:
        raise BadMagic("a channel's Hello", expected=_MAGIC, found=magic, at=at + 1)
    if version != VERSION:
        raise UnknownVersion("version of a channel", expected=VERSION, found=version, at=at + 5)
    received_to, commits_received_to, acked = map(_number, positions)
    hello = Hello(
        channel,
        token,
        generation,
        received_to,
        commits_received_to,
        acked,
        cap_count,
        cap_bytes,
        window_s,
        fresh=bool(flags & _FRESH),
    )
    return at + _HELLO.size, hello


def _read_end(view: memoryview, at: int) -> tuple[int, Frame]:
    _, code, acked, received_to, name_size, text_size = _fields(_END, view, at)
    start = at + _END.size
    stop = start + name_size + text_size
    if stop > len(view):
        raise TooShort("the text of an End", expected=f"{stop} bytes", found=len(view), at=at)
    name = str(view[start : start + name_size], "utf-8", "replace")
    text = str(view[start + name_size : stop], "utf-8", "replace")
    return stop, End(code, _number(acked), _number(received_to), name, text)

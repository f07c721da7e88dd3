"""What a WebChannel client posts, as bytes: a form with numbered maps, each of which is one packet.

    count=2&ofs=7&req0_f=<base64>&req1___data__=%7B%22f%22%3A%22<base64>%22%7D          maps 7 and 8

Numbers are `ofs` plus what stands in the name; within a form they may come in any order and with gaps, because a form
that is posted again may carry more than the first time. A map is written by field, or as JSON in the one field
`__data__`, depending on an option of the client; here both mean the same. A handshake may also carry `headers`, for
clients that cannot send them as such.

A form is read whole before anything happens, so that one that cannot be read has no effect.
"""

from __future__ import annotations

import re
from binascii import Error as NotBase64
from binascii import a2b_base64
from collections.abc import Mapping
from typing import Final
from urllib.parse import unquote_to_bytes

import msgspec
from msgspec import Struct

from avow.errors import Malformed, TooLarge
from avow.limits import CHANNEL_PACKET_SIZE_BYTES_MAX

NUMBER_MAX: Final = (1 << 53) - 1  # what a browser counts to without losing one
MAPS_PER_POST_MAX: Final = 1_000  # what a client puts into one

_FIELDS_MAX: Final = MAPS_PER_POST_MAX + 3  # count, ofs, headers
_MAP: Final = re.compile(rb"req(\d{1,16})_(.*)", re.DOTALL)


class Form(Struct, frozen=True):
    """Packets by map number, and headers as lines of text."""

    maps: Mapping[int, bytes]
    headers: bytes = b""


class _Message(Struct, forbid_unknown_fields=True):
    f: bytes  # as JSON it is base64


_decode: Final = msgspec.json.Decoder(_Message).decode


def read_form(body: bytes) -> Form:
    """Raises Malformed or TooLarge."""
    if body.count(b"&") >= _FIELDS_MAX:
        raise TooLarge(f"a WebChannel POST has at most {MAPS_PER_POST_MAX} maps; nothing was received. Send fewer")
    fields: dict[bytes, bytes] = {}
    for field in body.split(b"&"):
        name, _, value = field.partition(b"=")
        if name in fields:
            raise Malformed("a WebChannel form", expected="each field once", found=name[:40])
        fields[name] = value
    count, first = _number(fields.pop(b"count", b""), "count"), _number(fields.pop(b"ofs", b"0"), "ofs")
    headers = _unquoted(fields.pop(b"headers", b""))
    maps = dict(_read_map(first, name, value) for name, value in fields.items())
    if len(maps) != count:
        raise Malformed("maps of a WebChannel form", expected=count, found=len(maps))
    return Form(maps, headers)


def _read_map(first: int, name: bytes, value: bytes) -> tuple[int, bytes]:
    match = _MAP.fullmatch(name)
    if match is None:
        raise Malformed("a field of a WebChannel form", expected="reqN_f or reqN___data__", found=name[:40])
    number = first + int(match[1])
    if number > NUMBER_MAX:
        raise Malformed("the number of a map", expected=f"at most {NUMBER_MAX}", found=number)
    packet = _read_packet(match[2], _unquoted(value), number)
    if len(packet) > CHANNEL_PACKET_SIZE_BYTES_MAX:
        raise TooLarge(f"a packet has at most {CHANNEL_PACKET_SIZE_BYTES_MAX} bytes, not {len(packet)}")
    return number, packet


def _read_packet(key: bytes, value: bytes, number: int) -> bytes:
    try:
        if key == b"f":
            return a2b_base64(value, strict_mode=True)
        if key == b"__data__":
            return _decode(value).f
    except (NotBase64, msgspec.DecodeError, UnicodeDecodeError) as cause:
        raise Malformed(f"map {number}", expected='{"f":"<base64>"}', found=str(cause)) from cause
    raise Malformed(f"map {number}", expected='{"f":"<base64>"}', found=key[:40])


def _number(digits: bytes, what: str) -> int:
    if not (digits.isdigit() and len(digits) <= 16):
        raise Malformed(f"`{what}` of a WebChannel form", expected="a number", found=digits[:40])
    return int(digits)


def _unquoted(value: bytes) -> bytes:
    return unquote_to_bytes(value.replace(b"+", b" ")) if b"%" in value or b"+" in value else value

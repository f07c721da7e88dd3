"""The messages of dtm's gRPC service as bytes, both ways. Protocol buffers, as much of them as these few need.

    field     tag = number << 3 | type, as a varint
    type 0    varint: bool, int64 (a negative one as its 64 bits)
    type 2    a length, then that many bytes: string, bytes, a message, an entry of a map
    type 1, 5 8 and 4 bytes: none of ours; skipped

Unknown fields are skipped, so later clients are understood. A repeated field comes as often as it has values, an entry
of a map is a message with key 1 and value 2. What is left out is empty, 0 or false.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from avow.errors import Malformed
from avow.peer.pledges.dtm import Trans

_VARINT: Final = 0
_FIXED64: Final = 1
_BYTES: Final = 2
_FIXED32: Final = 5
_SKIPPED: Final = {_FIXED64: 8, _FIXED32: 4}

EMPTY: Final = b""
Value = int | bytes


def read_request(data: bytes) -> Trans:
    """DtmRequest. Raises Malformed."""
    trans = Trans(protocol="grpc", bin_payloads=[])
    assert trans.bin_payloads is not None
    for number, value in fields(data):
        if number == 1:
            trans.gid = _text(value)
        elif number == 2:
            trans.trans_type = _text(value)
        elif number == 3:
            _read_options(_bytes(value), trans)
        elif number == 4:
            trans.custom_data = _text(value)
        elif number == 5:
            trans.bin_payloads.append(_bytes(value))
        elif number == 6:
            trans.query_prepared = _text(value)
        elif number == 7:
            trans.steps = _steps(_bytes(value))
        elif number == 9:
            trans.rollback_reason = _text(value)
    return trans


def _read_options(data: bytes, trans: Trans) -> None:
    """DtmTransOptions."""
    headers: dict[str, str] = {}
    for number, value in fields(data):
        if number == 1:
            trans.wait_result = bool(_number(value))
        elif number == 2:
            trans.timeout_to_fail = float(_number(value))
        elif number == 3:
            trans.retry_interval = float(_number(value))
        elif number == 5:
            entry = dict(fields(_bytes(value)))
            headers[_text(entry.get(1, b""))] = _text(entry.get(2, b""))
        elif number == 6:
            trans.request_timeout = float(_number(value))
        elif number == 7:
            trans.retry_limit = _number(value)
    trans.branch_headers = headers


def _steps(data: bytes) -> list[dict[str, str | None]]:
    try:
        return msgspec.json.decode(data, type=list[dict[str, str | None]]) if data else []
    except msgspec.MsgspecError as error:
        raise Malformed("steps", expected="JSON, a list of objects", found=str(error)) from error


def read_topic(data: bytes) -> tuple[str, str, str]:
    """DtmTopicRequest: topic, url, remark. Raises Malformed."""
    found = dict(fields(data))
    topic, url, remark = (_text(found.get(number, b"")) for number in (1, 2, 3))
    return topic, url, remark


def read_branch_kind(data: bytes) -> str:
    """The transaction kind of a DtmBranchRequest."""
    return _text(dict(fields(data)).get(2, b""))


def gid_reply(gid: str) -> bytes:
    """DtmGidReply."""
    return write_bytes(1, gid.encode())


# ---------------------------------------------------------------------- protocol buffers


def fields(data: bytes) -> Iterator[tuple[int, Value]]:
    """(number, value) in the order they come. Raises Malformed."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        number, kind = tag >> 3, tag & 7
        if kind == _VARINT:
            value, at = _varint(data, at)
            yield number, value
        elif kind == _BYTES:
            size, at = _varint(data, at)
            if at + size > len(data):
                raise Malformed(f"field {number}", expected=f"{size} bytes", found=len(data) - at, at=at)
            yield number, data[at : at + size]
            at += size
        elif kind in _SKIPPED:
            at += _SKIPPED[kind]
        else:
            raise Malformed(f"field {number}", expected="a type of protocol buffers", found=kind, at=at)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise Malformed("a number", expected="at most ten bytes, the last below 128", found=len(data) - at, at=at)
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def _number(value: Value) -> int:
    if isinstance(value, bytes):
        raise Malformed("a field", expected="a number", found=f"{len(value)} bytes")
    return value - (1 << 64) if value >= 1 << 63 else value


def _bytes(value: Value) -> bytes:
    if isinstance(value, int):
        raise Malformed("a field", expected="bytes", found=value)
    return value


def _text(value: Value) -> str:
    try:
        return _bytes(value).decode()
    except UnicodeDecodeError as error:
        raise Malformed("a text", expected="UTF-8", found=error.reason) from error


def write_number(number: int, value: int) -> bytes:
    return _written(number << 3 | _VARINT) + _written(value & (1 << 64) - 1)


def write_bytes(number: int, value: bytes) -> bytes:
    return _written(number << 3 | _BYTES) + _written(len(value)) + value


def _written(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)

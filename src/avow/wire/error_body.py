"""Errors as JSON: the body of an error answer, and the same class raised on the other side.

    {"error": {"code": "NOT_EQUAL", "message": "...", "definite": true, "retriable": false, ...details}}

The client raises the class that the peer raised, found by its code, with the peer's message, so `except NotEqual` works
on both sides. An unknown code, from a newer peer, becomes Refused if the answer says it is definite, else AvowError.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec import Struct

from avow.errors import BY_CODE, AvowError, NotEqual, Refused

_SHAPE: Final = frozenset({"code", "message", "definite", "retriable"})
_ATTRIBUTES: Final = {"cursor": "current"}  # details of NotEqual that have another name as an attribute
_NEEDED: Final = ("expected", "current")


class _Failure(Struct, gc=False):
    error: dict[str, Any]


_decode: Final = msgspec.json.Decoder(_Failure).decode
_encode: Final = msgspec.json.Encoder().encode


def encode_failure(error: AvowError) -> bytes:
    shape = {"code": error.code, "message": str(error), "definite": error.definite, "retriable": error.retriable}
    return _encode({"error": {**error.details(), **shape}})


def decode_failure(body: bytes | bytearray) -> AvowError | None:
    """The error in a peer's answer; None: the body is not a peer's error."""
    try:
        failure = _decode(body).error
    except msgspec.MsgspecError:
        return None
    return errors_from(str(failure.get("code", "ERROR")), str(failure.get("message", "")), failure)


def errors_from(code: str, message: str, details: Mapping[str, Any]) -> AvowError:
    """The error that a peer raised: class, message, details. An unknown code is Refused if it is definite."""
    cls = BY_CODE.get(code)
    if cls is None:
        cls = Refused if details.get("definite") else AvowError
    error = cls.__new__(cls, message)
    for name, value in details.items():
        if name not in _SHAPE:
            error.__dict__[_ATTRIBUTES.get(name, name) if cls is NotEqual else name] = value
    for name in _NEEDED if cls is NotEqual else ():
        error.__dict__.setdefault(name, 0)
    return error

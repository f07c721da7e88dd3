"""An error as it travels: one JSON shape, and the very class that was raised on the other side.

    {"error": {"code": "NOT_EQUAL", "message": "...", "definite": true, "retriable": false, ...details}}

Whoever calls a peer raises the class the peer raised, found by its code, so that `except NotEqual` works on both sides
of the wire and the message is the peer's. A code of a newer peer becomes the nearest class that claims no more than is
known: definite only where the answer says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec
from msgspec import Struct

from avow.errors import AvowError, NotEqual, Refused

_SHAPE: Final = frozenset({"code", "message", "definite", "retriable"})
_ATTRIBUTES: Final = {"cursor": "current"}  # details of NotEqual that have another name as an attribute
_NEEDED: Final = ("expected", "current")


class _Failure(Struct, gc=False):
    error: dict[str, Any]


def _classes(cls: type[AvowError]) -> Iterable[type[AvowError]]:
    yield cls
    for child in cls.__subclasses__():
        yield from _classes(child)


_BY_CODE: Final[dict[str, type[AvowError]]] = {}
for _cls in _classes(AvowError):
    _BY_CODE.setdefault(_cls.code, _cls)  # a class that keeps its parent's code travels as the parent
_decode: Final = msgspec.json.Decoder(_Failure).decode
_encode: Final = msgspec.json.Encoder().encode


def encode_failure(error: AvowError) -> bytes:
    shape = {"code": error.code, "message": str(error), "definite": error.definite, "retriable": error.retriable}
    return _encode({"error": {**error.details(), **shape}})


def decode_failure(body: bytes | bytearray) -> AvowError | None:
    """None: these are not the words of a peer."""
    try:
        failure = _decode(body).error
    except msgspec.MsgspecError:
        return None
    return errors_from(str(failure.get("code", "ERROR")), str(failure.get("message", "")), failure)


def errors_from(code: str, message: str, details: Mapping[str, Any]) -> AvowError:
    """The error a peer raised, as it was: class, message, details. An unknown code is Refused if it is definite."""
    cls = _BY_CODE.get(code)
    if cls is None:
        cls = Refused if details.get("definite") else AvowError
    error = cls.__new__(cls, message)
    for name, value in details.items():
        if name not in _SHAPE:
            error.__dict__[_ATTRIBUTES.get(name, name) if cls is NotEqual else name] = value
    for name in _NEEDED if cls is NotEqual else ():
        error.__dict__.setdefault(name, 0)
    return error

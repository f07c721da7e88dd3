"""One-dimensional arrays as PostgreSQL reads them in binary, packed whole.

psycopg looks at every element to find out what a list is. These are known to be integers, bytes or short texts, and a
group has a thousand of them, so they are packed in one go.

    int32  number of dimensions: 1          int32  how many elements
    int32  whether any is NULL: 0           int32  number of the first: 1
    int32  type of the elements             then each element: int32 length, its bytes
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct, pack
from typing import Any, Final

from psycopg.abc import AdaptContext
from psycopg.adapt import Dumper
from psycopg.pq import Format

_HEADER: Final = Struct(">iiiii")
_BYTEA: Final = 17
_INT8: Final = 20
_TEXT: Final = 25


class Packed:
    """An array, ready to be sent."""

    __slots__ = ("data",)

    def __init__(self, data: bytes) -> None:
        self.data = data


class Numbers(Packed):
    __slots__ = ()

    def __init__(self, values: Sequence[int]) -> None:
        pairs = [8] * (2 * len(values))
        pairs[1::2] = values
        super().__init__(_header(_INT8, values) + pack(">" + "iq" * len(values), *pairs))


class Blobs(Packed):
    __slots__ = ()

    def __init__(self, values: Sequence[bytes]) -> None:
        super().__init__(_header(_BYTEA, values) + _joined(values))


class Texts(Packed):
    __slots__ = ()

    def __init__(self, values: Sequence[str]) -> None:
        super().__init__(_header(_TEXT, values) + _joined([value.encode() for value in values]))


def packed(values: Sequence[Any]) -> Packed:
    """By the first of at least one."""
    if isinstance(values[0], int):
        return Numbers(values)
    return Texts(values) if isinstance(values[0], str) else Blobs(values)


def _header(of: int, values: Sequence[Any]) -> bytes:
    return _HEADER.pack(1, 0, of, len(values), 1)


def _joined(values: Sequence[bytes]) -> bytes:
    parts = [b""] * (2 * len(values))
    parts[::2] = [len(value).to_bytes(4, "big") for value in values]
    parts[1::2] = values
    return b"".join(parts)


class _PackedDumper(Dumper):
    format = Format.BINARY

    def dump(self, obj: Packed) -> bytes:
        return obj.data


class _NumbersDumper(_PackedDumper):
    oid = 1016


class _BlobsDumper(_PackedDumper):
    oid = 1001


class _TextsDumper(_PackedDumper):
    oid = 1009


def register(connection: AdaptContext) -> None:
    for array, dumper in ((Numbers, _NumbersDumper), (Blobs, _BlobsDumper), (Texts, _TextsDumper)):
        connection.adapters.register_dumper(array, dumper)

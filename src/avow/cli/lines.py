"""Messages from lines: what arguments or standard input hold, in groups that are sent as they come.

Standard input is read in whatever pieces it arrives. A file comes in large pieces and makes full batches; a person or a
`tail -f` comes a line at a time, and each line is sent at once instead of waiting for a batch to fill up. A last line
without an end counts when the input ends.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Final

from msgspec import Struct

from avow.errors import InvalidRequest
from avow.limits import MESSAGE_SIZE_BYTES_MAX

PIECE_BYTES: Final = 1024 * 1024


class Lines(Struct, frozen=True):
    """Some messages; `read_bytes` is how much of the input they stand for, ends of lines included."""

    values: Sequence[bytes]
    keys: Sequence[bytes] | None
    read_bytes: int


def from_arguments(values: Sequence[str], *, batch: int, separator: bytes) -> Iterator[Lines]:
    yield from _grouped([value.encode() for value in values], batch=batch, separator=separator, ends=0)


def from_descriptor(descriptor: int, *, batch: int, separator: bytes) -> Iterator[Lines]:
    """Until the end of the input."""
    rest = b""
    while piece := os.read(descriptor, PIECE_BYTES):
        *lines, rest = (rest + piece).split(b"\n")
        if len(rest) > MESSAGE_SIZE_BYTES_MAX:
            raise InvalidRequest(
                f"a line is longer than a message may be ({MESSAGE_SIZE_BYTES_MAX:,} bytes); it was not sent"
            )
        yield from _grouped(lines, batch=batch, separator=separator, ends=1)
    if rest:
        yield from _grouped([rest], batch=batch, separator=separator, ends=0)


def _grouped(lines: list[bytes], *, batch: int, separator: bytes, ends: int) -> Iterator[Lines]:
    for start in range(0, len(lines), batch):
        group = lines[start : start + batch]
        size = sum(map(len, group)) + ends * len(group)
        if not separator:
            yield Lines(group, None, size)
        else:
            pairs = [_split(line, separator) for line in group]
            yield Lines([value for _, value in pairs], [key for key, _ in pairs], size)


def _split(line: bytes, separator: bytes) -> tuple[bytes, bytes]:
    key, found, value = line.partition(separator)
    if not found:
        shown = line[:60].decode(errors="replace")
        raise InvalidRequest(f"no {separator.decode()!r} between key and value in the line {shown!r}; it was not sent")
    return key, value

"""The history of a campaign: every request and answer of every session, as rows that a checker can read again.

A session is one client that does one thing at a time. Each is an `Op`: the time of the request, the time of the answer,
and the outcome: done (with versions), refused (definite), or unknown (it may have happened; a checker must accept
both). A row without an outcome was still open when the campaign ended, which is the same as unknown.

Messages are not stored. The value of message `index` of operation `number` follows from these two, padding included, so
every value identifies its operation, and a value with a changed byte belongs to none. In memory a message is one int,
its code: number << 12 | index. Messages that were written together have consecutive codes, which makes a million of
them cheap to check.

Times are nanoseconds of one monotonic clock: all sessions live in one process.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import IO, Any, Final, TypeAlias
from zlib import crc32

import msgspec
from msgspec import Struct

INDEX_BITS: Final = 12
COUNT_MAX: Final = 1 << INDEX_BITS
_PADDING: Final = bytes(range(97, 123)) * 8
_PADDING_BYTES_MAX: Final = 120

Span: TypeAlias = tuple[int, int, int]  # lane, first version, last version


class Kind(StrEnum):
    WRITE = "write"
    STREAM = "stream"  # messages of a producer, over a channel, up to the commit that covers them
    STAGE = "stage"
    PUBLISH = "publish"
    DISCARD = "discard"
    READ = "read"
    MOVE = "move"  # a subscriber's cursor
    CURSOR = "cursor"  # read it
    LOOKUP = "lookup"  # the outcome of a write


WRITES: Final = (Kind.WRITE, Kind.STREAM, Kind.PUBLISH)  # those that make messages visible


class Outcome(StrEnum):
    OPEN = ""
    DONE = "done"
    REFUSED = "refused"
    UNKNOWN = "unknown"


class Op(Struct, omit_defaults=True):
    """One operation of one session. Its kind decides which fields have a meaning."""

    number: int
    session: int
    kind: Kind
    queue: str
    invoked_ns: int
    completed_ns: int = 0
    outcome: Outcome = Outcome.OPEN
    code: str = ""  # of a refusal
    count: int = 0  # write, stream, stage: messages
    split: bool = False  # write: its messages may go to several lanes, a batch for each
    lane: int = -1  # requested; -1: the client chose
    expected: int = -1
    cursor: int = -1  # the end that NOT_EQUAL named
    txn: int = 0  # stage, publish, discard
    level: str = ""  # read
    after: int = 0  # read: from here; move: to here
    end: int = -1  # read: the last version it showed
    cut: bool = False  # read: stopped before the lane's end
    digest: int = 0  # read: of the codes it showed
    subscriber: str = ""
    about: int = 0  # lookup: number of the write
    spans: tuple[Span, ...] = ()  # write, publish, lookup: where; move, cursor: (lane, 0, version)

    @property
    def ended_ns(self) -> int | None:
        """The time by which it had taken effect; None: it may do so later or never."""
        return self.completed_ns if self.outcome is Outcome.DONE else None


class FinalLane(Struct):
    """One lane as one peer shows it at the end, from version 1.

    `strange` are values that no operation can have written; `unreadable` says why this peer could not show the rest.
    """

    peer: int
    queue: str
    lane: int
    codes: array[int]
    strange: dict[int, str] = {}
    unreadable: str = ""


# ---------------------------------------------------------------------- values and codes


def code_of(number: int, index: int) -> int:
    return number << INDEX_BITS | index


def value_of(number: int, index: int) -> bytes:
    return b"%x.%x.%b" % (number, index, _PADDING[: number * 37 % _PADDING_BYTES_MAX])


def values_of(number: int, count: int) -> list[bytes]:
    return [value_of(number, index) for index in range(count)]


def parse_value(value: bytes) -> int:
    """The code of a value; negative for one that no operation can have written."""
    parts = value.split(b".", 2)
    try:
        number, index = int(parts[0], 16), int(parts[1], 16)
    except (ValueError, IndexError):
        return -1 - crc32(value)
    if 0 <= index < COUNT_MAX and value == value_of(number, index):
        return code_of(number, index)
    return -1 - crc32(value)


def codes_of(values: Iterable[bytes]) -> array[int]:
    return array("q", map(parse_value, values))


def digest_of(codes: array[int]) -> int:
    return crc32(codes.tobytes())


# ---------------------------------------------------------------------- the record


class History:
    """Rows in memory; each is appended to a file when it is complete, so that a campaign that crashes leaves them."""

    def __init__(self, clock_ns: Callable[[], int], *, path: Path | None = None) -> None:
        self._clock_ns = clock_ns
        self._file: IO[bytes] | None = path.open("wb") if path else None
        self._encoder = msgspec.json.Encoder()
        self.ops: list[Op] = []

    def begin(self, kind: Kind, queue: str, session: int, **fields: Any) -> Op:
        """Call it before the request. An operation that is not ended counts as unknown."""
        op = Op(len(self.ops) + 1, session, kind, queue, self._clock_ns(), **fields)
        self.ops.append(op)
        return op

    def end(self, op: Op, outcome: Outcome, *, code: str = "", spans: Sequence[Span] = ()) -> None:
        op.completed_ns, op.outcome, op.code = self._clock_ns(), outcome, code
        if spans:
            op.spans = tuple(spans)
        self._write(op)

    def close(self) -> None:
        """Writes the operations that are still open, without an outcome."""
        for op in self.ops:
            if op.outcome is Outcome.OPEN:
                self._write(op)
        if self._file is not None:
            self._file.close()
            self._file = None

    def _write(self, op: Op) -> None:
        if self._file is not None:
            self._file.write(self._encoder.encode(op) + b"\n")


def load_history(path: Path) -> list[Op]:
    """The rows of a campaign's file, in the order of the requests."""
    decoder = msgspec.json.Decoder(Op)
    with path.open("rb") as file:
        return sorted((decoder.decode(line) for line in file), key=lambda op: op.number)

"""The messages of callers: what `enqueue` accepts, and those of one bulk call as columns, split into batches that fit.

The lists that a caller passes to `enqueue_many` are validated once, before anything is sent, and split by the maximum
size and number of messages of a batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from time import time_ns
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from avow import limits
from avow.errors import InvalidRequest, TooLarge

if TYPE_CHECKING:
    from avow.client.batches import Batch
    from avow.wire.record import Buffer

Headers: TypeAlias = Mapping[str, bytes] | Sequence[tuple[str, bytes]]
Pairs: TypeAlias = Sequence[tuple[str, bytes]]

#: Added to the size of each message, so that a batch within the size limit is also within the message limit.
OVERHEAD_BYTES: Final = limits.BATCH_SIZE_BYTES_MAX // limits.BATCH_COUNT_MAX
BATCH_CONTENT_SIZE_BYTES_MAX: Final = limits.BATCH_SIZE_BYTES_MAX - 4 * limits.KIB


def plain_bytes(value: Buffer) -> bytes:
    """Values are kept until they are sent, so mutable ones are copied."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    raise TypeError(f"a message must be bytes, not {type(value).__name__}; nothing was sent. Encode it first")


def check_size(size: int) -> None:
    if size > limits.MESSAGE_SIZE_BYTES_MAX:
        raise TooLarge(
            f"the message has {size} bytes, the maximum is {limits.MESSAGE_SIZE_BYTES_MAX}; nothing was sent"
        )


def pairs_of(headers: Headers | None) -> Pairs | None:
    if headers is None:
        return None
    return tuple(headers.items()) if isinstance(headers, Mapping) else tuple(headers)


def pairs_size(headers: Pairs | None) -> int:
    return sum(len(name.encode("utf-8", "surrogateescape")) + len(value) + 8 for name, value in headers or ())


def now_ms() -> int:
    return time_ns() // 1_000_000


class Columns(NamedTuple):
    """The caller's columns, of equal length; a batch takes some of the rows."""

    values: list[bytes]
    keys: Sequence[bytes | None] | None
    headers: Sequence[Pairs] | None
    times: Sequence[int] | None

    def sizes(self, numbers: Sequence[int]) -> list[int]:
        values, keys, headers = self.values, self.keys, self.headers
        if keys is None and headers is None:
            return [len(values[n]) for n in numbers]
        sizes = []
        for n in numbers:
            beside = len((keys[n] if keys is not None else None) or b"")
            sizes.append(len(values[n]) + beside + pairs_size(headers[n] if headers is not None else None))
        return sizes

    def fill(self, batch: Batch, numbers: Sequence[int]) -> None:
        batch.values = self.values if len(numbers) == len(self.values) else [self.values[n] for n in numbers]
        batch.keys = None if self.keys is None else [self.keys[n] for n in numbers]
        batch.headers = None if self.headers is None else [self.headers[n] for n in numbers]
        batch.times = None if self.times is None else [self.times[n] for n in numbers]
        batch.size = sum(self.sizes(numbers)) + OVERHEAD_BYTES * len(numbers)


def columns_of(
    values: Sequence[Buffer],
    *,
    keys: Sequence[bytes | None] | None,
    headers: Sequence[Headers | None] | None,
    times: Sequence[int] | None,
) -> Columns:
    _check_lengths(values, keys=keys, headers=headers, times=times)
    plain = [value if type(value) is bytes else plain_bytes(value) for value in values]
    check_size(max(map(len, plain), default=0))
    pairs = None if headers is None else [pairs_of(item) or () for item in headers]
    return Columns(plain, keys, pairs, times)


def _check_lengths(values: Sequence[object], **columns: Sequence[object] | None) -> None:
    for name, column in columns.items():
        if column is not None and len(column) != len(values):
            raise InvalidRequest(
                f"{len(values)} values but {len(column)} {name}; nothing was sent. Pass lists of the same length"
            )


def split(sizes: Sequence[int], *, size_bytes_max: int = BATCH_CONTENT_SIZE_BYTES_MAX) -> Iterator[range]:
    """Ranges of messages that each fit into one batch. `sizes` are in bytes, with keys and headers."""
    first, used = 0, 0
    for number, size in enumerate(sizes):
        used += size + OVERHEAD_BYTES // 2
        if number > first and (used > size_bytes_max or number - first >= limits.BATCH_COUNT_MAX):
            yield range(first, number)
            first, used = number, size + OVERHEAD_BYTES // 2
    if first < len(sizes):
        yield range(first, len(sizes))

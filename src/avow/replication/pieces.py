"""Limits of the entries in one message, and of the operations in one write to storage.

A log is sent in pieces, limited by a number of entries (`tuning.piece_entries`) and a number of bytes. The second limit
keeps a frame below its maximum when batches are large. One entry always fits, because the limit of a batch is far below
that of a frame.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from avow.limits import ENQUEUE_SIZE_BYTES_MAX, STORE_WRITE_SIZE_BYTES
from avow.replication.effects import Persist, SaveEntries, SaveSnapshot
from avow.wire.messages import Entry


def one_frame(entries: tuple[Entry, ...]) -> tuple[Entry, ...]:
    """The first entries, as many as fit into one frame."""
    return within(entries, ENQUEUE_SIZE_BYTES_MAX)


def within(entries: tuple[Entry, ...], max_bytes: int) -> tuple[Entry, ...]:
    """The first entries, as many as fit into `max_bytes`, but at least one."""
    if len(entries) < 2:
        return entries
    size = 0
    for count, entry in enumerate(entries):
        size += len(entry.batch) + len(entry.control)
        if size > max_bytes and count:
            return entries[:count]
    return entries


def entry_bytes(entry: Entry) -> int:
    """The size of an entry, as counted for memory limits and frames."""
    return len(entry.batch) + len(entry.control)


def store_writes(operations: Sequence[Persist]) -> Iterator[Sequence[Persist]]:
    """Operations in parts for storage, which writes each part into one segment of its log.

    What one turn of the loop drains has no bound: every lane may have appended. One operation always fits.
    """
    start = size = 0
    for at, operation in enumerate(operations):
        more = 0
        if isinstance(operation, SaveEntries):
            more = sum(map(entry_bytes, operation.entries))
        elif isinstance(operation, SaveSnapshot):
            more = len(operation.snapshot.state)
        if at > start and size + more > STORE_WRITE_SIZE_BYTES:
            yield operations[start:at]
            start, size = at, 0
        size += more
    yield operations[start:] if start else operations

"""Limits of the entries in one message.

A log is sent in pieces, limited by a number of entries (`tuning.piece_entries`) and a number of bytes. The second limit
keeps a frame below its maximum when batches are large. One entry always fits, because the limit of a batch is far below
that of a frame.
"""

from __future__ import annotations

from avow.limits import ENQUEUE_SIZE_BYTES_MAX
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

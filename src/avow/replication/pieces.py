"""How much of a log one message may carry.

A log is sent in pieces, and a piece has two bounds: so many entries (`tuning.piece_entries`) and so many bytes. The
second is what keeps a frame below its limit when batches are large. One entry always fits, because a batch has a bound
of its own that is far below that of a frame.
"""

from __future__ import annotations

from avow.limits import ENQUEUE_SIZE_BYTES_MAX
from avow.wire.messages import Entry


def one_frame(entries: tuple[Entry, ...]) -> tuple[Entry, ...]:
    """As many of the first entries as one frame may carry."""
    return within(entries, ENQUEUE_SIZE_BYTES_MAX)


def within(entries: tuple[Entry, ...], max_bytes: int) -> tuple[Entry, ...]:
    """As many of the first entries as fit; one at least."""
    if len(entries) < 2:
        return entries
    size = 0
    for count, entry in enumerate(entries):
        size += len(entry.batch) + len(entry.control)
        if size > max_bytes and count:
            return entries[:count]
    return entries


def entry_bytes(entry: Entry) -> int:
    """What an entry counts for, in memory bounds and in frames."""
    return len(entry.batch) + len(entry.control)

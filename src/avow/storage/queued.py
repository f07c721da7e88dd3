"""One call of `write`, encoded for the log while it waits for its sync.

Encoding is done by the caller, on the caller's time: the sync thread then only gathers buffers. An operation becomes
one record of the log. What a peer has promised (state, fence, run) becomes two, the second of which the log puts into
another block: no single damaged place may lose a promise.

Entries are not copied here: their batches go from the caller's memory into the log's write, and from there, the same
bytes, into the lane's file.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from avow.replication.effects import (
    Persist,
    SaveCut,
    SaveEntries,
    SaveFence,
    SaveRun,
    SaveSnapshot,
    SaveState,
    SaveTrim,
)
from avow.storage.lane import Step
from avow.storage.records import OVERHEAD_BYTES, PROMISE, WalKind, encode
from avow.storage.store import Then
from avow.wire.record import Buffer, entry_parts


class Queued:
    """`parts` and `seconds` are records for the log, `steps` what lane files do with them once they are synced.

    `growth`: bytes that lane files will grow by. `has_entries`: they are refused on a full disk, other growth is not.
    """

    __slots__ = ("growth", "has_entries", "last_lsn", "parts", "second_bytes", "seconds", "size", "steps", "then")

    def __init__(self, then: Then) -> None:
        self.then = then
        self.parts: list[Buffer] = []
        self.seconds: list[Buffer] = []
        self.steps: list[Step] = []
        self.has_entries = False
        self.size = self.second_bytes = self.growth = self.last_lsn = 0

    def add(self, op: Persist, lsn: int, epoch: int) -> None:
        if type(op) is SaveEntries:
            self._add_entries(op, lsn, epoch)
            return
        lane = 0 if isinstance(op, SaveRun) else op.lane
        kind, first, count, payload = _layout(op)
        record, size = encode(kind, lsn, epoch, lane, first, count, payload=payload)
        self.parts += record
        self.size += size
        if isinstance(op, SaveState | SaveFence | SaveRun):
            second, size = encode(kind, lsn, epoch, lane, first, count, copy=1, payload=payload)
            self.seconds += second
            self.second_bytes += size
        size = sum(map(len, payload))
        self.steps.append(Step(op, lsn, payload, size))
        if isinstance(op, SaveSnapshot):
            self.growth += size

    def _add_entries(self, op: SaveEntries, lsn: int, epoch: int) -> None:
        """Nearly all operations are these. The payload is the entries' records, end to end."""
        entries = op.entries
        payload = entry_parts(entries[0])
        for entry in entries[1:]:
            payload += entry_parts(entry)
        record, size = encode(WalKind.ENTRIES, lsn, epoch, op.lane, entries[0].position, len(entries), payload=payload)
        self.parts += record
        self.size += size
        size -= OVERHEAD_BYTES
        self.growth += size
        self.has_entries = True
        self.steps.append(Step(op, lsn, payload, size))


def _layout(op: Persist) -> tuple[int, int, int, Sequence[Buffer]]:
    """(kind, first, count, payload) of every operation but SaveEntries."""
    if isinstance(op, SaveState):
        return WalKind.STATE, 0, 0, (PROMISE.pack(op.promised, op.stamped),)
    if isinstance(op, SaveCut):
        return WalKind.CUT, op.end, 0, ()
    if isinstance(op, SaveSnapshot):
        return WalKind.SNAPSHOT, op.snapshot.position, int(op.reset), (msgspec.msgpack.encode(op.snapshot),)
    if isinstance(op, SaveTrim):
        return WalKind.TRIM, op.upto, 0, ()
    if isinstance(op, SaveFence):
        return WalKind.FENCE, op.end + 1, 0, ()
    assert isinstance(op, SaveRun)
    return WalKind.RUN, op.incarnation, 0, ()

"""Retention of a copy: which entries are in memory and on disk, snapshots, and the removal of both.

    memory   the newest readable entries; older ones are read from storage when a reader or another peer asks
    disk     from time to time a snapshot of the state at a position (opaque bytes, made by the queue, which knows
             versions and write ids), so that a restart reads only the entries after it
    trim     removes entries before such a snapshot permanently
    drop     removes the whole lane: it will never be read again

A snapshot is taken only of readable entries. These are committed, so the beginning of a restarted copy never needs to
be cut, and a copy that is counted for it claims nothing that could be taken back.

A peer that is asked for removed entries answers with a start position instead: a TRIM entry at the last removed
position, whose batch is the state of the lane there and replaces everything up to it.
"""

from __future__ import annotations

from collections.abc import Callable

from avow.errors import StorageDamaged, Trimmed
from avow.ids import ballot_of
from avow.replication.effects import Persist, SaveSnapshot, SaveTrim
from avow.replication.pieces import one_frame
from avow.replication.pubsub.context import Context
from avow.replication.pubsub.state import LaneState, Read, Start
from avow.wire.messages import Entry, Kind, Snapshot


class Retention:
    """`read` is storage; None: everything stays in memory."""

    def __init__(self, context: Context, read: Read | None) -> None:
        self._lanes, self._journal, self._tuning = context.lanes, context.journal, context.tuning
        self._read = read
        self._starts: Start | None = None
        self._unreadable: Callable[[int, int], None] | None = None

    def ask_for_starts(self, starts: Start) -> None:
        """Set the function that returns the start position and state of a lane."""
        self._starts = starts

    def tell_unreadable(self, tell: Callable[[int, int], None]) -> None:
        """Set the function that is called with (lane, position) when storage cannot read an entry."""
        self._unreadable = tell

    # ------------------------------------------------------------------ reading

    def entry(self, number: int, position: int) -> Entry | None:
        """A stored entry by its position, committed or not. Raises Trimmed or StorageDamaged."""
        lane = self._lanes.known(number)
        held = self._back(lane, position - 1, 1) if 0 < position <= lane.durable else ()
        return held[0] if held else None

    def entries(self, number: int, *, after: int, limit: int) -> tuple[Entry, ...]:
        """Readable entries that follow `after`: at most `limit`, and at most one frame. Raises as `entry`."""
        lane = self._lanes.known(number)
        return one_frame(self._back(lane, after, min(limit, lane.readable - after))) if after < lane.readable else ()

    def _back(self, lane: LaneState, after: int, limit: int) -> tuple[Entry, ...]:
        if after >= lane.base:
            return lane.slice(after, limit)
        if self._read is None:
            return ()
        return tuple(self._read(lane.number, after, min(limit, lane.base - after)))

    def held(self, number: int, *, after: int, to: int) -> list[Entry] | None:
        """The entries after+1 .. to, committed or not; None while this copy is shorter."""
        lane = self._lanes.known(number)
        return lane.entries[after - lane.base : to - lane.base] if lane.base <= after and to <= lane.end else None

    def piece(self, lane: LaneState, after: int, upto: int) -> tuple[Entry, ...]:
        """For another peer: one frame of the entries after `after`, from memory or storage, or the start position.

        Empty when storage cannot read them: the other peer then asks elsewhere.
        """
        limit = self._tuning.piece_entries
        if after >= lane.base:
            return lane.piece(after, limit, upto)
        if self._read is None:
            return ()
        try:
            return one_frame(tuple(self._read(lane.number, after, min(limit, lane.base - after))))
        except Trimmed:
            return self._start_of(lane)
        except StorageDamaged:
            if self._unreadable is not None:
                self._unreadable(lane.number, after + 1)
            return ()

    def _start_of(self, lane: LaneState) -> tuple[Entry, ...]:
        found = self._starts(lane.number) if self._starts is not None else None
        if found is None:
            return ()
        position, state = found
        return (Entry(position, ballot_of(lane.incarnation, lane.owner), Kind.TRIM, batch=state),)

    # ------------------------------------------------------------------ memory and disk

    def take_state(self, number: int) -> tuple[int, bytes]:
        """The snapshot a copy started from, once: (position, state)."""
        lane = self._lanes.known(number)
        return lane.base, lane.take_snapshot()

    def forget(self, number: int, upto: int) -> None:
        """Drop readable entries up to `upto` from memory; `read` serves them from then on."""
        self._lanes.known(number).forget(upto)

    def relieve(self, number: int, upto: int, *, entries_max: int, bytes_max: int) -> None:
        """Drop the oldest of the entries up to `upto` from memory when either limit is exceeded."""
        self._lanes.known(number).relieve(upto, entries_max=entries_max, bytes_max=bytes_max)

    def save_snapshot(self, number: int, position: int, state: bytes) -> None:
        """Persist the lane's state at a readable position: a restart loads only the entries after it."""
        lane = self._lanes.known(number)
        assert position <= lane.readable, "a snapshot must contain only committed entries"
        snapshot = Snapshot(position, ballot_of(lane.incarnation, lane.owner), lane.voters, (), state)
        self._journal.save(lane, SaveSnapshot(number, snapshot, reset=False))

    def save_trim(self, number: int, upto: int) -> None:
        """Remove entries up to `upto`, which are before the last snapshot."""
        lane = self._lanes.known(number)
        lane.forget(upto)
        self._journal.save(lane, SaveTrim(number, upto))

    def save(self, number: int, effect: Persist) -> None:
        """Persist an effect of another part of the queue, together with the next record."""
        self._journal.save(self._lanes.known(number), effect)

    def drop(self, lane: LaneState) -> None:
        """Delete the lane from storage."""
        for effect in emptied(lane.number, lane.end):
            self._journal.save(lane, effect)


def emptied(number: int, end: int) -> list[Persist]:
    """Operations that delete a lane from disk, except its number, which is never reused."""
    nothing = Snapshot(end, 0, (), (), b"")
    return [SaveSnapshot(number, nothing, reset=True), SaveTrim(number, end)]

"""What a copy keeps in memory, what it writes down besides entries, and how it lets go of either.

    memory   the newest readable entries; older ones are read back from storage when a reader or another peer asks
    disk     now and then the state that entries up to a position have built (made by whoever knows versions and write
             ids; to the core it is bytes), so that a restart reads only what follows
    trim     entries that were removed for good and lie before such a snapshot
    drop     the whole lane: nobody will read it again

A snapshot is only ever taken of what is readable. That is committed, so what a restarted copy begins with never needs
to be cut, and a copy that is counted for it claims nothing that could be taken back.
"""

from __future__ import annotations

from collections.abc import Mapping

from avow.ids import ballot_of
from avow.replication.effects import LaneImage, Persist, SaveSnapshot, SaveTrim
from avow.replication.pieces import one_frame
from avow.replication.pubsub.lane import Lane, Read
from avow.replication.pubsub.settle import Settling
from avow.replication.tuning import Tuning
from avow.wire.messages import Entry, Message, Snapshot


class Keeping(Settling):
    def __init__(
        self,
        *,
        me: int,
        incarnation: int,
        images: dict[int, LaneImage],
        tuning: Tuning,
        read: Read | None,
        heard: dict[int, float] | None = None,
    ) -> None:
        super().__init__(me=me, incarnation=incarnation, images=images, tuning=tuning, read=read, heard=heard)
        self._active: list[Lane] = []  # undecided, or not all here

    # ------------------------------------------------------------------ reading

    def entry(self, number: int, position: int) -> Entry | None:
        """A stored entry by its position, committed or not. Raises Trimmed or StorageDamaged."""
        lane = self._known_lane(number)
        held = self._back(lane, position - 1, 1) if 0 < position <= lane.durable else ()
        return held[0] if held else None

    def entries(self, number: int, *, after: int, limit: int) -> tuple[Entry, ...]:
        """Readable entries that follow `after`: at most `limit`, and at most one frame's worth. Raises as `entry`."""
        lane = self._known_lane(number)
        return one_frame(self._back(lane, after, min(limit, lane.readable - after))) if after < lane.readable else ()

    def _back(self, lane: Lane, after: int, limit: int) -> tuple[Entry, ...]:
        if after >= lane.base:
            return lane.slice(after, limit)
        if self._read is None:
            return ()
        return tuple(self._read(lane.number, after, min(limit, lane.base - after)))

    def held(self, number: int, *, after: int, to: int) -> list[Entry] | None:
        """The entries after+1 .. to, committed or not; None while this copy does not reach so far."""
        lane = self._known_lane(number)
        return lane.entries[after - lane.base : to - lane.base] if lane.base <= after and to <= lane.end else None

    def end_of(self, number: int) -> int:
        """The last entry in memory or on disk, synced or not."""
        return self._known_lane(number).end

    def cursor_of(self, number: int) -> int:
        return self._known_lane(number).cursor

    def durable_of(self, number: int) -> int:
        return self._known_lane(number).durable

    def stored_of(self, number: int) -> Mapping[int, int]:
        """Voter -> the last entry it is known to have stored."""
        return self._known_lane(number).stored

    # ------------------------------------------------------------------ memory and disk

    def take_state(self, number: int) -> tuple[int, bytes]:
        """The snapshot a copy started from, once: (position, state)."""
        lane = self._known_lane(number)
        state, lane.state = lane.state, b""
        return lane.base, state

    def forget(self, number: int, upto: int) -> None:
        """Keep readable entries up to `upto` on disk only; `read` serves them from then on."""
        self._known_lane(number).forget(upto)

    def relieve(self, number: int, upto: int, *, entries_max: int, bytes_max: int) -> None:
        """Forget the oldest of the entries up to `upto` once there is more than that in memory."""
        self._known_lane(number).relieve(upto, entries_max=entries_max, bytes_max=bytes_max)

    def save_snapshot(self, number: int, position: int, state: bytes) -> None:
        """The lane's state at a readable position: a restart loads what follows it."""
        lane = self._known_lane(number)
        assert position <= lane.readable, "a snapshot of what may not be committed"
        snapshot = Snapshot(position, ballot_of(lane.incarnation, lane.owner), lane.voters, (), state)
        self._save(lane, SaveSnapshot(number, snapshot, reset=False))

    def save_trim(self, number: int, upto: int) -> None:
        """Entries up to `upto` were removed for good and lie before the last snapshot."""
        lane = self._known_lane(number)
        lane.forget(upto)
        self._save(lane, SaveTrim(number, upto))

    def keep(self, number: int, effect: Persist) -> None:
        """Persist something beside the entries, with whatever is persisted next."""
        self._save(self._known_lane(number), effect)

    def say(self, peer: int, message: Message) -> None:
        """Send at once, beside the core's own messages."""
        self._send_now(peer, message)

    def donors_of(self, number: int, now: float) -> list[int]:
        """Peers that may hold what is readable here, those heard lately."""
        return [peer for peer in self._known_lane(number).audience if self._fresh(peer, now)]

    def base_of(self, number: int) -> int:
        """Entries up to here are on disk only."""
        return self._known_lane(number).base

    def drop(self, number: int) -> None:
        """Nobody will read the lane again: storage lets go of it, and frames about it mean nothing any more."""
        lane = self._claim(number)
        for effect in emptied(number, lane.end):
            self._save(lane, effect)
        del self._lanes[number]
        self._settlements.pop(number, None)
        self._own = None if self._own is lane else self._own
        self._active = [other for other in self._active if other is not lane]
        self._announcing = [other for other in self._announcing if other is not lane]
        self._unsent = None if self._unsent is lane else self._unsent
        self._committed = [item for item in self._committed if item[0] != number]
        self._accepted = [item for item in self._accepted if item[0] != number]
        self._refused = [item for item in self._refused if item[0] != number]
        self._settled = [item for item in self._settled if item[0] != number]


def emptied(number: int, end: int) -> list[Persist]:
    """What leaves nothing of a lane on disk but its number, which is never given out again."""
    nothing = Snapshot(end, 0, (), (), b"")
    return [SaveSnapshot(number, nothing, reset=True), SaveTrim(number, end)]

"""The state of one two-phase lane on one peer: its log, what is on disk, and what other peers reported. The roles share
it; nothing else changes the log (`LaneLog`).

    on disk      promised, stamped, log, snapshot
    synced       persisted_end, persisted_stamp: the part of it that a crash would leave
    committed    the cursor, as far as it is known here
    matched      this log equals that of the promised coordinator up to here; `told` is that coordinator's cursor
    heard        each peer's last message and reported cursor, and the coordinator

Only the methods here change these attributes; each is named after the event. A change on disk is passed to `effects` in
the same call. What is not on disk is lost with the process and learned again from messages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

from avow.errors import StorageDamaged, Trimmed
from avow.ids import REPAIRING
from avow.replication.effect_buffer import EffectBuffer
from avow.replication.effects import LaneImage, SaveCut, SaveEntries, SaveSnapshot, SaveState, SaveTrim
from avow.replication.membership import Members, decode_members
from avow.replication.pieces import entry_bytes, one_frame
from avow.replication.tuning import Tuning
from avow.wire.messages import Entry, Kind, Snapshot

if TYPE_CHECKING:
    from avow.replication.two_phase.rules import Rules

Mark: TypeAlias = tuple[int, int]  # (end of the log, stamp): what a sync makes durable

# (after, max_entries) -> entries in storage, from after + 1 on. It may limit their bytes, but returns at least one
# entry if there is one. May raise Trimmed or StorageDamaged.
Read: TypeAlias = Callable[[int, int], Sequence[Entry]]


class LaneLog:
    """The entries since a base in the memory of this peer, and the membership they define.

        base          everything at or before it is applied and committed: the newest snapshot's position, or later, if
                      entries were dropped because memory is bounded
        base+1..end   entries, each with the ballot (origin) that first appended it

    Two logs with the same origin at the same position are equal up to there. Every comparison below depends on this
    invariant. Entries up to the base are not in memory; `read` (storage) may still have them for readers and for peers
    that are behind. A cut also removes membership entries, so `members` always comes from the newest one in the log.
    """

    __slots__ = ("_entries", "_history", "_read", "base", "base_origin", "end", "members", "members_at", "size_bytes")

    def __init__(self, *, snapshot: Snapshot | None, entries: Sequence[Entry], read: Read | None = None) -> None:
        self._read = read
        self._entries: list[Entry] = []
        self._history: list[tuple[int, Members]] = []  # (position, members before the entry there)
        self.reset(snapshot or Snapshot(0, 0, (), (), b""))
        for entry in entries:
            self.append(entry)

    @property
    def readable(self) -> bool:
        """Whether older entries can be read from storage."""
        return self._read is not None

    def reset(self, snapshot: Snapshot) -> None:
        """Replace the log by the snapshot."""
        self._entries.clear()
        self._history.clear()
        self.size_bytes = 0
        self.base = self.end = snapshot.position
        self.base_origin = snapshot.origin
        self.members = Members(snapshot.voters, snapshot.learners)
        self.members_at = snapshot.position

    def origin(self, position: int) -> int:
        """The origin of the entry at `position`; -1 if that is not in base..end."""
        if position > self.base:
            return self._entries[position - self.base - 1].origin if position <= self.end else -1
        return self.base_origin if position == self.base else -1

    def older_origin(self, position: int) -> int:
        """The origin of an entry before the base, from storage; -1: it was removed; 0: before the first entry."""
        found = self.older(position - 1, 1) if position else ()
        return found[0].origin if found else (-1 if position else 0)

    def entry(self, position: int) -> Entry:
        return self._entries[position - self.base - 1]

    def find(self, position: int) -> Entry | None:
        """The entry at `position`, from memory or storage; None: neither has it."""
        if position > self.base:
            return self._entries[position - self.base - 1] if position <= self.end else None
        found = self.older(position - 1, 1)
        return found[0] if found else None

    def slice(self, after: int, max_entries: int) -> tuple[Entry, ...]:
        """At most `max_entries` entries that follow `after` (from the base on), whatever their size."""
        start = after - self.base
        return tuple(self._entries[start : start + max_entries])

    def piece(self, after: int, max_entries: int) -> tuple[Entry, ...]:
        """The part of `slice` that fits into one frame."""
        return one_frame(self.slice(after, max_entries))

    def older(self, after: int, max_entries: int) -> tuple[Entry, ...]:
        """The entries after `after` and up to the base that fit into one frame, if storage still has them.

        Never beyond the base: a cut of later entries may not have reached storage yet.
        """
        wanted = min(max_entries, self.base - after)
        if self._read is None or wanted <= 0:
            return ()
        try:
            found = tuple(self._read(after, wanted))
        except (Trimmed, StorageDamaged):
            return ()
        return one_frame(found) if found and found[0].position == after + 1 else ()

    def append(self, entry: Entry) -> None:
        assert entry.position == self.end + 1, f"entry {entry.position} does not follow {self.end}"
        self._entries.append(entry)
        self.end = entry.position
        self.size_bytes += len(entry.batch) + len(entry.control)
        if entry.kind == Kind.MEMBERS:
            self._history.append((entry.position, self.members))
            self.members = decode_members(entry.control)
            self.members_at = entry.position

    def cut(self, end: int) -> None:
        """Drop the entries after `end`."""
        assert end >= self.base, f"cut at {end} would remove committed entries up to {self.base}"
        self.size_bytes -= sum(map(entry_bytes, self._entries[end - self.base :]))
        del self._entries[end - self.base :]
        self.end = end
        while self._history and self._history[-1][0] > end:
            _, self.members = self._history.pop()
            self.members_at = self._history[-1][0] if self._history else self.base

    def members_as_of(self, position: int) -> Members:
        """The membership in force after the entry at `position`, which must be in base..end."""
        members = self.members
        for at, before in reversed(self._history):
            if at <= position:
                break
            members = before
        return members

    def compact(self, upto: int) -> None:
        """Drop entries up to `upto` from memory; a snapshot covers them or storage has them."""
        if upto <= self.base:
            return
        origin = self.origin(upto)
        self.size_bytes -= sum(map(entry_bytes, self._entries[: upto - self.base]))
        del self._entries[: upto - self.base]
        self.base, self.base_origin = upto, origin
        self._history = [item for item in self._history if item[0] > upto]

    def surplus(self, *, max_entries: int, max_bytes: int) -> int:
        """The position up to which entries must be dropped so that a quarter of both limits is free again.

        A quarter, because dropping the first entry of thousands costs as much as dropping hundreds of them.
        """
        keep_entries, keep_bytes = max_entries - max_entries // 4, max_bytes - max_bytes // 4
        position, size = max(self.base, self.end - keep_entries), self.size_bytes
        if size <= keep_bytes:
            return position
        size -= sum(map(entry_bytes, self._entries[: position - self.base]))
        for entry in self._entries[position - self.base :]:
            if size <= keep_bytes:
                break
            size, position = size - entry_bytes(entry), position + 1
        return position


class LaneState:
    def __init__(
        self,
        *,
        me: int,
        lane: int,
        image: LaneImage,
        rng: Callable[[], float],
        tuning: Tuning,
        read: Read | None,
        rules: Rules,
        effects: EffectBuffer[Mark],
        heard: dict[int, float],
    ) -> None:
        """`heard`: the time of each peer's last message, which the lanes of this peer may share."""
        self.me, self.lane, self.tuning = me, lane, tuning
        self.rng, self.rules, self.effects = rng, rules, effects
        self.promised, self.stamped = image.promised, image.stamped
        self.log = LaneLog(snapshot=image.snapshot, entries=image.entries, read=read)
        self.snapshot = image.snapshot  # the newest, for peers that are behind it
        self.snapshot_wanted = False  # a peer needs a newer one, because storage cannot read the entries it is missing
        self.reset_at = 0  # the position of the last snapshot that replaced this peer's log
        self.full = False  # the disk is full: no entries are stored; promises and answers go on
        self.persisted_end, self.persisted_stamp = self.log.end, image.stamped
        self.committed = self.log.base
        # a peer with the stamp of its promised ballot holds only that coordinator's entries
        self.matched = self.log.end if self.promised and self.promised == self.stamped else 0
        self.told = 0
        self.coordinator = 0  # the last one heard
        self.coordinator_heard = -1e9
        self.heard = heard
        self.accepted: dict[int, int] = {}  # peer -> the cursor it reported
        self.cursor_seen = 0  # the highest committed cursor that any peer reported
        if image.damaged_from and self.stamped != REPAIRING:
            self._save(promised=self.promised, stamped=REPAIRING)

    @property
    def is_voter(self) -> bool:
        return self.me in self.log.members.voters

    @property
    def repairing(self) -> bool:
        """This log lost entries for which it may have been counted, and does not have all of them again yet."""
        return self.rules.is_damaged(self.stamped)

    def other_voters(self) -> list[int]:
        return [peer for peer in self.log.members.voters if peer != self.me]

    # ------------------------------------------------------------------ promise and stamp

    def promise(self, ballot: int) -> None:
        """Store nothing under a lower ballot from now on. What matched the old coordinator need not match the new."""
        self.matched = self.told = 0
        self._save(promised=ballot, stamped=self.stamped)

    def stamp(self, matched: int) -> None:
        """This peer holds the whole take-over log of its promised ballot: cut everything else and take the stamp."""
        end = self.rules.end_at_stamp(matched=matched, committed=self.committed, end=self.log.end)
        self.cut(end)
        if self.repairing:  # tells storage that no entries are missing any more
            self.effects.persist(SaveCut(self.lane, self.log.end))
        self._save(promised=self.promised, stamped=self.promised)

    def stamp_own(self) -> None:
        """The claim is won: this log is the take-over log."""
        self._save(promised=self.promised, stamped=self.promised)

    def _save(self, *, promised: int, stamped: int) -> None:
        self.promised, self.stamped = promised, stamped
        self.effects.persist(SaveState(self.lane, promised, stamped))

    # ------------------------------------------------------------------ the log

    def append(self, entry: Entry) -> None:
        """Append the coordinator's next entry."""
        self.log.append(entry)
        self.effects.persist(SaveEntries(self.lane, (entry,)))

    def store(self, after: int, entries: tuple[Entry, ...]) -> bool:
        """Keep equal entries, cut at the first that differs, append the rest. False: that would cut committed
        entries."""
        log = self.log
        if not entries:
            return True
        if after < log.end:
            skip = min(log.base - after, len(entries)) if after < log.base else 0
            while skip < len(entries) and log.origin(after + skip + 1) == entries[skip].origin:
                skip += 1
            if skip == len(entries):
                return True
            entries = entries[skip:]
            if after + skip < log.end:
                if after + skip < self.committed:
                    return False
                self.cut(after + skip)
        for entry in entries:
            log.append(entry)
        self.effects.persist(SaveEntries(self.lane, entries))
        return True

    def cut(self, end: int) -> None:
        """Drop the entries after `end`: they differ from the coordinator's log, or are not known to match it."""
        if end >= self.log.end:
            return
        assert end >= self.committed, f"peer {self.me} would cut at {end}, below its committed {self.committed}"
        self.log.cut(end)
        self.effects.persist(SaveCut(self.lane, end))
        self.persisted_end = min(self.persisted_end, end)
        self.matched = min(self.matched, end)
        self.effects.revise(lambda mark: (min(mark[0], end), mark[1]))

    def take_snapshot(self, snapshot: Snapshot) -> None:
        """Install another peer's snapshot, which is beyond the cursor here."""
        self.snapshot = snapshot
        if self.log.origin(snapshot.position) == snapshot.origin:
            self.log.compact(snapshot.position)  # this log continues it: keep the later entries
            self.effects.persist(SaveSnapshot(self.lane, snapshot, reset=False))
        else:
            self.log.reset(snapshot)
            self.reset_at = snapshot.position
            self.effects.persist(SaveSnapshot(self.lane, snapshot, reset=True))
            self.persisted_end = self.matched = 0
            self.effects.revise(lambda mark: (0, mark[1]))
        self.committed = snapshot.position

    def compact(self, snapshot: Snapshot) -> None:
        """Keep this snapshot, which the lane took of its own state at a committed position.

        Entries before it leave memory only if storage cannot be read; otherwise `forget` decides.
        """
        assert snapshot.position <= self.committed
        self.snapshot, self.snapshot_wanted = snapshot, False
        self.effects.persist(SaveSnapshot(self.lane, snapshot, reset=False))
        if not self.log.readable:
            self.log.compact(snapshot.position)

    def want_snapshot(self) -> None:
        """Entries that another peer needs cannot be read here: it needs a new snapshot."""
        self.snapshot_wanted = True

    def forget(self, upto: int) -> None:
        """Entries up to here are applied: drop them from memory. Without readable storage, all are kept."""
        assert upto <= self.committed, "only committed entries may be dropped from memory"
        if self.log.readable:
            self.log.compact(min(upto, self.persisted_end))

    def trim(self, upto: int) -> None:
        """Nothing up to here will be read again, and a snapshot covers it: storage may delete it."""
        assert self.snapshot is not None, "only entries covered by a snapshot may be deleted"
        assert upto <= self.snapshot.position, "only entries covered by a snapshot may be deleted"
        self.effects.persist(SaveTrim(self.lane, upto))

    def disk_full(self, *, full: bool) -> None:
        self.full = full

    def synced(self, mark: Mark) -> None:
        """What was drained with this mark would survive a crash from here on."""
        self.persisted_end, self.persisted_stamp = mark

    # ------------------------------------------------------------------ the cursor

    def match(self, upto: int) -> None:
        """This log equals the coordinator's (or committed entries) up to here."""
        if upto > self.matched:
            self.matched = upto

    def learn(self, cursor: int) -> None:
        """The promised coordinator reported its cursor."""
        if cursor > self.told:
            self.told = cursor
            if cursor > self.cursor_seen:
                self.cursor_seen = cursor
        self.follow_cursor()

    def follow_cursor(self) -> None:
        """Phase two: the cursor moves only over what this peer has matched and synced."""
        upto = self.rules.known_committed(cursor=self.told, matched=self.matched, persisted=self.persisted_end)
        if upto > self.committed:
            self.committed = upto

    def commit(self, cursor: int) -> None:
        """Coordinator: a quorum holds everything up to here. The cursor never moves back."""
        if cursor > self.committed:
            self.committed = cursor
            if cursor > self.cursor_seen:
                self.cursor_seen = cursor

    # ------------------------------------------------------------------ other peers

    def hear(self, peer: int, now: float) -> None:
        self.heard[peer] = now

    def report(self, peer: int, cursor: int) -> None:
        """A peer reported its committed cursor."""
        self.accepted[peer] = cursor
        if cursor > self.cursor_seen:
            self.cursor_seen = cursor

    def hear_coordinator(self, peer: int, now: float) -> None:
        self.coordinator, self.coordinator_heard = peer, now

    def coordinate(self) -> None:
        self.coordinator = self.me

    def lose_coordinator(self) -> None:
        """This peer knows no coordinator."""
        self.coordinator = 0

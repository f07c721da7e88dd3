"""The state of one two-phase lane on one peer: what is on disk, and what other peers reported. The roles share it.

    on disk      promised, stamped, log, snapshot
    synced       persisted_end, persisted_stamp: the part of it that a crash would leave
    committed    the cursor, as far as it is known here
    matched      this log equals that of the promised coordinator up to here; `told` is that coordinator's cursor
    heard        each peer's last message and reported cursor, and the coordinator

Only the methods here change these attributes; each is named after the event. A change on disk is passed to `effects` in
the same call. What is not on disk is lost with the process and learned again from messages.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from avow.ids import REPAIRING
from avow.replication.effect_buffer import EffectBuffer
from avow.replication.effects import LaneImage, SaveCut, SaveEntries, SaveSnapshot, SaveState, SaveTrim
from avow.replication.tuning import Tuning
from avow.replication.two_phase.log import LaneLog, Read
from avow.replication.two_phase.rules import Rules
from avow.wire.messages import Entry, Snapshot

Mark: TypeAlias = tuple[int, int]  # (end of the log, stamp): what a sync makes durable


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
    ) -> None:
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
        self.heard: dict[int, float] = {}
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

"""A follower: it stores what the coordinator sends, takes the stamp, moves its cursor, and repairs itself.

    on Enqueue(b, after, origin, entries, takeover_end, cursor)
      b below what I promised                        Nack: there is a later coordinator
      my entry at `after` is not the coordinator's   Reject: step back to where we surely agree
      an entry differs                               cut there, append
      all of the take-over log is here now           cut what lies beyond the match, take the stamp
      in any case                                    Ready after the sync; the cursor follows over what is synced

Cutting happens in these two places only, and never below the committed cursor. Taking the stamp before the whole
take-over log is here would let this peer pass for fresher than it is in the next claim, and hide a committed entry.

Repair: a peer that learns of a cursor beyond what it holds reads committed entries from any peer that reported them.
"""

from __future__ import annotations

from collections import deque

from avow.ids import peer_of
from avow.replication.effects import SaveCut, SaveEntries, SaveSnapshot
from avow.replication.two_phase.lane_peer import CLAIMING, FOLLOWER, LanePeer
from avow.wire.messages import (
    Enqueue,
    Entry,
    Fetch,
    Fetched,
    Heartbeat,
    Install,
    Nack,
    Ready,
    Reject,
    Snapshot,
)


class Follower(LanePeer):
    def _on_heartbeat(self, source: int, message: Heartbeat, now: float) -> None:
        self.accepted[source] = message.cursor
        if message.cursor > self.cursor_seen:
            self.cursor_seen = message.cursor
        if not message.coordinating:
            if source == self.coordinator:
                self.coordinator = 0
            return
        if message.ballot < self.promised:
            self._now.append((source, Nack(message.ballot, self.promised)))
            return
        self._hear_coordinator(source, message.ballot, now)
        if message.ballot == self.promised and message.cursor > self.committed:
            self._learn(message.cursor)
        if self.repairing:  # the coordinator may believe that I still hold what I had acknowledged
            self._now.append((source, Reject(message.ballot, self.committed, self.log.end + 1)))

    def _hear_coordinator(self, source: int, ballot: int, now: float) -> None:
        if self.role != FOLLOWER and ballot >= self.promised:
            self._step_down(now)
        self.coordinator = source
        self._coordinator_heard = now
        self._claim_at = now + self._claim_delay()

    def _on_enqueue(self, source: int, message: Enqueue, now: float) -> None:
        ballot, after = message.ballot, message.after
        if ballot < self.promised:
            self._now.append((source, Nack(ballot, self.promised)))
            return
        if ballot > self.promised:
            self._promise(ballot, now)
        self._hear_coordinator(source, ballot, now)
        if not self._continues(after, message.origin):
            known = self.log.end if self.stamped == ballot else self.committed
            self._synced.append((source, Reject(ballot, known, self.log.end + 1 if self.repairing else 0)))
            return
        entries = message.entries
        if entries:
            if self.full or not self._store(after, entries):
                return  # no room, or it contradicts what is committed: then its sender was replaced unawares
            after += len(entries)
        if after > self._matched:
            self._matched = after
        if self.stamped != ballot and self._may_stamp(after, message.takeover_end):
            self._stamp(ballot, after)
        self._say_ready(source, ballot, after)
        if message.cursor > self.committed:
            self._learn(message.cursor)

    def _say_ready(self, source: int, ballot: int, matched: int) -> None:
        """After the sync. What was stored since the last drain is acknowledged by one message."""
        at = self._ready_at
        if at >= 0 and self._synced[at][0] == source:
            said = self._synced[at][1]
            if isinstance(said, Ready) and said.ballot == ballot:
                matched = min(max(matched, said.matched_to), self._matched)  # a stamp may have cut since
                self._synced[at] = (source, Ready(ballot, matched, self.stamped == ballot))
                return
        self._ready_at = len(self._synced)
        self._synced.append((source, Ready(ballot, matched, self.stamped == ballot)))

    def _store(self, after: int, entries: tuple[Entry, ...]) -> bool:
        """Keep what is equal; cut at the first entry that differs; append the rest. False: that would cut committed."""
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
                self._cut(after + skip)
        for entry in entries:
            log.append(entry)
        self._persist.append(SaveEntries(self.lane, entries))
        return True

    def _cut(self, end: int) -> None:
        if end >= self.log.end:
            return
        assert end >= self.committed, f"peer {self.me} would cut at {end}, below its committed {self.committed}"
        self.log.cut(end)
        self._persist.append(SaveCut(self.lane, end))
        self.persisted_end = min(self.persisted_end, end)
        self._matched = min(self._matched, end)
        self._pending = deque((ticket, min(upto, end), stamp) for ticket, upto, stamp in self._pending)

    def _stamp(self, ballot: int, matched: int) -> None:
        self._cut(max(matched, self.committed))  # a late message may match less than repair has brought since
        if self.repairing:
            self._persist.append(
                SaveCut(self.lane, self.log.end)
            )  # tells storage that what was lost is not missing any more
        self._save_state(promised=self.promised, stamped=ballot)

    def _learn(self, cursor: int) -> None:
        """Phase two here: the cursor moves over what this peer has matched and synced, never further."""
        if cursor > self._accept:
            self._accept = cursor
            if cursor > self.cursor_seen:
                self.cursor_seen = cursor
        upto = min(self._accept, self._matched, self.persisted_end)
        if upto > self.committed:
            self.committed = upto

    def _on_install(self, source: int, message: Install, now: float) -> None:
        ballot, matched = message.ballot, message.snapshot.position
        if not ballot or peer_of(ballot) == self.me:
            self._on_snapshot_fetched(source, message)
            return
        if ballot < self.promised:
            self._now.append((source, Nack(ballot, self.promised)))
            return
        if ballot > self.promised:
            self._promise(ballot, now)
        self._hear_coordinator(source, ballot, now)
        if matched > self.committed:
            if self.full:
                return
            self._take_snapshot(message.snapshot)
        self._matched = max(self._matched, matched)
        if self.stamped != ballot and self._may_stamp(matched, message.takeover_end):
            self._stamp(ballot, matched)
        self._say_ready(source, ballot, matched)

    def _on_snapshot_fetched(self, source: int, message: Install) -> None:
        """From a peer that was asked, for repair or by my claim: it says what is committed, and nothing of stamps."""
        claim = self.claim
        adopting = self.role == CLAIMING and claim is not None and source == claim.donor
        wanted = adopting if message.ballot else self.role == FOLLOWER
        if not wanted or self.full:
            return  # a claim that was given up meanwhile, or no room
        if message.snapshot.position > self.committed:
            self._take_snapshot(message.snapshot)
        if adopting and claim is not None:
            claim.fetch_after = self.committed
            self._fetch_piece()

    def _take_snapshot(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        if self.log.origin(snapshot.position) == snapshot.origin:
            self.log.compact(snapshot.position)  # my log continues it: keep what lies beyond
            self._persist.append(SaveSnapshot(self.lane, snapshot, reset=False))
        else:
            self.log.reset(snapshot)
            self.reset_at = snapshot.position
            self._persist.append(SaveSnapshot(self.lane, snapshot, reset=True))
            self.persisted_end = 0
            self._pending = deque((ticket, 0, stamp) for ticket, _, stamp in self._pending)
            self._matched = 0
        self.committed = snapshot.position

    # ------------------------------------------------------------------ repair, and serving what others miss

    def _ask_for_repair(self, now: float) -> None:
        """Behind the committed cursor and not being fed: read from any peer that reported it."""
        if self.cursor_seen <= self.committed or self.repairing:
            return
        if self._repair_after != self.committed:  # one heartbeat's grace: the coordinator is usually quicker
            self._repair_after = self.committed
            return
        oldest = now - self.tuning.heartbeat_fresh_s
        ahead = [peer for peer, cursor in sorted(self.accepted.items()) if cursor > self.committed]
        donors = [peer for peer in ahead if self.heard[peer] >= oldest]
        if donors:
            donor = donors[int(self._rng() * len(donors))]
            self._now.append((donor, Fetch(0, self.committed, self.log.origin(self.committed))))

    def _repaired(self, message: Fetched, _now: float) -> None:
        """Committed entries from any peer: certain, so they replace whatever differs here."""
        if self.role != FOLLOWER or message.after != self.committed or self.full:
            return
        if message.origin != self.log.origin(message.after):
            return
        entries = message.entries[: max(0, message.cursor - message.after)]
        self._store(message.after, entries)
        repaired = message.after + len(entries)
        self._matched = max(self._matched, repaired)
        self._learn(repaired)

    def _on_fetch(self, source: int, message: Fetch, _now: float) -> None:
        if message.ballot:
            if message.ballot != self.promised:
                self._now.append((source, Nack(message.ballot, self.promised)))
                return
            if self.repairing:
                return  # what was promised is not all here any more; the claim will be given up
            limit = self.log.end
        else:
            limit = min(self.committed, self.persisted_end)
        if message.after < self.log.base:
            self._send_older(source, message, limit)
            return
        origin = self.log.origin(message.after)
        if origin != message.origin or message.after > limit:
            return  # not equal there: nothing I could send would continue the asker's log
        entries = self.log.piece(message.after, min(self._piece(), limit - message.after))
        answer = Fetched(message.ballot, message.after, origin, entries, limit, self.committed)
        # a donor's entries may not be synced yet; its promise said it holds them, so they leave after the sync
        (self._synced if message.ballot else self._now).append((source, answer))

    def _send_older(self, peer: int, message: Fetch, limit: int) -> None:
        """A fetch from before the base: committed entries, so equal wherever both have them."""
        older = self.log.older(message.after, self._piece())
        if older:
            self._now.append(
                (peer, Fetched(message.ballot, message.after, message.origin, older, limit, self.committed))
            )
        elif self.snapshot is not None and self.snapshot.position > message.after:
            self._now.append((peer, Install(message.ballot, self.snapshot, 0, self.committed)))
        else:  # damaged here since: a new snapshot is the way around it
            self.snapshot_wanted = True

    # ------------------------------------------------------------------ rules

    def _continues(self, after: int, origin: int) -> bool:
        """The previous-entry check: my log has the coordinator's entry at `after`, hence its whole prefix."""
        if after < self.log.base:
            return True  # before my base everything is committed, hence equal
        return self.log.origin(after) == origin

    def _may_stamp(self, matched: int, takeover_end: int) -> bool:
        """The whole take-over log, or no stamp."""
        return matched >= takeover_end

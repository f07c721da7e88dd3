"""The coordinator: it alone appends, feeds the others, counts, moves the cursor, and answers for it.

A batch costs one Enqueue and one Ready per follower: entries leave before they are synced here (the own copy counts
only when it is), and the cursor rides on the next Enqueue or heartbeat. A peer is counted only when it is stamped with
my ballot, so an entry of an earlier ballot may be counted directly: whoever is stamped holds the whole take-over log.

`required` in an Enqueue is the take-over end, or more: a peer that was damaged after it acknowledged something must
hold that again, too, before it may take the stamp and count as undamaged.
"""

from __future__ import annotations

from typing import Final

from avow.errors import DiskFull, MembershipBusy, Offline
from avow.limits import IN_FLIGHT_SIZE_BYTES_MAX
from avow.replication.effects import SaveEntries
from avow.replication.membership import Members, check_change, encode_members
from avow.replication.pieces import entry_bytes
from avow.replication.two_phase.lane_peer import COORDINATOR
from avow.replication.two_phase.progress import Progress
from avow.replication.two_phase.takeover import Claimant
from avow.wire.messages import Confirm, Confirmed, Enqueue, Entry, Install, Kind, Message, Nack, Ready, Reject

STALLED_TICKS_MAX: Final = 3  # heartbeats without an answer before what was sent is sent again


class Coordinator(Claimant):
    def append(
        self, kind: int, *, count: int, write_id: bytes, created_ms: int = 0, control: bytes = b"", batch: bytes = b""
    ) -> int:
        """Coordinator only: store the next entry; returns its position. It counts for nothing until it is committed."""
        assert self.role == COORDINATOR, "only the coordinator appends"
        self.check_room()
        return self._append(kind, count, write_id, created_ms, control, batch)

    def check_room(self) -> None:
        """Raises as `append` would: DiskFull or Offline, both definite."""
        if self.full:
            raise DiskFull("this peer's disk is full; nothing was stored. Another peer will coordinate; retry")
        if self.log.end - self.committed >= self.tuning.in_flight_entries:
            raise Offline(
                f"{self.log.end - self.committed} entries wait for a quorum already; nothing was stored. Retry"
            )
        if self.log.size_bytes > IN_FLIGHT_SIZE_BYTES_MAX and self._in_flight_bytes() > IN_FLIGHT_SIZE_BYTES_MAX:
            raise Offline(f"{IN_FLIGHT_SIZE_BYTES_MAX} bytes wait for a quorum already; nothing was stored. Retry")

    def _in_flight_bytes(self) -> int:
        return sum(map(entry_bytes, self.log.slice(self.committed, self.log.end - self.committed)))

    def change_members(self, wanted: Members) -> int:
        """Coordinator only: propose the next membership; returns its position. Raises before anything is stored."""
        if self.role != COORDINATOR or self.full:
            raise Offline("this peer does not coordinate the lane; nothing was changed")
        self._check_may_change(wanted)
        return self._append(Kind.MEMBERS, 0, b"", 0, encode_members(wanted), b"")

    @property
    def settled(self) -> bool:
        """Coordinator whose take-over log is committed: its cursor says everything earlier coordinators answered."""
        return self.role == COORDINATOR and self.committed >= self.takeover_end

    def _become_coordinator(self) -> None:
        claim = self.claim
        assert claim is not None
        self.role, self.coordinator, self.claim = COORDINATOR, self.me, None
        self.takeover_end = self.log.end
        self._save_state(promised=self.promised, stamped=self.promised)
        self.progress = {}
        self._refresh_progress()
        self._append(Kind.NOOP, 0, b"", 0, b"", b"")  # an entry of its own ballot: membership changes wait for it
        self._move_cursor()

    def _append(self, kind: int, count: int, write_id: bytes, created_ms: int, control: bytes, batch: bytes) -> int:
        entry = Entry(self.log.end + 1, self.promised, kind, count, write_id, created_ms, control, batch)
        self.log.append(entry)
        self._persist.append(SaveEntries(self.lane, (entry,)))
        if kind == Kind.MEMBERS:
            self._refresh_progress()
        for progress in self.progress.values():
            if not progress.probing:
                self._feed(progress)
        return entry.position

    def _refresh_progress(self) -> None:
        everyone = [peer for peer in self.log.members.everyone if peer != self.me]
        for peer in everyone:
            if peer not in self.progress:
                progress = self.progress[peer] = Progress(peer, next_=self.takeover_end)
                self._feed(progress)
        for peer in [peer for peer in self.progress if peer not in everyone]:
            del self.progress[peer]

    def _feed(self, progress: Progress) -> None:
        """Send what follows `sent_to`: one piece, or pieces until all is on its way."""
        log, end = self.log, self.log.end
        piece, pipeline = self._piece(), self.tuning.pipeline_entries
        while True:
            after = progress.sent_to
            if not progress.probing and after - progress.next >= pipeline:
                return
            origin = log.origin(after)
            if origin < 0:
                self._feed_older(progress)
                return
            entries = log.piece(after, piece)
            progress.sent_to = after + len(entries)
            required = self._required(progress)
            self._now.append((progress.peer, Enqueue(self.promised, after, origin, entries, required, self.committed)))
            if progress.probing or progress.sent_to >= end:
                return

    def _feed_older(self, progress: Progress) -> None:
        """The peer is behind what is in memory: from storage if it still has that, else the snapshot."""
        after, log = progress.sent_to, self.log
        required = self._required(progress)
        origin = log.older_origin(after)
        entries = log.older(after, self._piece()) if origin >= 0 else ()
        if entries:
            message: Message = Enqueue(self.promised, after, origin, entries, required, self.committed)
            progress.sent_to = after + len(entries)
        elif self.snapshot is not None and self.snapshot.position > after:
            message = Install(self.promised, self.snapshot, required, self.committed)
            progress.sent_to = self.snapshot.position
        else:  # damaged here since: a new snapshot is the way around it
            self.snapshot_wanted = True
            return
        self._now.append((progress.peer, message))

    def _resend_to_stalled(self) -> None:
        for progress in self.progress.values():
            if progress.stamped and progress.next >= self.log.end:
                progress.stalled_ticks = 0
                continue
            progress.stalled_ticks += 1
            if progress.stalled_ticks >= STALLED_TICKS_MAX:
                progress.probing = True
                progress.sent_to = progress.next
                self._feed(progress)
                progress.stalled_ticks = 0
        if self.reads.under_way:
            self._to_voters(self._now, Confirm(self.promised, self.reads.round))

    def _on_ready(self, source: int, message: Ready, _now: float) -> None:
        if self.role != COORDINATOR or message.ballot != self.promised:
            return
        progress = self.progress.get(source)
        if progress is None:
            return
        if progress.ready(message.matched_to, stamped=message.stamped or self._counts_unstamped()):
            self._move_cursor()
        if progress.sent_to < self.log.end:
            self._feed(progress)

    def _on_reject(self, source: int, message: Reject, _now: float) -> None:
        if self.role != COORDINATOR or message.ballot != self.promised:
            return
        progress = self.progress.get(source)
        if progress is None or (message.committed < progress.match and not message.damaged_from):
            return  # late: the peer has stored more since
        if progress.step_back(min(message.committed, self.log.end)):
            self._feed(progress)

    def _move_cursor(self) -> None:
        progress, me = self.progress, self.me
        voters = self.log.members.voters
        own = self.persisted_end if self.persisted_stamp == self.promised else 0
        stored = [own if peer == me else progress[peer].match for peer in voters]
        stored.sort()
        cursor = stored[len(stored) - self._quorum(len(stored))]
        if cursor > self.committed:
            self.committed = cursor
            if cursor > self.cursor_seen:
                self.cursor_seen = cursor

    def _check_may_change(self, wanted: Members) -> None:
        if self.log.members_at > self.committed:
            raise MembershipBusy(
                f"the change at position {self.log.members_at} is not committed yet; nothing was changed. Retry"
            )
        if not self.is_voter:
            raise MembershipBusy("this coordinator was removed and is about to stop; nothing was changed. Retry")
        if self.committed <= self.takeover_end:
            raise MembershipBusy("the coordinator has just taken over; nothing was changed. Retry")
        check_change(self.log.members, wanted)
        for peer in set(wanted.voters) - set(self.log.members.voters):
            if self.progress[peer].match < self.committed:
                raise MembershipBusy(f"peer {peer} has not caught up yet; nothing was changed. Retry")

    def _still_member(self) -> bool:
        """A coordinator that removed itself goes on until its removal is committed."""
        return self.is_voter or self.log.members_at > self.committed

    # ------------------------------------------------------------------ reads

    def read_index(self, request: int) -> None:
        """Coordinator only: put (request, cursor) into `reads_done` once a quorum has confirmed this coordinator."""
        assert self.role == COORDINATOR, "only the coordinator answers for the cursor"
        self.reads.add(request, max(self.committed, self.takeover_end))
        self._confirm_round()

    def _confirm_round(self) -> None:
        if self.reads.next_round():
            self.reads.confirmed_by.add(self.me)
            self._to_voters(self._now, Confirm(self.promised, self.reads.round))
            self._check_confirmed()

    def _on_confirm(self, source: int, message: Confirm, now: float) -> None:
        if message.ballot < self.promised:
            self._now.append((source, Nack(message.ballot, self.promised)))
            return
        if message.ballot > self.promised:
            return  # its Enqueue will come; until then this peer cannot speak for that ballot
        self._hear_coordinator(source, message.ballot, now)
        self._synced.append((source, Confirmed(message.ballot, message.round)))

    def _on_confirmed(self, source: int, message: Confirmed, _now: float) -> None:
        if self.role == COORDINATOR and (message.ballot, message.round) == (self.promised, self.reads.round):
            self.reads.confirmed_by.add(source)
            self._check_confirmed()

    def _check_confirmed(self) -> None:
        voters = self.log.members.voters
        confirmed = sum(peer in self.reads.confirmed_by for peer in voters)
        if self.reads.under_way and confirmed >= self._quorum(len(voters)):
            self.reads_done += self.reads.finish()
            self._confirm_round()

    # ------------------------------------------------------------------ rules

    def _required(self, progress: Progress) -> int:
        """What a peer must hold before it takes my stamp: the take-over log, and whatever it was counted for."""
        return max(self.takeover_end, progress.match)

    def _counts_unstamped(self) -> bool:
        return False

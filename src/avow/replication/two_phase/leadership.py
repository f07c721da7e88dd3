"""The coordinator: it alone appends, sends entries to the others, counts, moves the cursor, and confirms reads.

A batch costs one Enqueue and one Ready per follower: entries are sent before they are synced here (the own copy counts
only when it is), and the cursor is part of the next Enqueue or heartbeat. A peer is counted only if it is stamped with
this coordinator's ballot, so an entry of an earlier ballot may be counted directly: a stamped peer holds the whole
take-over log.

What the coordinator knows of another peer's log is its `Progress`:

    match     stored and synced there under this ballot by a stamped peer: counts towards a quorum
    next      equal to this log up to here, as far as known: sending continues after it
    sent_to   the last entry sent; entries between next and sent_to are in flight
    probing   one message at a time, because the peer's log did not match the last one; otherwise streaming

`next` may move without `match`: a peer that does not hold the whole take-over log yet gets entries but is not counted.

Linearizable reads need the cursor and the proof that this peer still coordinates, since a coordinator may have been
deposed without knowing it. A read notes the cursor; then one round of Confirm to all and Confirmed from a quorum proves
that this quorum had promised no higher ballot when the read began. Reads that arrive during a round share the next one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable
from typing import Final

from avow.errors import DiskFull, MembershipBusy, Offline
from avow.limits import IN_FLIGHT_SIZE_BYTES_MAX, PIPELINE_SIZE_BYTES_MAX
from avow.replication.membership import Members, check_change, encode_members
from avow.replication.pieces import entry_bytes
from avow.replication.two_phase.state import LaneState
from avow.wire.messages import Confirm, Confirmed, Enqueue, Entry, Install, Kind, Message, Ready, Reject, Section


class ReadRounds:
    __slots__ = ("_confirmed", "_in_round", "_waiting", "done", "round")

    def __init__(self) -> None:
        self.round = 0
        self.done: list[tuple[int, int]] = []  # (request, cursor) until taken; -1: no longer the coordinator
        self._confirmed: set[int] = set()  # peers that confirmed the current round
        self._in_round: list[tuple[int, int]] = []  # (request, cursor) of the current round
        self._waiting: list[tuple[int, int]] = []

    def add(self, request: int, cursor: int) -> None:
        self._waiting.append((request, cursor))

    def next_round(self, me: int) -> bool:
        """Start a round for the waiting reads; False: a round is in progress or nothing waits."""
        if self._in_round or not self._waiting:
            return False
        self._in_round, self._waiting = self._waiting, []
        self.round += 1
        self._confirmed = {me}
        return True

    @property
    def in_progress(self) -> bool:
        return bool(self._in_round)

    def confirm(self, peer: int) -> None:
        self._confirmed.add(peer)

    def confirmed_by(self, voters: Iterable[int]) -> int:
        """The number of these voters that confirmed."""
        return sum(peer in self._confirmed for peer in voters)

    def finish(self) -> None:
        """The round has its quorum: its reads may be served at their cursors."""
        self.done += self._in_round
        self._in_round = []

    def abandon(self) -> None:
        """No longer the coordinator: end all reads without a cursor."""
        self.done += [(request, -1) for request, _ in self._in_round + self._waiting]
        self._in_round, self._waiting = [], []

    def take_done(self) -> list[tuple[int, int]]:
        done, self.done = self.done, []
        return done


STALLED_TICKS_MAX: Final = 3  # heartbeats without an answer before the peer is asked what it has
SNAPSHOT_TICKS: Final = 20  # heartbeats more before a snapshot, which may be large, is sent again


class Progress:
    """The log of another peer, as far as the coordinator knows it."""

    __slots__ = (
        "_unanswered", "confirmed", "match", "next", "peer", "probing", "sent_to", "stalled_ticks", "stamped",
        "unanswered",
    )  # fmt: skip

    def __init__(self, peer: int, *, next_: int) -> None:
        self.peer = peer
        self.match = 0
        self.confirmed = -1  # the cursor in its last heartbeat under this ballot; -1: it must be told again
        self.next = next_
        self.sent_to = next_
        self.stamped = False
        self.probing = True
        self.stalled_ticks = 0
        self.unanswered = 0  # bytes of entries that were sent and not answered
        self._unanswered: deque[tuple[int, int]] = deque()  # of each piece: where it ends, and its bytes

    def sent(self, upto: int, size_bytes: int) -> None:
        self.sent_to = upto
        self.unanswered += size_bytes
        self._unanswered.append((upto, size_bytes))

    def ready(self, matched_to: int, *, stamped: bool) -> bool:
        """The peer answered; True: its counted copy grew."""
        self.stalled_ticks = 0
        unanswered = self._unanswered
        while unanswered and unanswered[0][0] <= matched_to:
            self.unanswered -= unanswered.popleft()[1]
        if matched_to >= self.sent_to:
            self.probing = False
        if matched_to > self.next:
            self.next = matched_to
            if matched_to > self.sent_to:
                self.sent_to = matched_to
        if not stamped:
            return False
        self.stamped = True
        if matched_to <= self.match:
            return False
        self.match = matched_to
        return True

    def step_back(self, to: int) -> bool:
        """The peer's log does not match what was sent; False: that is already known and being handled."""
        if self.probing and self.next == to and not self.stalled_ticks:
            return False
        self.probe_from(to)
        return True

    def probe_from(self, position: int) -> None:
        """Nothing after `position` counts as sent any more."""
        self.next = self.sent_to = position
        self.probing = True
        self.stalled_ticks = self.unanswered = 0
        self._unanswered.clear()


class Leadership:
    """This peer coordinates the lane while `ballot` is not 0."""

    def __init__(self, state: LaneState) -> None:
        self._state, self._rules, self._effects = state, state.rules, state.effects
        self.ballot = 0
        self.takeover_end = 0  # the end of the log that the claim adopted
        self.progress: dict[int, Progress] = {}
        self.reads = ReadRounds()

    def begin(self) -> None:
        """A quorum has promised, and this peer has the freshest of their logs."""
        state = self._state
        self.ballot, self.takeover_end = state.promised, state.log.end
        state.stamp_own()
        self.progress = {}
        self._refresh_progress()
        self._append(Kind.NOOP, 0, b"", 0, b"", b"")  # an entry of its own ballot: membership changes wait for it
        state.commit(self.quorum_cursor())

    def end(self) -> None:
        """Stop coordinating: another ballot, no fresh heartbeats, or a full disk. Reads end without a cursor."""
        self.ballot = 0
        self.progress = {}
        self.reads.abandon()

    @property
    def established(self) -> bool:
        """The take-over log is committed: the cursor covers everything that earlier coordinators acknowledged."""
        return self.ballot != 0 and self._state.committed >= self.takeover_end

    @property
    def is_member(self) -> bool:
        """A coordinator that removed itself continues until its removal is committed."""
        state = self._state
        return state.is_voter or state.log.members_at > state.committed

    # ------------------------------------------------------------------ appending

    def append(
        self, kind: int, *, count: int, write_id: bytes, created_ms: int = 0, control: bytes = b"", batch: Section = b""
    ) -> int:
        """Append an entry; returns its position. It has no effect until it is committed."""
        assert self.ballot, "only the coordinator appends"
        self.check_room()
        return self._append(kind, count, write_id, created_ms, control, batch)

    def check_room(self) -> None:
        """Raises as `append` would: DiskFull or Offline, both definite."""
        state, log = self._state, self._state.log
        if state.full:
            raise DiskFull("this peer's disk is full; nothing was stored. Another peer will coordinate: retry")
        if log.end - state.committed >= state.tuning.in_flight_entries:
            raise Offline(f"{log.end - state.committed} entries already wait for a quorum; nothing was stored. Retry")
        if log.size_bytes > IN_FLIGHT_SIZE_BYTES_MAX and self._in_flight_bytes() > IN_FLIGHT_SIZE_BYTES_MAX:
            raise Offline(f"{IN_FLIGHT_SIZE_BYTES_MAX} bytes already wait for a quorum; nothing was stored. Retry")

    def _in_flight_bytes(self) -> int:
        state = self._state
        return sum(map(entry_bytes, state.log.slice(state.committed, state.log.end - state.committed)))

    def change_members(self, wanted: Members) -> int:
        """Propose the next membership; returns its position. Raises before anything is stored."""
        if not self.ballot or self._state.full:
            raise Offline("this peer does not coordinate the lane; nothing was changed. Retry")
        self._check_members(wanted)
        return self.append_members(wanted)

    def append_members(self, wanted: Members) -> int:
        return self._append(Kind.MEMBERS, 0, b"", 0, encode_members(wanted), b"")

    def _check_members(self, wanted: Members) -> None:
        state, log = self._state, self._state.log
        if log.members_at > state.committed:
            raise MembershipBusy(
                f"the last change of members, at position {log.members_at}, is not committed yet; nothing was changed. "
                "Retry"
            )
        if not state.is_voter:
            raise MembershipBusy("this coordinator was removed from the lane and will stop; nothing was changed. Retry")
        if state.committed <= self.takeover_end:
            raise MembershipBusy("the coordinator is new and has committed nothing yet; nothing was changed. Retry")
        check_change(log.members, wanted)
        for peer in set(wanted.voters) - set(log.members.voters):
            if self.progress[peer].match < state.committed:
                raise MembershipBusy(f"peer {peer} has not caught up yet; nothing was changed. Retry")

    def _append(self, kind: int, count: int, write_id: bytes, created_ms: int, control: bytes, batch: Section) -> int:
        state = self._state
        entry = Entry(state.log.end + 1, self.ballot, kind, count, write_id, created_ms, control, batch)
        state.append(entry)
        if kind == Kind.MEMBERS:
            self._refresh_progress()
        for progress in self.progress.values():
            if not progress.probing:
                self._feed(progress)
        return entry.position

    # ------------------------------------------------------------------ feeding

    def _refresh_progress(self) -> None:
        state = self._state
        everyone = [peer for peer in state.log.members.everyone if peer != state.me]
        for peer in everyone:
            if peer not in self.progress:
                progress = self.progress[peer] = Progress(peer, next_=self.takeover_end)
                self._feed(progress)
        for peer in [peer for peer in self.progress if peer not in everyone]:
            del self.progress[peer]

    def _feed(self, progress: Progress) -> None:
        """Send the entries after `sent_to`: one piece while probing, otherwise as many as may be unanswered.

        The bytes are bounded too: heartbeats wait behind them, and a lane whose heartbeats are late loses its
        coordinator."""
        state, log = self._state, self._state.log
        end, piece, pipeline = log.end, state.tuning.piece_entries, state.tuning.pipeline_entries
        while True:
            after = progress.sent_to
            full = after - progress.next >= pipeline or progress.unanswered >= PIPELINE_SIZE_BYTES_MAX
            if full and not progress.probing:
                return
            origin = log.origin(after)
            if origin < 0:
                self._feed_older(progress)
                return
            entries = log.piece(after, piece)
            progress.sent(after + len(entries), sum(map(entry_bytes, entries)))
            required = self._rules.required(takeover_end=self.takeover_end, match=progress.match)
            enqueue = Enqueue(self.ballot, after, origin, entries, required, state.committed)
            self._effects.send(progress.peer, enqueue)
            if progress.probing or progress.sent_to >= end:
                return

    def _feed_older(self, progress: Progress) -> None:
        """The peer needs entries that are not in memory: send them from storage if it has them, else the snapshot."""
        state, after, log = self._state, progress.sent_to, self._state.log
        required = self._rules.required(takeover_end=self.takeover_end, match=progress.match)
        origin = log.older_origin(after)
        entries = log.older(after, state.tuning.piece_entries) if origin >= 0 else ()
        if entries:
            message: Message = Enqueue(self.ballot, after, origin, entries, required, state.committed)
            progress.sent(after + len(entries), sum(map(entry_bytes, entries)))
        elif state.snapshot is not None and state.snapshot.position > after:
            message = Install(self.ballot, state.snapshot, required, state.committed)
            progress.sent_to = state.snapshot.position
        else:  # the entries were damaged here
            state.want_snapshot()
            return
        self._effects.send(progress.peer, message)

    def resend(self) -> None:
        """At every heartbeat: ask the peers that do not answer what they have, and repeat the Confirm of a round.

        A peer that does not answer is slow, or what it was sent is lost. Its answer tells which, so the entries are not
        sent again before: to a slow peer they would come a second time, and make it slower."""
        end = self._state.log.end
        for progress in self.progress.values():
            if progress.stamped and progress.next >= end:
                progress.stalled_ticks = 0
                continue
            progress.stalled_ticks += 1
            if progress.stalled_ticks >= STALLED_TICKS_MAX:
                progress.probe_from(progress.next)
                self._ask(progress)
        if self.reads.in_progress:
            self._effects.send_all(self._state.other_voters(), Confirm(self.ballot, self.reads.round))

    def _ask(self, progress: Progress) -> None:
        """An Enqueue without entries. Messages stay in order, so its answer comes after the answers to entries sent
        before."""
        state, after, log = self._state, progress.next, self._state.log
        origin = log.origin(after)
        if origin < 0:
            origin = log.older_origin(after)
        if origin < 0:  # it was removed: the answer would not help, because the peer needs the snapshot
            self._feed_older(progress)
            progress.stalled_ticks = -SNAPSHOT_TICKS
            return
        required = self._rules.required(takeover_end=self.takeover_end, match=progress.match)
        self._effects.send(progress.peer, Enqueue(self.ballot, after, origin, (), required, state.committed))

    # ------------------------------------------------------------------ counting

    def on_ready(self, source: int, message: Ready, _now: float) -> None:
        if message.ballot != self.ballot:
            return
        progress = self.progress.get(source)
        if progress is None or message.matched_to > self._state.log.end:
            return  # not a member; or it holds more of this ballot than was ever appended, which cannot be
        if progress.ready(message.matched_to, stamped=self._rules.counts(stamped=message.stamped)):
            self._state.commit(self.quorum_cursor())
        if progress.sent_to < self._state.log.end:
            self._feed(progress)

    def on_reject(self, source: int, message: Reject, _now: float) -> None:
        if message.ballot != self.ballot:
            return
        progress = self.progress.get(source)
        if progress is None or (message.committed < progress.match and not message.damaged_from):
            return  # a late message: the peer has stored more since
        if progress.step_back(min(message.committed, self._state.log.end)):
            self._feed(progress)

    # ------------------------------------------------------------------ who knows what

    def on_said(self, source: int, *, ballot: int, cursor: int) -> None:
        """A follower's heartbeat."""
        progress = self.progress.get(source)
        if progress is not None:
            progress.confirmed = cursor if ballot == self.ballot else -1

    def tell_again(self, peer: int) -> None:
        """It does not know this coordinator."""
        if peer in self.progress:
            self.progress[peer].confirmed = -1

    def untold(self, fresh: Collection[int]) -> list[int]:
        """Peers that are heard and have not confirmed this ballot and its whole log."""
        end, cursor = self._state.log.end, self._state.committed
        return [
            progress.peer
            for progress in self.progress.values()
            if progress.peer in fresh
            and not (
                progress.stamped
                and progress.match >= end
                and progress.next >= end
                and self._rules.is_told(confirmed=progress.confirmed, cursor=cursor)
            )
        ]

    def is_settled(self, fresh: Collection[int]) -> bool:
        """Nothing is in flight, and every peer that is heard knows all there is to know."""
        state = self._state
        return state.committed == state.log.end and not self.reads.in_progress and not self.untold(fresh)

    # ------------------------------------------------------------------ the cursor

    def quorum_cursor(self) -> int:
        """The position up to which a quorum has synced. The own copy counts once this ballot's stamp is synced too."""
        state, progress, me = self._state, self.progress, self._state.me
        voters = state.log.members.voters
        own = state.persisted_end if state.persisted_stamp == self.ballot else 0
        stored = [own if peer == me else progress[peer].match for peer in voters]
        stored.sort()
        return stored[len(stored) - self._rules.quorum(len(stored))]

    # ------------------------------------------------------------------ reads

    def read_index(self, request: int) -> None:
        """Puts (request, cursor) into `reads.done` once a quorum has confirmed this coordinator."""
        assert self.ballot, "only the coordinator confirms reads"
        self.reads.add(request, max(self._state.committed, self.takeover_end))
        self._next_round()

    def _next_round(self) -> None:
        state = self._state
        if self.reads.next_round(state.me):
            self._effects.send_all(state.other_voters(), Confirm(self.ballot, self.reads.round))
            self._check_confirmed()

    def on_confirmed(self, source: int, message: Confirmed, _now: float) -> None:
        if self.ballot and (message.ballot, message.round) == (self.ballot, self.reads.round):
            self.reads.confirm(source)
            self._check_confirmed()

    def _check_confirmed(self) -> None:
        voters = self._state.log.members.voters
        if self.reads.in_progress and self.reads.confirmed_by(voters) >= self._rules.quorum(len(voters)):
            self.reads.finish()
            self._next_round()

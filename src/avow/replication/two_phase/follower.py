"""The follower: it stores what the coordinator sends, takes the stamp, moves its cursor, and repairs itself.

    on Enqueue(b, after, origin, entries, takeover_end, cursor), where b is the promised ballot
      the entry at `after` is not the coordinator's  Reject: step back to a position where both logs agree
      an entry differs                               cut there, append
      the whole take-over log is here now            cut the entries beyond the match, take the stamp
      in any case                                    Ready after the sync; the cursor moves over what is synced

A log is cut only in these two cases, and never below the committed cursor. If this peer took the stamp before it had
the whole take-over log, it would seem fresher than it is in the next claim, and a committed entry could be lost.

Repair: a peer that learns of a cursor beyond what it holds reads committed entries from any peer that reported them.
Serving such fetches is here too; every peer does that, whatever its role.
"""

from __future__ import annotations

from avow.replication.two_phase.state import LaneState
from avow.wire.messages import (
    Confirm,
    Confirmed,
    Enqueue,
    Fetch,
    Fetched,
    Heartbeat,
    Install,
    Nack,
    Promise,
    Ready,
    Reject,
)


class Follower:
    """The core checks the sender's ballot before it calls these: messages are from the promised coordinator."""

    def __init__(self, state: LaneState) -> None:
        self._state, self._rules, self._effects = state, state.rules, state.effects
        self._ready_at = (-1, -1)  # where the last Ready waits: (drain, index)
        self._repair_after = -1  # the cursor at which the last heartbeat found this peer behind

    def on_enqueue(self, source: int, message: Enqueue) -> None:
        state, rules = self._state, self._rules
        ballot, after = message.ballot, message.after
        if not rules.continues(state.log, after, message.origin):
            known = state.log.end if state.stamped == ballot else state.committed
            damaged_from = state.log.end + 1 if state.repairing else 0
            self._effects.send_synced(source, Reject(ballot, known, damaged_from))
            return
        entries = message.entries
        if entries:
            if state.full or not state.store(after, entries):
                return  # the disk is full, or a deposed coordinator's entry contradicts a committed one
            after += len(entries)
        state.match(after)
        if state.stamped != ballot and rules.may_stamp(matched=after, required=message.takeover_end):
            state.stamp(after)
        self._say_ready(source, ballot, after)
        if message.cursor > state.committed:
            state.learn(message.cursor)

    def _say_ready(self, source: int, ballot: int, matched: int) -> None:
        """Acknowledge after the sync, with one message for everything stored since the last drain."""
        state, effects = self._state, self._effects
        waiting, (drain, at) = effects.waiting, self._ready_at
        if drain == effects.drains and waiting[at][0] == source:
            said = waiting[at][1]
            if isinstance(said, Ready) and said.ballot == ballot:
                matched = min(max(matched, said.matched_to), state.matched)  # a stamp may have cut since
                waiting[at] = (source, Ready(ballot, matched, state.stamped == ballot))
                return
        self._ready_at = (effects.drains, len(waiting))
        effects.send_synced(source, Ready(ballot, matched, state.stamped == ballot))

    def on_heartbeat(self, source: int, message: Heartbeat) -> None:
        state = self._state
        if message.ballot == state.promised and message.cursor > state.committed:
            state.learn(message.cursor)
        if state.repairing:  # the coordinator may still count on entries that this peer acknowledged and lost
            self._effects.send(source, Reject(message.ballot, state.committed, state.log.end + 1))

    def on_install(self, source: int, message: Install) -> None:
        """The coordinator's snapshot, instead of entries that it no longer has."""
        state, ballot, matched = self._state, message.ballot, message.snapshot.position
        if matched > state.committed:
            if state.full:
                return
            state.take_snapshot(message.snapshot)
        state.match(matched)
        if state.stamped != ballot and self._rules.may_stamp(matched=matched, required=message.takeover_end):
            state.stamp(matched)
        self._say_ready(source, ballot, matched)

    def on_confirm(self, source: int, message: Confirm) -> None:
        """The coordinator asks for confirmation that it still coordinates."""
        self._effects.send_synced(source, Confirmed(message.ballot, message.round))

    def say_promised(self, source: int, ballot: int) -> None:
        """To a claimant, after the sync: how fresh this log is, and whether it lost entries."""
        state = self._state
        damaged_from = state.log.end + 1 if state.repairing else 0
        self._effects.send_synced(source, Promise(ballot, state.stamped, state.log.end, damaged_from))

    # ------------------------------------------------------------------ repair

    def ask_for_repair(self, now: float) -> None:
        """If this peer is behind the committed cursor and gets no entries: fetch from a peer that reported them."""
        state = self._state
        if state.cursor_seen <= state.committed or state.repairing:
            return
        if self._repair_after != state.committed:  # wait one heartbeat: the coordinator is usually faster
            self._repair_after = state.committed
            return
        oldest = now - state.tuning.heartbeat_fresh_s
        ahead = [peer for peer, cursor in sorted(state.accepted.items()) if cursor > state.committed]
        donors = [peer for peer in ahead if state.heard[peer] >= oldest]
        if donors:
            donor = donors[int(state.rng() * len(donors))]
            self._effects.send(donor, Fetch(0, state.committed, state.log.origin(state.committed)))

    def on_repaired(self, message: Fetched) -> None:
        """Committed entries from any peer: they replace entries that differ here."""
        state = self._state
        if message.after != state.committed or state.full:
            return
        if message.origin != state.log.origin(message.after):
            return
        entries = message.entries[: max(0, message.cursor - message.after)]
        state.store(message.after, entries)
        repaired = message.after + len(entries)
        state.match(repaired)
        state.learn(repaired)

    def on_snapshot(self, message: Install) -> None:
        """The answer to a repair fetch: it covers committed entries and changes no stamp."""
        state = self._state
        if message.ballot or state.full:
            return  # the answer to an abandoned claim, or the disk is full
        if message.snapshot.position > state.committed:
            state.take_snapshot(message.snapshot)

    # ------------------------------------------------------------------ serving fetches

    def on_fetch(self, source: int, message: Fetch, _now: float) -> None:
        state = self._state
        if message.ballot:
            if message.ballot != state.promised:
                self._effects.send(source, Nack(message.ballot, state.promised))
                return
            if state.repairing:
                return  # this peer lost entries since its promise; the claim will be abandoned
            limit = state.log.end
        else:
            limit = min(state.committed, state.persisted_end)
        if message.after < state.log.base:
            self._send_older(source, message, limit)
            return
        origin = state.log.origin(message.after)
        if origin != message.origin or message.after > limit:
            return  # the logs differ there: no entries of this one would continue the other
        entries = state.log.piece(message.after, min(state.tuning.piece_entries, limit - message.after))
        answer = Fetched(message.ballot, message.after, origin, entries, limit, state.committed)
        # a donor's entries may not be synced yet; its promise said it holds them, so they leave after the sync
        if message.ballot:
            self._effects.send_synced(source, answer)
        else:
            self._effects.send(source, answer)

    def _send_older(self, peer: int, message: Fetch, limit: int) -> None:
        """Answer a fetch from before the base: these entries are committed, so equal in both logs."""
        state = self._state
        older = state.log.older(message.after, state.tuning.piece_entries)
        if older:
            found = Fetched(message.ballot, message.after, message.origin, older, limit, state.committed)
            self._effects.send(peer, found)
        elif state.snapshot is not None and state.snapshot.position > message.after:
            self._effects.send(peer, Install(message.ballot, state.snapshot, 0, state.committed))
        else:  # the entries were damaged here
            state.want_snapshot()

"""Two-phase replication of one lane on one peer: one order, agreed by ballots.

    phase one   Enqueue -> Ready     values are stored and synced
    phase two   cursor  -> accepted  the coordinator moves the cursor over what a quorum stored

    role          may append   sends                          becomes
    follower      no           heartbeats, answers            claimant, when a quorum hears no coordinator
    claimant      no           Probe, Claim, Fetch            coordinator, or follower on a Nack or a silence
    coordinator   yes          Enqueue, heartbeats, Confirm   follower on a higher ballot or without fresh heartbeats

Durable: `promised`, `stamped`, the log. A peer takes the stamp of a ballot only when it holds that ballot's whole
take-over log, and only stamped peers are counted: a peer stamped b therefore holds every entry committed before b began
and, beyond them, a prefix of what b appended. So the freshest (stamped, end) among a quorum of promises carries every
committed entry. Cutting happens in two places only, at an entry that really differs and at the stamp.

Inputs are calls with the time as an argument; output is `drain()` (see `replication.effects` for the order in which it
must be performed).
The chain of classes is the order to read them in: LanePeer (state, effects), Follower, Claimant, Coordinator, and here
the inputs. Rules that a tester may want to break are methods of their own at the end of each.
"""

from __future__ import annotations

from collections.abc import Callable

from avow.replication.effects import SaveSnapshot, SaveTrim
from avow.replication.two_phase.coordinator import Coordinator
from avow.replication.two_phase.lane_peer import CLAIMING, COORDINATOR, FOLLOWER, PROBING, ROLES
from avow.wire.messages import (
    Claim,
    Confirm,
    Confirmed,
    Enqueue,
    Fetch,
    Fetched,
    Heartbeat,
    Install,
    Message,
    Nack,
    Probe,
    ProbeAnswer,
    Promise,
    Ready,
    Reject,
    Snapshot,
)

__all__ = ["CLAIMING", "COORDINATOR", "FOLLOWER", "PROBING", "ROLES", "TwoPhaseCore"]


class TwoPhaseCore(Coordinator):
    def _handlers(self) -> dict[type, Callable[..., None]]:
        return {
            Enqueue: self._on_enqueue,
            Ready: self._on_ready,
            Heartbeat: self._on_heartbeat,
            Reject: self._on_reject,
            Probe: self._on_probe,
            ProbeAnswer: self._on_probe_answer,
            Claim: self._on_claim,
            Promise: self._on_promise,
            Nack: self._on_nack,
            Fetch: self._on_fetch,
            Fetched: self._on_fetched,
            Install: self._on_install,
            Confirm: self._on_confirm,
            Confirmed: self._on_confirmed,
        }

    def receive(self, source: int, message: Message, now: float) -> None:
        self.heard[source] = now
        self._on[type(message)](source, message, now)

    def tick(self, now: float) -> None:
        """Call at `wake_at()` or later; calling early does nothing."""
        if now >= self._beat_at:
            self._beat_at = now + self.tuning.heartbeat_interval_s
            self._beat(now)
        if self.role == FOLLOWER and now >= self._claim_at:
            self._start_probe(now)

    def claim_soon(self, now: float) -> None:
        """Nobody coordinates a lane that has just begun: one of its founders need not wait to find that out."""
        self._claim_at = now

    def wake_at(self) -> float:
        return min(self._beat_at, self._claim_at) if self.role == FOLLOWER else self._beat_at

    def persisted(self, ticket: int) -> None:
        """The effects with this ticket, and all before them, are synced."""
        pending = self._pending
        self.persisted_ticket = ticket
        while pending and pending[0][0] <= ticket:
            _, end, self.persisted_stamp = pending.popleft()
            self.persisted_end = end
        if self.role == COORDINATOR:
            self._move_cursor()
        elif self.role == CLAIMING:
            self._own_promise()
        elif self._matched > self.committed:
            self._learn(self._accept)

    def compact(self, snapshot: Snapshot) -> None:
        """The composition took this snapshot of its own state at a committed position.

        Entries before it leave memory only if storage cannot be read; else `forget` decides about memory.
        """
        assert snapshot.position <= self.committed
        self.snapshot, self.snapshot_wanted = snapshot, False
        self._persist.append(SaveSnapshot(self.lane, snapshot, reset=False))
        if not self.log.readable:
            self.log.compact(snapshot.position)

    def forget(self, upto: int) -> None:
        """Entries up to here are applied: keep them on disk only. Without a storage to read from, all are kept."""
        assert upto <= self.committed, "only what is committed may be forgotten"
        if self.log.readable:
            self.log.compact(min(upto, self.persisted_end))

    def trim(self, upto: int) -> None:
        """Nothing up to here will be read again; a snapshot covers it. Storage may delete it."""
        assert self.snapshot is not None, "only what a snapshot covers may go"
        assert upto <= self.snapshot.position, "only what a snapshot covers may go"
        self._persist.append(SaveTrim(self.lane, upto))

    def _beat(self, now: float) -> None:
        role = self.role
        if role == COORDINATOR:
            if self.full or not self.online(now) or not self._still_member():
                self._step_down(now)
            else:
                self._resend_to_stalled()
        elif role != FOLLOWER:
            self._press_claim(now)
        else:
            self._ask_for_repair(now)
        beat = Heartbeat(self.promised, self.role == COORDINATOR, self.committed)
        sends = self._now
        for peer in self.log.members.everyone:
            if peer != self.me:
                sends.append((peer, beat))

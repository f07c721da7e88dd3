"""Two-phase replication of one lane on one peer: one order, agreed by ballots.

    phase one   Enqueue -> Ready     values are stored and synced
    phase two   cursor  -> accepted  the coordinator moves the cursor over what a quorum stored

    role          may append   sends                          becomes
    follower      no           heartbeats, answers            claimant, when a quorum hears no coordinator
    claimant      no           Probe, Claim, Fetch            coordinator, or follower on a Nack or a silence
    coordinator   yes          Enqueue, heartbeats, Confirm   follower on a higher ballot or without fresh heartbeats

Durable: `promised`, `stamped`, the log. A peer takes the stamp of a ballot only when it holds that ballot's whole
take-over log, and only stamped peers are counted: a peer stamped b therefore holds every entry committed before b began
and, beyond them, a prefix of what b appended. So the freshest (stamped, end) among a quorum of promises has every
committed entry. A log is cut in only two cases: at an entry that differs, and when the stamp is taken.

There is one `LaneState`, and a role object for each line of the table above. The roles do not know each other: the core
checks the ballot of each message, passes it to the right role, and changes the role.

Inputs are calls with the time as an argument; output is `drain()` (see `replication.effects` for the order in which it
must be performed). Call `leadership` for what only a coordinator does: append, change the members, confirm reads.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from math import inf
from typing import Final

from avow.ids import peer_of
from avow.replication.durable import Synced
from avow.replication.effect_buffer import EffectBuffer
from avow.replication.effects import Effects, LaneImage
from avow.replication.membership import Members
from avow.replication.tuning import Tuning
from avow.replication.two_phase.claim import LOST, WON, Claim
from avow.replication.two_phase.follower import Follower
from avow.replication.two_phase.leadership import Leadership
from avow.replication.two_phase.roles import SHIPPED, TwoPhaseRoles
from avow.replication.two_phase.rules import Rules
from avow.replication.two_phase.state import LaneState, Mark, Read
from avow.wire.messages import Claim as ClaimMessage
from avow.wire.messages import (
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
)

FOLLOWER: Final = 0
PROBING: Final = 1
CLAIMING: Final = 2
COORDINATOR: Final = 3

ROLES: Final = ("follower", "probing", "claiming", "coordinator")


class TwoPhaseCore:
    def __init__(
        self,
        *,
        me: int,
        lane: int,
        image: LaneImage,
        rng: Callable[[], float],
        tuning: Tuning,
        now: float,
        read: Read | None = None,
        roles: TwoPhaseRoles = SHIPPED,
    ) -> None:
        self.me, self.lane, self.tuning = me, lane, tuning
        self._rules: Rules = roles.rules()
        self.effects: EffectBuffer[Mark] = roles.effects()
        self.state = LaneState(
            me=me,
            lane=lane,
            image=image,
            rng=rng,
            tuning=tuning,
            read=read,
            rules=self._rules,
            effects=self.effects,
        )
        self.log, self.heard, self.accepted = self.state.log, self.state.heard, self.state.accepted
        self.follower: Follower = roles.follower(self.state)
        self.claim: Claim = roles.claim(self.state)
        self.leadership: Leadership = roles.leadership(self.state)
        self.role = FOLLOWER
        self._quorum_heard = -1e9  # a quorum of these voters, this peer included, was heard at this time or later
        self._quorum_of = self.log.members.voters
        self._beat_at = now
        self._claim_at = now + self._claim_delay()
        self._on = self._handlers()

    def _handlers(self) -> dict[type, Callable[..., None]]:
        """Handlers by message type: a role's method, unless the ballot or the current role must be checked first."""
        return {
            Enqueue: self._on_enqueue,
            Ready: self.leadership.on_ready,
            Heartbeat: self._on_heartbeat,
            Reject: self.leadership.on_reject,
            Probe: self._on_probe,
            ProbeAnswer: self._on_probe_answer,
            ClaimMessage: self._on_claim,
            Promise: self._on_promise,
            Nack: self._on_nack,
            Fetch: self.follower.on_fetch,
            Fetched: self._on_fetched,
            Install: self._on_install,
            Confirm: self._on_confirm,
            Confirmed: self.leadership.on_confirmed,
        }

    # ------------------------------------------------------------------ inputs

    def receive(self, source: int, message: Message, now: float) -> None:
        self.state.hear(source, now)
        self._on[type(message)](source, message, now)

    def tick(self, now: float) -> None:
        """Call at `wake_at()` or later; calling early does nothing."""
        if now >= self._beat_at:
            self._beat_at = now + self.tuning.heartbeat_interval_s
            self._beat(now)
        if self.role == FOLLOWER and now >= self._claim_at:
            self._probe(now)

    def wake_at(self) -> float:
        """When `tick` has something to do, if nothing arrives until then."""
        return min(self._beat_at, self._claim_at) if self.role == FOLLOWER else self._beat_at

    def claim_soon(self, now: float) -> None:
        """Claim without the usual delay: a new lane has no coordinator."""
        self._claim_at = now

    def persisted(self, proof: Synced) -> None:
        """The oldest outstanding effects are synced: the own copy counts from here on."""
        state = self.state
        state.synced(self.effects.persisted(proof))
        if self.role == COORDINATOR:
            state.commit(self.leadership.quorum_cursor())
        elif self.role == CLAIMING:
            if self.claim.on_synced() == WON:
                self._lead()
        elif state.matched > state.committed:
            state.follow_cursor()

    def drain(self) -> Effects | None:
        """Everything to do since the last call, or None."""
        state = self.state
        return self.effects.drain((state.log.end, state.stamped))

    # ------------------------------------------------------------------ status

    @property
    def takes(self) -> Collection[type]:
        """The classes of messages that `receive` handles."""
        return self._on.keys()

    @property
    def committed(self) -> int:
        return self.state.committed

    @property
    def promised(self) -> int:
        return self.state.promised

    @property
    def cursor_seen(self) -> int:
        """The highest committed cursor that any peer reported."""
        return self.state.cursor_seen

    @property
    def repairing(self) -> bool:
        return self.state.repairing

    @property
    def established(self) -> bool:
        return self.leadership.established

    @property
    def members(self) -> Members:
        return self.log.members

    def online(self, now: float) -> bool:
        """Whether a quorum of voters, this peer included, was heard within the freshness time.

        Every write asks. What was heard stays heard, so the last answer is computed again only when it may have
        become wrong."""
        oldest, voters = now - self.tuning.heartbeat_fresh_s, self.log.members.voters
        if self._quorum_heard < oldest or voters is not self._quorum_of:
            me, heard = self.me, self.heard
            times = sorted([inf if peer == me else heard.get(peer, -1e9) for peer in voters], reverse=True)
            self._quorum_heard = times[self._rules.quorum(len(voters)) - 1] if times else -1e9
            self._quorum_of = voters
        return self._quorum_heard >= oldest

    def live_coordinator(self, now: float) -> int:
        """The coordinator that this peer has heard recently (or is); 0: none."""
        if self.role == COORDINATOR:
            return self.me
        state = self.state
        heard_lately = now - state.coordinator_heard < self.tuning.heartbeat_fresh_s
        return state.coordinator if heard_lately else 0

    def stored_by(self, position: int) -> tuple[int, ...]:
        """Peers known to hold the entry at `position`."""
        state = self.state
        known = {peer for peer, cursor in self.accepted.items() if cursor >= position}
        known |= {p.peer for p in self.leadership.progress.values() if p.match >= position}
        if state.persisted_end >= position:
            known.add(self.me)
        return tuple(sorted(known))

    # ------------------------------------------------------------------ changes of role

    def _probe(self, now: float) -> None:
        """No coordinator was heard for a while: ask the others."""
        state = self.state
        self._claim_at = now + self._claim_delay()
        state.lose_coordinator()
        if not state.is_voter or state.repairing or state.full:
            return
        self.role = PROBING
        if self.claim.probe():
            self._begin_claim()

    def _begin_claim(self) -> None:
        self.role = CLAIMING
        self.claim.begin()

    def _lead(self) -> None:
        self.role = COORDINATOR
        self.state.coordinate()
        self.claim.give_up()
        self.leadership.begin()

    def _step_down(self, now: float) -> None:
        """Become a follower."""
        self.role = FOLLOWER
        self.state.lose_coordinator()
        self.claim.give_up()
        self.leadership.end()
        self._claim_at = now + self._claim_delay()

    def _follow_claim(self, outcome: int, now: float) -> None:
        if outcome == WON:
            self._lead()
        elif outcome == LOST:
            self._step_down(now)

    def _claim_delay(self) -> float:
        return self.tuning.claim_delay_s + self.state.rng() * self.tuning.claim_jitter_s

    def _beat(self, now: float) -> None:
        state = self.state
        if self.role == COORDINATOR:
            if state.full or not self.online(now) or not self.leadership.is_member:
                self._step_down(now)
            else:
                self.leadership.resend()
        elif self.role != FOLLOWER:
            self._follow_claim(self.claim.press(), now)
        else:
            self.follower.ask_for_repair(now)
        beat = Heartbeat(state.promised, self.role == COORDINATOR, state.committed)
        self.effects.send_all((peer for peer in self.log.members.everyone if peer != self.me), beat)

    # ------------------------------------------------------------------ messages of a coordinator

    def _admits(self, source: int, ballot: int, now: float) -> bool:
        """Accept the sender as coordinator unless a higher ballot was promised; then it gets a Nack."""
        promised = self.state.promised
        if ballot < promised:
            self.effects.send(source, Nack(ballot, promised))
            return False
        if ballot > promised:
            self._promise(ballot, now)
        self._hear_coordinator(source, now)
        return True

    def _promise(self, ballot: int, now: float) -> None:
        if self.role != FOLLOWER:
            self._step_down(now)
        self.claim.see_ballot(ballot)
        self._claim_at = now + self._claim_delay()
        self.state.promise(ballot)

    def _hear_coordinator(self, source: int, now: float) -> None:
        if self.role != FOLLOWER:
            self._step_down(now)
        self.state.hear_coordinator(source, now)
        self._claim_at = now + self._claim_delay()

    def _on_enqueue(self, source: int, message: Enqueue, now: float) -> None:
        if self._admits(source, message.ballot, now):
            self.follower.on_enqueue(source, message)

    def _on_install(self, source: int, message: Install, now: float) -> None:
        ballot = message.ballot
        if ballot and peer_of(ballot) != self.me:
            if self._admits(source, ballot, now):
                self.follower.on_install(source, message)
        elif self.role == CLAIMING:  # the answer to a fetch of this claim or of repair
            self.claim.on_snapshot(source, message)
        elif self.role == FOLLOWER:
            self.follower.on_snapshot(message)

    def _on_heartbeat(self, source: int, message: Heartbeat, now: float) -> None:
        state = self.state
        state.report(source, message.cursor)
        if not message.coordinating:
            if source == state.coordinator:
                state.lose_coordinator()
        elif message.ballot < state.promised:
            self.effects.send(source, Nack(message.ballot, state.promised))
        else:
            self._hear_coordinator(source, now)
            self.follower.on_heartbeat(source, message)

    def _on_confirm(self, source: int, message: Confirm, now: float) -> None:
        promised = self.state.promised
        if message.ballot < promised:
            self.effects.send(source, Nack(message.ballot, promised))
        elif message.ballot == promised:
            self._hear_coordinator(source, now)
            self.follower.on_confirm(source, message)
        # A higher ballot: ignored until its Enqueue arrives, because this peer has not promised it yet.

    # ------------------------------------------------------------------ claims, and answers to them

    def _on_probe(self, source: int, message: Probe, now: float) -> None:
        hears = self.live_coordinator(now) not in (0, source)
        hears = hears or source not in self.log.members.voters  # a peer that was removed and does not know it yet
        self.effects.send(source, ProbeAnswer(message.ballot, hears, self.state.promised))

    def _on_claim(self, source: int, message: ClaimMessage, now: float) -> None:
        ballot, promised = message.ballot, self.state.promised
        if ballot < promised:
            self.effects.send(source, Nack(ballot, promised))
            return
        if ballot > promised:
            self._promise(ballot, now)
        self.follower.say_promised(source, ballot)

    def _on_probe_answer(self, source: int, message: ProbeAnswer, _now: float) -> None:
        self.claim.see_ballot(message.promised)
        if self.role == PROBING and not message.hears and self.claim.on_silence(source):
            self._begin_claim()

    def _on_promise(self, source: int, message: Promise, now: float) -> None:
        if self.role == CLAIMING:
            self._follow_claim(self.claim.on_promise(source, message), now)

    def _on_fetched(self, source: int, message: Fetched, now: float) -> None:
        if not message.ballot:
            if self.role == FOLLOWER:
                self.follower.on_repaired(message)
        elif self.role == CLAIMING:
            self._follow_claim(self.claim.on_fetched(source, message), now)

    def _on_nack(self, _source: int, message: Nack, now: float) -> None:
        """There is a later coordinator or claim."""
        self.claim.see_ballot(message.promised)
        promised, mine = self.state.promised, self.role in (COORDINATOR, CLAIMING)
        if mine and message.ballot == promised and message.promised > promised:
            self._step_down(now)

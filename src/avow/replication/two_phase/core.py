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

Heartbeats. The metadata lane sends one to each member in every interval, whatever its role, and so does a lane with a
member of an older release. Any other lane is *quiet* when there is nothing to tell (decision 0031):

    coordinator     settled: quiet. Otherwise it sends one to each peer that is heard and has not confirmed ballot and
                    cursor, in every interval
    follower        answers the coordinator's; says once what changed in its promise or cursor
    of no coordinator   repeats that it knows none, or a Probe, after every claim delay

A follower believes that its coordinator is alive while it hears its process, until that peer says otherwise, this peer
promises to another, or a new run of that peer is met.

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
from avow.replication.peers import Peers
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
        peers: Peers | None = None,
        may_be_quiet: bool = True,
        roles: TwoPhaseRoles = SHIPPED,
    ) -> None:
        """`peers` is shared by all lanes of this peer. Without it the lane hears for itself, and is never quiet."""
        self.me, self.lane, self.tuning = me, lane, tuning
        self._peers = peers if peers is not None else Peers()
        self._may_be_quiet = may_be_quiet
        self._quiet = False
        self._quiet_as_of: tuple[Members | None, int] = (None, -1)
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
            heard=self._peers.heard,
        )
        self.log, self.heard, self.accepted = self.state.log, self.state.heard, self.state.accepted
        self.follower: Follower = roles.follower(self.state)
        self.claim: Claim = roles.claim(self.state)
        self.leadership: Leadership = roles.leadership(self.state)
        self.role = FOLLOWER
        self._quorum_heard = -1e9  # a quorum of these voters, this peer included, was heard at this time or later
        self._quorum_of = self.log.members.voters
        self._beat_at = now
        self._said = (-1, -1)  # (promised, committed) in the last heartbeat to all
        self._cursor_sent = self.log.base
        self._claim_at = now + self._claim_delay()
        self._in_doubt = False  # the process of a quiet lane's coordinator is silent
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
        if self.role == FOLLOWER:
            if self.state.coordinator and self.may_be_quiet:
                self._watch_process(now)
            elif now >= self._claim_at:
                self._probe(now)

    def _watch_process(self, now: float) -> None:
        """The coordinator of a quiet lane is believed until its process was silent for the claim delay. A process that
        was only late is believed again: nothing in the lane has changed."""
        if self.live_coordinator(now):
            self._in_doubt = False
        elif not self._in_doubt:
            self._in_doubt = True
            self._claim_at = now + max(self._claim_delay() - self.tuning.heartbeat_fresh_s, 0.0)
        elif now >= self._claim_at:
            self._probe(now)

    def wake_at(self) -> float:
        """When `tick` has something to do, if nothing arrives until then and no peer falls silent or is heard again."""
        if self.role != FOLLOWER:
            fresh = self._peers.fresh
            if self.role == COORDINATOR and self.may_be_quiet and self.leadership.is_settled(fresh):
                return inf if self._is_quorum(fresh) else self._beat_at
            return self._beat_at
        if not self.may_be_quiet:
            return min(self._beat_at, self._claim_at)
        state = self.state
        beat_at = self._beat_at if self._has_news or state.cursor_seen > state.committed else inf
        return beat_at if state.coordinator in self._peers.fresh else min(beat_at, self._claim_at)

    @property
    def may_be_quiet(self) -> bool:
        """Whether all members take a silent lane's coordinator for alive."""
        as_of = (self.log.members, self._peers.changes)
        if self._quiet_as_of[0] is not as_of[0] or self._quiet_as_of[1] != as_of[1]:
            self._quiet_as_of = as_of
            self._quiet = self._may_be_quiet and self._peers.read_quiet_lanes(
                peer for peer in self.log.members.everyone if peer != self.me
            )
        return self._quiet

    def _is_quorum(self, others: Collection[int]) -> bool:
        voters = self.log.members.voters
        return sum(peer == self.me or peer in others for peer in voters) >= self._rules.quorum(len(voters))

    @property
    def _has_news(self) -> bool:
        return self._said != (self.state.promised, self.state.committed)

    def peer_restarted(self, peer: int, now: float) -> None:
        """The last run of this peer has ended: what it said, and what it was told, does not hold any more."""
        self.leadership.tell_again(peer)
        if peer == self.state.coordinator:
            self._lose_coordinator(now)

    def claim_new(self) -> None:
        """Claim without a delay and without a probe: a new lane has no coordinator. One of its founders calls this."""
        state = self.state
        if self.role == FOLLOWER and state.is_voter and not state.repairing and not state.full:
            self._begin_claim()

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
        if state.committed != self._cursor_sent:
            self._send_cursor()
        return self.effects.drain((state.log.end, state.stamped))

    def _send_cursor(self) -> None:
        """The cursor reached the end of the log: no Enqueue follows that would carry it, and readers at other peers
        wait for it."""
        state = self.state
        if self.role != COORDINATOR:
            self._cursor_sent = state.committed
        elif state.committed == state.log.end:
            self._cursor_sent = state.committed
            others = (peer for peer in self.log.members.everyone if peer != self.me)
            self.effects.send_all(others, self._heartbeat())

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
        """Whether a quorum of voters, this peer included, was heard within the freshness time. Every write asks."""
        return self._heard_quorum(now - self.tuning.heartbeat_fresh_s)

    def _may_stay(self, now: float) -> bool:
        """The coordinator of a quiet lane refuses writes while it is offline, and stays until others may have
        claimed: peers that are late for a moment must not cost each of a thousand lanes a claim."""
        tuning = self.tuning
        patience_s = max(tuning.heartbeat_fresh_s, tuning.claim_delay_s + tuning.claim_jitter_s)
        return self._heard_quorum(now - (patience_s if self.may_be_quiet else tuning.heartbeat_fresh_s))

    def _heard_quorum(self, oldest: float) -> bool:
        """What was heard stays heard, so the last answer is computed again only when it may have become wrong."""
        voters = self.log.members.voters
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
        heard_at = self.heard.get(state.coordinator, -1e9) if self.may_be_quiet else state.coordinator_heard
        return state.coordinator if now - heard_at < self.tuning.heartbeat_fresh_s else 0

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
            if self.may_be_quiet:
                self._say()
            return
        if self._may_be_quiet:
            if not self._peers.may_claim(self.lane):
                self._claim_at = now + state.rng() * self.tuning.claim_jitter_s
                return
            self._peers.claiming.add(self.lane)
        self.role = PROBING
        if self.claim.probe():
            self._begin_claim()

    def _begin_claim(self) -> None:
        self.role = CLAIMING
        self.claim.begin()

    def _lead(self) -> None:
        self.role = COORDINATOR
        self._peers.claiming.discard(self.lane)
        self.state.coordinate()
        self.claim.give_up()
        self.leadership.begin()

    def _step_down(self, now: float) -> None:
        """Become a follower."""
        self.role = FOLLOWER
        self._said = (-1, -1)  # it may have been told that this peer coordinates
        self._peers.claiming.discard(self.lane)
        self.state.lose_coordinator()
        self.claim.give_up()
        self.leadership.end()
        self._claim_at = now + self._claim_delay()

    def _lose_coordinator(self, now: float) -> None:
        """It does not coordinate any more: claim after a while, unless another one is heard."""
        self.state.lose_coordinator()
        if self.may_be_quiet:  # otherwise every heartbeat has put the claim off
            self._claim_at = max(self._claim_at, now + self._claim_delay())

    def abandon(self) -> None:
        """The lane was dropped."""
        self._peers.claiming.discard(self.lane)

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
            if state.full or not self._may_stay(now) or not self.leadership.is_member:
                self._step_down(now)
            elif self.may_be_quiet and not self.online(now):
                self._beat_at = now + max(self.tuning.heartbeat_interval_s, self.tuning.claim_jitter_s)
            else:
                self.leadership.resend()
        elif self.role != FOLLOWER:
            self._follow_claim(self.claim.press(), now)
        else:
            self.follower.ask_for_repair(now)
        if not self.may_be_quiet:
            self._say()
        elif self.role == COORDINATOR:
            self.effects.send_all(self.leadership.untold(self._peers.fresh), self._heartbeat())
        elif self._has_news:
            self._say()

    def _heartbeat(self) -> Heartbeat:
        """Of a lane that may be quiet, a peer that knows no coordinator must not seem to confirm one."""
        state = self.state
        knows = state.coordinator or not self.may_be_quiet
        return Heartbeat(state.promised if knows else 0, self.role == COORDINATOR, state.committed)

    def _say(self) -> None:
        """A heartbeat to every other member."""
        self._said = (self.state.promised, self.state.committed)
        self.effects.send_all((peer for peer in self.log.members.everyone if peer != self.me), self._heartbeat())

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
        self._in_doubt = False
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
            self.leadership.on_said(source, ballot=message.ballot, cursor=message.cursor)
            if source == state.coordinator:
                self._lose_coordinator(now)
        elif message.ballot < state.promised:
            self.effects.send(source, Nack(message.ballot, state.promised))
        else:
            self._hear_coordinator(source, now)
            self.follower.on_heartbeat(source, message)
            if self.may_be_quiet and message.ballot == state.promised and not state.repairing:
                self.effects.send(source, self._heartbeat())

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
        if source == self.state.coordinator:
            self._lose_coordinator(now)
        self.leadership.tell_again(source)
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
            self.state.lose_coordinator()
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

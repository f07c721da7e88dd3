"""Becoming the coordinator: probe, claim, adopt.

    nobody coordinates, as far as I hear   Probe: does a quorum hear nobody, too?
    a quorum hears nobody                  promise my own ballot, sync, Claim
    a quorum of undamaged promises         adopt the freshest log among them, piece by piece
    a Nack, a live coordinator, a silence  follower again; the next attempt comes after a random delay

The probe is a courtesy: a peer that was cut off does not disturb a lane that works. Safety rests on promises alone.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Final

from avow.ids import ballot_of, round_of
from avow.replication.two_phase.claim import DONE, WAIT, Claiming
from avow.replication.two_phase.follower import Follower
from avow.replication.two_phase.lane_peer import CLAIMING, COORDINATOR, FOLLOWER, PROBING
from avow.wire.messages import Claim, Fetch, Fetched, Nack, Probe, ProbeAnswer, Promise

CLAIM_TICKS_MAX: Final = 12  # heartbeats without a quorum before a claim is given up


class Claimant(Follower):
    claim_class: type[Claiming] = Claiming

    def _start_probe(self, now: float) -> None:
        self._claim_at = now + self._claim_delay()
        self.coordinator = 0
        if not self.is_voter or self.repairing or self.full:
            return
        self.role = PROBING
        self.claim = self.claim_class(me=self.me, ballot=0, freshness=(0, 0))
        self._no_coordinator = {self.me}
        self._ask_probe()
        self._check_probe()

    def _ask_probe(self) -> None:
        probe = Probe(ballot_of(self._round_seen + 1, self.me))
        self._to_voters(self._now, probe)

    def _on_probe(self, source: int, message: Probe, now: float) -> None:
        hears = self.live_coordinator(now) not in (0, source)
        hears = hears or source not in self.log.members.voters  # it was removed, and does not know yet
        self._now.append((source, ProbeAnswer(message.ballot, hears, self.promised)))

    def _on_probe_answer(self, source: int, message: ProbeAnswer, _now: float) -> None:
        self._round_seen = max(self._round_seen, round_of(message.promised))
        if self.role == PROBING and not message.hears:
            self._no_coordinator.add(source)
            self._check_probe()

    def _check_probe(self) -> None:
        voters = self.log.members.voters
        if sum(peer in self._no_coordinator for peer in voters) >= self._quorum(len(voters)):
            self._start_claim()

    def _start_claim(self) -> None:
        self._round_seen = max(self._round_seen, round_of(self.promised)) + 1
        ballot = ballot_of(self._round_seen, self.me)
        self.role = CLAIMING
        self.claim = self.claim_class(me=self.me, ballot=ballot, freshness=(self.stamped, self.log.end))
        self._matched = self._accept = 0
        self._save_state(promised=ballot, stamped=self.stamped)
        self._to_voters(self._synced, Claim(ballot))

    def _own_promise(self) -> None:
        claim = self.claim
        if claim is not None and self.me not in claim.answers and self._all_synced():
            claim.promised(self.me, stamped=claim.freshness[0], end=claim.freshness[1], damaged_from=0)
            self._decide_claim()

    def _on_claim(self, source: int, message: Claim, now: float) -> None:
        ballot = message.ballot
        if ballot < self.promised:
            self._now.append((source, Nack(ballot, self.promised)))
            return
        if ballot > self.promised:
            self._promise(ballot, now)
        damaged_from = self.log.end + 1 if self.repairing else 0
        self._synced.append((source, Promise(ballot, self.stamped, self.log.end, damaged_from)))

    def _promise(self, ballot: int, now: float) -> None:
        if self.role != FOLLOWER:
            self._step_down(now)
        self._round_seen = max(self._round_seen, round_of(ballot))
        self._matched = self._accept = 0
        self._claim_at = now + self._claim_delay()
        self._save_state(promised=ballot, stamped=self.stamped)

    def _on_promise(self, source: int, message: Promise, _now: float) -> None:
        claim = self.claim
        if self.role != CLAIMING or claim is None or message.ballot != claim.ballot:
            return
        claim.promised(source, stamped=message.stamped, end=message.end, damaged_from=message.damaged_from)
        if not claim.donor:
            self._decide_claim()

    def _decide_claim(self) -> None:
        claim = self.claim
        assert claim is not None
        decision = claim.decide(self.log.members.voters)
        if decision == WAIT or self.full:
            return
        if decision == DONE:
            self._become_coordinator()
            return
        claim.donor, claim.fetch_after = decision, self.committed
        self._fetch_piece()

    def _fetch_piece(self) -> None:
        claim = self.claim
        assert claim is not None
        after = claim.fetch_after
        claim.idle_ticks = 0
        self._now.append((claim.donor, Fetch(claim.ballot, after, self.log.origin(after))))

    def _on_fetched(self, source: int, message: Fetched, now: float) -> None:
        if not message.ballot:
            self._repaired(message, now)
            return
        claim = self.claim
        if self.role != CLAIMING or claim is None or (message.ballot, source) != (claim.ballot, claim.donor):
            return
        if message.after != claim.fetch_after or message.origin != self.log.origin(message.after) or self.full:
            return
        if message.end < claim.answers[source][1]:  # it holds less than it promised: damaged, or cut by a repair since
            self._step_down(now)
            return
        self._store(message.after, message.entries)
        claim.fetch_after = message.after + len(message.entries)
        if claim.fetch_after < message.end:
            self._fetch_piece()
            return
        self._cut(message.end)
        claim.freshness, claim.donor = claim.answers[source], 0
        if not self.is_voter:
            self._step_down(now)
            return
        self._ask_promises(claim)  # the adopted log may name voters that were not asked
        self._decide_claim()

    def _ask_promises(self, claim: Claiming) -> None:
        missing = [peer for peer in self.log.members.voters if peer not in claim.answers]
        self._now.extend((peer, Claim(claim.ballot)) for peer in missing if peer != self.me)

    def _press_claim(self, now: float) -> None:
        claim = self.claim
        assert claim is not None
        claim.idle_ticks += 1
        if claim.idle_ticks > CLAIM_TICKS_MAX or not self.is_voter or self.full:
            self._step_down(now)
        elif self.role == PROBING:
            self._ask_probe()
        elif claim.donor:
            ticks = claim.idle_ticks
            self._fetch_piece()
            claim.idle_ticks = ticks
        elif self._all_synced():
            self._ask_promises(claim)

    def _step_down(self, now: float) -> None:
        self.role, self.claim = FOLLOWER, None
        self.progress = {}
        self.coordinator = 0
        self._claim_at = now + self._claim_delay()
        self.reads_done += [(request, -1) for request in self.reads.abandon()]

    def _on_nack(self, _source: int, message: Nack, now: float) -> None:
        self._round_seen = max(self._round_seen, round_of(message.promised))
        mine = self.role == COORDINATOR or (self.role == CLAIMING and self.claim is not None)
        if mine and message.ballot == self.promised and message.promised > self.promised:
            self._step_down(now)

    @abstractmethod
    def _become_coordinator(self) -> None:
        """A quorum has promised and the freshest of their logs is mine."""

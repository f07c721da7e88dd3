"""The claim: how a peer becomes the coordinator, by probing, claiming and adopting a log.

    probing    this peer hears no coordinator. Probe: does a quorum hear none either?
    claiming   promise an own ballot, sync, send Claim; collect promises
    adopting   fetch the freshest of the promised logs in pieces from its holder; it may name more voters
    won        a quorum of undamaged promises, none of them for a fresher log than this peer's
    lost       a Nack, a live coordinator, or no answers; the next attempt follows after a random delay

A promise contains (stamped, end): the last ballot whose whole take-over log that peer holds, and the length of its log.
The freshest log of a quorum of undamaged promises contains every committed entry. A damaged peer's promise still fences
older coordinators, but it may have lost entries it was counted for, so it is not part of that quorum.

The quorum is that of the membership in the adopted log. Adopting a log may therefore require more promises than were
needed to choose it; `_decide` is called again until nothing changes.

The probe keeps a peer that was cut off from disturbing a working lane. Safety depends on promises alone.
"""

from __future__ import annotations

from typing import Final

from avow.ids import ballot_of, round_of
from avow.replication.two_phase.state import LaneState
from avow.wire.messages import Claim as ClaimMessage
from avow.wire.messages import Fetch, Fetched, Install, Probe, Promise

IDLE_TICKS_MAX: Final = 12  # heartbeats without a quorum before a claim is abandoned

OPEN: Final = 0  # not decided yet
WON: Final = 1
LOST: Final = -1


class Attempt:
    """`freshness`: of the claimant's log, which is the donor's once adopted."""

    __slots__ = ("ballot", "donor", "fetch_after", "freshness", "idle_ticks", "promises")

    def __init__(self, *, ballot: int, freshness: tuple[int, int]) -> None:
        self.ballot = ballot  # 0: probing
        self.freshness = freshness
        self.promises: dict[int, tuple[int, int]] = {}  # undamaged ones only
        self.donor = 0  # the peer whose log is being fetched
        self.fetch_after = 0
        self.idle_ticks = 0


class Claim:
    """One attempt at a time. Methods that may decide it return OPEN, WON or LOST, and the core acts on that."""

    def __init__(self, state: LaneState) -> None:
        self._state, self._rules, self._effects = state, state.rules, state.effects
        self._attempt: Attempt | None = None
        self._no_coordinator: set[int] = set()  # peers that hear none
        self._round_seen = round_of(state.promised)

    def see_ballot(self, ballot: int) -> None:
        """Another peer promised this ballot: an own claim must be higher."""
        self._round_seen = max(self._round_seen, round_of(ballot))

    def give_up(self) -> None:
        self._attempt = None

    # ------------------------------------------------------------------ probing

    def probe(self) -> bool:
        """Ask the others. True: this peer alone is a quorum."""
        self._attempt = Attempt(ballot=0, freshness=(0, 0))
        self._no_coordinator = {self._state.me}
        self._ask_probe()
        return self._nobody_coordinates()

    def on_silence(self, source: int) -> bool:
        """That peer hears no coordinator either. True: a quorum hears none."""
        self._no_coordinator.add(source)
        return self._nobody_coordinates()

    def _ask_probe(self) -> None:
        state = self._state
        self._effects.send_all(state.other_voters(), Probe(ballot_of(self._round_seen + 1, state.me)))

    def _nobody_coordinates(self) -> bool:
        voters = self._state.log.members.voters
        return sum(peer in self._no_coordinator for peer in voters) >= self._rules.quorum(len(voters))

    # ------------------------------------------------------------------ claiming

    def begin(self) -> None:
        state = self._state
        self._round_seen = max(self._round_seen, round_of(state.promised)) + 1
        ballot = ballot_of(self._round_seen, state.me)
        self._attempt = Attempt(ballot=ballot, freshness=(state.stamped, state.log.end))
        state.promise(ballot)
        for peer in state.other_voters():
            self._effects.send_synced(peer, ClaimMessage(ballot))

    def on_synced(self) -> int:
        """The own promise counts once it is on disk."""
        attempt, me = self._attempt, self._state.me
        if attempt is None or me in attempt.promises or not self._effects.all_synced:
            return OPEN
        attempt.promises[me] = attempt.freshness
        return self._decide(attempt)

    def on_promise(self, source: int, message: Promise) -> int:
        attempt = self._attempt
        if attempt is None or message.ballot != attempt.ballot:
            return OPEN
        if not message.damaged_from and source not in attempt.promises:
            attempt.promises[source] = (message.stamped, message.end)
        return OPEN if attempt.donor else self._decide(attempt)

    def _decide(self, attempt: Attempt) -> int:
        state, promises = self._state, attempt.promises
        voters = state.log.members.voters
        promised = sum(peer in promises for peer in voters)
        if state.me not in promises or promised < self._rules.quorum(len(voters)) or state.full:
            return OPEN
        donor = self._rules.donor(promises, me=state.me, ballot=attempt.ballot, freshness=attempt.freshness)
        if not donor:
            return WON
        attempt.donor, attempt.fetch_after = donor, state.committed
        self._fetch_piece(attempt)
        return OPEN

    def _ask_promises(self, attempt: Attempt) -> None:
        state = self._state
        missing = [peer for peer in state.other_voters() if peer not in attempt.promises]
        self._effects.send_all(missing, ClaimMessage(attempt.ballot))

    # ------------------------------------------------------------------ adopting

    def _fetch_piece(self, attempt: Attempt) -> None:
        after = attempt.fetch_after
        attempt.idle_ticks = 0
        self._effects.send(attempt.donor, Fetch(attempt.ballot, after, self._state.log.origin(after)))

    def on_fetched(self, source: int, message: Fetched) -> int:
        state, attempt = self._state, self._attempt
        if attempt is None or (message.ballot, source) != (attempt.ballot, attempt.donor):
            return OPEN
        if message.after != attempt.fetch_after or message.origin != state.log.origin(message.after) or state.full:
            return OPEN
        if message.end < max(attempt.promises[source][1], state.committed):
            return LOST  # the donor holds less than it promised, or than is committed: it was damaged, or cut
        state.store(message.after, message.entries)
        attempt.fetch_after = message.after + len(message.entries)
        if attempt.fetch_after < message.end:
            self._fetch_piece(attempt)
            return OPEN
        state.cut(message.end)
        attempt.freshness, attempt.donor = attempt.promises[source], 0
        if not state.is_voter:
            return LOST
        self._ask_promises(attempt)  # the adopted log may name voters that were not asked
        return self._decide(attempt)

    def on_snapshot(self, source: int, message: Install) -> None:
        """The donor no longer has the requested entries and sends a snapshot instead."""
        state, attempt = self._state, self._attempt
        if attempt is None or source != attempt.donor or not message.ballot or state.full:
            return
        if message.snapshot.position > state.committed:
            state.take_snapshot(message.snapshot)
        attempt.fetch_after = state.committed
        self._fetch_piece(attempt)

    # ------------------------------------------------------------------ at every heartbeat

    def press(self) -> int:
        """Repeat requests without an answer. LOST: the attempt has taken too long."""
        state, attempt = self._state, self._attempt
        assert attempt is not None
        attempt.idle_ticks += 1
        if attempt.idle_ticks > IDLE_TICKS_MAX or not state.is_voter or state.full:
            return LOST
        if not attempt.ballot:
            self._ask_probe()
        elif attempt.donor:
            ticks = attempt.idle_ticks
            self._fetch_piece(attempt)
            attempt.idle_ticks = ticks
        elif self._effects.all_synced:
            self._ask_promises(attempt)
        return OPEN

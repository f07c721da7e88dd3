"""One attempt to become the coordinator of a lane.

    probing    does a quorum hear no live coordinator?              -> claiming
    claiming   collect promises for my ballot                       -> adopting or done
    adopting   fetch the freshest log, piece by piece, from its holder -> claiming again (the log may name more voters)

What a promise carries is (stamped, end): the last ballot whose whole take-over log that peer holds, and how long its
log is. The freshest of a quorum of undamaged answers contains every committed entry. A damaged peer's promise still
fences older coordinators, but it may have lost what it was counted for, so it is no part of that quorum.

Which quorum? That of the membership in the log being adopted. Adopting a log may therefore ask for more promises than
were needed to choose it; `decide` is simply asked again until nothing changes.
"""

from __future__ import annotations

from typing import Final

from avow.replication.quorum import quorum

WAIT: Final = -1  # for more promises
DONE: Final = 0  # the log I hold is the freshest and a quorum of its own members has promised


class Claiming:
    """State of a claim. `freshness` is that of the log the claimer holds: its own, or the donor's once adopted."""

    __slots__ = ("answers", "ballot", "donor", "fetch_after", "freshness", "idle_ticks", "me")

    def __init__(self, *, me: int, ballot: int, freshness: tuple[int, int]) -> None:
        self.me = me
        self.ballot = ballot
        self.freshness = freshness
        self.answers: dict[int, tuple[int, int]] = {}
        self.donor = 0  # being fetched from
        self.fetch_after = 0
        self.idle_ticks = 0

    def promised(self, peer: int, *, stamped: int, end: int, damaged_from: int) -> None:
        if not damaged_from and peer not in self.answers:
            self.answers[peer] = (stamped, end)

    def decide(self, voters: tuple[int, ...]) -> int:
        """WAIT, DONE, or the peer whose log must be adopted first."""
        if self.me not in self.answers or not self._is_quorum(voters):
            return WAIT
        donor = self._freshest()
        return DONE if self.answers[donor] <= self.freshness else donor

    def _is_quorum(self, voters: tuple[int, ...]) -> bool:
        return sum(peer in self.answers for peer in voters) >= quorum(len(voters))

    def _freshest(self) -> int:
        return max(self.answers, key=lambda peer: (self.answers[peer], peer == self.me, peer))

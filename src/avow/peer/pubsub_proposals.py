"""What a pub-sub queue wants the metadata lane to decide, repeated until it has.

A proposal may be lost on its way, refused because nobody coordinates, or committed without this peer hearing of it.
None of that matters: repeating one changes nothing there, and only the entry, applied here, ends it. So an answer is
good for one thing, to know when to try again. Requests are numbered downwards: a client's are positive.
"""

from __future__ import annotations

from collections.abc import Callable

from avow.errors import Offline
from avow.peer.answers import Answer, Refusal
from avow.replication.tuning import Tuning


class Proposal:
    """`number` names what it is about: a run for an opening, a lane for an end."""

    __slots__ = ("due_at", "end", "kind", "number")

    def __init__(self, kind: int, *, number: int, end: int = 0) -> None:
        self.kind, self.number, self.end = kind, number, end
        self.due_at = 0.0


class Proposals:
    """`control` makes the bytes of one; None: it cannot be made yet, and is tried again."""

    def __init__(self, tuning: Tuning, *, control: Callable[[Proposal], bytes | None]) -> None:
        self._control = control
        self._retry_s = 2.0 * tuning.heartbeat_interval_s  # after one that nobody could take
        self._repeat_s = tuning.owner_dead_after_s  # after one that got no answer, or whose entry was not seen yet
        self._wanted: dict[tuple[int, int], Proposal] = {}
        self._asked: dict[int, Proposal] = {}  # request -> what it proposed
        self._ready: list[tuple[int, int, bytes]] = []  # not taken yet
        self._request = 0

    def want(self, proposal: Proposal, now: float) -> None:
        known = self._wanted.setdefault((proposal.kind, proposal.number), proposal)
        known.end = proposal.end
        if known is proposal:
            self._propose(proposal, now)

    def once(self, kind: int, control: bytes) -> None:
        """Something that will be proposed again anyway if it is still wanted then."""
        self._request -= 1
        self._ready.append((self._request, kind, control))

    def settled(self, kind: int, number: int) -> None:
        """Its entry was applied, or it is not wanted any more."""
        self._wanted.pop((kind, number), None)

    def tick(self, now: float) -> None:
        for proposal in list(self._wanted.values()):
            if now >= proposal.due_at:
                self._propose(proposal, now)

    def wake_at(self, otherwise: float) -> float:
        return min((proposal.due_at for proposal in self._wanted.values()), default=otherwise)

    def take(self) -> list[tuple[int, int, bytes]]:
        """(request, kind, control) to be written to the metadata lane."""
        taken, self._ready = self._ready, []
        return taken

    def hear(self, request: int, answer: Answer, now: float) -> None:
        proposal = self._asked.pop(request, None)
        if proposal is not None and isinstance(answer, Refusal) and answer.code == Offline.code:
            proposal.due_at = now + self._retry_s

    def names(self) -> list[tuple[int, int]]:
        return list(self._wanted)

    def _propose(self, proposal: Proposal, now: float) -> None:
        control = self._control(proposal)
        if control is not None:
            proposal.due_at = now + self._repeat_s
            self.once(proposal.kind, control)
            self._asked[self._request] = proposal

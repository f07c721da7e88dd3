"""Proposals of a pub-sub queue to the metadata lane, repeated until they are decided.

A proposal may be lost, refused because there is no coordinator, or committed without this peer getting the answer.
Repeating one changes nothing in the metadata lane, and a proposal ends only when its entry is applied here. An answer
only decides when to try again:

    OFFLINE               soon: it was not appended
    unknown, or refused   after a while: it may be lost
    done, or no answer    rarely: the entry or its answer is in flight

The last rule keeps a slow metadata lane from filling with repetitions faster than it commits them. Requests are
numbered downwards from -1; those of clients are positive.
"""

from __future__ import annotations

from collections.abc import Callable

from avow.errors import Offline
from avow.node.answers import Answer, Done, Refusal
from avow.replication.tuning import Tuning


class Proposal:
    """`number`: the run for an opening, the lane for an end."""

    __slots__ = ("due_at", "end", "kind", "number")

    def __init__(self, kind: int, *, number: int, end: int = 0) -> None:
        self.kind, self.number, self.end = kind, number, end
        self.due_at = 0.0


class Proposals:
    """`control` encodes a proposal; None: it cannot be made yet and is tried again later."""

    def __init__(self, tuning: Tuning, *, control: Callable[[Proposal], bytes | None]) -> None:
        self._control = control
        self._retry_s = 2.0 * tuning.heartbeat_interval_s  # after OFFLINE
        self._repeat_s = tuning.owner_dead_after_s  # when it may be lost
        self._patience_s = 10.0 * tuning.owner_dead_after_s  # while it is in flight
        self._wanted: dict[tuple[int, int], Proposal] = {}
        self._asked: dict[int, Proposal] = {}  # request -> its proposal
        self._ready: list[tuple[int, int, bytes]] = []  # not taken yet
        self._request = 0

    def want(self, proposal: Proposal, now: float) -> None:
        known = self._wanted.setdefault((proposal.kind, proposal.number), proposal)
        known.end = proposal.end
        if known is proposal:
            self._propose(proposal, now)

    def once(self, kind: int, control: bytes) -> None:
        """Propose once. The caller proposes again later if it is still needed."""
        self._request -= 1
        self._ready.append((self._request, kind, control))

    def withdraw(self, kind: int, number: int) -> None:
        """Stop proposing: the entry was applied, or is no longer needed."""
        self._wanted.pop((kind, number), None)

    def tick(self, now: float) -> None:
        for proposal in list(self._wanted.values()):
            if now >= proposal.due_at:
                self._propose(proposal, now)

    def wake_at(self, otherwise: float) -> float:
        return min((proposal.due_at for proposal in self._wanted.values()), default=otherwise)

    @property
    def untaken(self) -> bool:
        return bool(self._ready)

    def take(self) -> list[tuple[int, int, bytes]]:
        """(request, kind, control) to be written to the metadata lane."""
        taken, self._ready = self._ready, []
        return taken

    def on_answer(self, request: int, answer: Answer, now: float) -> None:
        proposal = self._asked.pop(request, None)
        if proposal is None:
            return
        if isinstance(answer, Done):
            proposal.due_at = now + self._patience_s
        elif isinstance(answer, Refusal) and answer.code == Offline.code:
            proposal.due_at = now + self._retry_s
        else:
            proposal.due_at = now + self._repeat_s

    def names(self) -> list[tuple[int, int]]:
        return list(self._wanted)

    def _propose(self, proposal: Proposal, now: float) -> None:
        control = self._control(proposal)
        if control is not None:
            proposal.due_at = now + self._patience_s
            self.once(proposal.kind, control)
            self._asked[self._request] = proposal

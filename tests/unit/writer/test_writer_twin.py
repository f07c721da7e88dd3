"""The writer in a simulated network that loses, delays, refuses and ends lanes, compared with a stateless model.

The world keeps lanes as lists of writes. Each attempt is processed or refused there, at once or late, and an answer may
leave open which. The model judges a write from the history of its attempts alone. Time moves only to where the writer
asked to be woken, or to the next answer: a writer that forgets to ask is caught by the deadlines.
"""

from __future__ import annotations

from heapq import heappop, heappush
from math import inf
from random import Random
from typing import Final

import pytest

from avow.writer.steps import Pauses, Request, Settings, Step, Verdict
from avow.writer.writer import Writer

PAUSES: Final = Pauses(first_s=0.02, max_s=0.5, spread=0.5)
ENDED_FOR_GOOD: Final = 1_000.0  # virtual seconds after which a run must be over


class History:
    """Events of one write: (time, "sent" or the step that was answered)."""

    def __init__(self, write: Request) -> None:
        self.write = write
        self.events: list[tuple[float, str]] = []
        self.lanes: list[int] = []  # the lanes it was sent to
        self.verdicts: list[tuple[float, Verdict]] = []


def judged(history: History, *, in_lanes: bool) -> Verdict:
    """The model: replay the events up to the deadline."""
    maybe = out = False
    for at, what in history.events:
        if at > history.write.deadline:
            break
        out = what == "sent"
        if what == "done":
            return Verdict.DONE
        if what == "uncertain":
            maybe = True
        if what == "ended":
            maybe = False
            if not in_lanes:
                return Verdict.REFUSED
        if what == "refused":
            break
    return Verdict.UNKNOWN if maybe or out else Verdict.REFUSED


class World:
    """In order: a connection processes attempts in the order they were sent, at its own speed. A peer that refuses one
    refuses all writes sent before its refusal and may accept later ones."""

    def __init__(self, settings: Settings, seed: int) -> None:
        self.settings, self.rng, self.now = settings, Random(seed), 1.0
        self.trouble = self.rng.choice((0.0, 0.1, 0.4, 0.9))
        self.lanes: dict[int, list[int]] = {1: []}  # numbers of writes, in the order they took effect
        self.ended: set[int] = set()
        self.open = 1
        self.writer: Writer[Request] = Writer(settings, rng=self.rng, aim=self._aim)
        self.writer.bind(1)
        self.histories: dict[int, History] = {}
        self.latency_s = 0.01
        self.refuses_to = 0  # attempts with such an ordinal at most
        self.events: list[tuple[float, int, Request, int]] = []  # with ordinal and lane
        self._order = 0

    # ------------------------------------------------------------------ the shell

    def run(self, count: int) -> None:
        for _ in range(count):
            write = Request(deadline=self.now + self.rng.choice((0.3, 2.0, 20.0)))
            self.writer.submit(write, self.now)
            self.histories[write.number] = History(write)
            if self.rng.random() < 0.3:
                self._pump()
                self._advance()
        while self._pump() < inf or self.events:
            self._advance()
            assert self.now < ENDED_FOR_GOOD
        assert self.writer.idle

    def _pump(self) -> float:
        ready = self.writer.drain(self.now)
        for one in ready.decided:
            self.histories[one.write.number].verdicts.append((self.now, one.verdict))
        for write in ready.send:
            self._send(write)
        self._wake_at = ready.wake_at
        return ready.wake_at

    def _advance(self) -> None:
        next_at = self.events[0][0] if self.events else inf
        if self.rng.random() < 0.05:
            self._end_lane()
        if min(next_at, self._wake_at) == inf:
            return
        self.now = max(self.now, min(next_at, self._wake_at))
        while self.events and self.events[0][0] <= self.now:
            self._process(*heappop(self.events)[1:])
        if self.settings.ordered and self.rng.random() < 0.1:
            self.writer.redirect()
        self.writer.tick(self.now)

    def _aim(self, *, failed: bool) -> bool:
        self.latency_s = self.rng.choice((0.01, 0.1, 1.0))
        return failed and self.rng.random() < 0.2

    # ------------------------------------------------------------------ the lanes

    def _end_lane(self) -> None:
        """End a lane: attempts in flight are not stored in it any more; new writes use the next one."""
        if self.settings.in_lanes:
            self.ended.add(self.open)
            self.open += 1
            self.lanes[self.open] = []
            self.writer.bind(self.open)

    def _send(self, write: Request) -> None:
        history, lane = self.histories[write.number], write.bound or 1
        history.events.append((self.now, "sent"))
        history.lanes.append(lane)
        self._order += 1
        at = self.now + self.latency_s * (1.0 if self.settings.ordered else self.rng.random())
        heappush(self.events, (at, self._order, write, lane))

    def _process(self, ordinal: int, write: Request, lane: int) -> None:
        stored, refusing = self.lanes[lane], ordinal <= self.refuses_to
        troubled = refusing or self.rng.random() < self.trouble
        if not troubled:
            step = Step.ENDED if lane in self.ended and write.number not in stored else Step.DONE
        elif write.number in stored:
            step = Step.UNCERTAIN
        else:
            step = self.rng.choice((Step.ELSEWHERE, Step.ELSEWHERE, Step.UNCERTAIN, Step.UNCERTAIN, Step.REFUSED))
        takes = lane not in self.ended and not refusing and self.rng.random() < 0.5
        if write.number not in stored and (step is Step.DONE or (step is Step.UNCERTAIN and takes)):
            stored.append(write.number)
        if self.settings.ordered and write.number not in stored and step is not Step.REFUSED:
            self.refuses_to = self._order
        if not write.finished:
            self.histories[write.number].events.append((self.now, step.value))
        self.writer.answered(write, step, self.now)


def check(world: World) -> None:
    stored = [number for lane in world.lanes.values() for number in lane]
    assert len(stored) == len(set(stored)), "one write, one lane, once"
    for number, history in world.histories.items():
        assert len(history.verdicts) == 1, f"write {number} was decided {len(history.verdicts)} times"
        at, verdict = history.verdicts[0]
        assert at <= history.write.deadline + 1e-9, f"write {number} was decided at {at}"
        assert verdict is judged(history, in_lanes=world.settings.in_lanes), (number, history.events)
        if verdict is Verdict.DONE:
            assert number in stored
        if verdict is Verdict.REFUSED:
            assert number not in stored
    if world.settings.ordered:
        assert world.lanes[1] == sorted(world.lanes[1]), "the order is kept"


@pytest.mark.parametrize("seed", range(150))
@pytest.mark.parametrize("window", [1, 4])
def test_ordered_writes_take_effect_once_and_in_order(window: int, seed: int) -> None:
    world = World(Settings(window=window, pauses=PAUSES, ordered=True), seed)
    world.run(40)
    check(world)


@pytest.mark.parametrize("seed", range(150))
def test_unordered_writes_are_decided_once_by_their_deadline(seed: int) -> None:
    world = World(Settings(window=4, pauses=PAUSES), seed)
    world.run(40)
    check(world)


@pytest.mark.parametrize("seed", range(150))
def test_no_write_is_ever_in_two_lanes(seed: int) -> None:
    world = World(Settings(window=4, pauses=PAUSES, in_lanes=True), seed)
    world.run(40)
    check(world)
    for history in world.histories.values():
        freed = sum(what in ("elsewhere", "ended") for _, what in history.events)
        moves = sum(one != other for one, other in zip(history.lanes, history.lanes[1:], strict=False))
        assert moves <= freed


def test_the_runs_reach_every_verdict_and_more_than_one_lane() -> None:
    found: set[Verdict] = set()
    lanes = 0
    for seed in range(40):
        world = World(Settings(window=4, pauses=PAUSES, in_lanes=True), seed)
        world.run(40)
        found |= {verdict for history in world.histories.values() for _, verdict in history.verdicts}
        lanes = max(lanes, sum(bool(lane) for lane in world.lanes.values()))
    assert found == set(Verdict)
    assert lanes > 1

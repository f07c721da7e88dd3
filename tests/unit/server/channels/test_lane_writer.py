"""Groups of writes keep the order and each write once, through refusals, lost answers and changes of coordinator.

The lane here is a list that a write appends to once. What it does with a group is drawn at random within what a real
lane does: one that appends itself takes a prefix of a group and refuses the rest; behind another peer it takes or
refuses each write by itself, or takes it and the answer is lost.
"""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import pytest
from tests.unit.server.channels.channel_bench import run

from avow.errors import AvowError
from avow.node.answers import LOST, Answer, Done, Refusal
from avow.node.lane.two_phase_lane import Write
from avow.server.channels.lane_writer import LaneWriter, ProducerWrite
from avow.server.http.write_body import take_batch
from avow.wire.batch import encode_batch
from avow.wire.merge import merged_writes
from avow.wire.messages import Entry

OFFLINE = Refusal("OFFLINE")


class MadLane:
    """A port, a peer and a channel in one."""

    def __init__(self, seed: int, *, trouble: float = 0.3) -> None:
        self.rng, self.trouble = Random(seed), trouble
        self.stored: list[bytes] = []  # write ids, in the order of the lane
        self.attempts = 0
        self.failed: list[AvowError] = []
        self.here = True
        self._asked: list[tuple[int, list[bytes]]] = []
        self._callbacks: dict[int, Any] = {}
        self._request = 0
        self._scheduled = False

    # ------------------------------------------------------------------ a channel

    ended = False

    def fail(self, error: AvowError) -> None:
        self.failed.append(error)

    # ------------------------------------------------------------------ a peer

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def expect(self, callback: Any) -> int:
        self._request += 1
        self._callbacks[self._request] = callback
        return self._request

    def wake(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_later(0.001, self._perform)

    # ------------------------------------------------------------------ a port

    def appends_here(self, now: float) -> bool:
        self.here = self.rng.random() < 0.5
        return self.here

    def write(self, request: int, write: Write, now: float) -> None:
        self.attempts += 1
        entry = Entry(0, 0, write.kind, write.count, write.write_id, batch=write.batch)
        ids = [write_id for write_id, _, _ in merged_writes(entry)] or [write.write_id]
        self._asked.append((request, ids))

    def check(self) -> None:
        pass

    def _perform(self) -> None:
        self._scheduled = False
        asked, self._asked = self._asked, []
        refusing = False
        for request, ids in asked:
            refusing = refusing if self.here else False
            answer: Answer = Done(1, 1)
            if refusing or self.rng.random() < self.trouble:
                answer = self.rng.choice((OFFLINE, LOST))
                refusing = refusing or answer is OFFLINE or self.rng.random() < 0.5
            if answer is not OFFLINE and not refusing:
                self.stored += [write_id for write_id in ids if write_id not in self.stored]
            elif refusing and isinstance(answer, Done):
                answer = OFFLINE
            self._callbacks.pop(request)(answer)


def sent(ordinal: int, *, size: int = 10, age_ms: int = 0) -> ProducerWrite:
    write_id = ordinal.to_bytes(16, "big")
    return ProducerWrite(
        ordinal, take_batch(bytes(encode_batch([b"." * size], write_id=write_id))), write_id, age_ms, 0.0
    )


@pytest.mark.parametrize("seed", range(40))
def test_writes_are_stored_once_and_in_order_whatever_the_lane_answers(seed: int) -> None:
    rng = Random(seed)

    async def scenario() -> None:
        lane: Any = MadLane(seed)
        firsts: list[int] = []

        def on_done(writer: LaneWriter) -> None:
            firsts.append(writer.first if not writer.idle else 0)
            writer.send()

        writer = LaneWriter(lane, lane, lane, on_done)
        for ordinal in range(1, 201):
            writer.put(sent(ordinal, size=rng.choice((10, 10, 30_000)), age_ms=rng.choice((0, 0, 0, 100))))
            if rng.random() < 0.2:
                writer.send()
                await asyncio.sleep(0.001)
        for _ in range(10_000):
            if writer.idle or lane.failed:
                break
            writer.send()
            await asyncio.sleep(0.01)
        assert not lane.failed
        assert [int.from_bytes(write_id, "big") for write_id in lane.stored] == list(range(1, 201))
        assert [first for first in firsts if first] == sorted(first for first in firsts if first)

    run(scenario)


def test_a_permanent_refusal_is_reported_to_the_client() -> None:
    async def scenario() -> None:
        lane: Any = MadLane(1, trouble=0.0)
        writer = LaneWriter(lane, lane, lane, lambda _: None)
        writer.put(sent(1))
        writer.send()
        (request,) = lane._callbacks
        lane._callbacks.pop(request)(Refusal("INVALID_REQUEST"))
        assert [error.code for error in lane.failed] == ["INVALID_REQUEST"]

    run(scenario)


@pytest.mark.parametrize(
    ("answer", "code"), [(OFFLINE, "OFFLINE"), (Refusal("TOO_MANY"), "TOO_MANY"), (LOST, "UNKNOWN")]
)
def test_after_two_seconds_without_progress_the_client_goes_elsewhere(answer: Answer, code: str) -> None:
    async def scenario() -> None:
        lane: Any = MadLane(1)
        lane._perform = lambda: None
        writer = LaneWriter(lane, lane, lane, lambda _: None)
        writer.put(sent(1))
        writer.send()
        began = lane.now()
        for _ in range(1_000):
            if lane.failed:
                break
            for request in list(lane._callbacks):
                lane._callbacks.pop(request)(answer)
            await asyncio.sleep(0.01)
        assert [error.code for error in lane.failed] == [code]
        assert 2.0 <= lane.now() - began < 3.0
        assert lane.attempts > 5

    run(scenario)


def test_a_write_that_may_have_happened_is_not_reported_as_refused() -> None:
    """The first answer was lost and all later ones were refusals: the outcome is unknown."""

    async def scenario() -> None:
        lane: Any = MadLane(1)
        lane._perform = lambda: None
        writer = LaneWriter(lane, lane, lane, lambda _: None)
        writer.put(sent(1))
        writer.send()
        answers = iter((LOST,))
        for _ in range(1_000):
            if lane.failed:
                break
            for request in list(lane._callbacks):
                lane._callbacks.pop(request)(next(answers, OFFLINE))
            await asyncio.sleep(0.01)
        assert [error.code for error in lane.failed] == ["UNKNOWN"]

    run(scenario)

"""Whatever readers join, take over, leave and lag, no version is committed by two of them."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.queue.subscription_world import (
    JUMP,
    MESSAGES,
    Hold,
    PubSubWorld,
    Reader,
    Sent,
    TwoPhaseWorld,
    World,
    subscription_of,
)

from avow.queue.entry_outcome import Outcome
from avow.queue.subscriptions import Subscription, reader_of

# Events and their weights.
MIX = {"join": 4, "leave": 4, "learn": 32, "read": 40, "arrive": 40, "forget": 1, "person": 2, "takeover": 1}

seeds = st.integers(0, 2**32 - 1)  # a seed and a length, so that a failure shrinks to its shortest course


def run(world: World, *, seed: int, steps: int) -> None:
    random = Random(seed)
    happenings = random.choices(list(MIX), list(MIX.values()), k=steps)
    for happening in happenings:
        getattr(world, happening)(*random.randbytes(3))


@settings(max_examples=100, deadline=None)
@given(seeds, st.integers(500, 1500))
def test_no_version_of_a_two_phase_lane_is_committed_by_two_readers(seed: int, steps: int) -> None:
    run(TwoPhaseWorld(), seed=seed, steps=steps)


@settings(max_examples=100, deadline=None)
@given(seeds, st.integers(500, 1500))
def test_no_version_of_a_pub_sub_lane_is_committed_by_two_readers(seed: int, steps: int) -> None:
    run(PubSubWorld(), seed=seed, steps=steps)


@pytest.mark.parametrize("kind", [TwoPhaseWorld, PubSubWorld])
@settings(max_examples=25, deadline=None)
@given(seeds, st.integers(0, 300))
def test_the_last_reader_to_take_over_reads_everything(kind: type[World], seed: int, steps: int) -> None:
    world = kind()
    run(world, seed=seed, steps=steps)
    world.takeover(0, 0, 0)
    present = subscription_of(world.state)
    assert present is not None
    assert [member.channel for member in present.members] == [world.readers[-1].channel]
    for _ in range(2 * MESSAGES):
        for peer in range(3):
            world.learn(peer, JUMP - 1, 0)
        for reader in world.readers:
            for lane in world.lanes():
                world.step(reader, lane, 10)
        while world.under_way:
            world.arrive(0, 1, 0)
        if all(world.cursor(lane) == MESSAGES for lane in world.lanes()):
            return
    raise AssertionError(f"cursors {[world.cursor(lane) for lane in world.lanes()]} of {MESSAGES}")


# Each of these breaks one rule, and must be noticed


class NobodyIsFenced(TwoPhaseWorld):
    def take(self, sent: Sent) -> Outcome:
        return super().take(replace(sent, epoch=0))


class MovesTakeOver(TwoPhaseWorld):
    """A reader moves cursors with its subscription's present epoch, and a move with a higher one fences and moves."""

    def step(self, reader: Reader, lane: int, count: int) -> None:
        present, hold = self.own(reader, lane), reader.holds.get(lane)
        if present is not None and hold is not None:
            hold.epoch = present.epoch
        super().step(reader, lane, count)

    def take(self, sent: Sent) -> Outcome:
        super().take(replace(sent, version=0))
        return super().take(sent)


class KeptByName(PubSubWorld):
    """A reader that finds its lane still assigned to it continues, whatever happened since its last look."""

    def keeps(self, hold: Hold, present: Subscription, lane: int) -> bool:
        return reader_of(hold.seen, lane) == reader_of(present, lane)


class MemberIsEnough(PubSubWorld):
    """A move counts if the lane is the member's at present, whichever epoch it names."""

    def take(self, sent: Sent) -> Outcome:
        present = subscription_of(self.state)
        reader = reader_of(present, sent.lane) if present is not None else None
        own = sent.reader is not None and reader is not None and reader.name == sent.reader.name
        return super().take(replace(sent, epoch=present.epoch) if present is not None and own else sent)


@pytest.mark.parametrize("kind", [NobodyIsFenced, MovesTakeOver, KeptByName, MemberIsEnough])
def test_without_a_rule_two_readers_commit_the_same_message(kind: type[World]) -> None:
    def breaks(seed: int) -> bool:
        try:
            run(kind(), seed=seed, steps=1500)
        except AssertionError as found:
            return str(found).startswith("committed by two readers")
        return False

    assert any(breaks(seed) for seed in range(500))

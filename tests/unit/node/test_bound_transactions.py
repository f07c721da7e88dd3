"""Transactions over two lanes: one outcome in both, whichever peer dies between two steps and whatever expires."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.unit.node.node_cluster import NodeCluster

from avow.node.answers import Answer, Decided, Done, Refusal
from avow.node.lane.two_phase_lane import Write
from avow.node.node import Node
from avow.node.transactions import Wanted, home_of
from avow.queue.commands import BoundStageCommand, StageCommand, encode
from avow.queue.records import Queue
from avow.queue.transactions import Parts
from avow.replication.two_phase.core import COORDINATOR
from avow.wire.batch import encode_batch, unpack_entry
from avow.wire.messages import Kind

TXN = b"order-7"


class Wide:
    """A queue with two lanes on three nodes. `home` decides TXN, `other` follows."""

    def __init__(self) -> None:
        self.cluster = NodeCluster(3)
        self.cluster.run(2.0)
        first = self.cluster.create("wide", lanes=2)
        self.home = home_of(self.queue, TXN)
        self.other = first + (self.home == first)

    @property
    def queue(self) -> Queue:
        return next(iter(self.cluster.nodes.values())).metadata.state.catalog.by_name["wide"]

    def coordinator(self, lane: int) -> int:
        found: list[int] = []

        def known() -> bool:
            found[:] = [n for n, node in self.cluster.nodes.items() if node.lanes[lane].core.role == COORDINATOR]
            return bool(found)

        self.cluster.run_until(known)
        return found[0]

    def stage(self, lane: int, value: bytes, *, part: int = 0, deadline_s: float = 60.0, count: int = 1) -> Answer:
        deadline_ms = int((self.cluster.now + deadline_s) * 1000)
        control = encode(BoundStageCommand(TXN, deadline_ms, part, self.home))
        batch = unpack_entry(bytes(encode_batch([value]))).batch if count else b""
        write = Write(Kind.STAGE, b"", count, control=control, batch=batch)
        return self.ask(lambda node, request: node.write(request, lane, write, self.cluster.now))

    def stage_both(self, *, deadline_s: float = 60.0, part: int = 0) -> None:
        """As the API does: opened in the home lane first."""
        assert isinstance(self.stage(self.home, b"", count=0, deadline_s=deadline_s, part=part), Done)
        for lane in (self.home, self.other):
            assert isinstance(self.stage(lane, b"staged", deadline_s=deadline_s, part=part), Done)

    def ask(self, work: Callable[[Node, int], object], *, at: int = 0) -> Answer:
        return self.cluster.ask(at or min(self.cluster.nodes), work)

    def publish(self, *, at: int = 0, **wanted: object) -> Answer:
        asked = Wanted(**wanted)  # type: ignore[arg-type]
        return self.ask(lambda node, n: node.transactions.publish(n, self.queue, TXN, asked), at=at)

    def discard(self, *, at: int = 0) -> Answer:
        return self.ask(lambda node, n: node.transactions.discard(n, self.queue, TXN), at=at)

    def ends(self) -> list[tuple[int, int]]:
        """The visible versions of both lanes, at every node, without repetitions."""
        nodes = self.cluster.nodes.values()
        return sorted({(node.lanes[self.home].state.end, node.lanes[self.other].state.end) for node in nodes})

    def is_over(self) -> bool:
        return all(
            TXN not in node.lanes[lane].state.transactions.opened
            and TXN not in node.lanes[lane].state.transactions.following
            for node in self.cluster.nodes.values()
            for lane in (self.home, self.other)
        )


def both(wide: Wide) -> Decided:
    return Decided({wide.home: (1, 1), wide.other: (1, 1)})


def test_a_publish_makes_both_lanes_visible_and_is_answered_the_same_again() -> None:
    wide = Wide()
    wide.stage_both()
    assert wide.publish() == both(wide)
    wide.cluster.run_until(wide.is_over)  # the home lane forgets its followers
    assert wide.ends() == [(1, 1)]
    assert wide.publish(at=3) == both(wide)
    assert wide.discard() == Refusal("ALREADY_DECIDED", 1)
    assert wide.stage(wide.other, b"late") == Refusal("ALREADY_DECIDED", 1)


def test_a_discard_drops_both_lanes() -> None:
    wide = Wide()
    wide.stage_both()
    assert wide.discard() == Decided({wide.home: (0, 0), wide.other: (0, 0)})
    wide.cluster.run_until(wide.is_over)
    assert wide.publish() == Refusal("ALREADY_DECIDED")
    assert wide.ends() == [(0, 0)]


@pytest.mark.parametrize("part", [0, 4])
def test_only_the_home_lane_expires_and_the_other_follows(part: int) -> None:
    """Their stages name different deadlines: the later one counts, in both lanes."""
    wide = Wide()
    wide.stage(wide.home, b"", count=0, deadline_s=3.0, part=part)
    wide.stage(wide.other, b"staged", deadline_s=0.1, part=part)
    wide.cluster.run(2.0)
    assert TXN in wide.cluster.nodes[1].lanes[wide.other].state.transactions.opened  # it is past its deadline
    wide.cluster.run_until(wide.is_over)
    assert wide.publish() == Refusal("UNKNOWN_TRANSACTION" if part else "ALREADY_DECIDED")
    assert wide.ends() == [(0, 0)]


def test_a_transaction_that_the_home_lane_still_has_is_published_in_a_lane_past_its_deadline() -> None:
    wide = Wide()
    wide.stage_both(deadline_s=0.5)
    wide.stage(wide.home, b"", count=0, deadline_s=60.0)
    wide.cluster.run(3.0)
    assert wide.publish() == both(wide)


@pytest.mark.parametrize("frames", range(1, 60, 3))
def test_a_peer_that_dies_between_two_steps_leaves_one_outcome_in_both_lanes(frames: int) -> None:
    """The node that publishes dies after so many turns. The others complete what was decided, or it expires."""
    wide = Wide()
    wide.stage_both(deadline_s=4.0)
    node = wide.cluster.nodes[2]
    node.transactions.publish(1 << 40, wide.queue, TXN, Wanted())
    for _ in range(frames):
        wide.cluster.turn()
    wide.cluster.kill(2)
    wide.cluster.run_until(wide.is_over)
    assert wide.ends() in ([(0, 0)], [(1, 1)])
    published = isinstance(wide.publish(), Decided)
    assert wide.ends() == [(1, 1)] if published else [(0, 0)]


def test_parts_are_counted_over_all_lanes_or_named_for_each() -> None:
    for wanted in ({"parts": ((7, 2),)}, {"lanes": None}):
        wide = Wide()
        wide.stage_both(part=7)
        assert isinstance(wide.stage(wide.other, b"abandoned", part=8), Done)
        assert wide.publish(parts=((7, 3),)) == Refusal("INCOMPLETE")
        lanes: dict[int, Parts] = {wide.home: ((7, 1),), wide.other: ((7, 2),)}
        assert wide.publish(lanes=lanes) == Refusal("INCOMPLETE")
        refused = wide.publish(parts=((7, 1),), only=wide.home)
        assert isinstance(refused, Refusal)
        assert refused.code == "INVALID_REQUEST"
        assert wide.ends() == [(0, 0)]
        lanes = {wide.home: ((7, 1),), wide.other: ((7, 1),)}
        asked = wanted if "parts" in wanted else {"lanes": lanes}
        assert wide.publish(**asked) == both(wide)
        wide.cluster.run(1.0)
        assert wide.ends() == [(1, 1)]


def test_what_is_prepared_is_neither_dropped_nor_added_to() -> None:
    wide = Wide()
    wide.stage_both()
    [prepare] = [wide.cluster.nodes[1].transactions._step(wide.other, TXN, "prepare")]
    assert isinstance(wide.ask(lambda _, request: prepare(request)), Done)
    assert wide.stage(wide.other, b"too late") == Refusal("ALREADY_DECIDED")
    assert wide.publish() == both(wide)


def test_a_decision_about_an_earlier_transaction_of_the_same_name_is_refused() -> None:
    wide = Wide()
    wide.stage_both(part=1, deadline_s=0.5)
    driver = wide.cluster.nodes[1].transactions
    opened_at = wide.cluster.nodes[1].lanes[wide.home].state.transactions.opened[TXN].opened_at
    wide.cluster.run_until(wide.is_over)
    wide.stage_both(part=2)
    old = driver._step(wide.home, TXN, "decide", at=opened_at, lanes=((wide.other, 5),))
    assert wide.ask(lambda _, request: old(request)) == Refusal("UNKNOWN_TRANSACTION")
    assert wide.publish() == both(wide)


def test_a_transaction_from_before_the_level_was_raised_has_no_home() -> None:
    wide = Wide()
    write = Write(Kind.STAGE, b"", 1, control=encode(StageCommand(TXN, 10**15)), batch=b"x")
    assert isinstance(wide.ask(lambda node, n: node.write(n, wide.other, write, wide.cluster.now)), Done)
    wide.cluster.run(0.5)
    assert not wide.cluster.nodes[1].lanes[wide.other].state.transactions.opened[TXN].home

"""Whatever arrives from a link, a node does not raise: it refuses the frame with words, or tolerates it.

A node is not expected to work well among members that lie to it. It must not end, and must not store what it cannot
read back: the peers are killed and started again at the end of a seed.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from random import Random

import pytest
from tests.unit.node.hostile_frames import HostileFrames
from tests.unit.node.node_cluster import NodeCluster, data

from avow.node.node import Node
from avow.queue.commands import QueueCommand
from avow.wire.messages import Kind, Message

SEEDS = 12
FRAMES = 150


class BendingCluster(NodeCluster):
    """A share of what its nodes send is sent a second time with one field changed."""

    def __init__(self, *, seed: int) -> None:
        self.hostile = HostileFrames(seed)
        self.share = 0.0
        super().__init__(seed=seed)

    def _send(self, source: int, sends: Iterable[tuple[int, int, Message]]) -> None:
        for target, route, message in sends:
            self._frames.append((source, target, route, message))
            if self.hostile.random.random() < self.share and target in self.nodes:
                node = self.nodes[target]
                self._frames.append(
                    (source, target, *self.hostile.bend(node, source=source, route=route, message=message))
                )


def populated(*, seed: int) -> tuple[BendingCluster, int]:
    """Two-phase lanes, a pub-sub queue in which each peer wrote, and a queue that was deleted."""
    cluster = BendingCluster(seed=seed)
    cluster.run(2.0)
    lane = cluster.create("orders", lanes=2)
    cluster.create("events", strategy="pub-sub")
    cluster.create("gone")
    cluster.write_until_done(lane, b"a")
    for number in (1, 2, 3):
        cluster.ask(number, partial(_write_event, cluster.now))
    cluster.command(Kind.QUEUE, QueueCommand("delete", "gone"))
    return cluster, lane


def _write_event(now: float, node: Node, request: int) -> None:
    node.write_pubsub(request, "events", data(b"event", bytes([node.me]) * 16), now)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_no_well_formed_frame_makes_a_node_raise(seed: int) -> None:
    cluster, _ = populated(seed=seed)
    random, drawn = Random(seed), cluster.hostile
    for _ in range(FRAMES):
        target, source = random.sample((1, 2, 3, 4), 2)
        if target == 4:
            continue
        route, message = drawn.draw(cluster.nodes[target], source=source)
        cluster.nodes[target].receive(source, route, message, cluster.now)
        if random.random() < 0.5:
            cluster.settle()
        if random.random() < 0.3:
            cluster.run(0.05)
    for number in (1, 2, 3):
        cluster.kill(number)
        cluster.start(number, founders=cluster.founders)
    cluster.run(1.0)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_no_true_frame_with_one_wrong_field_makes_a_node_raise(seed: int) -> None:
    cluster, lane = populated(seed=seed)
    cluster.share = 0.02
    for number in range(30):
        request = 1_000_000 + number
        cluster.nodes[1 + number % 3].write(request, lane, data(b"more", bytes([number]) * 16), cluster.now)
        cluster.run(0.1)
        if number % 10 == 9:
            victim = 1 + number // 10 % 3
            cluster.kill(victim)
            cluster.start(victim, founders=cluster.founders)
    cluster.share = 0.0
    cluster.run(1.0)

"""Several pub-sub queues on the same peers: one run for all of them, and lanes on disk find their queue again."""

from __future__ import annotations

import pytest
from tests.unit.node.node_cluster import NodeCluster, data

from avow.node.answers import Done, Stored

QUEUES = ("clicks", "views")


def ready() -> NodeCluster:
    cluster = NodeCluster()
    cluster.run(2.0)
    for queue in QUEUES:
        cluster.create(queue, strategy="pub-sub")
    cluster.run_until(lambda: all(open_lanes(cluster, number) for number in cluster.nodes))
    return cluster


def open_lanes(cluster: NodeCluster, number: int) -> list[int]:
    held = cluster.nodes[number].pubsub
    lanes = [held[queue].open_lane if queue in held else 0 for queue in QUEUES]
    return lanes if all(lanes) else []


def write(cluster: NodeCluster, queue: str, value: bytes, *, at: int) -> int:
    """The lane it went to."""
    lane = cluster.nodes[at].pubsub[queue].open_lane
    answer = cluster.ask(at, lambda node, request: node.write_pubsub(request, queue, data(value, value), cluster.now))
    assert isinstance(answer, Stored | Done)
    cluster.run(0.3)
    return lane


@pytest.mark.parametrize("snapshot_every", [6, 10, 512])
def test_messages_of_every_queue_survive_a_restart_of_all_peers(
    monkeypatch: pytest.MonkeyPatch, snapshot_every: int
) -> None:
    """Even if a start knows the queues from a snapshot and learns of their last lanes only later."""
    monkeypatch.setattr("avow.node.lane_set.METADATA_SNAPSHOT_EVERY", snapshot_every)
    cluster = ready()
    cluster.kill(2)
    cluster.start(2, founders=cluster.founders)
    cluster.run_until(lambda: bool(open_lanes(cluster, 2)))
    cluster.run(3.0)
    lanes = {queue: write(cluster, queue, queue.encode().ljust(16), at=2) for queue in QUEUES}
    for number in (1, 2, 3):
        cluster.kill(number)
    for number in (1, 2, 3):
        cluster.start(number, founders=cluster.founders)
    cluster.run_until(lambda: all(open_lanes(cluster, number) for number in cluster.nodes))
    for queue, lane in lanes.items():
        for number in (1, 2, 3):
            cluster.run_until(lambda: cluster.values(lane, at=number) == [queue.encode().ljust(16)])  # noqa: B023


def test_a_peer_that_lost_one_queues_lane_opens_new_ones_in_all_of_them() -> None:
    cluster = ready()
    before = open_lanes(cluster, 3)
    cluster.cut = {(source, target) for source in (1, 2, 3) for target in (1, 2, 3) if 3 in (source, target)}
    cluster.run(4.0)
    cluster.cut = set()
    cluster.run_until(lambda: bool(open_lanes(cluster, 3)) and not set(open_lanes(cluster, 3)) & set(before))
    state = cluster.nodes[1].metadata.state
    cluster.run_until(lambda: all(state.lane(number).ended for number in before))
    for queue in QUEUES:
        lane = write(cluster, queue, b"again".ljust(16), at=3)
        assert cluster.values(lane, at=1) == [b"again".ljust(16)]

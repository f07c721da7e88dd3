"""An idle lane sends nothing: frames and ticks are counted on a virtual clock. What ends the quiet is below."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import pytest
from tests.unit.node.node_cluster import NodeCluster

from avow.errors import Offline
from avow.limits import CLAIMS_MAX, HEARTBEAT_FRESH_S, HEARTBEAT_INTERVAL_S
from avow.node.answers import Done, Refusal
from avow.replication.two_phase.core import COORDINATOR
from avow.wire.messages import Message
from avow.wire.versions import FIRST, NEWEST

LANES = 300


class CountingCluster(NodeCluster):
    def __init__(self, founders: int = 3, *, seed: int = 1) -> None:
        self.frames: Counter[tuple[int, int, int]] = Counter()  # (source, target, route)
        super().__init__(founders, seed=seed)

    def _send(self, source: int, sends: Iterable[tuple[int, int, Message]]) -> None:
        sends = list(sends)
        self.frames.update((source, target, route) for target, route, _ in sends)
        super()._send(source, sends)

    def sent(self, seconds: float) -> Counter[tuple[int, int, int]]:
        self.frames.clear()
        self.run(seconds)
        return Counter(self.frames)

    def coordinators(self, lanes: Iterable[int], *, at: int = 1) -> set[int]:
        return {self.nodes[at].lanes[lane].core.live_coordinator(self.now) for lane in lanes}


@pytest.fixture
def many() -> tuple[CountingCluster, range]:
    cluster = CountingCluster()
    cluster.run_until(lambda: cluster.nodes[1].metadata.core.live_coordinator(cluster.now))
    first = cluster.create("many", lanes=LANES)
    cluster.run(2.0)
    return cluster, range(first, first + LANES)


def test_an_idle_cluster_sends_one_heartbeat_to_each_peer_whatever_the_number_of_lanes(
    many: tuple[CountingCluster, range],
) -> None:
    cluster, _ = many
    sent = cluster.sent(5.0)
    assert {route for _, _, route in sent} == {0}
    assert all(count <= 5.0 / HEARTBEAT_INTERVAL_S + 1 for count in sent.values())


def test_an_idle_lane_is_not_ticked(many: tuple[CountingCluster, range]) -> None:
    cluster, _ = many
    before = {number: node.mux.due.taken for number, node in cluster.nodes.items()}
    cluster.run(5.0)
    taken = [node.mux.due.taken - before[number] for number, node in cluster.nodes.items()]
    assert max(taken) <= 5.0 / HEARTBEAT_INTERVAL_S + 1  # those of the metadata lane


def test_the_coordinators_of_new_lanes_are_spread_over_the_peers(many: tuple[CountingCluster, range]) -> None:
    cluster, lanes = many
    coordinators = Counter(cluster.nodes[1].lanes[lane].core.live_coordinator(cluster.now) for lane in lanes)
    assert set(coordinators) == {1, 2, 3}
    assert max(coordinators.values()) <= LANES / 2


def test_a_write_wakes_its_lane_alone_and_all_peers_learn_the_cursor(many: tuple[CountingCluster, range]) -> None:
    cluster, lanes = many
    cluster.frames.clear()
    assert isinstance(cluster.write(lanes[7], b"a"), Done)
    cluster.run(1.0)
    assert {route for _, _, route in cluster.frames} == {0, lanes[7]}
    assert all(node.lanes[lanes[7]].state.end == 1 for node in cluster.nodes.values())
    assert {route for _, _, route in cluster.sent(1.0)} == {0}


def test_a_dead_peers_quiet_lanes_get_another_coordinator(many: tuple[CountingCluster, range]) -> None:
    cluster, lanes = many
    cluster.kill(3)
    cluster.run(5.0)
    assert cluster.coordinators(lanes) == {1, 2} == cluster.coordinators(lanes, at=2)
    assert {route for _, _, route in cluster.sent(1.0)} == {0}


def test_a_peer_that_comes_back_learns_the_coordinators_and_what_it_missed(many: tuple[CountingCluster, range]) -> None:
    cluster, lanes = many
    cluster.kill(3)
    cluster.run(5.0)
    cluster.write_until_done(lanes[0], b"missed")
    cluster.start(3)
    cluster.run(5.0)
    assert cluster.coordinators(lanes, at=3) == {1, 2}
    assert cluster.nodes[3].lanes[lanes[0]].state.end == 1
    assert {route for _, _, route in cluster.sent(1.0)} == {0}


def test_a_peer_that_restarts_at_once_is_not_believed_to_coordinate_what_its_last_run_did(
    many: tuple[CountingCluster, range],
) -> None:
    cluster, lanes = many
    mine = [lane for lane in lanes if cluster.nodes[3].lanes[lane].core.live_coordinator(cluster.now) == 3]
    cluster.kill(3)
    node = cluster.start(3)
    for number in (1, 2):
        cluster.nodes[number].met(3, run=node.incarnation - 1, version=NEWEST)
        cluster.nodes[number].met(3, run=node.incarnation, version=NEWEST)
        assert cluster.coordinators(mine, at=number) == {0}
    cluster.run(3.0)
    assert cluster.coordinators(mine) <= {1, 2, 3}


def test_a_peer_that_is_cut_off_refuses_writes_to_its_quiet_lanes(many: tuple[CountingCluster, range]) -> None:
    cluster, lanes = many
    mine = next(lane for lane in lanes if cluster.nodes[3].lanes[lane].core.live_coordinator(cluster.now) == 3)
    cluster.cut.update({(3, 1), (1, 3), (3, 2), (2, 3)})
    cluster.run(2 * HEARTBEAT_FRESH_S)
    assert cluster.write(mine, b"a", at=3) == Refusal(Offline.code)
    cluster.run(1.0)
    assert cluster.nodes[3].lanes[mine].core.live_coordinator(cluster.now) == 0


def test_a_linearizable_read_of_a_quiet_lane_is_confirmed_by_a_quorum(many: tuple[CountingCluster, range]) -> None:
    cluster, lanes = many
    cluster.write_until_done(lanes[3], b"a")
    cluster.run(2.0)
    for at in (1, 2, 3):
        asked = cluster.ask(
            at, lambda node, request: node.reach(request, lanes[3], level="linearizable", version=0, now=cluster.now)
        )
        assert asked == Done(1, 1)


def test_a_peer_with_a_full_disk_gives_its_quiet_lanes_away(many: tuple[CountingCluster, range]) -> None:
    cluster, lanes = many
    cluster.nodes[3].disk_full(full=True)
    cluster.run(5.0)
    assert cluster.coordinators(lanes) == {1, 2}


def test_lanes_with_a_peer_of_an_older_release_keep_their_own_heartbeats(many: tuple[CountingCluster, range]) -> None:
    cluster, lanes = many
    for number in (1, 2):
        cluster.nodes[number].met(3, run=1, version=FIRST)
    sent = cluster.sent(1.0)
    for lane in lanes:
        assert sent[1, 3, lane] >= 0.8 / HEARTBEAT_INTERVAL_S


def test_a_peer_claims_a_bounded_number_of_lanes_at_a_time(many: tuple[CountingCluster, range]) -> None:
    cluster, lanes = many
    elsewhere = range(10_000, 10_000 + CLAIMS_MAX)
    cluster.nodes[1].peers.claiming.update(elsewhere)
    cluster.kill(3)
    cluster.run(5.0)
    of_the_dead = [lane for lane in lanes if cluster.nodes[2].lanes[lane].core.role == COORDINATOR]
    assert len(of_the_dead) > LANES / 2
    assert cluster.nodes[1].peers.claiming == {*elsewhere}
    assert not cluster.nodes[2].peers.claiming
    assert cluster.coordinators(lanes) == {1, 2}

"""A peer says that it knows what the metadata lane decided only when it does: "no such queue" is believed."""

from __future__ import annotations

import pytest
from tests.unit.node.node_cluster import NodeCluster

from avow.errors import Offline
from avow.node.node import Node
from avow.replication.durable import Synced


class Watched(NodeCluster):
    """Looks at every peer around everything that happens to it."""

    watching = False
    said_current = 0

    def _synced(self, node: Node, proof: Synced) -> None:
        self.look(node)
        super()._synced(node, proof)
        self.look(node)

    def look(self, node: Node) -> None:
        if not self.watching:
            return
        try:
            node.metadata.check_current(self.now)
        except Offline:
            return
        self.said_current += 1
        assert "orders" in node.metadata.state.catalog.by_name, f"peer {node.me} at {self.now:.2f}"


@pytest.mark.parametrize("founders", [1, 3])
@pytest.mark.parametrize("seed", range(5))
def test_after_a_full_restart_no_peer_calls_an_existing_queue_unknown(founders: int, seed: int) -> None:
    cluster = Watched(founders, seed=seed)
    cluster.run(2.0)
    cluster.create("orders")
    for number in cluster.founders:
        cluster.kill(number)
    cluster.watching = True
    for number in cluster.founders:
        cluster.start(number, founders=cluster.founders)
    cluster.run(5.0)
    assert cluster.said_current
    for node in cluster.nodes.values():
        node.metadata.check_current(cluster.now)


def test_one_peer_of_three_does_not_know_what_the_others_decided() -> None:
    cluster = Watched()
    cluster.run(2.0)
    cluster.kill(2)
    cluster.kill(3)
    cluster.run(5.0)
    with pytest.raises(Offline, match="cannot reach the coordinator"):
        cluster.nodes[1].metadata.check_current(cluster.now)

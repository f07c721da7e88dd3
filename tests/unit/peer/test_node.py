"""Three nodes and more, in one process: queues come and go, members come and go, everything is read on every peer."""

from node_cluster import NodeCluster, data

from avow.peer.answers import Done, Refusal
from avow.peer.lane import Write
from avow.queue.commands import PeerCommand, QueueCommand, TrimCommand, encode
from avow.wire.messages import Kind


def test_a_queue_created_at_one_peer_can_be_written_and_read_at_all() -> None:
    cluster = NodeCluster()
    cluster.run(2.0)
    lane = cluster.create("orders")
    for number in (1, 2, 3):
        assert isinstance(cluster.write(lane, b"from %d" % number, at=number), Done)
    cluster.run(0.5)
    assert {tuple(cluster.values(lane, at=n)) for n in (1, 2, 3)} == {(b"from 1", b"from 2", b"from 3")}


def test_every_peer_announces_itself_in_the_metadata_lane() -> None:
    cluster = NodeCluster()
    cluster.run(3.0)
    for node in cluster.nodes.values():
        states = {info.number: (info.state, info.api) for info in node.metadata.state.peers.by_number.values()}
        assert states == {n: ("ready", f"http://h:{n}") for n in (1, 2, 3)}


def test_writes_survive_the_coordinator_and_a_restart_of_everyone() -> None:
    cluster = NodeCluster()
    cluster.run(2.0)
    lane = cluster.create("orders", lanes=2)
    cluster.write_until_done(lane, b"a")
    coordinator = cluster.nodes[1].lanes[lane].core.live_coordinator(cluster.now)
    cluster.kill(coordinator)
    survivor = next(iter(cluster.nodes))
    cluster.write_until_done(lane, b"b", at=survivor)
    for number in list(cluster.nodes):
        cluster.kill(number)
    for number in (1, 2, 3):
        cluster.start(number, founders=cluster.founders)
    cluster.write_until_done(lane, b"c")
    cluster.run(1.0)
    assert all(cluster.values(lane, at=n) == [b"a", b"b", b"c"] for n in (1, 2, 3))


def test_two_pub_sub_queues_and_a_two_phase_queue_share_one_peer() -> None:
    cluster = NodeCluster()
    cluster.run(2.0)
    cluster.create("clicks", strategy="pub-sub")
    cluster.create("views", strategy="pub-sub")
    cluster.create("orders")
    cluster.run(2.0)
    for queue in ("clicks", "views"):
        for number in (1, 2, 3):
            node = cluster.nodes[number]
            lane = node.pubsub[queue].open_lane
            assert lane
            cluster.ask(number, lambda n, r, q=queue: n.write_pubsub(r, q, data(b"v", b"%16d" % n.me), cluster.now))
            cluster.run(0.3)
            assert all(cluster.values(lane, at=other) == [b"v"] for other in (1, 2, 3))


def test_a_deleted_queue_is_gone_everywhere_and_its_name_can_be_used_again() -> None:
    cluster = NodeCluster()
    cluster.run(2.0)
    lane = cluster.create("orders")
    cluster.write_until_done(lane, b"old")
    assert isinstance(cluster.command(Kind.QUEUE, QueueCommand("delete", "orders")), Done)
    cluster.run(0.5)
    assert all(lane not in node.lanes for node in cluster.nodes.values())
    again = cluster.create("orders")
    assert again != lane
    cluster.write_until_done(again, b"new")
    cluster.run(0.5)
    assert all(cluster.values(again, at=n) == [b"new"] for n in (1, 2, 3))


def test_a_fourth_and_a_fifth_peer_join_and_two_leave() -> None:
    cluster = NodeCluster()
    cluster.run(2.0)
    lane = cluster.create("orders")
    cluster.create("clicks", strategy="pub-sub")
    written = [b"%d" % number for number in range(20)]
    for value in written:
        cluster.write_until_done(lane, value)
    for number in (4, 5):
        cluster.join(number)
        cluster.run_until(lambda n=number: n in cluster.members(lane) and n in cluster.nodes[1].metadata.state.voters)
    for number in (2, 3):
        assert isinstance(cluster.command(Kind.PEER, PeerCommand("leave", number)), Done)
        cluster.run_until(lambda n=number: cluster.nodes[1].metadata.state.peers.by_number[n].state == "gone")
        cluster.kill(number)
    assert cluster.members(lane) == cluster.nodes[1].metadata.state.voters == (1, 4, 5)
    cluster.write_until_done(lane, b"last", at=4)
    cluster.run(1.0)
    assert all(cluster.values(lane, at=n) == [*written, b"last"] for n in (1, 4, 5))


def test_a_lane_held_by_some_peers_only_is_refused_at_the_others() -> None:
    cluster = NodeCluster()
    cluster.run(2.0)
    lane = cluster.create("orders", peers=(1, 2))
    cluster.write_until_done(lane, b"a")
    assert lane not in cluster.nodes[3].lanes
    answer = cluster.write(lane, b"b", at=3)
    assert isinstance(answer, Refusal)
    assert answer.code == "OFFLINE"


def test_a_lane_with_too_many_batches_refuses_more_until_it_is_trimmed() -> None:
    cluster = NodeCluster()
    cluster.run(2.0)
    lane = cluster.create("orders")
    for node in cluster.nodes.values():
        node.lanes[lane].visible_batches_max = 3
    for value in (b"a", b"b", b"c"):
        cluster.write_until_done(lane, value)
    refused = cluster.write(lane, b"d", write_id=b"d" * 16)
    assert isinstance(refused, Refusal)
    assert refused.code == "TOO_MANY"
    trim = Write(Kind.TRIM, b"t" * 16, control=encode(TrimCommand(2)))
    assert isinstance(cluster.ask(1, lambda node, request: node.write(request, lane, trim, cluster.now)), Done)
    assert isinstance(cluster.write(lane, b"d", write_id=b"d" * 16), Done)


def test_a_peer_that_leaves_goes_on_listening_until_it_has_let_go_of_every_lane() -> None:
    cluster = NodeCluster()
    cluster.run(2.0)
    lanes = [cluster.create(f"q{number}") for number in range(4)]
    leaver = next(n for n in cluster.nodes if n != 1)
    assert isinstance(cluster.command(Kind.PEER, PeerCommand("leave", leaver)), Done)
    cluster.run_until(lambda: cluster.nodes[1].metadata.state.peers.by_number[leaver].state == "gone")
    assert cluster.nodes[leaver].metadata.state.peers.by_number[leaver].state in ("leaving", "gone")
    others = tuple(sorted(set(cluster.nodes) - {leaver}))
    assert all(cluster.members(lane) == others for lane in lanes)
    cluster.run(1.0)
    assert cluster.nodes[1].metadata.core.members.everyone == others

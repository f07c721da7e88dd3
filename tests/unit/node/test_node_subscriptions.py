"""Readers of a subscriber across three nodes: agreed upon, fenced in the lanes, and forgotten with their peer."""

from __future__ import annotations

from math import inf

from tests.unit.node.node_cluster import NodeCluster

from avow.limits import SUBSCRIPTION_SILENT_S
from avow.node.answers import Answer, Done, Refusal
from avow.node.lane.two_phase_lane import Write
from avow.queue.commands import (
    CursorCommand,
    LaneCursorsCommand,
    PeerCommand,
    SubscriptionCommand,
    encode,
)
from avow.wire.messages import Kind


def channel(number: int) -> bytes:
    return number.to_bytes(16, "big")


def running(*, strategy: str = "two-phase") -> tuple[NodeCluster, int]:
    cluster = NodeCluster()
    cluster.run(2.0)
    first = cluster.create("orders", strategy=strategy)
    cluster.run(1.0)
    return cluster, first


def join(cluster: NodeCluster, member: str, number: int, *, peer: int, at: int = 0) -> int:
    """The epoch it got."""
    command = SubscriptionCommand("orders", "billing", member, peer, channel(number), "join")
    answer = cluster.command(Kind.SUBSCRIPTION, command, at=at or peer)
    assert isinstance(answer, Done), answer
    return answer.last_version


def move(cluster: NodeCluster, lane: int, version: int, *, epoch: int, at: int) -> Answer:
    write = Write(
        Kind.CURSOR, cluster.rng.randbytes(16), control=encode(CursorCommand("billing", version, epoch=epoch))
    )
    return cluster.ask(at, lambda node, request: node.write(request, lane, write, cluster.now))


def readers(cluster: NodeCluster, *, at: int) -> list[tuple[str, int, bytes]]:
    found = cluster.nodes[at].metadata.state.catalog.readers()
    return [(member.name, member.peer, member.channel) for _, _, member in found]


def coordinator(cluster: NodeCluster) -> int:
    found = cluster.nodes[1].metadata.core.live_coordinator(cluster.now)
    assert found
    return found


def test_every_peer_knows_the_readers_and_their_log_position_is_the_epoch() -> None:
    cluster, _ = running()
    first = join(cluster, "a", 1, peer=2)
    second = join(cluster, "b", 2, peer=3)
    assert second > first
    cluster.run(0.5)
    for node in cluster.nodes.values():
        assert node.metadata.applied >= second
        assert node.metadata.state.catalog.by_name["orders"].subscriptions["billing"].epoch == second
    assert {tuple(readers(cluster, at=n)) for n in (1, 2, 3)} == {(("a", 2, channel(1)), ("b", 3, channel(2)))}


def test_a_replaced_reader_is_fenced_at_every_peer() -> None:
    cluster, lane = running()
    for value in (b"one", b"two", b"three"):
        cluster.write_until_done(lane, value)
    old = join(cluster, "", 1, peer=2)
    assert move(cluster, lane, 0, epoch=old, at=2) == Done(0, 0)
    assert move(cluster, lane, 1, epoch=old, at=2) == Done(0, 1)
    new = join(cluster, "", 2, peer=3)
    assert move(cluster, lane, 0, epoch=new, at=3) == Done(0, 1)
    for peer in (1, 2, 3):
        refused = move(cluster, lane, 2, epoch=old, at=peer)
        assert isinstance(refused, Refusal)
        assert refused.code == "FENCED"
    assert move(cluster, lane, 3, epoch=new, at=3) == Done(0, 3)


def test_a_replaced_reader_of_a_pub_sub_queue_is_fenced() -> None:
    cluster, _ = running(strategy="pub-sub")
    lane = cluster.nodes[1].pubsub["orders"].open_lane
    assert lane
    old = join(cluster, "", 1, peer=2)
    move = LaneCursorsCommand("orders", "billing", ((lane, 1),), epoch=old)
    assert isinstance(cluster.command(Kind.CURSOR, move, at=2), Done)
    join(cluster, "", 2, peer=3)
    refused = cluster.command(Kind.CURSOR, move, at=2)
    assert isinstance(refused, Refusal)
    assert refused.code == "FENCED"


def test_readers_at_a_silent_peer_are_forgotten_after_a_timeout_and_others_stay() -> None:
    cluster, _ = running()
    lost = next(n for n in (1, 2, 3) if n != coordinator(cluster))
    stays = next(n for n in (1, 2, 3) if n != lost)
    join(cluster, "a", 1, peer=lost, at=stays)
    join(cluster, "b", 2, peer=stays)
    cluster.kill(lost)
    cluster.run(SUBSCRIPTION_SILENT_S - 1.0)
    assert len(readers(cluster, at=stays)) == 2
    cluster.run_until(lambda: readers(cluster, at=stays) == [("b", stays, channel(2))], seconds=3.0)


def test_readers_at_a_lost_coordinator_are_forgotten_by_the_next_one() -> None:
    cluster, _ = running()
    lost = coordinator(cluster)
    stays = next(n for n in (1, 2, 3) if n != lost)
    join(cluster, "a", 1, peer=lost)
    cluster.kill(lost)
    cluster.run(SUBSCRIPTION_SILENT_S - 1.0)
    assert readers(cluster, at=stays), "the new coordinator has not waited long enough"
    cluster.run_until(lambda: not readers(cluster, at=stays), seconds=5.0)


def test_peers_with_heartbeats_keep_their_readers() -> None:
    cluster, _ = running()
    for peer in (1, 2, 3):
        join(cluster, f"m{peer}", peer, peer=peer)
    cluster.run(2 * SUBSCRIPTION_SILENT_S)
    assert len(readers(cluster, at=1)) == 3


def test_readers_at_a_removed_peer_are_forgotten_at_once() -> None:
    cluster, _ = running()
    leaver = next(n for n in (2, 3) if n != coordinator(cluster))
    join(cluster, "a", 1, peer=leaver)
    assert isinstance(cluster.command(Kind.PEER, PeerCommand("leave", leaver)), Done)
    state = cluster.nodes[1].metadata.state
    cluster.run_until(lambda: state.peers.by_number[leaver].state == "gone")
    cluster.run_until(lambda: not readers(cluster, at=1), seconds=3.0)


def test_a_channel_that_its_peer_does_not_know_leaves() -> None:
    """As after a restart: the peer is back before anybody missed it, its channels are not."""
    cluster, _ = running()
    join(cluster, "old", 1, peer=2)
    join(cluster, "alive", 2, peer=2)
    join(cluster, "elsewhere", 3, peer=3)
    cluster.run(2.0)
    assert len(readers(cluster, at=1)) == 3, "nobody says which channels are open"
    cluster.nodes[2].housekeeping.channels = {channel(2): inf}
    cluster.run_until(lambda: len(readers(cluster, at=1)) == 2, seconds=3.0)
    cluster.run(2.0)
    assert readers(cluster, at=1) == [("alive", 2, channel(2)), ("elsewhere", 3, channel(3))]


def test_a_peer_not_yet_heard_in_this_run_gets_the_same_timeout() -> None:
    cluster, _ = running()
    join(cluster, "a", 1, peer=3)
    cluster.run(SUBSCRIPTION_SILENT_S)
    for number in (1, 2, 3):
        cluster.kill(number)
    for number in (1, 2):
        cluster.start(number, founders=cluster.founders)
    cluster.run(SUBSCRIPTION_SILENT_S - 1.0)
    assert readers(cluster, at=1) == [("a", 3, channel(1))]
    cluster.run_until(lambda: not readers(cluster, at=1), seconds=5.0)

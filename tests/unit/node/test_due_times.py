"""A tick costs what is due: lanes with nothing to do are not ticked, and a queue more does not look at all others."""

from __future__ import annotations

from math import inf

from tests.unit.node.node_cluster import NodeCluster

from avow.node.due_times import DueTimes


def test_routes_are_due_in_the_order_of_their_times() -> None:
    due = DueTimes()
    for route, at in ((1, 3.0), (2, 1.0), (3, 2.0), (4, 9.0)):
        due.note(route, at)
    assert due.take(3.0) == [2, 3, 1]
    assert due.take(3.0) == []


def test_only_the_earliest_time_of_a_route_counts() -> None:
    due = DueTimes()
    due.note(1, 5.0)
    due.note(1, 2.0)
    due.note(1, 7.0)
    assert due.take(6.0) == [1]
    assert due.take(10.0) == []


def test_a_forgotten_route_and_one_with_nothing_to_do_are_never_due() -> None:
    due = DueTimes()
    due.note(1, 1.0)
    due.forget(1)
    due.note(2, inf)
    assert due.take(1e9) == []


def test_the_lanes_of_a_new_queue_are_opened_a_part_at_a_time() -> None:
    cluster = NodeCluster(1)
    cluster.run(1.0)
    node = cluster.nodes[1]
    first = cluster.create("many", lanes=200)
    opened = {len(node.lanes)}
    while node.queues.unopened:
        cluster.run(0.01)
        opened.add(len(node.lanes))
    assert sorted(node.lanes) == list(range(first, first + 200))


def test_a_queue_that_is_deleted_while_its_lanes_are_opened_leaves_nothing() -> None:
    from avow.queue.commands import QueueCommand, RetentionRules
    from avow.wire.messages import Kind

    cluster = NodeCluster(1)
    cluster.run(1.0)
    node = cluster.nodes[1]
    cluster.command(Kind.QUEUE, QueueCommand("create", "many", "two-phase", 1_000, RetentionRules(), ()))
    assert 0 < len(node.lanes) < 1_000
    cluster.command(Kind.QUEUE, QueueCommand("delete", "many", "two-phase", 1, RetentionRules(), ()))
    assert (len(node.lanes), len(node.queues.unopened), len(node.queues.by_lane)) == (0, 0, 0)

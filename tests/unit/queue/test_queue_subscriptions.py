"""Subscriptions: joins, takeovers, leaves, and the assignment of lanes to members."""

from __future__ import annotations

import struct

import msgspec
import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.queue.queue_entries import PROPERTY, Step, command

from avow.queue.commands import (
    LaneCursorsCommand,
    LaneOpenCommand,
    QueueCommand,
    Strategy,
    SubscriptionAction,
    SubscriptionCommand,
)
from avow.queue.entry_outcome import DONE, Outcome
from avow.queue.metadata_state import MetadataBounds, MetadataState
from avow.queue.subscriptions import Member, Subscription, kept, lanes_of, reader_of
from avow.wire.messages import Kind


def channel(number: int) -> bytes:
    return number.to_bytes(16, "big")


def founded(strategy: Strategy = "two-phase", bounds: MetadataBounds | None = None) -> MetadataState:
    """One queue, q, whose entry has position 1."""
    state = MetadataState(voters=(1, 2, 3), bounds=bounds)
    apply(state, command(Kind.QUEUE, QueueCommand("create", "q", strategy)))
    return state


def apply(state: MetadataState, *steps: Step) -> list[Outcome]:
    return [state.apply(step.at(state.position + 1)) for step in steps]


def change(
    action: SubscriptionAction, member: str, number: int, *, peer: int = 1, subscriber: str = "x", queue: str = "q"
) -> Step:
    value = SubscriptionCommand(queue, subscriber, member, peer, channel(number), action)
    return command(Kind.SUBSCRIPTION, value)


def joins(member: str, number: int, *, peer: int = 1, subscriber: str = "x") -> Step:
    return change("join", member, number, peer=peer, subscriber=subscriber)


def leaves(member: str, number: int) -> Step:
    return change("leave", member, number)


def forgets(peer: int) -> Step:
    return command(Kind.SUBSCRIPTION, SubscriptionCommand("", "", "", peer, b"", "forget"))


def moves(lane: int, version: int, *, epoch: int, member: str = "") -> Step:
    return command(Kind.CURSOR, LaneCursorsCommand("q", "x", ((lane, version),), epoch=epoch, member=member))


def subscription(state: MetadataState, subscriber: str = "x") -> Subscription | None:
    queue = state.queue("q")
    assert queue is not None
    return queue.subscriptions.get(subscriber)


def names(state: MetadataState, subscriber: str = "x") -> list[str]:
    found = subscription(state, subscriber)
    return [member.name for member in found.members] if found is not None else []


def codes(outcomes: list[Outcome]) -> list[str]:
    return [outcome.code for outcome in outcomes]


# Joining and leaving


def test_a_join_answers_the_epoch_which_is_the_position_of_its_entry() -> None:
    state = founded()
    assert apply(state, joins("b", 1), joins("a", 2, peer=3)) == [Outcome("", 0, 2), Outcome("", 0, 3)]
    assert subscription(state) == Subscription(3, (Member("a", 3, channel(2), 3), Member("b", 1, channel(1), 2)), 2)


def test_a_repeated_join_keeps_the_epoch_and_returns_it() -> None:
    state = founded()
    apply(state, joins("a", 1), joins("b", 2))
    before = subscription(state)
    assert apply(state, joins("a", 1)) == [Outcome("", 0, 3)]
    assert subscription(state) == before
    apply(state, joins("", 9))
    taken_over = subscription(state)
    assert taken_over is not None
    assert apply(state, joins("", 9)) == [Outcome("", 0, taken_over.epoch)]
    assert subscription(state) == taken_over


def test_a_join_without_a_name_replaces_all_members() -> None:
    state = founded()
    apply(state, joins("a", 1), joins("b", 2), joins("", 3, peer=2))
    assert subscription(state) == Subscription(4, (Member("", 2, channel(3), 4),), 3)
    apply(state, joins("", 4))
    assert subscription(state) == Subscription(5, (Member("", 1, channel(4), 5),), 4)


def test_a_join_with_a_name_replaces_its_namesake_and_a_reader_without_a_name() -> None:
    state = founded()
    apply(state, joins("", 1), joins("a", 2), joins("b", 3))
    assert names(state) == ["a", "b"]
    apply(state, joins("a", 4, peer=2))
    found = subscription(state)
    assert found is not None
    assert found.members == (Member("a", 2, channel(4), 5), Member("b", 1, channel(3), 4))


def test_the_same_channel_at_another_peer_is_another_reader() -> None:
    state = founded()
    assert [outcome.last_version for outcome in apply(state, joins("a", 1), joins("a", 1, peer=2))] == [2, 3]


def test_a_leave_counts_only_for_the_present_channel() -> None:
    state = founded()
    apply(state, joins("a", 1), joins("b", 2), joins("a", 3))
    before = subscription(state)
    assert apply(state, leaves("a", 1), leaves("c", 3), change("leave", "a", 1, queue="none")) == [DONE] * 3
    assert subscription(state) == before
    apply(state, leaves("a", 3))
    assert subscription(state) == Subscription(8, (Member("b", 1, channel(2), 3),), 4)


def test_an_epoch_is_never_reused_even_after_all_members_left() -> None:
    state = founded()
    apply(state, joins("a", 1), leaves("a", 1))
    assert subscription(state) is None
    assert apply(state, joins("a", 1)) == [Outcome("", 0, 4)]
    assert subscription(state) == Subscription(4, (Member("a", 1, channel(1), 4),), 0)


def test_a_peer_is_forgotten_in_every_queue_and_for_every_subscriber() -> None:
    state = founded()
    apply(state, command(Kind.QUEUE, QueueCommand("create", "r")))
    apply(
        state,
        joins("a", 1),
        joins("b", 2, peer=2),
        joins("a", 3, subscriber="y"),
        joins("a", 4, subscriber="z", peer=2),
    )
    apply(state, change("join", "a", 5, queue="r"))
    untouched = subscription(state, "z")
    assert apply(state, forgets(1), forgets(9)) == [DONE, DONE]
    assert [(queue, reader, member.name) for queue, reader, member in state.catalog.readers()] == [
        ("q", "x", "b"),
        ("q", "z", "a"),
    ]
    found = subscription(state)
    assert found is not None
    assert found.epoch == 8
    assert subscription(state, "z") == untouched


def test_a_join_needs_a_queue_a_subscriber_and_a_whole_channel_id() -> None:
    state = founded()
    short = command(Kind.SUBSCRIPTION, SubscriptionCommand("q", "x", "a", 1, b"short", "join"))
    asked = [change("join", "a", 1, queue="none"), joins("a", 1, subscriber=""), short]
    assert codes(apply(state, *asked)) == ["UNKNOWN_QUEUE", "INVALID_REQUEST", "INVALID_REQUEST"]
    assert list(state.catalog.readers()) == []


def test_members_and_subscriptions_are_bounded_and_members_may_be_replaced() -> None:
    state = founded(bounds=MetadataBounds(members=2, subscriptions=2))
    asked = [joins("a", 1), joins("b", 2), joins("c", 3), joins("b", 4), joins("", 5), joins("a", 6)]
    assert codes(apply(state, *asked)) == ["", "", "TOO_MANY", "", "", ""]
    asked = [joins("a", 1, subscriber="y"), joins("a", 1, subscriber="z"), leaves("a", 6)]
    assert codes(apply(state, *asked, joins("a", 1, subscriber="z"))) == ["", "TOO_MANY", "", ""]


def test_a_queue_is_deleted_with_its_subscriptions_and_its_successor_has_later_epochs() -> None:
    state = founded()
    apply(state, joins("a", 1), command(Kind.QUEUE, QueueCommand("delete", "q")))
    apply(state, command(Kind.QUEUE, QueueCommand("create", "q")))
    assert subscription(state) is None
    assert apply(state, joins("a", 1)) == [Outcome("", 0, 5)]


def test_other_commands_do_not_mark_subscriptions_as_changed() -> None:
    state = founded()
    apply(state, joins("a", 1))
    assert state.subscribed_at == 2
    apply(state, Step(Kind.NOOP), command(Kind.CURSOR, LaneCursorsCommand("q", "x")))
    assert state.subscribed_at == 2
    assert MetadataState.restore(state.snapshot()).subscribed_at == 4
    assert state.statistics().readers == 1


# Lanes


def members(*given: str) -> tuple[Member, ...]:
    return tuple(Member(name, 1, name.encode().rjust(16), 1) for name in given)


@PROPERTY
@given(st.sets(st.text(max_size=3), min_size=1, max_size=8), st.sets(st.integers(0, 2000), max_size=30))
def test_every_lane_has_exactly_one_reader(given_names: set[str], lanes: set[int]) -> None:
    found = Subscription(1, members(*sorted(given_names)))
    read = [lane for name in given_names for lane in lanes_of(found, name, sorted(lanes))]
    assert sorted(read) == sorted(lanes)
    for name in given_names:
        for lane in lanes_of(found, name, lanes):
            reader = reader_of(found, lane)
            assert reader is not None
            assert reader.name == name


def test_lanes_are_spread_over_members_and_others_read_none() -> None:
    found = Subscription(1, members("a", "b", "c"))
    assert [lanes_of(found, name, range(5)) for name in "abcd"] == [(0, 3), (1, 4), (2,), ()]
    assert reader_of(Subscription(1, ()), 0) is None


def test_a_channel_keeps_a_lane_over_one_change_only() -> None:
    a, b, c = members("a", "b", "c")
    first = Subscription(5, (a, b))
    assert kept(first, first, 0)
    assert [kept(first, Subscription(6, (a, c), before=5), lane) for lane in (0, 1)] == [True, False]
    assert not kept(first, Subscription(7, (a, b), before=6), 0), "somebody may have read it meanwhile"
    replaced = Member("a", 1, b"another channel.", 6)
    assert not kept(first, Subscription(6, (replaced, b), before=5), 0)
    assert not kept(first, Subscription(8, (a,)), 0), "everybody had left"


# Cursors of a pub-sub queue


def pub_sub() -> MetadataState:
    """Lanes 2, 3 and 4, opened by three peers."""
    state = founded("pub-sub")
    apply(state, *(command(Kind.LANE_OPEN, LaneOpenCommand(peer, 1, "q")) for peer in (1, 2, 3)))
    return state


def test_a_move_counts_with_the_present_epoch_and_only_in_lanes_of_its_member() -> None:
    state = pub_sub()
    apply(state, joins("a", 1), joins("b", 2))
    asked = [moves(2, 5, epoch=6, member="a"), moves(3, 5, epoch=6, member="a"), moves(3, 4, epoch=6, member="b")]
    assert codes(apply(state, *asked)) == ["", "FENCED", ""]
    asked = [moves(2, 6, epoch=5, member="a"), moves(2, 6, epoch=7, member="a"), moves(2, 6, epoch=6, member="c")]
    assert codes(apply(state, *asked)) == ["FENCED"] * 3
    several = LaneCursorsCommand("q", "x", ((2, 9), (3, 9)), epoch=6, member="a")
    assert codes(apply(state, command(Kind.CURSOR, several))) == ["FENCED"]
    queue = state.queue("q")
    assert queue is not None
    assert queue.subscribers["x"].versions == {2: 5, 3: 4}


def test_a_reader_whose_lane_came_back_is_refused_until_it_knows() -> None:
    """In between the lane belonged to another reader, which may have moved its cursor."""
    state = pub_sub()
    apply(state, joins("b", 1), joins("a", 2), leaves("a", 2))
    assert codes(apply(state, moves(2, 5, epoch=5, member="b"), moves(2, 5, epoch=7, member="b"))) == ["FENCED", ""]


def test_without_members_every_epoch_is_fenced_and_a_command_without_one_is_not() -> None:
    state = pub_sub()
    plain = command(Kind.CURSOR, LaneCursorsCommand("q", "x", ((2, 3),)))
    assert codes(apply(state, moves(2, 1, epoch=4), joins("", 1), plain, leaves("", 1))) == ["FENCED", "", "", ""]
    assert codes(apply(state, moves(2, 4, epoch=6), plain)) == ["FENCED", ""]


# Snapshots


def test_a_snapshot_carries_subscriptions() -> None:
    state = pub_sub()
    apply(state, joins("a", 1), joins("b", 2, peer=2), joins("", 3, subscriber="y"))
    restored = MetadataState.restore(state.snapshot())
    assert restored.snapshot() == state.snapshot()
    assert list(restored.catalog.readers()) == list(state.catalog.readers())
    after = [joins("a", 1), moves(2, 1, epoch=6, member="a"), forgets(2), moves(2, 1, epoch=6, member="a")]
    assert apply(restored, *after) == apply(state, *after)


@pytest.mark.parametrize("strategy", ["two-phase", "pub-sub"])
def test_a_snapshot_from_before_subscriptions_existed_is_read(strategy: Strategy) -> None:
    state = founded(strategy)
    snapshot = state.snapshot()
    fields = msgspec.msgpack.decode(snapshot[12:])
    fields[2] = fields[2][:4]  # bounds
    fields[10] = [queue[:8] for queue in fields[10]]
    body = msgspec.msgpack.encode(fields)
    restored = MetadataState.restore(snapshot[:8] + struct.pack("<I", crc32c(body)) + body)
    assert restored.snapshot() == snapshot
    assert apply(restored, joins("a", 1)) == [Outcome("", 0, 2)]

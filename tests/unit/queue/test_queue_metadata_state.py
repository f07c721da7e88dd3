"""The metadata lane: queues, members, and the life of pub-sub lanes."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.queue.queue_entries import PROPERTY, Step, command

from avow.errors import BadMagic, InvalidRequest, Malformed
from avow.queue.commands import (
    LaneCursorsCommand,
    LaneEndCommand,
    LaneOpenCommand,
    LaneTrimCommand,
    LevelCommand,
    MembersCommand,
    QueueCommand,
    RetentionRules,
    SubscriptionCommand,
)
from avow.queue.entry_outcome import Outcome
from avow.queue.metadata_state import LAYOUT_VERSION, MAGIC, MetadataState
from avow.queue.records import MetadataBounds, MetadataSnapshot
from avow.queue.snapshots import unseal
from avow.queue.state import QueueState
from avow.wire.messages import Entry, Kind

TINY = MetadataBounds(write_ids=3, queues=2, lanes=3, subscribers=2, subscriptions=1, members=2)


def founded(**fields: Any) -> MetadataState:
    return MetadataState(voters=(1, 2, 3), **fields)


def apply_all(state: MetadataState, *steps: Step) -> list[Outcome]:
    return [state.apply(step.at(state.position + 1)) for step in steps]


def queue(action: str, name: str, strategy: str = "pub-sub", lanes: int = 1, *, age_s: int | None = None) -> Step:
    value = QueueCommand(action, name, strategy, lanes, RetentionRules(age_s=age_s))  # type: ignore[arg-type]
    return command(Kind.QUEUE, value)


def opens(peer: int, incarnation: int = 1, name: str = "", route: int = 0) -> Step:
    return command(Kind.LANE_OPEN, LaneOpenCommand(peer, incarnation, name, route))


def ends(lane: int, end: int, proposer: int = 1) -> Step:
    return command(Kind.LANE_END, LaneEndCommand(lane, end, proposer))


def members(*voters: int, learners: tuple[int, ...] = ()) -> Step:
    return command(Kind.MEMBERS, MembersCommand(voters, learners))


def reads(name: str, subscriber: str, *versions: tuple[int, int], **flags: Any) -> Step:
    return command(Kind.CURSOR, LaneCursorsCommand(name, subscriber, versions, **flags))


def subscribes(action: str, name: str, member: str, peer: int, channel: int) -> Step:
    value = SubscriptionCommand(name, "x", member, peer, b"%16d" % channel, action)  # type: ignore[arg-type]
    return command(Kind.SUBSCRIPTION, value)


def trims(lane: int, upto: int) -> Step:
    return command(Kind.TRIM, LaneTrimCommand(lane, upto))


def codes(outcomes: list[Outcome]) -> list[str]:
    return [outcome.code for outcome in outcomes]


def versions(state: MetadataState, name: str, subscriber: str) -> dict[int, int]:
    found = state.queue(name)
    assert found is not None
    return found.subscribers[subscriber].versions


# Queues


def test_a_two_phase_queue_gets_consecutive_lanes_and_a_pub_sub_queue_its_own_number() -> None:
    state = founded()
    outcomes = apply_all(state, queue("create", "a", "two-phase", 3), queue("create", "b"), opens(1, name="b"))
    assert outcomes == [Outcome("", 1, 3), Outcome("", 4, 4), Outcome("", 5, 5)]
    assert [(found.name, found.first_lane) for found in state.queues()] == [("a", 1), ("b", 4)]


def test_a_two_phase_queue_remembers_its_creator_and_the_peers_that_may_hold_it() -> None:
    state = founded()
    chosen = command(Kind.QUEUE, QueueCommand("create", "b", peers=(3, 1)))
    apply_all(state, queue("create", "a", "two-phase"), members(1, 2, 3, 4), chosen)
    everywhere, somewhere = state.queues()
    assert (everywhere.peers, everywhere.founders) == ((), (1, 2, 3))
    assert (somewhere.peers, somewhere.founders) == ((1, 3), (1, 3))


def test_a_queue_for_peers_that_do_not_vote_or_a_pub_sub_queue_for_some_of_them_is_refused() -> None:
    state = founded()
    steps = [
        command(Kind.QUEUE, QueueCommand("create", "a", peers=(1, 9))),
        command(Kind.QUEUE, QueueCommand("create", "b", "pub-sub", peers=(1,))),
        queue("create", "c", lanes=2),
    ]
    assert codes(apply_all(state, *steps)) == ["INVALID_REQUEST"] * 3
    assert state.queues() == []


def test_creating_a_queue_again_is_done_and_a_different_one_under_its_name_is_refused() -> None:
    state = founded()
    first, again, other = apply_all(
        state,
        queue("create", "a", "two-phase", 3),
        queue("create", "a", "two-phase", 3),
        queue("create", "a", "two-phase", 4),
    )
    assert first == again == Outcome("", 1, 3)
    assert other == Outcome("ALREADY_EXISTS")


def test_a_change_replaces_the_retention_rules_and_nothing_else() -> None:
    state = founded()
    apply_all(state, queue("create", "a", "two-phase", 3), queue("change", "a", "pub-sub", 9, age_s=5))
    found = state.queue("a")
    assert found is not None
    assert (found.strategy, found.lanes, found.retention) == ("two-phase", 3, RetentionRules(age_s=5))


def test_changing_or_deleting_an_unknown_queue_is_refused() -> None:
    assert codes(apply_all(founded(), queue("change", "a"), queue("delete", "a"))) == ["UNKNOWN_QUEUE"] * 2


def test_a_queue_is_deleted_with_its_lanes_and_their_numbers_are_never_reused() -> None:
    state = founded()
    apply_all(state, queue("create", "a"), opens(1, name="a"), opens(2), queue("delete", "a"), queue("create", "a"))
    assert [lane.number for lane in state.lanes.by_number.values()] == [3]
    assert apply_all(state, ends(2, 0), opens(1, name="a")) == [Outcome("INVALID_REQUEST"), Outcome("", 5, 5)]


def test_a_change_of_voters_does_not_wait_for_lanes_of_a_deleted_queue() -> None:
    state = founded()
    apply_all(state, queue("create", "a"), opens(1, name="a"), members(1, 2, 3, 4))
    assert state.busy_lanes() == [2]
    assert codes(apply_all(state, queue("delete", "a"), members(1, 2, 3))) == ["", ""]


def test_queues_are_bounded() -> None:
    state = founded(bounds=TINY)
    assert codes(apply_all(state, *(queue("create", name) for name in "abc"))) == ["", "", "TOO_MANY"]


# Lanes


def test_lanes_are_numbered_in_turn_and_a_run_gets_the_same_number_again() -> None:
    state = founded()
    apply_all(state, queue("create", "q"), queue("create", "r"))
    outcomes = apply_all(state, opens(1, 1, "q"), opens(2, 1, "q"), opens(1, 1, "r"), opens(1, 1, "q"))
    assert [outcome.first_version for outcome in outcomes] == [3, 4, 5, 3]
    assert len(state.open_lanes()) == 3
    assert state.orphans() == []


def test_a_later_run_orphans_the_lanes_of_the_earlier_one_and_of_no_other_peer() -> None:
    state = founded()
    apply_all(state, opens(1, 1), opens(2, 1), opens(1, 2))
    assert [lane.number for lane in state.orphans()] == [1]
    assert not state.lane(2).orphaned
    assert not state.lane(3).orphaned


def test_a_later_run_orphans_the_older_lanes_of_its_peer_in_every_queue() -> None:
    state = founded()
    apply_all(state, queue("create", "q"), queue("create", "r"), opens(1, 1, "q"), opens(1, 1, "r"), opens(1, 2, "q"))
    assert [(lane.number, lane.queue) for lane in state.orphans()] == [(3, "q"), (4, "r")]
    assert codes(apply_all(state, opens(1, 2, "r"), opens(1, 1, "r"))) == ["", ""]
    assert [lane.number for lane in state.orphans()] == [3, 4]


def test_a_run_that_was_superseded_opens_nothing_and_disturbs_nothing() -> None:
    state = founded()
    assert codes(apply_all(state, opens(1, 5), opens(1, 4))) == ["", "INVALID_REQUEST"]
    assert state.orphans() == []


def test_a_lane_needs_a_voter_and_a_pub_sub_queue() -> None:
    state = founded()
    apply_all(state, queue("create", "one-order", "two-phase"), queue("create", "q"))
    outcomes = apply_all(state, opens(9), opens(1, 1, "none"), opens(1, 1, "one-order"), opens(1, 1, "q", 1))
    assert codes(outcomes) == ["INVALID_REQUEST", "UNKNOWN_QUEUE", "INVALID_REQUEST", "INVALID_REQUEST"]
    assert state.open_lanes() == []


def test_the_first_committed_end_decides_and_later_ones_get_it_as_answer() -> None:
    state = founded()
    outcomes = apply_all(state, opens(1), ends(1, 7, 2), ends(1, 9, 3), ends(1, 7, 3), ends(8, 1))
    assert outcomes[1:] == [
        Outcome("", 0, 7),
        Outcome("LANE_ENDED", 0, 7),
        Outcome("", 0, 7),
        Outcome("INVALID_REQUEST"),
    ]
    assert (state.lane(1).end, state.lane(1).ended_by) == (7, 2)
    assert state.open_lanes() == []


def test_a_run_whose_lane_was_ended_gets_another_lane() -> None:
    state = founded()
    assert apply_all(state, opens(1), ends(1, 0), opens(1))[2] == Outcome("", 2, 2)


def test_an_ended_lane_trimmed_to_its_end_is_forgotten_and_its_number_is_never_reused() -> None:
    state = founded()
    apply_all(state, queue("create", "q"), opens(1, 1, "q"), reads("q", "x", (2, 3)), ends(2, 5))
    assert apply_all(state, trims(2, 4), trims(2, 99)) == [Outcome("", 1, 4), Outcome("", 5, 5)]
    assert versions(state, "q", "x") == {}
    with pytest.raises(InvalidRequest):
        state.lane(2)
    assert apply_all(state, opens(1, 1, "q")) == [Outcome("", 3, 3)]


def test_a_hold_keeps_a_lane_that_its_subscriber_has_not_read() -> None:
    state = founded()
    apply_all(state, queue("create", "q"), opens(1, 1, "q"), reads("q", "x", hold=True), ends(2, 5))
    assert apply_all(state, trims(2, 5), reads("q", "x", (2, 2)), trims(2, 5))[2] == Outcome("", 1, 2)
    assert state.lane(2).trimmed_to == 2


def test_lanes_are_bounded_until_some_are_forgotten() -> None:
    state = founded(bounds=TINY)
    outcomes = apply_all(state, *(opens(peer) for peer in (1, 2, 3)), opens(1, 2), ends(1, 0), trims(1, 0), opens(1, 2))
    assert codes(outcomes) == ["", "", "", "TOO_MANY", "", "", ""]


# Members


def test_a_lane_keeps_the_voters_it_was_opened_under() -> None:
    state = founded()
    apply_all(state, opens(1), members(1, 2, 3, 4), opens(4))
    assert (state.lane(1).voters, state.lane(1).epoch) == ((1, 2, 3), 0)
    assert (state.lane(2).voters, state.lane(2).epoch) == ((1, 2, 3, 4), 1)


def test_voters_change_again_only_after_lanes_from_before_the_last_change_have_ended() -> None:
    state = founded()
    outcomes = apply_all(state, opens(1), members(1, 2, 3, 4), opens(2), members(1, 2, 3, 4, 5))
    assert codes(outcomes) == ["", "", "", "MEMBERSHIP_BUSY"]
    assert (state.busy_lanes(), state.voters, state.epoch) == ([1], (1, 2, 3, 4), 1)
    assert codes(apply_all(state, ends(1, 3), members(1, 2, 3, 4, 5))) == ["", ""]
    assert (state.busy_lanes(), state.epoch) == ([2], 2)


def test_learners_come_and_go_while_the_voters_are_busy() -> None:
    state = founded()
    outcomes = apply_all(state, opens(1), members(1, 2), members(1, 2, learners=(9, 8)), members(2, 1, learners=(8, 9)))
    assert codes(outcomes) == ["", "", "", ""]
    assert (state.voters, state.learners, state.epoch) == ((1, 2), (8, 9), 1)


def test_the_lanes_of_a_former_voter_are_orphaned() -> None:
    state = founded()
    apply_all(state, opens(3), opens(1), members(1, 2, learners=(3,)))
    assert [lane.number for lane in state.orphans()] == [1]


def test_a_peer_named_twice_is_refused() -> None:
    assert codes(apply_all(founded(), members(1, 1, 2), members(1, 2, learners=(2,)))) == ["INVALID_REQUEST"] * 2


# Cursors


def test_each_component_of_a_vector_cursor_only_grows_except_by_a_reset() -> None:
    state = founded()
    apply_all(state, queue("create", "q"), opens(1, 1, "q"), opens(2, 1, "q"))
    apply_all(state, reads("q", "x", (2, 5), (3, 1)), reads("q", "x", (2, 3), (3, 4)))
    assert versions(state, "q", "x") == {2: 5, 3: 4}
    apply_all(state, reads("q", "x", (2, 2), reset=True))
    assert versions(state, "q", "x") == {2: 2}


def test_a_vector_cursor_names_lanes_of_its_queue_and_stops_at_their_ends() -> None:
    state = founded()
    apply_all(state, queue("create", "q"), queue("create", "r"), opens(1, 1, "q"), opens(1, 1, "r"), ends(3, 5))
    asked = [reads("q", "x", (3, 6)), reads("q", "x", (4, 1)), reads("q", "x", (5, 1)), reads("none", "x", (1, 1))]
    assert codes(apply_all(state, *asked)) == ["INVALID_REQUEST"] * 3 + ["UNKNOWN_QUEUE"]
    assert apply_all(state, reads("q", "x", (3, 5))) == [Outcome()]


def test_a_cursor_in_a_forgotten_lane_is_accepted_and_dropped() -> None:
    state = founded()
    apply_all(state, queue("create", "q"), opens(1, 1, "q"), opens(2, 1, "q"), ends(2, 5), trims(2, 5))
    assert codes(apply_all(state, reads("q", "x", (2, 5), (3, 7)))) == [""]
    assert versions(state, "q", "x") == {3: 7}


def test_subscribers_of_a_queue_are_bounded_and_may_be_removed() -> None:
    state = founded(bounds=TINY)
    asked = [reads("q", name) for name in "xyz"]
    assert codes(apply_all(state, queue("create", "q"), *asked)) == ["", "", "", "TOO_MANY"]
    assert codes(apply_all(state, reads("q", "x", remove=True), asked[2])) == ["", ""]


# The state machine as a whole


def test_a_known_write_id_has_no_second_effect() -> None:
    state = founded()
    step = opens(1)._replace(write_id=b"w" * 16)
    later = opens(2)._replace(write_id=b"w" * 16)
    assert apply_all(state, step, later) == [Outcome("", 1, 1)] * 2
    assert state.outcome_of(b"w" * 16) == Outcome("", 1, 1)
    assert len(state.open_lanes()) == 1


def test_entries_of_other_lanes_and_bad_bytes_change_nothing_and_are_counted() -> None:
    state = founded()
    outcomes = apply_all(state, Step(Kind.DATA, 3), Step(Kind.STAGE, 1), Step(Kind.QUEUE, control=b"\xc1"), Step(50))
    assert codes(outcomes) == ["INVALID_REQUEST", "INVALID_REQUEST", "MALFORMED", "INVALID_REQUEST"]
    assert apply_all(state, Step(Kind.NOOP)) == [Outcome()]
    assert (state.statistics().refused_entries, state.statistics().position) == (4, 5)


def test_an_entry_out_of_order_is_a_programming_error() -> None:
    with pytest.raises(AssertionError):
        founded().apply(Entry(3, 1, Kind.NOOP))


def test_statistics_count_queues_and_lanes() -> None:
    state = founded()
    apply_all(state, queue("create", "q"), opens(1), opens(1, 2), opens(2), ends(4, 0))
    found = state.statistics()
    assert (found.queues, found.lanes, found.open_lanes, found.orphaned_lanes) == (1, 3, 2, 1)
    assert (found.voters, found.learners, found.epoch) == (3, 0, 0)


def test_a_snapshot_of_another_state_machine_is_refused() -> None:
    with pytest.raises(BadMagic):
        MetadataState.restore(QueueState().snapshot())
    with pytest.raises(Malformed):
        MetadataState.restore(founded().snapshot()[:-1])


_names = st.sampled_from(["", "q", "r"])
_lanes = st.integers(1, 6)
_peers = st.integers(1, 4)
_steps = st.one_of(
    st.builds(queue, st.sampled_from(["create", "change", "delete"]), st.sampled_from(["q", "r", "s"])),
    st.builds(opens, _peers, st.integers(1, 3), _names),
    st.builds(opens, _peers, st.integers(1, 3), _names),
    st.builds(ends, _lanes, st.integers(0, 5)),
    st.builds(trims, _lanes, st.integers(0, 5)),
    st.builds(
        reads,
        st.sampled_from(["q", "r"]),
        st.sampled_from("xyz"),
        st.tuples(_lanes, st.integers(0, 5)),
        hold=st.booleans(),
        reset=st.booleans(),
    ),
    st.builds(
        reads,
        st.just("q"),
        st.just("x"),
        st.tuples(_lanes, st.integers(0, 5)),
        epoch=st.integers(0, 9),
        member=st.sampled_from(["", "a"]),
    ),
    st.builds(
        subscribes,
        st.sampled_from(["join", "join", "leave", "forget"]),
        st.sampled_from(["q", "r"]),
        st.sampled_from(["", "a", "b"]),
        _peers,
        st.integers(1, 2),
    ),
    st.sets(_peers, min_size=1).map(lambda peers: members(*peers)),
    st.builds(Step, kind=st.integers(0, 11), control=st.binary(max_size=6), write_id=st.sampled_from([b"", b"w"])),
)
_step_lists = st.lists(_steps, max_size=40)
_bounds = st.sampled_from([TINY, MetadataBounds()])


@PROPERTY
@given(_step_lists, _step_lists, _bounds)
def test_a_restored_metadata_state_is_the_same_and_stays_the_same(
    before: list[Step], after: list[Step], sizes: MetadataBounds
) -> None:
    state = founded(bounds=sizes)
    apply_all(state, *before)
    restored = MetadataState.restore(state.snapshot())
    assert restored.snapshot() == state.snapshot()
    assert apply_all(restored, *after) == apply_all(state, *after)
    assert restored.snapshot() == state.snapshot()
    assert restored.statistics() == state.statistics()


@PROPERTY
@given(_step_lists)
def test_numbers_voters_and_ends_of_lanes_never_change(steps: list[Step]) -> None:
    state = founded()
    given_out: dict[int, tuple[int, int, int, tuple[int, ...]]] = {}
    decided: dict[int, int] = {}
    for step in steps:
        apply_all(state, step)
        for lane in state.lanes.by_number.values():
            facts = (lane.peer, lane.incarnation, lane.epoch, lane.voters)
            assert given_out.setdefault(lane.number, facts) == facts
            if lane.ended:
                assert decided.setdefault(lane.number, lane.end) == lane.end
        assert all(lane.epoch >= state.epoch - 1 for lane in state.open_lanes())


# The level of the cluster


def raises_level(level: int) -> Step:
    return command(Kind.LEVEL, LevelCommand(level))


def test_the_level_only_rises() -> None:
    state = founded()
    levels = []
    for level in (1, 3, 2, 3):
        assert codes(apply_all(state, raises_level(level))) == [""]
        levels.append(state.level)
    assert levels == [1, 3, 3, 3]


def test_peers_of_the_first_release_can_read_the_snapshot_until_the_level_is_raised() -> None:
    state = founded()
    first_release = msgspec.msgpack.Decoder(MetadataSnapshot)
    found = unseal(state.snapshot(), first_release, magic=MAGIC, version=LAYOUT_VERSION)
    assert found.voters == (1, 2, 3)
    apply_all(state, raises_level(2))
    assert MetadataState.restore(state.snapshot()).level == 2
    with pytest.raises(Malformed, match="at most length 13"):
        unseal(state.snapshot(), first_release, magic=MAGIC, version=LAYOUT_VERSION)

"""From any members to any wanted ones, every step is one that replication allows, and the last one arrives."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from avow.node.membership_steps import next_members
from avow.replication.membership import Members, check_change

peers = st.sets(st.integers(1, 6), min_size=1, max_size=5)


@given(current=peers, voters=peers, learners=st.sets(st.integers(7, 8)), me=st.integers(1, 6))
def test_every_step_is_allowed_and_the_target_members_are_reached(
    current: set[int], voters: set[int], learners: set[int], me: int
) -> None:
    members = Members(tuple(sorted(current)), ())
    for _ in range(20):
        wanted = next_members(members, voters=voters, learners=learners, me=me, caught_up=lambda _: True)
        if wanted is None:
            break
        check_change(members, wanted)
        members = wanted
    assert (set(members.voters), set(members.learners)) == (voters, learners)


def test_a_new_peer_learns_before_it_votes_and_nobody_leaves_before_that() -> None:
    behind: dict[str, Any] = {"voters": (1, 2, 4), "learners": (), "me": 1, "caught_up": lambda _: False}
    listening = next_members(Members((1, 2, 3), ()), **behind)
    assert listening == Members((1, 2, 3), (4,))
    assert next_members(listening, **behind) is None


def test_the_coordinator_leaves_last() -> None:
    first = next_members(Members((1, 2, 3), ()), voters=(3,), learners=(), me=1, caught_up=lambda _: True)
    assert first == Members((1, 3), ())

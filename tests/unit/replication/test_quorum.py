"""The quorum arithmetic against a twin that knows nothing clever: it tries every subset of the members."""

from __future__ import annotations

from itertools import combinations, product

import pytest

from avow.replication.quorum import has_quorum, quorum, quorum_th_largest

SIZES = range(1, 8)


def subsets(members: range) -> list[frozenset[int]]:
    return [frozenset(chosen) for size in range(len(members) + 1) for chosen in combinations(members, size)]


def smallest_size_whose_choices_all_meet(n: int) -> int:
    for size in range(1, n + 1):
        choices = [frozenset(c) for c in combinations(range(n), size)]
        if all(a & b for a in choices for b in choices):
            return size
    raise AssertionError("the whole membership always meets itself")


def highest_position_some_quorum_holds(held: tuple[int, ...]) -> int:
    enough = smallest_size_whose_choices_all_meet(len(held))
    return max(min(chosen) for chosen in combinations(held, enough))


@pytest.mark.parametrize("n", SIZES)
def test_a_quorum_is_the_smallest_size_of_which_any_two_choices_meet(n: int) -> None:
    assert quorum(n) == smallest_size_whose_choices_all_meet(n)


@pytest.mark.parametrize("n", SIZES)
def test_any_two_sets_that_are_called_a_quorum_share_a_member(n: int) -> None:
    members = range(n)
    enough = [s for s in subsets(members) if has_quorum(s, members)]
    assert enough
    assert all(a & b for a in enough for b in enough)


@pytest.mark.parametrize("n", SIZES)
def test_a_set_is_a_quorum_exactly_when_it_is_large_enough(n: int) -> None:
    members = range(n)
    for chosen in subsets(members):
        assert has_quorum(chosen, members) == (len(chosen) >= smallest_size_whose_choices_all_meet(n))


@pytest.mark.parametrize("n", SIZES)
def test_answers_of_outsiders_add_nothing(n: int) -> None:
    members = range(n)
    outsiders = frozenset(range(100, 100 + n))
    for chosen in subsets(members):
        assert has_quorum(chosen | outsiders, members) == has_quorum(chosen, members)


@pytest.mark.parametrize("n", SIZES)
def test_the_quorum_th_largest_is_the_highest_position_that_a_quorum_holds(n: int) -> None:
    positions = range(4 if n <= 5 else 3)
    for held in product(positions, repeat=n):
        assert quorum_th_largest(held, n) == highest_position_some_quorum_holds(held)


@pytest.mark.parametrize("n", SIZES)
def test_silent_members_count_as_zero(n: int) -> None:
    for known in range(n + 1):
        for held in product(range(1, 3), repeat=known):
            assert quorum_th_largest(held, n) == quorum_th_largest(held + (0,) * (n - known), n)

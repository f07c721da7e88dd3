"""Every deliberate mistake is caught, from shortly before the seed that catches it."""

from __future__ import annotations

import pytest

from avow_lab.mutations.hunt import Mutation, hunt
from avow_lab.simulator.runner import MUTATIONS, hunt_named

BEGIN: dict[tuple[str, str], int] = {  # `make mutants` hunts from 0 and says how many seeds it took
    ("two-phase", "wiped peer votes"): 5,
    ("two-phase", "no cut at the stamp"): 145,
    ("two-phase", "no previous-entry check"): 21,
    ("two-phase", "stamp on the first piece"): 14,
    ("two-phase", "count an unstamped peer"): 413,
    ("two-phase", "forget promises"): 46,
    ("two-phase", "damage is absence"): 88,
    ("two-phase", "repaired too early"): 1_439,
    ("two-phase", "answers outlive questions"): 632,
    ("two-phase", "unconfirmed reads"): 144,
    ("two-phase", "commit what was not matched"): 14,
    ("two-phase", "an old retry is a new write"): 31,
    ("pub-sub", "members unguarded"): 70,
    ("pub-sub", "refills counted as stored"): 17,
    ("pub-sub", "damaged answer counted"): 17,
    ("pub-sub", "damage is absence"): 91,
    ("pub-sub", "a fence that holds nothing"): 12,
    ("pub-sub", "fences forgotten"): 354,
    ("pub-sub", "closed before committed"): 250,
    ("pub-sub", "end without a cut"): 8,
    ("pub-sub", "voters follow the membership"): 6,
    ("pub-sub", "forgotten is absent"): 90,
    ("pub-sub", "late retry is new"): 33,
    ("pub-sub", "start anywhere"): 7,
    ("pub-sub", "snapshot ahead"): 122,
    ("node", "the wrong lane"): 171,
    ("node", "dropped before committed"): 153,
    ("node", "opened from an old image"): 4,
    ("node", "left on disk"): 4,
    ("node", "kept while away"): 67,
    ("node", "a quiet lane hides its cursor"): 40,
    ("node", "gone at once"): 6,
    ("node", "gone in flight"): 157,
    ("node", "ready at once"): 37,
    ("node", "the first to pass"): 662,
}
EVERY = [(group, mutation) for group, listed in MUTATIONS.items() for mutation in listed]


@pytest.mark.parametrize(("group", "mutation"), EVERY, ids=lambda one: getattr(one, "name", one))
def test_the_checkers_catch(group: str, mutation: Mutation) -> None:
    caught = hunt(mutation, first_seed=BEGIN.get((group, mutation.name), 0))
    assert caught.seeds, f"{mutation.name} survived: the simulator is blind there"


def test_the_naive_rules_diverge_within_a_hundred_seeds() -> None:
    caught = hunt_named("two-phase", "naive")
    assert 0 < caught.seeds <= 100
    assert caught.violation.startswith("agreement")

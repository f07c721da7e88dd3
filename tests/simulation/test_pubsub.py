"""The pub-sub queue in simulated weather, and the mutations that prove the checkers."""

from __future__ import annotations

import pytest

from avow.testing.hunt import Mutation, hunt
from avow.testing.pubsub import simulate_pubsub
from avow.testing.pubsub_mutations import PUBSUB_MUTATIONS

SEEDS_PER_TEST = 50
BEGIN = {  # shortly before the first seed that catches it: `make mutants` hunts from 0 and says how many it took
    "refills counted as stored": 114,
    "damaged answer counted": 270,
    "damage is absence": 134,
    "a fence that holds nothing": 54,
    "snapshot ahead": 185,
    "voters follow the membership": 412,
    "fences forgotten": 774,
}


@pytest.mark.parametrize("first", range(0, 300, SEEDS_PER_TEST))
def test_every_promise_holds_in_every_seed(first: int) -> None:
    broken = {}
    for seed in range(first, first + SEEDS_PER_TEST):
        verdict = simulate_pubsub(seed)
        if verdict.violation:
            broken[seed] = verdict.violation
    assert not broken


@pytest.mark.parametrize("peers", [3, 5])
def test_a_seed_describes_a_run_completely(peers: int) -> None:
    for seed in range(5):
        first, again = (simulate_pubsub(seed, peers=peers) for _ in range(2))
        assert (first.hash, first.events, first.acknowledged) == (again.hash, again.events, again.acknowledged)
        assert first.peers == peers


def test_different_seeds_are_different_runs() -> None:
    assert len({simulate_pubsub(seed).hash for seed in range(10)}) == 10


@pytest.mark.parametrize("mutation", PUBSUB_MUTATIONS, ids=lambda mutation: mutation.name.replace(" ", "-"))
def test_a_deliberate_mistake_is_caught(mutation: Mutation) -> None:
    assert hunt(mutation, first_seed=BEGIN.get(mutation.name, 0)).seeds, mutation.what

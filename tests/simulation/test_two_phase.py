"""Whole clusters under a two-phase lane: a short form of `avow simulate`; the long form is a command of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter

import pytest

from avow.testing.campaign import hunt_named
from avow.testing.hunt import Mutation, hunt
from avow.testing.mutations import TWO_PHASE_MUTATIONS
from avow.testing.two_phase import simulate_two_phase

SEEDS_PER_TEST = 50
BEGIN = {  # shortly before the first seed that catches it: `make mutants` hunts from 0 and says how many it took
    "no cut at the stamp": 160,
    "stamp on the first piece": 190,
    "count an unstamped peer": 650,
    "forget promises": 420,
    "repaired too early": 828,
    "unconfirmed reads": 96,
    "merged and shown twice": 68,
    "whole at once": 82,
}


@pytest.mark.parametrize("first", range(20_000, 20_600, SEEDS_PER_TEST))
def test_every_promise_holds_for_fifty_seeds_from(first: int) -> None:
    for seed in range(first, first + SEEDS_PER_TEST):
        verdict = simulate_two_phase(seed)
        assert not verdict.violation, f"avow simulate --strategy two-phase --seed {seed} --trace: {verdict.violation}"


def test_the_weather_merges_writes_and_leaves_peers_with_history_to_copy() -> None:
    counts: Counter[str] = Counter()
    for seed in range(40_000, 40_040):
        counts.update(simulate_two_phase(seed).counts)
    assert counts["merged records applied"] > 20
    assert counts["histories copied"] > 2


@pytest.mark.parametrize("peers", [1, 2, 3, 4, 5, 7])
def test_clusters_of_any_size_keep_their_promises(peers: int) -> None:
    for seed in range(30_000, 30_010):
        verdict = simulate_two_phase(seed, peers=peers)
        assert not verdict.violation, f"seed {seed} with {peers} peers: {verdict.violation}"


@pytest.mark.parametrize("mutation", TWO_PHASE_MUTATIONS, ids=lambda mutation: mutation.name)
def test_the_checkers_catch(mutation: Mutation) -> None:
    caught = hunt(mutation, first_seed=BEGIN.get(mutation.name, 0))
    assert caught.seeds, f"{mutation.name} survived: the simulator is blind there"


def test_the_naive_rules_diverge_within_a_hundred_seeds() -> None:
    caught = hunt_named("two-phase", "naive")
    assert 0 < caught.seeds <= 100
    assert caught.violation.startswith("agreement")


def test_the_same_seed_gives_the_same_trace_in_processes_that_hash_differently() -> None:
    code = "from avow.testing.two_phase import simulate_two_phase as s\nprint(*(s(seed).hash for seed in range(40)))"
    hashes = []
    for hash_seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
        hashes.append(run.stdout.split())
    assert hashes[0] == hashes[1]
    assert len(set(hashes[0])) == 40


def test_a_traced_run_is_the_same_run() -> None:
    assert simulate_two_phase(7).hash == simulate_two_phase(7, tracing=True).hash

"""Whole clusters of nodes under simulated faults: a short form of `avow simulate`; the long form is a command."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter

import pytest

from avow_lab.mutations.hunt import often
from avow_lab.simulator.plan import draw_plan
from avow_lab.simulator.simulation import Simulation, simulate
from avow_lab.simulator.world import StrayFramesWorld

SEEDS_PER_TEST = 25
FOUND = {  # seeds that found a bug in shipped code: (strategy, seed) -> what it was
    ("two-phase", 111): "a queue that came and went while a peer was away stayed on its disk",
    ("mixed", 1345): "a peer was called gone while its removal from a lane was in flight",
    ("mixed", 1596): "the same",
    ("mixed", 2170): "a peer was called gone by a coordinator whose own copy of a lane lagged",
    ("mixed", 290): "trims of pub-sub lanes were proposed again and again while the first ones were in flight",
    ("mixed", 3208): "a pub-sub lane that a peer knew from a fence alone stayed on its disk when the queue was deleted",
    ("mixed", 5201): "peers repeated their proposals to a slow metadata lane faster than it committed them",
    ("pub-sub", 41): "a copy asked the one peer that had reported more, for ever, and that one could not read it",
}


def check(strategy: str, seed: int, *, peers: int = 0) -> None:
    verdict = simulate(seed, strategy=strategy, peers=peers)
    sized = f" --peers {peers}" if peers else ""
    assert not verdict.violation, f"avow simulate --strategy {strategy}{sized} --seed {seed}: {verdict.violation}"


@pytest.mark.parametrize("first", range(20_000, 20_100, SEEDS_PER_TEST))
def test_every_invariant_holds_in_mixed_seeds_from(first: int) -> None:
    for seed in range(first, first + SEEDS_PER_TEST):
        check("mixed", seed)


@pytest.mark.parametrize("first", range(0, 75, SEEDS_PER_TEST))
@pytest.mark.parametrize("strategy", ["two-phase", "pub-sub"])
def test_every_invariant_holds_with_one_strategy_in_seeds_from(strategy: str, first: int) -> None:
    for seed in range(first, first + SEEDS_PER_TEST):
        check(strategy, seed)


@pytest.mark.parametrize("peers", [1, 2, 3, 4, 5, 7])
def test_every_invariant_holds_in_clusters_of_any_size(peers: int) -> None:
    for seed in range(30_000, 30_004):
        check("mixed", seed, peers=peers)


@pytest.mark.parametrize(("strategy", "seed"), FOUND)
def test_bugs_that_a_seed_found_stay_fixed(strategy: str, seed: int) -> None:
    check(strategy, seed)


@pytest.mark.parametrize("seed", [57, 225])
def test_a_dropped_lane_stays_dropped_while_queues_and_processes_come_and_go(seed: int) -> None:
    """A restarted peer reopened it until it learned of the deletion, and accepted entries after a gap."""
    plan = often("queues", "blink")(draw_plan(seed, strategy="two-phase"))
    assert not Simulation(plan).run().violation


def test_frames_that_no_peer_sends_change_nothing() -> None:
    counts: Counter[str] = Counter()
    for seed in range(50_000, 50_025):
        verdict = Simulation(draw_plan(seed, strategy="mixed"), world=StrayFramesWorld).run()
        assert not verdict.violation, f"seed {seed}: {verdict.violation}"
        counts.update(verdict.counts)
    assert counts["stray frames"] > 1_000


def test_the_simulated_faults_reach_everything_that_is_checked() -> None:
    counts: Counter[str] = Counter()
    for seed in range(40_000, 40_060):
        counts.update(simulate(seed).counts)
    assert counts["merged records applied"] > 20
    assert counts["peers joined"] > 5
    assert counts["peers gone"] > 2
    assert counts["queues created"] > 10
    assert counts["queues deleted"] > 10
    assert counts["trims by rule"] > 10
    assert counts["damaged logs"] > 10


def test_the_same_seed_gives_the_same_trace_in_processes_that_hash_differently() -> None:
    code = "from avow_lab.simulator.simulation import simulate as s\nprint(*(s(seed).hash for seed in range(10)))"
    hashes = []
    for hash_seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
        hashes.append(run.stdout.split())
    assert hashes[0] == hashes[1]
    assert len(set(hashes[0])) == 10


@pytest.mark.parametrize("strategy", ["two-phase", "pub-sub", "mixed"])
def test_tracing_does_not_change_a_run(strategy: str) -> None:
    plain, traced = simulate(7, strategy=strategy), simulate(7, strategy=strategy, tracing=True)
    assert (plain.hash, plain.events, plain.strategy) == (traced.hash, traced.events, strategy)
    assert traced.trace

"""Runs many seeds in several processes and adds up the results; runs the hunts for all mutations.

Seeds are independent, so a campaign is a list of small chunks for worker processes. Chunks come back in the order in
which they finish. Sums do not depend on that order, and the campaign's hash is made from the seeds' hashes in the order
of seeds: two campaigns over the same seeds print the same hash on any number of cores.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Final

from msgspec import Struct, field

from avow_lab.channel_machine.mutants import MUTANTS, hunt_mutant
from avow_lab.mutations.hunt import Caught, Mutation, hunt
from avow_lab.mutations.node import NODE_MUTATIONS
from avow_lab.mutations.pubsub import PUBSUB_MUTATIONS
from avow_lab.mutations.two_phase import TWO_PHASE_MUTATIONS
from avow_lab.simulator.simulation import simulate

CHUNK_SEEDS: Final = 20
REPEAT_EVERY: Final = 50  # one seed in this many is run again in another process, and must give the same hash
FAILURES_KEPT: Final = 20
MUTATIONS: Final[dict[str, tuple[Mutation, ...]]] = {
    "two-phase": TWO_PHASE_MUTATIONS,
    "pub-sub": PUBSUB_MUTATIONS,
    "node": NODE_MUTATIONS,
}
MUTATIONS_COUNT: Final = sum(map(len, MUTATIONS.values())) + len(MUTANTS)


class Sum(Struct):
    """The sums over some seeds."""

    seeds: int = 0
    events: int = 0
    acknowledged: int = 0
    cpu_s: float = 0.0
    counts: dict[str, int] = field(default_factory=dict)

    def add(self, other: Sum) -> None:
        self.seeds += other.seeds
        self.events += other.events
        self.acknowledged += other.acknowledged
        self.cpu_s += other.cpu_s
        for name, count in other.counts.items():
            self.counts[name] = self.counts.get(name, 0) + count


class Chunk(Struct):
    by_peers: dict[int, Sum]
    failures: list[tuple[int, str]]
    hashes: dict[int, str]


class Campaign(Struct):
    """The result of a campaign. `repeated` seeds were run twice; the `unstable` ones gave two hashes."""

    strategy: str
    first_seed: int
    peers: int = 0  # in each cluster; 0: the seed decides
    by_peers: dict[int, Sum] = field(default_factory=dict)
    failures: list[tuple[int, str]] = field(default_factory=list)
    failed: int = 0
    repeated: int = 0
    unstable: list[int] = field(default_factory=list)
    wall_s: float = 0.0
    jobs: int = 1
    hash: str = ""

    @property
    def total(self) -> Sum:
        whole = Sum()
        for part in self.by_peers.values():
            whole.add(part)
        return whole

    @property
    def held(self) -> bool:
        return not self.failed and not self.unstable


def run_chunk(strategy: str, seeds: list[int], peers: int) -> Chunk:
    by_peers: dict[int, Sum] = {}
    failures: list[tuple[int, str]] = []
    hashes: dict[int, str] = {}
    for seed in seeds:
        began = time.process_time()
        verdict = simulate(seed, strategy=strategy, peers=peers)
        spent = time.process_time() - began
        part = Sum(1, verdict.events, verdict.acknowledged, spent, verdict.counts)
        by_peers.setdefault(verdict.peers, Sum()).add(part)
        hashes[seed] = verdict.hash
        if verdict.violation:
            failures.append((seed, verdict.violation))
    return Chunk(by_peers, failures, hashes)


def run_campaign(
    strategy: str,
    *,
    seeds: int,
    first_seed: int = 0,
    peers: int = 0,
    jobs: int = 0,
    progress: Callable[[Campaign], None] = lambda _so_far: None,
) -> Campaign:
    """`progress` is called with the result so far after each chunk."""
    jobs = jobs or os.cpu_count() or 1
    campaign = Campaign(strategy, first_seed, peers, jobs=jobs)
    hashes: dict[int, str] = {}
    again: dict[int, str] = {}
    began = time.monotonic()
    for repeat, chunk in _chunks(strategy, seeds=seeds, first_seed=first_seed, peers=peers, jobs=jobs):
        campaign.wall_s = time.monotonic() - began
        if repeat:
            again.update(chunk.hashes)
            continue
        hashes.update(chunk.hashes)
        for size, part in chunk.by_peers.items():
            campaign.by_peers.setdefault(size, Sum()).add(part)
        campaign.failed += len(chunk.failures)
        campaign.failures = sorted(campaign.failures + chunk.failures)[:FAILURES_KEPT]
        progress(campaign)
    campaign.wall_s = time.monotonic() - began
    campaign.repeated = len(again)
    campaign.unstable = sorted(seed for seed, digest in again.items() if hashes[seed] != digest)
    campaign.hash = hashlib.blake2b(
        "".join(hashes[seed] for seed in sorted(hashes)).encode(), digest_size=8
    ).hexdigest()
    return campaign


def _chunks(strategy: str, *, seeds: int, first_seed: int, peers: int, jobs: int) -> Iterator[tuple[bool, Chunk]]:
    every = range(first_seed, first_seed + seeds)
    work = [(False, list(every[at : at + CHUNK_SEEDS])) for at in range(0, seeds, CHUNK_SEEDS)]
    repeats = list(every[::REPEAT_EVERY])
    work += [(True, repeats[at : at + CHUNK_SEEDS]) for at in range(0, len(repeats), CHUNK_SEEDS)]
    if jobs == 1:
        for repeat, chunk in work:
            yield repeat, run_chunk(strategy, chunk, peers)
        return
    with ProcessPoolExecutor(jobs) as pool:
        pending = {pool.submit(run_chunk, strategy, chunk, peers): repeat for repeat, chunk in work}
        for done in as_completed(pending):
            yield pending[done], done.result()


def run_mutations(*, jobs: int = 0, progress: Callable[[Caught], None] = lambda _caught: None) -> list[Caught]:
    """Hunt all mutations of lanes, queues, the node and the channel. The result is in the order of the lists."""
    jobs = jobs or os.cpu_count() or 1
    names = [(group, mutation.name) for group, listed in MUTATIONS.items() for mutation in listed]
    names += [("channel", mutant.name) for mutant in MUTANTS]
    found: dict[tuple[str, str], Caught] = {}
    with ProcessPoolExecutor(jobs) as pool:
        pending = {pool.submit(hunt_named, *name): name for name in names}
        for done in as_completed(pending):
            found[pending[done]] = done.result()
            progress(done.result())
    return [found[name] for name in names]


def hunt_named(group: str, name: str) -> Caught:
    """By name, because a mutation cannot be pickled."""
    if group == "channel":
        return hunt_mutant(name)
    return hunt(next(mutation for mutation in MUTATIONS[group] if mutation.name == name))

"""Many seeds over several processes, added up; and hunts for every mutation.

Seeds are independent, so a campaign is a list of small chunks handed to worker processes. Chunks come back in the order
in which they finish, sums do not depend on that order, and the campaign's own hash is made from the seeds' hashes in
the order of seeds: two campaigns over the same seeds print the same hash on any number of cores.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Final

from msgspec import Struct, field

from avow.testing.channel.mutants import MUTANTS, hunt_mutant
from avow.testing.hunt import Caught, hunt
from avow.testing.mutations import TWO_PHASE_MUTATIONS
from avow.testing.pubsub import simulate_pubsub
from avow.testing.pubsub_mutations import PUBSUB_MUTATIONS
from avow.testing.simulation import Verdict
from avow.testing.two_phase import simulate_two_phase

CHUNK_SEEDS: Final = 20
REPEAT_EVERY: Final = (
    50  # every so many seeds one is run a second time, in another process, and must give the same hash
)
FAILURES_KEPT: Final = 20
MUTATIONS_COUNT: Final = len(TWO_PHASE_MUTATIONS) + len(PUBSUB_MUTATIONS) + len(MUTANTS)

STRATEGIES: Final[dict[str, Callable[..., Verdict]]] = {
    "two-phase": simulate_two_phase,
    "pub-sub": simulate_pubsub,
}


class Sum(Struct):
    """What a number of seeds add up to."""

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
    """The result of a whole campaign. `repeated` seeds were run twice; `unstable` of them gave another hash."""

    strategy: str
    first_seed: int
    peers: int = 0  # in each cluster; 0: as the seed says
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
    simulate = STRATEGIES[strategy]
    by_peers: dict[int, Sum] = {}
    failures: list[tuple[int, str]] = []
    hashes: dict[int, str] = {}
    for seed in seeds:
        began = time.process_time()
        verdict = simulate(seed, peers=peers)
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
    """Simulate `seeds` seeds; `progress` sees the sums grow."""
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
    """Hunt every mutation of both strategies and of the channel; the result is in the order of the lists."""
    jobs = jobs or os.cpu_count() or 1
    names = [("two-phase", m.name) for m in TWO_PHASE_MUTATIONS] + [("pub-sub", m.name) for m in PUBSUB_MUTATIONS]
    names += [("channel", mutant.name) for mutant in MUTANTS]
    found: dict[tuple[str, str], Caught] = {}
    with ProcessPoolExecutor(jobs) as pool:
        pending = {pool.submit(hunt_named, *name): name for name in names}
        for done in as_completed(pending):
            found[pending[done]] = done.result()
            progress(done.result())
    return [found[name] for name in names]


def hunt_named(strategy: str, name: str) -> Caught:
    """By name, because a mutated class does not travel between processes."""
    if strategy == "channel":
        return hunt_mutant(name)
    listed = TWO_PHASE_MUTATIONS if strategy == "two-phase" else PUBSUB_MUTATIONS
    return hunt(next(mutation for mutation in listed if mutation.name == name))

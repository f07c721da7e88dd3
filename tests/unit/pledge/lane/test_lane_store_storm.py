"""Many writers at three peers, while links are cut and peers die: nothing that was answered is lost or done twice."""

from __future__ import annotations

import asyncio
from collections import Counter
from random import Random

import pytest
from tests.unit.pledge.lane.pledge_bench import Bench, pledge_of, run

from avow.errors import AvowError, Unknown
from avow.pledge.record import Attempt, Progress
from avow.pledge.stores.lane.store import LaneStore

GIDS = [f"gid-{number}" for number in range(12)]


class Storm:
    def __init__(self, bench: Bench, random: Random) -> None:
        self.bench, self.random = bench, random
        self.inserted: Counter[str] = Counter()
        self.swapped: Counter[tuple[str, int]] = Counter()  # gid, revision that was made
        self.unknown: Counter[str] = Counter()
        self.over = False

    async def write(self, at: int) -> None:
        while not self.over:
            store = self.bench.stores.get(at)
            if store is not None:
                gid = self.random.choice(GIDS)
                try:
                    async with asyncio.timeout(20):
                        await self._one(store, gid)
                except TimeoutError:  # the peer that was asked has died
                    self.unknown[gid] += 1
            await asyncio.sleep(self.random.random() * 0.05)

    async def _one(self, store: LaneStore, gid: str) -> None:
        try:
            known = await store.load(gid)
            if known is None:
                self.inserted[gid] += await store.insert(pledge_of(gid)) is None
                return
            number = known.revision + 1
            progress = Progress("prepared", 1, number, 100, attempts=(Attempt(number, "01", "ERROR"),))
            after = await store.swap(known, progress)
            if after is not None:
                self.swapped[gid, after.revision] += 1
        except Unknown:
            self.unknown[gid] += 1
        except AvowError:
            pass

    async def break_things(self) -> None:
        for _ in range(6):
            await asyncio.sleep(0.5)
            victim = self.random.choice((1, 2, 3))
            if self.random.random() < 0.5:
                pairs = {(victim, other) for other in (1, 2, 3)} | {(other, victim) for other in (1, 2, 3)}
                self.bench.cluster.cut |= pairs
                await asyncio.sleep(1.5)
                self.bench.cluster.cut.clear()
            else:
                self.bench.kill(victim)
                await asyncio.sleep(1.0)
                self.bench.restart(victim)
                await self.bench.until(lambda victim=victim: len(self.bench.cluster.nodes[victim].lanes) == 8)  # type: ignore[misc]
                await self.bench.store(victim, messages_min=30)
        self.over = True


@pytest.mark.parametrize("seed", range(4))
def test_every_acknowledged_swap_made_its_own_revision(seed: int) -> None:
    async def scenario() -> None:
        async with Bench(seed=seed) as bench:
            for at in (1, 2, 3):
                await bench.store(at, messages_min=30)
            storm = Storm(bench, Random(seed))
            await asyncio.gather(storm.break_things(), *[storm.write(at) for at in (1, 2, 3) for _ in range(4)])
            await _check(bench, storm)

    run(scenario)


async def _check(bench: Bench, storm: Storm) -> None:
    assert max(storm.inserted.values()) == 1
    assert max(storm.swapped.values()) == 1
    assert len(storm.swapped) > 100
    found = {}
    for gid in GIDS:
        seen = [await store.load(gid) for store in bench.stores.values()]
        contents = {None if pledge is None else (pledge.revision, pledge.progress) for pledge in seen}
        assert len(contents) == 1, f"peers differ about {gid}"
        found[gid] = seen[0]
    for gid, pledge in found.items():
        made = [revision for name, revision in storm.swapped if name == gid]
        if pledge is None:
            assert not made
            assert not storm.inserted[gid]
            continue
        assert pledge.revision >= max(made, default=1)
        assert pledge.revision - 1 <= len(made) + storm.unknown[gid]
        assert pledge.progress.attempts[0].at_ms == pledge.revision if pledge.revision > 1 else True
    trimmed = [lane.state.trimmed_to for lane in bench.cluster.nodes[1].lanes.values()]
    assert any(trimmed), "it never came to a compaction"

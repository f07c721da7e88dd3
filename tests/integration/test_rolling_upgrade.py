"""Peers of the earlier version and of this one in one cluster: upgraded one by one under load, and one rolled back.

The level of the cluster cannot be raised while a peer of the earlier version is a member. Once it is raised, that
version refuses the folder.

The campaign of `avow prove` supplies the load and the judgement: its sessions write, read and decide transactions all
the while, and its checker compares all answers with every lane of every peer at the end. The script
replaces the peers. It also writes at each step, so that each mixture of versions is known to have served.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from functools import partial
from pathlib import Path

import pytest
from tests.integration.earlier_version import COMMIT, has_history, unpack

import avow
from avow.cli.cluster_api import Api
from avow.client.client import Client
from avow.client.descriptions import Level, Strategy
from avow.client.outcomes import Done
from avow.client.pledge import Delivered, Pledge
from avow.client.transaction import Transaction
from avow.errors import Offline, UpgradeUnfinished
from avow.testing.cluster_wait import wait_until
from avow.wire.versions import FIRST, NEWEST
from avow_lab.campaigns.harness.campaign import prove
from avow_lab.campaigns.peers.campaign import Options, PeerCampaign
from avow_lab.campaigns.peers.client_session import PLANS
from avow_lab.campaigns.peers.faults import Faults

LANES = [(plan.name, lane) for plan in PLANS if plan.strategy == "two-phase" for lane in range(plan.lanes)]
QUEUES: dict[str, Strategy] = {"steps": "two-phase", "notes": "pub-sub", "pledged": "two-phase"}
BATCH_COUNT = 10
PATIENCE_S = 60.0  # of a client, which repeats its requests meanwhile
PEERS = {1, 2, 3}
NOWHERE = "http://127.0.0.1:9/checkback"  # asked after `timeout_to_fail_s` only


@pytest.fixture
def earlier(tmp_path: Path) -> Path:
    if not has_history(COMMIT):
        pytest.skip(f"this copy has no history: commit {COMMIT}, whose peers the test runs, is not in it")
    return unpack(COMMIT, tmp_path / "earlier")


def test_peers_of_both_versions_work_together_during_a_rolling_upgrade(earlier: Path, tmp_path: Path) -> None:
    upgrade = Upgrade(earlier)
    options = Options(seconds=0, network="proxy", folder=str(tmp_path / "campaign"), code=str(earlier))
    verdict = prove(partial(PeerCampaign, script=upgrade.run), options)
    assert verdict.clean, (verdict.findings, verdict.troubles, verdict.stuck)
    assert verdict.acknowledged > 100
    assert all(verdict.checked[name] for name in ("lost", "duplicated", "reordered")), verdict.checked
    assert upgrade.mixtures == [(3, 0), (2, 1), (1, 1), (1, 2), (1, 1), (0, 3), (1, 2), (0, 3), (0, 3)]


class Upgrade:
    """The script. `mixtures`: how many peers of the earlier version and of this one ran at each of its steps."""

    def __init__(self, earlier: Path) -> None:
        self._earlier = earlier
        self.mixtures: list[tuple[int, int]] = []
        self._written: dict[tuple[str, int], list[bytes]] = defaultdict(list)
        self._pledged: list[bytes] = []

    async def run(self, faults: Faults) -> None:
        self._testbed, self._cluster = faults.testbed, faults.testbed.cluster
        async with await avow.connect(self._cluster.addresses, timeout_s=PATIENCE_S) as client:
            self._client = client
            staged = await self._begin(client)
            await self._write()
            await self._upgrade(staged)

    async def _begin(self, client: Client) -> Transaction:
        """Work that one version begins and the other finishes: an open transaction and a prepared pledge."""
        for name, strategy in QUEUES.items():
            await client.create_queue(name, strategy=strategy, lanes=2 if name == "steps" else 1)
        staged = client.queue("steps").transaction("begun by the earlier version", deadline_s=3600)
        await staged.enqueue_many([b"staged 0", b"staged 1"], lane=0)
        await self._pledge("prepared early").prepare(NOWHERE)
        return staged

    async def _upgrade(self, staged: Transaction) -> None:
        first = min(PEERS - {await self._coordinating(PEERS)})
        await self._replace(first, code=None)
        await self._write()
        # Of the two peers that remain, one is of each version: they must elect a coordinator among them.
        second = await self._coordinating(PEERS - {first})
        await self._kill_and_write(second)
        await self._bring_back(second, code=None)
        await self._write()
        third = await self._coordinating({first, second})
        await self._kill_and_write(third)
        await self._bring_back(third, code=None)
        (last,) = PEERS - {first, second}
        await self._replace(last, code=None)
        await self._finish(staged)
        await self._write()
        await self._replace(first, code=self._earlier)
        await self._write()
        await self._refuse_to_finish()
        await self._replace(first, code=None)
        await self._finish_upgrade()
        await self._write()
        await self._fail_to_roll_back(first)
        await self._write()
        assert sorted(await self._values("pledged", lane=0, at_least=0)) == sorted(self._pledged)

    # ------------------------------------------------------------------ peers

    async def _replace(self, number: int, *, code: Path | None) -> None:
        assert await asyncio.to_thread(self._cluster.stop, number) == 0
        await self._bring_back(number, code=code)

    async def _bring_back(self, number: int, *, code: Path | None) -> None:
        self._cluster.process(number).code = code
        await asyncio.to_thread(self._cluster.restart, number)
        assert await asyncio.to_thread(self._testbed.wait_whole) == ""

    async def _kill_and_write(self, number: int) -> None:
        self._cluster.kill(number)
        versions = {self._cluster.process(other).code for other in PEERS - {number}}
        assert versions == {None, self._earlier}, "one peer of each version runs"
        await self._write()

    async def _coordinating(self, wanted: set[int]) -> int:
        """One of these that coordinates a lane. Lanes move to them when the others are restarted."""
        for _ in range(5):
            found = {await asyncio.to_thread(self._testbed.coordinator, *lane) for lane in LANES} & wanted
            if found:
                return min(found)
            for number in PEERS - wanted:
                await self._replace(number, code=self._cluster.process(number).code)
        raise AssertionError(f"none of the peers {wanted} coordinates any lane")

    # ------------------------------------------------------------------ the level

    async def _refuse_to_finish(self) -> None:
        """One peer is of the earlier version."""
        new = next(number for number in PEERS if self._cluster.process(number).code is None)
        with pytest.raises(UpgradeUnfinished, match="reads up to 1"):
            await asyncio.to_thread(Api(self._cluster.api(new)).call, "POST", "/v1/level", {})
        assert await asyncio.to_thread(self._levels) == {FIRST}

    async def _finish_upgrade(self) -> None:
        answer = await asyncio.to_thread(Api(self._cluster.addresses).call, "POST", "/v1/level", {})
        assert answer == {"level": NEWEST}
        await asyncio.to_thread(wait_until, lambda: self._levels() == {NEWEST})

    def _levels(self) -> set[int]:
        new = [number for number in PEERS if self._cluster.process(number).code is None]
        return {self._cluster.ask(number, "/v1/peers")["level"] for number in new}

    async def _fail_to_roll_back(self, number: int) -> None:
        """The earlier version refuses the folder before it changes anything, and the folder still serves."""
        assert await asyncio.to_thread(self._cluster.stop, number) == 0
        self._cluster.process(number).code = self._earlier
        with pytest.raises(Offline, match="found b'AVpl'"):
            await asyncio.to_thread(self._cluster.restart, number)
        await self._bring_back(number, code=None)

    # ------------------------------------------------------------------ messages

    async def _write(self) -> None:
        """To both strategies, by transaction and by pledge; then everything written so far is read."""
        step = len(self.mixtures)
        new = [self._cluster.process(number).code is None for number in self._cluster.running]
        self.mixtures.append((new.count(False), new.count(True)))
        values = [b"%d.%d" % (step, index) for index in range(BATCH_COUNT)]
        for name in ("steps", "notes"):
            for value in values[:3]:
                self._wrote(name, [value], [await self._client.queue(name).enqueue(value)])
            self._wrote(name, values[3:], await self._client.queue(name).enqueue_many(values[3:]))
        async with self._client.queue("steps").transaction() as transaction:
            await transaction.enqueue_many(values, lane=1)
        self._wrote("steps", values, transaction.published)
        outcome = await self._pledge(f"pledge {step}").submit()
        assert isinstance(outcome, Delivered), outcome
        await self._read()

    def _wrote(self, queue: str, values: list[bytes], results: list[Done]) -> None:
        """They are one batch of one lane, after the earlier writes."""
        (done,) = results
        known = self._written[queue, done.lane]
        assert (done.first_version, done.last_version) == (len(known) + 1, len(known) + len(values))
        known += values

    async def _finish(self, staged: Transaction) -> None:
        self._wrote("steps", [b"staged 0", b"staged 1"], await staged.publish())
        again = self._client.pledge("prepared early", wait_result=True).publish("pledged", "prepared early")
        assert isinstance(await again.submit(), Delivered)

    def _pledge(self, gid: str) -> Pledge:
        self._pledged.append(gid.encode())
        pledge = self._client.pledge(gid, wait_result=True, timeout_to_fail_s=3600.0)
        return pledge.publish("pledged", gid)

    async def _read(self) -> None:
        for (name, lane), values in self._written.items():
            assert await self._values(name, lane=lane, at_least=len(values)) == values

    async def _values(self, name: str, *, lane: int, at_least: int) -> list[bytes]:
        level: Level = "at_least" if QUEUES[name] == "pub-sub" else "linearizable"
        batches = self._client.queue(name).read(lane=lane, level=level, at_least=at_least)
        return [bytes(value) async for batch in batches for value in batch.values()]

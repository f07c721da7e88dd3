"""A coordinator in virtual time: coordinators that die or are paused, unreachable stores, clean-up."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import fields
from tests.unit.pledge.pledge_world import BRANCH, CHECKBACK, Services, now_ms, request, run, until, world

from avow.errors import AvowError, Offline
from avow.pledge.coordinator import Coordinator
from avow.pledge.record import Pledge, Progress
from avow.pledge.settings import DESCRIPTIONS, PledgeSettings
from avow.pledge.store import Filter
from avow.pledge.stores.memory import MemoryStore


def test_pledges_of_a_dead_coordinator_are_delivered_by_another() -> None:
    async def go() -> None:
        store, services = MemoryStore(), Services()
        async with world(store=store) as b:
            async with world(store=store, services=services) as a:
                services.slow[BRANCH] = 1e6
                await a.coordinator.submit(request(request_timeout_s=3.0))
                await asyncio.sleep(0.1)
                await a.coordinator.close(grace_s=0.0)  # cancelled in the middle of the call, nothing recorded
            assert (await b.pledge("g")).progress.held
            await b.until("g", "succeeded", within_s=15)
            assert b.services.count(BRANCH) == 1

    run(go)


def test_the_only_owner_of_a_store_takes_over_at_once() -> None:
    async def go() -> None:
        store, services = MemoryStore(), Services()
        async with world(store=store, services=services) as a:
            services.slow[BRANCH] = 1e6
            await a.coordinator.submit(request("held"))
            await a.coordinator.submit(request("later", delay_s=50.0))
            await asyncio.sleep(0.1)
            await a.coordinator.close(grace_s=0.0)
        async with world(store=store) as b:
            assert await b.coordinator.take_over() == 1
            await b.until("held", "succeeded", within_s=0.2)
            assert await b.status("later") == "submitted"
            await b.until("later", "succeeded", within_s=51)

    run(go)


def test_a_restart_loses_nothing() -> None:
    async def go() -> None:
        store = MemoryStore()
        async with world(store=store, timeout_to_fail_s=5.0) as a:
            a.services.answer(BRANCH, "ERROR")
            a.services.answer(CHECKBACK, "ONGOING")
            for number in range(50):
                await a.coordinator.prepare(request(f"prepared{number}"))
                await a.coordinator.submit(request(f"submitted{number}"))
                await a.coordinator.submit(request(f"delayed{number}", delay_s=30.0))
            await asyncio.sleep(7)
        async with world(store=store) as b:
            for kind in ("prepared", "submitted", "delayed"):
                for number in range(50):
                    await b.until(f"{kind}{number}", "succeeded", within_s=60)

    run(go)


class Pausing(MemoryStore):
    """A coordinator over it can be kept from changing anything for some time, like a paused process."""

    def __init__(self, shared: MemoryStore) -> None:
        super().__init__()
        self.__dict__.update(shared.__dict__)
        self.going = asyncio.Event()
        self.going.set()

    async def swap(self, before: Pledge, progress: Progress, *, release: bool = False) -> Pledge | None:
        await self.going.wait()
        return await super().swap(before, progress, release=release)

    async def claim(self, **given: Any) -> list[Pledge]:
        await self.going.wait()
        return await super().claim(**given | {"now_ms": now_ms()})


@pytest.mark.parametrize("how", ["submitted here", "claimed"])
def test_a_coordinator_that_was_paused_drops_its_result(how: str) -> None:
    async def go() -> None:
        shared = MemoryStore()
        paused = Pausing(shared)
        async with world(store=paused) as a:
            a.services.slow[BRANCH] = 1.0
            if how == "claimed":
                a.services.answer(BRANCH, "ERROR", "SUCCESS")
            await a.coordinator.submit(request(request_timeout_s=10.0))
            calls_count = 2 if how == "claimed" else 1
            await until(lambda: _called_so_often(a.services, calls_count), within_s=30)
            paused.going.clear()
            async with world(store=shared) as b:
                b.services.answer(BRANCH, "ONGOING")
                await until(lambda: _called_so_often(b.services, 1), within_s=40)  # what it was held for is over
                await asyncio.sleep(1.0)
                before = await b.pledge("g")
                paused.going.set()
                await asyncio.sleep(0.1)
                assert a.coordinator.statistics()["lost"] == 1
                assert await b.pledge("g") == before

    run(go)


async def _called_so_often(services: Services, count: int) -> bool:
    return services.count(BRANCH) == count


class Failing(MemoryStore):
    """Fails like a database that is unreachable for some time."""

    away = False

    async def swap(self, before: Pledge, progress: Progress, *, release: bool = False) -> Pledge | None:
        self._check()
        return await super().swap(before, progress, release=release)

    async def claim(self, **given: Any) -> list[Pledge]:
        self._check()
        return await super().claim(**given)

    def _check(self) -> None:
        if self.away:
            raise Offline("the database is away; nothing was changed")


def test_an_unreachable_store_delays_pledges_and_loses_none() -> None:
    async def go() -> None:
        store = Failing()
        async with world(store=store) as w:
            w.services.slow[BRANCH] = 1.0
            await w.coordinator.submit(request())
            await w.coordinator.prepare(request("second"))
            store.away = True
            with pytest.raises(AvowError):
                await w.coordinator.submit(request("second"))
            await asyncio.sleep(30)
            assert await w.status("g") == "submitted"  # delivered, but nobody could write it down
            store.away = False
            await w.until("g", "succeeded", within_s=20)
            await w.coordinator.submit(request("second"))
            await w.until("second", "succeeded", within_s=20)
            assert w.coordinator.statistics()["store_errors"] > 0

    run(go)


@pytest.mark.parametrize("claim_max", [1, 3, 1000])
def test_all_due_pledges_are_delivered_even_with_a_small_claim_size(claim_max: int) -> None:
    async def go() -> None:
        async with world(claim_max=claim_max) as w:
            for number in range(50):
                await w.coordinator.submit(request(f"g{number}", delay_s=5.0))
            await asyncio.sleep(6.0)
            assert (await w.coordinator.find(Filter(statuses=("submitted",)))).pledges == ()
            assert w.coordinator.statistics()["claimed"] == 50

    run(go)


@pytest.mark.parametrize("sweep_s", [0.5, 5.0])
def test_pledges_left_by_another_coordinator_are_found_by_the_next_sweep(sweep_s: float) -> None:
    async def go() -> None:
        store = MemoryStore()
        async with world(store=store, sweep_s=sweep_s) as w:
            await asyncio.sleep(sweep_s / 2)
            other = Coordinator(store, w.services, now_ms=now_ms)  # it accepts, and does no work
            await other.submit(request(delay_s=0.01))
            began = asyncio.get_running_loop().time()
            await w.until("g", "succeeded", within_s=sweep_s + 1)
            assert asyncio.get_running_loop().time() - began <= sweep_s + 0.6

    run(go)


def test_an_abort_is_answered_once_when_its_checkback_is_repeated_at_once() -> None:
    async def go() -> None:
        async with world(retry_interval_s=0.0001) as w:
            w.services.answer(CHECKBACK, "ERROR", "ERROR", "FAILURE")
            await w.coordinator.prepare(request())
            assert (await w.coordinator.abort("g")).status in ("prepared", "failed")
            await w.until("g", "failed", within_s=5)

    run(go)


def test_every_setting_is_described() -> None:
    assert set(DESCRIPTIONS) == {field.name for field in fields(PledgeSettings)}


def test_finished_pledges_are_forgotten_after_their_time_and_dead_ones_are_kept() -> None:
    async def go() -> None:
        async with world(kept_s=600.0, retry_limit=1) as w:
            await w.coordinator.submit(request("good"))
            w.services.answer("http://bad/", "ERROR")
            await w.coordinator.submit(request("dead", "http://bad/"))
            await asyncio.sleep(500)
            assert await w.coordinator.query("good") is not None
            await asyncio.sleep(300)
            assert await w.coordinator.query("good") is None
            assert await w.status("dead") == "dead"

    run(go)

"""A coordinator in virtual time: failing pledges are retried, die, are redriven, or are stopped manually."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest
from tests.unit.pledge.pledge_world import BRANCH, CHECKBACK, DEAD, request, run, world

from avow.errors import PledgeDecided
from avow.pledge.store import Filter
from avow.pledge.verdicts import Result

ERROR: Result = "ERROR"


def test_point_6_a_failing_pledge_backs_off_with_a_cap_dies_alerts_and_is_redriven() -> None:
    async def go() -> None:
        async with world(
            retry_interval_s=1.0, backoff_max_s=8.0, alert_webhook="http://alerts/", endpoint_failures=1000
        ) as w:
            w.services.answer(BRANCH, "ERROR")
            await w.coordinator.submit(request(retry_limit=12))
            dead = await w.until("g", "dead")
            times = w.services.times(BRANCH)
            gaps = [later - earlier for earlier, later in pairwise(times)]
            assert len(times) == 12
            assert all(gap <= min(2**place, 8) + 0.1 for place, gap in enumerate(gaps))
            assert len({round(gap, 3) for gap in gaps}) > 6  # jitter
            assert (dead.progress.last_error, dead.progress.failures) == ("because", 12)
            assert dead.progress.reason == "failed 12 times in a row"
            await asyncio.sleep(1)
            assert [alert["retry_count"] for alert in w.services.alerts] == [3, 6, 12]
            assert w.services.alerts[-1] == {
                "gid": "g",
                "status": "dead",
                "branch": "01",
                "error": "because",
                "retry_count": 12,
            }
            await asyncio.sleep(1000)
            assert w.services.count(BRANCH) == 12
            w.services.answer(BRANCH, "SUCCESS")
            await w.coordinator.redrive("g")
            await w.until("g", "succeeded", within_s=1)

    run(go)


def test_a_failing_webhook_has_no_effect_on_pledges() -> None:
    async def go() -> None:
        async with world(retry_interval_s=1.0, alert_webhook="http://alerts/") as w:
            w.services.webhook_problem = "HTTP 500"
            w.services.answer(BRANCH, *[ERROR] * 5, "SUCCESS")
            await w.coordinator.submit(request())
            await w.until("g", "succeeded")
            await asyncio.sleep(10)
            assert w.coordinator.statistics()["alerts_dropped"] == 1

    run(go)


def test_a_checkback_that_fails_causes_an_alert_too() -> None:
    async def go() -> None:
        async with world(alert_webhook="http://alerts/") as w:
            w.services.answer(CHECKBACK, "ERROR", "ERROR", "ERROR", "SUCCESS")
            await w.coordinator.prepare(request())
            await w.until("g", "succeeded")
            await asyncio.sleep(1)
            (alert,) = w.services.alerts
            assert (alert["branch"], alert["status"], alert["retry_count"]) == ("00", "prepared", 3)

    run(go)


def test_a_pledge_that_only_failed_dies_by_age() -> None:
    async def go() -> None:
        async with world(dead_after_s=3600.0, sweep_s=60.0) as w:
            w.services.answer(BRANCH, "ERROR")
            await w.coordinator.submit(request())
            began = asyncio.get_running_loop().time()
            await w.until("g", "dead")
            assert 3600 <= asyncio.get_running_loop().time() - began < 3600 + 301

    run(go)


def test_point_15_a_checkback_that_never_answers_is_asked_for_ever() -> None:
    async def go() -> None:
        async with world(retry_limit=3, dead_after_s=60.0, sweep_s=600.0, probe_interval_max_s=900.0) as w:
            w.services.answer(CHECKBACK, *[DEAD] * 50, "SUCCESS")
            await w.coordinator.prepare(request())
            await asyncio.sleep(6 * 3600)
            prepared = await w.pledge("g")
            assert prepared.status == "prepared"
            assert prepared.progress.failures > 15
            await w.until("g", "succeeded")

    run(go)


@pytest.mark.parametrize("what", ["branch", "checkback"])
def test_point_8_retry_now_does_not_wait_for_the_back_off(what: str) -> None:
    async def go() -> None:
        async with world(endpoint_failures=3) as w:
            url = BRANCH if what == "branch" else CHECKBACK
            w.services.answer(url, DEAD)
            if what == "branch":
                await w.coordinator.submit(request())
            else:
                await w.coordinator.prepare(request())
            await asyncio.sleep(3000)
            w.services.answer(url, "SUCCESS")
            await w.coordinator.retry("g")
            await w.until("g", "succeeded", within_s=0.5)
            with pytest.raises(PledgeDecided):
                await w.coordinator.retry("g")

    run(go)


def test_point_8_many_waiting_pledges_are_retried_with_one_call() -> None:
    async def go() -> None:
        async with world(endpoint_failures=1000, backoff_max_s=1e6, retry_interval_s=1000.0) as w:
            w.services.answer(BRANCH, *[ERROR] * 30, "SUCCESS")
            for number in range(30):
                await w.coordinator.submit(request(f"g{number}"))
            await asyncio.sleep(0.5)
            first = await w.coordinator.retry_waiting(longer_than_s=5, limit=10)
            assert (first.changed_count, first.more) == (10, True)
            rest = await w.coordinator.retry_waiting(longer_than_s=5, limit=100)
            assert not rest.more
            assert 10 < rest.changed_count <= 20
            await asyncio.sleep(6)
            page = await w.coordinator.find(Filter(statuses=("submitted",)))
            assert page.pledges == ()

    run(go)


def test_dead_pledges_are_redriven_with_one_call() -> None:
    async def go() -> None:
        async with world(retry_limit=1) as w:
            w.services.answer(BRANCH, "ERROR")
            for number in range(5):
                await w.coordinator.submit(request(f"g{number}"))
            await w.until("g4", "dead")
            w.services.answer(BRANCH, "SUCCESS")
            assert (await w.coordinator.redrive_all(Filter(), limit=100)).changed_count == 5
            for number in range(5):
                await w.until(f"g{number}", "succeeded", within_s=1)

    run(go)


def test_a_person_can_stop_a_pledge_in_any_status_but_the_last() -> None:
    async def go() -> None:
        async with world() as w:
            w.services.answer(BRANCH, "ERROR")
            await w.coordinator.submit(request("submitted"))
            await w.coordinator.prepare(request("prepared"))
            await asyncio.sleep(1)
            for gid in ("submitted", "prepared"):
                stopped = await w.coordinator.stop(gid, reason="not needed")
                assert (stopped.status, stopped.progress.reason) == ("failed", "not needed")
                with pytest.raises(PledgeDecided):
                    await w.coordinator.stop(gid)
            called = len(w.services.calls)
            await asyncio.sleep(1000)
            assert len(w.services.calls) == called

    run(go)


def test_a_pledge_stopped_during_a_call_stays_stopped_and_the_delivery_is_recorded() -> None:
    async def go() -> None:
        async with world() as w:
            w.services.slow[BRANCH] = 2.0
            await w.coordinator.submit(request("g", BRANCH, "http://shop/second"))
            await asyncio.sleep(1.0)
            await w.coordinator.stop("g")
            await asyncio.sleep(100)
            pledge = await w.pledge("g")
            assert pledge.status == "failed"
            assert [branch.status for branch in pledge.progress.branches] == ["succeeded", "prepared"]
            assert w.services.count("http://shop/second") == 0

    run(go)

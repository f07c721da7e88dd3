"""A coordinator in virtual time: the answers to callers that wait for a result, and to aborts."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.unit.pledge.pledge_world import BRANCH, CHECKBACK, DEAD, Services, now_ms, request, run, until, world

from avow.errors import PledgeDecided, UnknownPledge

# ------------------------------------------------------------------------------------------ wait_result


@pytest.mark.parametrize(
    ("answers", "state"),
    [
        (["SUCCESS"], "succeeded"),
        (["ONGOING", "SUCCESS"], "ongoing"),
        (["ERROR", "SUCCESS"], "failing"),
        (["FAILURE", "SUCCESS"], "failing"),
        ([DEAD, "SUCCESS"], "failing"),
    ],
)
def test_point_4_a_waiting_caller_gets_the_actual_status_and_delivery_continues(answers: list[Any], state: str) -> None:
    async def go() -> None:
        async with world() as w:
            w.services.answer(BRANCH, *answers)
            submission = await w.coordinator.submit(request(wait_result=True))
            assert submission.delivery.state == state
            assert submission.pledge.status == ("succeeded" if state == "succeeded" else "submitted")
            await w.until("g", "succeeded")

    run(go)


def test_point_4_a_delayed_pledge_is_reported_as_delayed_at_once() -> None:
    async def go() -> None:
        async with world() as w:
            submission = await w.coordinator.submit(request(wait_result=True, delay_s=60.0))
            assert submission.delivery.state == "delayed"
            assert submission.delivery.next_at_ms == now_ms() + 60_000
            await w.until("g", "succeeded")

    run(go)


def test_point_4_waiting_is_bounded_and_a_slow_branch_is_pending() -> None:
    async def go() -> None:
        async with world(wait_result_s=2.0, request_timeout_s=100.0) as w:
            w.services.slow[BRANCH] = 50.0
            began = asyncio.get_running_loop().time()
            submission = await w.coordinator.submit(request(wait_result=True))
            assert submission.delivery.state == "started"
            assert asyncio.get_running_loop().time() - began == pytest.approx(2.0, abs=0.1)
            await w.until("g", "succeeded")

    run(go)


def test_point_13_failed_differs_from_committed_and_pending() -> None:
    async def go() -> None:
        async with world() as w:
            w.services.answer(BRANCH, "ERROR")
            pending = await w.coordinator.submit(request("pending", wait_result=True))
            assert (pending.pledge.status, pending.delivery.state, pending.delivery.error) == (
                "submitted",
                "failing",
                "because",
            )
            w.services.answer(CHECKBACK, "FAILURE")
            await w.coordinator.prepare(request("failed"))
            assert (await w.coordinator.abort("failed")).status == "failed"
            with pytest.raises(PledgeDecided):
                await w.coordinator.submit(request("failed"))

    run(go)


# ------------------------------------------------------------------------------------------------ abort


def test_point_11_an_abort_asks_the_checkback_and_cannot_undo_a_commit() -> None:
    async def go() -> None:
        async with world() as w:
            await w.coordinator.prepare(request())
            with pytest.raises(PledgeDecided) as refused:
                await w.coordinator.abort("g")
            assert refused.value.status == "submitted"
            await w.until("g", "succeeded")
            assert (w.services.count(CHECKBACK), w.services.count(BRANCH)) == (1, 1)

    run(go)


def test_point_11_an_abort_of_a_rolled_back_transaction_fails_it_at_once() -> None:
    async def go() -> None:
        async with world() as w:
            w.services.answer(CHECKBACK, "FAILURE")
            await w.coordinator.prepare(request())
            began = asyncio.get_running_loop().time()
            assert (await w.coordinator.abort("g")).status == "failed"
            assert asyncio.get_running_loop().time() - began < 1.0
            assert (await w.coordinator.abort("g")).status == "failed"  # repeated
            with pytest.raises(UnknownPledge):
                await w.coordinator.abort("nobody")

    run(go)


def test_an_abort_without_a_verdict_is_still_prepared_and_is_asked_again() -> None:
    async def go() -> None:
        async with world() as w:
            w.services.answer(CHECKBACK, "ONGOING", "ERROR", "FAILURE")
            await w.coordinator.prepare(request())
            pledge = await w.coordinator.abort("g")
            assert (pledge.status, pledge.progress.aborting) == ("prepared", True)
            await w.until("g", "failed", within_s=60)

    run(go)


def test_an_abort_is_answered_when_the_verdict_is_known_and_not_when_all_is_delivered() -> None:
    async def go() -> None:
        async with world(request_timeout_s=100.0) as w:
            w.services.slow[BRANCH] = 20.0
            await w.coordinator.prepare(request())
            began = asyncio.get_running_loop().time()
            with pytest.raises(PledgeDecided):
                await w.coordinator.abort("g")
            assert asyncio.get_running_loop().time() - began < 1.0

    run(go)


def test_a_submit_overtakes_a_checkback_and_its_verdict_comes_late() -> None:
    async def go() -> None:
        for late in ("SUCCESS", "FAILURE", "ONGOING"):
            async with world(request_timeout_s=50.0, timeout_to_fail_s=5.0) as w:
                w.services.slow[CHECKBACK] = 10.0
                w.services.answer(CHECKBACK, late)  # type: ignore[arg-type]
                await w.coordinator.prepare(request())
                await until(lambda: _called(w.services, CHECKBACK), within_s=10)
                await w.coordinator.submit(request())
                await asyncio.sleep(60)
                assert await w.status("g") == "succeeded"
                assert (w.services.count(CHECKBACK), w.services.count(BRANCH)) == (1, 1)

    run(go)


async def _called(services: Services, url: str) -> bool:
    return services.count(url) > 0

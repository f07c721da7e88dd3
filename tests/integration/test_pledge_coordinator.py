"""A coordinator and real services on loopback: where the known systems fail, and this one must not.

The points are those of the design; 10, 12 and 14 are the barrier's and are tried there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest
import uvloop
from tests.integration.branch_services import (
    FAILURE,
    ONGOING,
    SILENT,
    SUCCESS,
    Request,
    Service,
    coordinator,
    ended,
    request_of,
    services,
    until,
)

from avow.errors import ContentDiffers, InvalidRequest, PledgeDecided
from avow.pledge.coordinator import Coordinator
from avow.pledge.record import Content
from avow.pledge.store import Filter
from avow.pledge.stores.memory import MemoryStore

LIMIT_S = 300.0
BACKOFF_S = 3600.0
STUCK = 2_000


def scenario(
    work: Callable[[Service, Coordinator], Awaitable[None]],
    *,
    runner: Callable[[Any], Any] = uvloop.run,
    **settings: Any,
) -> None:
    async def go() -> None:
        async with services() as (service,), coordinator(**settings) as pledges, asyncio.timeout(LIMIT_S):
            await work(service, pledges)

    runner(go())


def bank(service: Service, gid: str = "g", *, steps: tuple[str, ...] = ("/in",), **options: Any) -> Content:
    urls = [f"{service.url}{step}" for step in steps]
    return request_of(gid, *urls, checkback=f"{service.url}/checkback", **options)


@pytest.mark.parametrize("runner", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_a_pledge_is_delivered_when_it_is_submitted(runner: Callable[[Any], Any]) -> None:
    async def work(service: Service, pledges: Coordinator) -> None:
        await pledges.prepare(bank(service, steps=("/in", "/mail")))
        assert service.requests == []
        await pledges.submit(bank(service, steps=("/in", "/mail")))
        await ended(pledges, "g")
        assert [(seen.path, dict(seen.query)["branch_id"]) for seen in service.requests] == [
            ("/in", "01"),
            ("/mail", "02"),
        ]

    scenario(work, runner=runner)


def test_a_submit_is_delivered_without_waiting_for_a_poll() -> None:
    async def work(service: Service, pledges: Coordinator) -> None:
        for number in range(20):
            submission = await pledges.submit(bank(service, f"g{number}", wait_result=True))
            assert submission.delivery.state == "succeeded"

    scenario(work, sweep_s=3600.0)


def test_an_empty_url_is_delivered_at_once_as_in_dtm() -> None:
    async def work(service: Service, pledges: Coordinator) -> None:
        submission = await pledges.submit(request_of("g", "", f"{service.url}/in", wait_result=True))
        assert submission.delivery.state == "succeeded"
        assert [dict(seen.query)["branch_id"] for seen in service.requests] == ["02"]

    scenario(work)


def test_point_1_prepare_without_a_checkback_is_refused() -> None:
    async def work(service: Service, pledges: Coordinator) -> None:
        with pytest.raises(InvalidRequest, match="checkback"):
            await pledges.prepare(request_of("g", f"{service.url}/in"))
        assert await pledges.query("g") is None

    scenario(work)


@pytest.mark.parametrize(
    "no_verdict",
    [
        (200, b'Traceback (most recent call last):\n  File "shop.py"\nRuntimeError: SUCCESS'),
        (200, b"OK"),
        (500, b"the word FAILURE in an error page"),
        (500, b'{"dtm_result":"FAILURE"}'),
        (409, b"edit conflict"),
        (302, b""),
        b"HTTP/1.1 garbage\r\n\r\n",
    ],
    ids=["a stack trace", "OK", "500 FAILURE", "500 with a verdict", "a bare 409", "a redirect", "garbage"],
)
def test_point_2_a_checkback_without_a_verdict_decides_nothing_and_is_repeated(no_verdict: Any) -> None:
    async def work(service: Service, pledges: Coordinator) -> None:
        service.answer("/checkback", no_verdict, no_verdict, SUCCESS)
        await pledges.prepare(bank(service))
        pledge = await ended(pledges, "g")
        assert [attempt.verdict for attempt in pledge.progress.attempts] == ["ERROR", "ERROR", "SUCCESS", "SUCCESS"]

    scenario(work)


def test_point_2_a_branch_is_delivered_by_any_2xx_unless_its_verdict_says_otherwise() -> None:
    async def work(service: Service, pledges: Coordinator) -> None:
        service.answer(
            "/in",
            (200, b'{"dtm_result":"FAILURE"}'),
            (200, b'{"dtm_result":"ONGOING"}'),
            (409, b""),
            (425, b""),
            (500, b"SUCCESS"),
            (202, b"FAILURE is only a word"),
        )
        await pledges.submit(bank(service))
        pledge = await ended(pledges, "g")
        assert [attempt.verdict for attempt in pledge.progress.attempts] == [
            "FAILURE",
            "ONGOING",
            "FAILURE",
            "ONGOING",
            "ERROR",
            "SUCCESS",
        ]

    scenario(work)


def test_point_3_the_same_gid_with_another_content_is_refused_and_repetitions_run_nothing_twice() -> None:
    async def work(service: Service, pledges: Coordinator) -> None:
        other = request_of("g", f"{service.url}/in", checkback=f"{service.url}/checkback", payload=b'{"amount":31}')
        await pledges.prepare(bank(service))
        await pledges.prepare(bank(service))
        with pytest.raises(ContentDiffers):
            await pledges.prepare(other)
        answers = await asyncio.gather(*(pledges.submit(bank(service)) for _ in range(10)))
        assert [answer.repeated for answer in answers].count(False) == 1
        await ended(pledges, "g")
        with pytest.raises(ContentDiffers):
            await pledges.submit(other)
        assert (await pledges.submit(bank(service))).repeated
        assert [seen.body for seen in service.to("/in")] == [b'{"amount":30}']

    scenario(work)


@pytest.mark.parametrize(
    ("answer", "options", "state"),
    [
        (SUCCESS, {}, "succeeded"),
        (ONGOING, {}, "ongoing"),
        ((500, b"no"), {}, "failing"),
        (FAILURE, {}, "failing"),
        (SILENT, {"request_timeout_s": 0.2}, "failing"),
        (SUCCESS, {"delay_s": 0.5}, "delayed"),
    ],
    ids=["success", "ongoing", "error", "failure", "silence", "delay"],
)
def test_point_4_a_caller_waiting_for_the_result_gets_the_actual_status(
    answer: Any, options: dict[str, Any], state: str
) -> None:
    async def work(service: Service, pledges: Coordinator) -> None:
        service.answer("/in", answer, SUCCESS)
        submission = await pledges.submit(bank(service, wait_result=True, **options))
        assert submission.delivery.state == state
        assert submission.pledge.status == ("succeeded" if state == "succeeded" else "submitted")
        if state == "failing":
            assert submission.delivery.error
        await ended(pledges, "g")

    scenario(work)


def test_point_6_a_pledge_that_always_fails_is_dead_alerts_and_is_redriven_by_one_call() -> None:
    async def work(service: Service, _: Coordinator) -> None:
        async with coordinator(alert_webhook=f"{service.url}/alerts") as pledges:
            service.answer("/in", (500, b"out of order"))
            await pledges.submit(bank(service, retry_limit=6))
            dead = await ended(pledges, "g", "dead")
            assert (dead.progress.failures, len(dead.progress.attempts)) == (6, 6)
            assert "out of order" in dead.progress.last_error

            async def both_alerted() -> bool:
                return len(service.to("/alerts")) == 2

            await until(both_alerted)
            alerts = [msgspec.json.decode(seen.body) for seen in service.to("/alerts")]
            assert [(alert["retry_count"], alert["status"]) for alert in alerts] == [(3, "submitted"), (6, "dead")]
            assert set(alerts[0]) == {"gid", "status", "branch", "error", "retry_count"}
            service.answer("/in", SUCCESS)
            await pledges.redrive("g")
            await ended(pledges, "g")

    scenario(work)


def test_point_7_a_delay_survives_the_checkback_path() -> None:
    async def work(service: Service, pledges: Coordinator) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        await pledges.prepare(bank(service, delay_s=2.0))  # asked about after 0.3 s

        async def asked() -> bool:
            return (await pledges.load("g")).status == "submitted"

        await until(asked)
        await ended(pledges, "g")
        assert loop.time() - began > 1.95

    scenario(work)


def test_point_8_retry_now_does_not_wait_for_the_back_off() -> None:
    async def work(service: Service, pledges: Coordinator) -> None:
        service.answer("/in", (500, b""), SUCCESS)
        await pledges.submit(bank(service, wait_result=True, retry_interval_s=1000.0))
        await pledges.retry("g")
        await ended(pledges, "g")

    scenario(work)


def test_point_9_a_new_subscriber_gets_the_next_pledge_without_a_restart() -> None:
    async def go() -> None:
        store = MemoryStore()
        async with services(2) as (first, second), coordinator(store) as a, coordinator(store) as b:
            await a.topics.subscribe("transfers", f"{first.url}/in")
            await b.submit(request_of("g1", "topic://transfers", wait_result=True))
            await a.topics.subscribe("transfers", f"{second.url}/in")
            await b.submit(request_of("g2", "topic://transfers", wait_result=True))
            await b.topics.unsubscribe("transfers", f"{first.url}/in")
            await a.submit(request_of("g3", "topic://transfers", wait_result=True))
            assert [seen.gid for seen in first.requests] == ["g1", "g2"]
            assert [seen.gid for seen in second.requests] == ["g2", "g3"]

    uvloop.run(go())


def test_point_11_an_abort_goes_through_the_checkback_and_cannot_undo_a_commit() -> None:
    async def work(service: Service, pledges: Coordinator) -> None:
        service.answer("/checkback", SUCCESS, FAILURE)
        await pledges.prepare(bank(service, "committed", timeout_to_fail_s=100.0))
        with pytest.raises(PledgeDecided):
            await pledges.abort("committed")
        await ended(pledges, "committed")
        await pledges.prepare(bank(service, "rolled-back", timeout_to_fail_s=100.0))
        assert (await pledges.abort("rolled-back")).status == "failed"
        assert [seen.gid for seen in service.to("/in")] == ["committed"]
        assert [seen.gid for seen in service.to("/checkback")] == ["committed", "rolled-back"]

    scenario(work)


def test_point_11_an_abort_whose_service_cannot_answer_now_is_bounded_and_decided_later() -> None:
    async def work(service: Service, pledges: Coordinator) -> None:
        service.answer("/checkback", SILENT, FAILURE)
        await pledges.prepare(bank(service, timeout_to_fail_s=100.0, request_timeout_s=0.3, retry_interval_s=0.1))
        assert (await pledges.abort("g")).status == "prepared"
        await ended(pledges, "g", "failed")

    scenario(work)


def test_point_13_a_caller_can_distinguish_failed_from_committed_and_pending() -> None:
    async def work(service: Service, pledges: Coordinator) -> None:
        service.answer("/in", (500, b"later"))
        service.answer("/checkback", FAILURE)
        pending = await pledges.submit(bank(service, "pending", wait_result=True))
        assert (pending.pledge.status, pending.delivery.state) == ("submitted", "failing")
        await pledges.prepare(bank(service, "failed"))
        await ended(pledges, "failed", "failed")
        with pytest.raises(PledgeDecided) as refused:
            await pledges.submit(bank(service, "failed"))
        assert (refused.value.status, refused.value.definite) == ("failed", True)

    scenario(work)


def test_point_15_a_checkback_without_a_verdict_is_always_repeated() -> None:
    async def work(service: Service, pledges: Coordinator) -> None:
        service.answer("/checkback", *[(500, b"down")] * 40, SUCCESS)
        await pledges.prepare(bank(service, retry_limit=2, timeout_to_fail_s=0.01, retry_interval_s=0.01))
        await ended(pledges, "g")
        assert len(service.to("/checkback")) == 41

    scenario(work, backoff_max_s=0.02)


def test_checkback_first_then_branches_and_the_dtm_suite_of_timeouts() -> None:
    async def work(service: Service, pledges: Coordinator) -> None:
        service.answer("/checkback", ONGOING, SUCCESS)
        service.answer("/in", ONGOING, SUCCESS)
        await pledges.prepare(bank(service, "success", steps=("/in", "/mail")))
        await ended(pledges, "success")
        service.answer("/checkback", ONGOING, FAILURE)
        await pledges.prepare(bank(service, "failure", steps=("/in", "/mail")))
        failed = await ended(pledges, "failure", "failed")
        assert [branch.status for branch in failed.progress.branches] == ["prepared", "prepared"]
        with pytest.raises(PledgeDecided):
            await pledges.prepare(bank(service, "success", steps=("/in", "/mail")))

    scenario(work)


# --------------------------------------------------------------------------------------- restart, fencing


def test_a_restart_on_the_same_store_loses_and_repeats_nothing() -> None:
    async def go() -> None:
        store = MemoryStore()
        async with services() as (service,):
            async with coordinator(store) as first:
                service.answer("/in", (500, b"not yet"))
                service.answer("/checkback", ONGOING)
                for number in range(100):
                    await first.submit(bank(service, f"submitted{number}"))
                    await first.prepare(bank(service, f"prepared{number}"))
            service.requests.clear()
            service.answer("/in", SUCCESS)
            service.answer("/checkback", SUCCESS)
            async with coordinator(store) as second:
                for number in range(100):
                    await ended(second, f"submitted{number}")
                    await ended(second, f"prepared{number}")
                assert len(service.to("/in")) == 200
                assert len({seen.gid for seen in service.to("/in")}) == 200

    uvloop.run(go())


def test_two_coordinators_share_a_store_and_a_paused_one_drops_its_result() -> None:
    async def go() -> None:
        store = MemoryStore()
        going = asyncio.Event()

        async def slowly(_: Request) -> Any:
            await going.wait()
            return SUCCESS

        async with services() as (service,):
            settings = {"waiting_s": 0.1, "lease_s": 0.5, "sweep_s": 0.1}
            async with coordinator(store, **settings) as a, coordinator(store, **settings) as b:
                service.answer("/in", slowly, (500, b"not for you"))
                await a.submit(bank(service, request_timeout_s=1.0, retry_interval_s=60.0))
                before = await a.load("g")

                async def taken_over() -> bool:
                    return (await b.load("g")).fence > before.fence and len(service.to("/in")) == 2

                # the clock of the first one stands still: its call outlasts what it is held for
                progress = msgspec.structs.replace(before.progress, next_at_ms=0)
                stale = msgspec.structs.replace(before, progress=progress)
                await store.swap(before, progress)
                b.wake()
                await until(taken_over)
                going.set()

                async def dropped() -> bool:
                    return a.statistics()["lost"] + b.statistics()["lost"] == 1

                await until(dropped)
                assert (await b.load("g")).status == "submitted"
                assert await store.swap(stale, progress) is None

    uvloop.run(go())


# ---------------------------------------------------------------------------------------- dead endpoints


@pytest.mark.parametrize("how", ["silent", "refusing"])
def test_point_5_thousands_stuck_behind_a_dead_endpoint_stop_nobody_and_go_out_when_it_returns(how: str) -> None:
    """The delay of other pledges is tested in virtual time (tests/unit/pledge/test_pledge_crowds.py), and of
    `python -m benchmarks pledges stuck`."""

    async def go() -> None:
        settings: dict[str, Any] = {
            "retry_interval_s": BACKOFF_S,
            "backoff_max_s": BACKOFF_S,
            "request_timeout_s": 3.0,
            "probe_interval_max_s": 1.0,
            "waiting_per_endpoint_max": STUCK // 4,
        }
        async with services(2) as (dead, alive), coordinator(**settings) as pledges, asyncio.timeout(LIMIT_S):
            dead.answer("/in", SILENT)
            if how == "refusing":
                await dead.stop()
            for number in range(STUCK):
                await pledges.submit(bank(dead, f"stuck{number}"))

            async def stuck() -> bool:
                statistics = pledges.statistics()
                return statistics["endpoints_closed"] == 1 and statistics["pledges_parked"] > 0.99 * STUCK

            await until(stuck, what="pledges that are stuck")
            for number in range(100):
                submission = await pledges.submit(bank(alive, f"beside{number}", wait_result=True))
                assert submission.delivery.state == "succeeded"
            if how == "refusing":
                await dead.start()
            dead.answer("/in", SUCCESS)

            async def all_out() -> bool:
                page = await pledges.find(Filter(statuses=("submitted",)), limit=1)
                return not page.pledges

            await until(all_out, within_s=LIMIT_S, what="the stuck ones")  # none of them waits for its back-off
            gids = [seen.gid for seen in dead.to("/in")]
            assert {gid for gid in gids if gid.startswith("stuck")} == {f"stuck{number}" for number in range(STUCK)}

    uvloop.run(go())

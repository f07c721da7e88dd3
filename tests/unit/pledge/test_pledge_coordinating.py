"""A coordinator in virtual time: what callers are told, when what is called, what survives what."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import pytest
from msgspec.structs import fields
from pledge_world import BRANCH, CHECKBACK, DEAD, Services, now_ms, request, run, until, world

from avow.errors import AvowError, ContentDiffers, InvalidRequest, Offline, PledgeDecided, UnknownPledge, UnknownTopic
from avow.pledge.coordinator import Coordinator
from avow.pledge.record import Pledge, Progress
from avow.pledge.settings import DESCRIPTIONS, PledgeSettings
from avow.pledge.store import Filter
from avow.pledge.stores.memory import MemoryStore


def test_a_pledge_is_prepared_submitted_and_delivered_with_three_operations_of_the_store() -> None:
    async def go() -> None:
        async with world() as w:
            store = w.store
            assert isinstance(store, MemoryStore)
            await asyncio.sleep(0.5)  # the loop's first turn
            before = store.writes_count
            await w.coordinator.prepare(request())
            told = await w.coordinator.submit(request())
            assert (told.delivery.state, told.repeated) == ("started", False)
            await asyncio.sleep(0.1)
            assert await w.status("g") == "succeeded"
            assert store.writes_count - before == 3
            (call,) = [call for _, call in w.services.calls]
            assert (call.url, call.gid, call.branch_id, call.op, call.payload) == (
                BRANCH,
                "g",
                "01",
                "action",
                b'{"amount":30}',
            )

    run(go)


def test_point_1_prepare_without_a_checkback_is_refused_and_nothing_is_stored() -> None:
    async def go() -> None:
        async with world() as w:
            with pytest.raises(InvalidRequest):
                await w.coordinator.prepare(request(checkback=""))
            assert await w.coordinator.query("g") is None

    run(go)


def test_a_plain_message_needs_no_prepare() -> None:
    async def go() -> None:
        async with world() as w:
            await w.coordinator.submit(request(checkback=""))
            await w.until("g", "succeeded", within_s=1)

    run(go)


def test_prepared_and_never_submitted_it_is_asked_about_and_delivered_if_committed() -> None:
    async def go() -> None:
        async with world(timeout_to_fail_s=35.0) as w:
            began = asyncio.get_running_loop().time()
            await w.coordinator.prepare(request())
            await w.until("g", "succeeded")
            (asked,) = w.services.times(CHECKBACK)
            assert 35.0 <= asked - began < 35.1
            assert w.services.count(BRANCH) == 1

    run(go)


def test_prepared_and_rolled_back_it_fails_and_no_branch_is_called() -> None:
    async def go() -> None:
        async with world() as w:
            w.services.answer(CHECKBACK, "ONGOING", "ERROR", "FAILURE")
            await w.coordinator.prepare(request())
            failed = await w.until("g", "failed")
            assert w.services.count(BRANCH) == 0
            assert [attempt.verdict for attempt in failed.progress.attempts] == ["ONGOING", "ERROR", "FAILURE"]
            with pytest.raises(PledgeDecided) as refused:
                await w.coordinator.submit(request())
            assert refused.value.status == "failed"

    run(go)


def test_point_3_another_content_under_a_known_gid_is_refused_by_prepare_and_submit() -> None:
    async def go() -> None:
        async with world() as w:
            other = request("g", (BRANCH, b'{"amount":31}'))
            await w.coordinator.prepare(request())
            for ask in (w.coordinator.prepare, w.coordinator.submit):
                with pytest.raises(ContentDiffers):
                    await ask(other)
            await w.coordinator.submit(request())
            await w.until("g", "succeeded")
            with pytest.raises(ContentDiffers):
                await w.coordinator.submit(other)
            assert [call.payload for _, call in w.services.calls] == [b'{"amount":30}']

    run(go)


def test_point_3_repeated_requests_are_answered_and_run_nothing_twice() -> None:
    async def go() -> None:
        async with world() as w:
            w.services.slow[BRANCH] = 1.0
            for _ in range(3):
                await w.coordinator.prepare(request())
            answers = await asyncio.gather(*(w.coordinator.submit(request()) for _ in range(5)))
            assert sorted(answer.repeated for answer in answers) == [False, True, True, True, True]
            with pytest.raises(PledgeDecided):
                await w.coordinator.prepare(request())
            await w.until("g", "succeeded")
            assert (await w.coordinator.submit(request())).delivery.state == "succeeded"
            await asyncio.sleep(100)
            assert w.services.count(BRANCH) == 1

    run(go)


def test_a_repeated_request_is_recognized_by_another_coordinator_too() -> None:
    async def go() -> None:
        store = MemoryStore()
        async with world(store=store) as a, world(store=store) as b:
            await a.coordinator.prepare(request())
            await b.coordinator.prepare(request())
            await b.coordinator.submit(request())
            assert (await a.coordinator.submit(request())).repeated
            await a.until("g", "succeeded")
            assert a.services.count(BRANCH) + b.services.count(BRANCH) == 1

    run(go)


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
def test_point_4_who_waits_is_told_what_it_is_and_delivery_goes_on(answers: list[Any], state: str) -> None:
    async def go() -> None:
        async with world() as w:
            w.services.answer(BRANCH, *answers)
            told = await w.coordinator.submit(request(wait_result=True))
            assert told.delivery.state == state
            assert told.pledge.status == ("succeeded" if state == "succeeded" else "submitted")
            await w.until("g", "succeeded")

    run(go)


def test_point_4_a_delayed_pledge_is_reported_as_delayed_at_once() -> None:
    async def go() -> None:
        async with world() as w:
            told = await w.coordinator.submit(request(wait_result=True, delay_s=60.0))
            assert told.delivery.state == "delayed"
            assert told.delivery.next_at_ms == now_ms() + 60_000
            await w.until("g", "succeeded")

    run(go)


def test_point_4_waiting_is_bounded_and_a_slow_branch_is_pending() -> None:
    async def go() -> None:
        async with world(wait_result_s=2.0, request_timeout_s=100.0) as w:
            w.services.slow[BRANCH] = 50.0
            began = asyncio.get_running_loop().time()
            told = await w.coordinator.submit(request(wait_result=True))
            assert told.delivery.state == "started"
            assert asyncio.get_running_loop().time() - began == pytest.approx(2.0, abs=0.1)
            await w.until("g", "succeeded")

    run(go)


def test_point_13_failed_is_told_from_committed_and_pending() -> None:
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


def test_point_11_an_abort_asks_the_checkback_and_cannot_kill_what_committed() -> None:
    async def go() -> None:
        async with world() as w:
            await w.coordinator.prepare(request())
            with pytest.raises(PledgeDecided) as refused:
                await w.coordinator.abort("g")
            assert refused.value.status == "submitted"
            await w.until("g", "succeeded")
            assert (w.services.count(CHECKBACK), w.services.count(BRANCH)) == (1, 1)

    run(go)


def test_point_11_an_abort_of_what_rolled_back_fails_it_at_once() -> None:
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


# --------------------------------------------------------------------------------- back-off, dead, redrive


def test_point_6_what_fails_is_repeated_with_capped_back_off_dies_alerts_and_is_redriven() -> None:
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
            assert [alert["retry_count"] for alert in w.services.told] == [3, 6, 12]
            assert w.services.told[-1] == {
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


def test_a_webhook_that_fails_hurts_nobody() -> None:
    async def go() -> None:
        async with world(retry_interval_s=1.0, alert_webhook="http://alerts/") as w:
            w.services.webhook_problem = "HTTP 500"
            w.services.answer(BRANCH, *["ERROR"] * 5, "SUCCESS")
            await w.coordinator.submit(request())
            await w.until("g", "succeeded")
            await asyncio.sleep(10)
            assert w.coordinator.statistics()["alerts_dropped"] == 1

    run(go)


def test_a_checkback_that_fails_is_told_to_people_too() -> None:
    async def go() -> None:
        async with world(alert_webhook="http://alerts/") as w:
            w.services.answer(CHECKBACK, "ERROR", "ERROR", "ERROR", "SUCCESS")
            await w.coordinator.prepare(request())
            await w.until("g", "succeeded")
            await asyncio.sleep(1)
            (alert,) = w.services.told
            assert (alert["branch"], alert["status"], alert["retry_count"]) == ("00", "prepared", 3)

    run(go)


def test_it_dies_by_age_when_it_only_failed() -> None:
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


def test_point_8_many_that_wait_long_are_retried_with_one_call() -> None:
    async def go() -> None:
        async with world(endpoint_failures=1000, backoff_max_s=1e6, retry_interval_s=1000.0) as w:
            w.services.answer(BRANCH, *["ERROR"] * 30, "SUCCESS")
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


def test_dead_ones_are_redriven_with_one_call() -> None:
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


def test_what_is_stopped_while_it_is_called_stays_stopped_and_the_delivery_is_noted() -> None:
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


# ------------------------------------------------------------------------------- delay, order, concurrency


@pytest.mark.parametrize("where", ["prepare", "submit", "checkback"])
def test_point_7_a_delay_is_kept_whichever_way_it_is_submitted(where: str) -> None:
    async def go() -> None:
        async with world(timeout_to_fail_s=20.0) as w:
            began = asyncio.get_running_loop().time()
            if where == "submit":
                await w.coordinator.prepare(request())
                await w.coordinator.submit(request(delay_s=60.0))
            else:
                await w.coordinator.prepare(request(delay_s=60.0))
                if where == "prepare":
                    await w.coordinator.submit(request())
            await w.until("g", "succeeded")
            assert w.services.times(BRANCH)[0] - began == pytest.approx(60.0, abs=0.2)
            if where == "checkback":
                assert w.services.times(CHECKBACK)[0] - began == pytest.approx(20.0, abs=0.2)

    run(go)


def test_branches_are_called_in_order_and_none_before_the_one_before_it_succeeded() -> None:
    async def go() -> None:
        async with world() as w:
            urls = ["http://a/", "http://b/", "http://c/"]
            w.services.answer("http://b/", "ERROR", "ONGOING", "SUCCESS")
            await w.coordinator.submit(request("g", *urls))
            await w.until("g", "succeeded")
            assert [call.url for _, call in w.services.calls] == [
                "http://a/",
                "http://b/",
                "http://b/",
                "http://b/",
                "http://c/",
            ]

    run(go)


def test_concurrent_branches_are_called_together_and_only_failed_ones_again() -> None:
    async def go() -> None:
        async with world() as w:
            urls = ["http://a/", "http://b/", "http://c/"]
            w.services.answer("http://b/", "ERROR", "SUCCESS")
            w.services.slow |= dict.fromkeys(urls, 1.0)
            began = asyncio.get_running_loop().time()
            await w.coordinator.submit(request("g", *urls, concurrent=True))
            await w.until("g", "succeeded")
            assert all(w.services.times(url)[0] - began < 0.1 for url in urls)
            assert [w.services.count(url) for url in urls] == [1, 2, 1]

    run(go)


def test_a_quick_chain_is_recorded_once_and_a_slow_one_in_between() -> None:
    async def go() -> None:
        urls = [f"http://a/{number}" for number in range(10)]
        for slow_s, most in ((0.001, 3), (2.0, 12)):
            async with world(sweep_s=600.0) as w:
                w.services.slow |= dict.fromkeys(urls, slow_s)
                store = w.store
                assert isinstance(store, MemoryStore)
                await w.coordinator.submit(request("g", *urls))
                await w.until("g", "succeeded")
                assert store.writes_count - w.coordinator.statistics()["claimed"] <= most + 3  # with the loop's own
                assert len(w.services.calls) == 10

    run(go)


def test_headers_and_timeouts_of_the_pledge_are_used() -> None:
    async def go() -> None:
        async with world(request_timeout_s=3.0) as w:
            await w.coordinator.prepare(request("g", branch_headers={"tenant": "7"}, request_timeout_s=9.0))
            await w.coordinator.submit(request("g"))
            await w.coordinator.submit(request("plain"))
            await w.until("plain", "succeeded")
            seen = {call.gid: (call.headers, call.timeout_s) for _, call in w.services.calls}
            assert seen == {"g": ({"tenant": "7"}, 9.0), "plain": ({}, 3.0)}

    run(go)


def test_a_branch_is_called_with_the_time_before_which_it_was_not_called() -> None:
    async def go() -> None:
        async with world(retry_interval_s=1.0) as w:
            w.services.answer(BRANCH, "ERROR", "SUCCESS")
            created_ms = now_ms()
            await w.coordinator.submit(request("plain"))
            await w.coordinator.submit(request("delayed", "http://other/", delay_s=9.0))
            await w.until("delayed", "succeeded")
            seen = [(call.gid, call.since_ms) for _, call in w.services.calls]
            assert seen == [("plain", created_ms), ("plain", created_ms), ("delayed", created_ms + 9_000)]

    run(go)


# ----------------------------------------------------------------------------------------------- topics


def test_point_9_topics_change_without_a_restart_on_every_coordinator() -> None:
    async def go() -> None:
        store = MemoryStore()
        async with world(store=store) as a, world(store=store) as b:
            with pytest.raises(UnknownTopic):
                await b.coordinator.submit(request("g0", "topic://t"))
            await a.coordinator.topics.subscribe("t", "http://one/")
            await b.coordinator.submit(request("g1", "topic://t", wait_result=True))
            await a.coordinator.topics.subscribe("t", "http://two/")
            await b.coordinator.submit(request("g2", "topic://t", wait_result=True))
            await a.coordinator.topics.unsubscribe("t", "http://one/")
            await b.coordinator.submit(request("g3", "topic://t", wait_result=True))
            called = [(call.gid, call.branch_id, call.url) for _, call in b.services.calls]
            assert called == [
                ("g1", "01", "http://one/"),
                ("g2", "01-01", "http://one/"),
                ("g2", "01-02", "http://two/"),
                ("g3", "01", "http://two/"),
            ]

    run(go)


def test_a_pledge_keeps_the_subscribers_it_was_prepared_with() -> None:
    async def go() -> None:
        store = MemoryStore()
        async with world(store=store) as a, world(store=store) as b:
            await a.coordinator.topics.subscribe("t", "http://one/")
            await a.coordinator.prepare(request("g", "topic://t"))
            await a.coordinator.topics.delete("t")
            await b.coordinator.prepare(request("g", "topic://t"))
            await b.coordinator.submit(request("g", "topic://t", wait_result=True))
            assert b.services.count("http://one/") == 1

    run(go)


# ------------------------------------------------------------------------------------ coordinators that die


def test_what_a_dead_coordinator_held_is_carried_on_by_another() -> None:
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


def test_who_owns_a_store_alone_takes_over_at_once() -> None:
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
    """A coordinator over it can be stopped for a while from changing anything, as a paused process is."""

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
    """Fails as a database does that is away for a while."""

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


def test_a_store_that_is_away_delays_and_loses_nothing() -> None:
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
def test_however_few_are_claimed_at_once_all_that_are_due_are_carried(claim_max: int) -> None:
    async def go() -> None:
        async with world(claim_max=claim_max) as w:
            for number in range(50):
                await w.coordinator.submit(request(f"g{number}", delay_s=5.0))
            await asyncio.sleep(6.0)
            assert (await w.coordinator.find(Filter(statuses=("submitted",)))).pledges == ()
            assert w.coordinator.statistics()["claimed"] == 50

    run(go)


@pytest.mark.parametrize("sweep_s", [0.5, 5.0])
def test_what_another_coordinator_left_behind_is_found_with_the_next_sweep(sweep_s: float) -> None:
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


def test_a_verdict_that_is_asked_for_again_at_once_answers_an_abort_once() -> None:
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


# ---------------------------------------------------------------------------------------- dead endpoints


def test_point_5_thousands_behind_a_dead_endpoint_delay_nobody_and_go_out_when_it_returns() -> None:
    async def go() -> None:
        dead, alive = "http://dead/in", "http://alive/in"
        async with world(retry_interval_s=10.0) as w:
            w.services.slow[dead] = 1e9  # takes the connection and never answers
            for number in range(3_000):
                await w.coordinator.submit(request(f"stuck{number}", dead))
            for number in range(200):
                began = asyncio.get_running_loop().time()
                told = await w.coordinator.submit(request(f"other{number}", alive, wait_result=True))
                assert told.delivery.state == "succeeded"
                assert asyncio.get_running_loop().time() - began < 0.01  # as if nothing were wrong
                await asyncio.sleep(1.0)
            assert w.services.most_in_flight[dead] <= w.coordinator.settings.calls_per_endpoint_max
            assert w.services.count(dead) < 300  # some at first, then probes
            # retries of others are not held up either
            w.services.answer(alive, "ERROR", "SUCCESS")
            await w.coordinator.submit(request("retried", alive))
            await w.until("retried", "succeeded", within_s=10.2)
            del w.services.slow[dead]
            returned = asyncio.get_running_loop().time()
            for number in range(3_000):
                await w.until(f"stuck{number}", "succeeded")
            took_s = asyncio.get_running_loop().time() - returned
            assert took_s < w.coordinator.settings.retry_interval_s  # the shortest back-off that any of them has

    run(go)


def test_a_crowded_endpoint_gets_no_more_calls_than_it_may_and_all_are_delivered() -> None:
    async def go() -> None:
        async with world(calls_per_endpoint_max=8, waiting_per_endpoint_max=16, waiting_s=2.0) as w:
            w.services.slow[BRANCH] = 0.5
            for number in range(300):
                await w.coordinator.submit(request(f"g{number}"))
            for number in range(300):
                await w.until(f"g{number}", "succeeded", within_s=60)
            assert w.services.most_in_flight[BRANCH] == 8
            assert w.services.count(BRANCH) == 300
            assert w.coordinator.statistics()["endpoint_closings"] == 0

    run(go)


def test_all_calls_together_are_bounded() -> None:
    async def go() -> None:
        async with world(calls_max=10, calls_per_endpoint_max=4) as w:
            urls = [f"http://host{number}/" for number in range(20)]
            w.services.slow |= dict.fromkeys(urls, 0.1)
            most = 0
            for number in range(100):
                await w.coordinator.submit(request(f"g{number}", urls[number % 20]))
            for _ in range(200):
                most = max(most, w.coordinator.statistics()["calls_in_flight"])
                await asyncio.sleep(0.01)
            assert most == 10
            for number in range(100):
                await w.until(f"g{number}", "succeeded", within_s=20)

    run(go)


def test_a_defect_of_a_caller_is_an_error_to_retry() -> None:
    class Broken(Services):
        async def __call__(self, call: Any) -> Any:
            if len(self.calls) == 0:
                await super().__call__(call)
                raise RuntimeError("a defect")
            return await super().__call__(call)

    async def go() -> None:
        async with world(services=Broken()) as w:
            told = await w.coordinator.submit(request(wait_result=True))
            assert "a defect" in told.delivery.error
            await w.until("g", "succeeded")

    run(go)

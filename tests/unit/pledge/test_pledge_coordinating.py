"""A coordinator in virtual time: pledges from prepare to delivery, in order, delayed, concurrent, by topic."""

from __future__ import annotations

import asyncio

import pytest
from tests.unit.pledge.pledge_world import BRANCH, CHECKBACK, now_ms, request, run, world

from avow.errors import ContentDiffers, InvalidRequest, PledgeDecided, UnknownTopic
from avow.pledge.stores.memory import MemoryStore


def test_a_pledge_is_prepared_submitted_and_delivered_with_three_operations_of_the_store() -> None:
    async def go() -> None:
        async with world() as w:
            store = w.store
            assert isinstance(store, MemoryStore)
            await asyncio.sleep(0.5)  # the loop's first turn
            before = store.writes_count
            await w.coordinator.prepare(request())
            submission = await w.coordinator.submit(request())
            assert (submission.delivery.state, submission.repeated) == ("started", False)
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


def test_a_pledge_never_submitted_is_checked_back_and_delivered_if_committed() -> None:
    async def go() -> None:
        async with world(timeout_to_fail_s=35.0) as w:
            began = asyncio.get_running_loop().time()
            await w.coordinator.prepare(request())
            await w.until("g", "succeeded")
            (asked,) = w.services.times(CHECKBACK)
            assert 35.0 <= asked - began < 35.1
            assert w.services.count(BRANCH) == 1

    run(go)


def test_a_pledge_that_was_rolled_back_fails_and_no_branch_is_called() -> None:
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


# ------------------------------------------------------------------------------- delay, order, concurrency


@pytest.mark.parametrize("where", ["prepare", "submit", "checkback"])
def test_point_7_a_delay_is_kept_however_the_pledge_is_submitted(where: str) -> None:
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


def test_branches_are_called_in_order_each_after_the_previous_succeeded() -> None:
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

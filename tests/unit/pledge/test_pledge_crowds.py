"""A coordinator in virtual time: unreachable and overloaded endpoints, and their effect on other pledges."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.unit.pledge.pledge_world import BRANCH, Services, request, run, world


def test_point_5_thousands_behind_a_dead_endpoint_delay_nobody_and_go_out_when_it_returns() -> None:
    async def go() -> None:
        dead, alive = "http://dead/in", "http://alive/in"
        async with world(retry_interval_s=10.0) as w:
            w.services.slow[dead] = 1e9  # takes the connection and never answers
            for number in range(3_000):
                await w.coordinator.submit(request(f"stuck{number}", dead))
            for number in range(200):
                began = asyncio.get_running_loop().time()
                submission = await w.coordinator.submit(request(f"other{number}", alive, wait_result=True))
                assert submission.delivery.state == "succeeded"
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


def test_a_crowded_endpoint_gets_calls_up_to_its_limit_and_all_are_delivered() -> None:
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
            submission = await w.coordinator.submit(request(wait_result=True))
            assert "a defect" in submission.delivery.error
            await w.until("g", "succeeded")

    run(go)

"""Where the known systems fail on some stores and not on others: a coordinator on each store, and one service.

dtm's "retry now" does nothing on Redis and BoltDB, and its topics are read once, when it starts. The service is in this
process with scripted answers; a subscriber added at one coordinator is used by another one.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from tests.contract.pledges.pledge_places import Place, run, wait_until

from avow.pledge.branches.calls import Call
from avow.pledge.branches.schemes import Branches
from avow.pledge.coordinator import Coordinator
from avow.pledge.record import Content, Options
from avow.pledge.settings import PledgeSettings
from avow.pledge.verdicts import SUCCESS, Verdict

HOUR_S = 3600.0
CHECKBACK = "http://bank-a/checkback"


class Service(Branches):
    """Any URL may be called; those in `failing` fail."""

    def __init__(self) -> None:
        super().__init__()
        self.failing: set[str] = set()
        self.called: list[str] = []

    async def __call__(self, call: Call) -> Verdict:
        self.called.append(call.url)
        return Verdict("ERROR", "no") if call.url in self.failing else SUCCESS


@asynccontextmanager
async def coordinators(place: Place, service: Service, *, count: int = 1) -> AsyncIterator[list[Coordinator]]:
    """Its back-off is an hour, so that nothing is retried by itself."""
    settings = PledgeSettings(retry_interval_s=HOUR_S, backoff_max_s=HOUR_S, timeout_to_fail_s=0.05)
    async with AsyncExitStack() as stack:
        made = []
        for number in range(count):
            store = await stack.enter_async_context(place.opened())
            made.append(Coordinator(store, service, settings=settings, owner=f"c{number}", jitter=lambda: 0.99))
            await made[-1].start()
            stack.push_async_callback(made[-1].close)
        yield made


async def ended(coordinator: Coordinator, gid: str) -> None:
    async def has_ended() -> bool:
        return (await coordinator.load(gid)).status == "succeeded"

    await wait_until(has_ended)


async def failed_once(coordinator: Coordinator, gid: str) -> None:
    async def has_failed() -> bool:
        progress = (await coordinator.load(gid)).progress
        return progress.failures == 1 and not progress.held

    await wait_until(has_failed)


def test_point_8_retry_now_works_on_every_store(place: Place) -> None:
    async def go() -> None:
        service = Service()
        async with coordinators(place, service) as (coordinator,):
            branch = "http://bank-b/in"
            service.failing = {branch, CHECKBACK}
            request = Content("delivered", steps=((branch, b"{}"),))
            await coordinator.submit(request)
            await coordinator.prepare(Content("asked", steps=((branch, b"{}"),), checkback=CHECKBACK))
            for gid in ("delivered", "asked"):
                await failed_once(coordinator, gid)
            service.failing.clear()
            for gid in ("delivered", "asked"):
                await coordinator.retry(gid)
                await ended(coordinator, gid)
            assert service.called.count(branch) == 3
            assert service.called.count(CHECKBACK) == 2

    run(go())


def test_point_8_many_are_retried_with_one_call_on_every_store(place: Place) -> None:
    async def go() -> None:
        service = Service()
        async with coordinators(place, service) as (coordinator,):
            urls = [f"http://bank-{number}/in" for number in range(20)]
            service.failing = set(urls)
            for number, url in enumerate(urls):
                await coordinator.submit(Content(f"g{number}", steps=((url, b"{}"),)))
            for number in range(20):
                await failed_once(coordinator, f"g{number}")
            service.failing.clear()
            assert (await coordinator.retry_waiting(longer_than_s=5, limit=100)).changed_count == 20
            for number in range(20):
                await ended(coordinator, f"g{number}")

    run(go())


def test_point_9_topics_change_without_a_restart_on_every_store(place: Place) -> None:
    async def go() -> None:
        service = Service()
        async with coordinators(place, service, count=2) as (one, other):
            await one.topics.subscribe("paid", "http://mail/in")
            for gid, expected in (("g1", {"http://mail/in"}), ("g2", {"http://mail/in", "http://stock/in"})):
                service.called.clear()
                await other.submit(Content(gid, steps=(("topic://paid", b"{}"),), options=Options(wait_result=True)))
                await ended(other, gid)
                assert set(service.called) == expected
                if gid == "g1":
                    await one.topics.subscribe("paid", "http://stock/in")
            await one.topics.unsubscribe("paid", "http://mail/in")
            service.called.clear()
            await other.submit(Content("g3", steps=(("topic://paid", b"{}"),), options=Options(wait_result=True)))
            assert service.called == ["http://stock/in"]

    run(go())

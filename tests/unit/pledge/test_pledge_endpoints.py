"""Places at endpoints: bounds, turns, closing, probes, parking."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from tests.unit.pledge.pledge_world import run

from avow.pledge import endpoints as module
from avow.pledge.endpoints import Endpoints, endpoint_name
from avow.pledge.settings import PledgeSettings


def gate(**settings: Any) -> tuple[Endpoints, list[str]]:
    returned: list[str] = []
    given = {"calls_max": 4, "calls_per_endpoint_max": 2, "endpoint_failures": 3} | settings
    return Endpoints(PledgeSettings(**given), jitter=lambda: 1.0, on_return=lambda: returned.append("back")), returned


def scenario(work: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    def test() -> None:
        run(work)

    test.__name__ = work.__name__
    return test


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("http://shop/in?x=1", "http://shop:80"),
        ("https://user:word@shop/in", "https://shop:443"),
        ("http://[::1]:8080/in", "http://[::1]:8080"),
        ("grpc://shop:50051/busi.Busi/In", "grpc://shop:50051"),
        ("shop:50051/busi.Busi/In", "grpc://shop:50051"),
        ("queue://orders?key=7", "queue://orders"),
        ("http://shop:nonsense/", "http://shop:nonsense/"),
    ],
)
def test_an_endpoint_is_derived_from_the_target_of_a_call(url: str, name: str) -> None:
    assert endpoint_name(url) == name


@scenario
async def test_an_endpoint_has_its_own_bound_and_calls_wait_in_order() -> None:
    gates, _ = gate()
    shop = gates.of("http://shop/a")
    assert gates.of("http://shop/b") is shop
    assert gates.enter(shop, now_s=0) is True
    assert gates.enter(shop, now_s=0) is True
    first, second = gates.enter(shop, now_s=0), gates.enter(shop, now_s=0)
    assert isinstance(first, asyncio.Future)
    assert isinstance(second, asyncio.Future)
    gates.leave(shop, reached=True, now_s=1)
    assert (first.done(), second.done()) == (True, False)
    gates.leave(shop, reached=True, now_s=1)
    assert await first
    assert await second
    assert gates.in_flight == 2


@scenario
async def test_endpoints_take_turns_when_all_slots_are_in_use() -> None:
    gates, _ = gate(calls_max=2)
    a, b, c = (gates.of(f"http://{name}/") for name in "abc")
    assert gates.enter(a, now_s=0) is True
    assert gates.enter(a, now_s=0) is True
    waiting = [gates.enter(endpoint, now_s=0) for endpoint in (b, b, c)]
    gates.leave(a, reached=True, now_s=1)
    gates.leave(a, reached=True, now_s=1)
    done = [isinstance(item, asyncio.Future) and item.done() for item in waiting]
    assert done == [True, False, True]
    gates.leave(b, reached=True, now_s=1)
    assert isinstance(waiting[1], asyncio.Future)
    assert waiting[1].done()


@scenario
async def test_a_call_that_waits_too_long_or_behind_too_many_is_refused() -> None:
    gates, _ = gate(waiting_per_endpoint_max=1, waiting_s=5.0)
    shop = gates.of("http://shop/")
    assert gates.enter(shop, now_s=0) is True
    assert gates.enter(shop, now_s=0) is True
    waiting = gates.enter(shop, now_s=0)
    assert isinstance(waiting, asyncio.Future)
    assert gates.enter(shop, now_s=0) is False
    gates.sweep(4.9)
    assert not waiting.done()
    gates.sweep(5.0)
    assert waiting.result() is False
    assert gates.statistics()["calls_waiting"] == 0


@scenario
async def test_a_cancelled_waiter_takes_no_slot() -> None:
    gates, _ = gate()
    shop = gates.of("http://shop/")
    for _ in range(2):
        assert gates.enter(shop, now_s=0) is True
    first, second = gates.enter(shop, now_s=0), gates.enter(shop, now_s=0)
    assert isinstance(first, asyncio.Future)
    assert isinstance(second, asyncio.Future)
    first.cancel()
    gates.leave(shop, reached=True, now_s=0)
    assert second.result() is True
    assert shop.in_flight == 2


@scenario
async def test_a_repeatedly_unreachable_endpoint_is_closed_and_probed() -> None:
    gates, returned = gate(probe_interval_s=1.0, probe_interval_max_s=4.0)
    shop = gates.of("http://shop/")
    for _ in range(3):
        assert gates.enter(shop, now_s=0) is True
        gates.leave(shop, reached=False, error="refused", now_s=0)
    assert shop.closed
    assert "refused" in shop.reason
    now_s = 0.0
    for pause_s in (1.0, 2.0, 4.0, 4.0):
        assert gates.enter(shop, now_s=now_s + pause_s - 0.01) is False
        now_s += pause_s
        assert gates.enter(shop, now_s=now_s) is True
        assert gates.enter(shop, now_s=now_s) is False  # one probe at a time
        gates.leave(shop, reached=False, error="refused", now_s=now_s)
    assert gates.enter(shop, now_s=now_s + 4.0) is True
    gates.leave(shop, reached=True, now_s=now_s + 4.0)
    assert returned == ["back"]
    assert not shop.closed
    assert gates.enter(shop, now_s=now_s + 4.0) is True


@scenario
async def test_closing_an_endpoint_refuses_waiters_and_an_answer_keeps_it_open() -> None:
    gates, _ = gate()
    shop = gates.of("http://shop/")
    for _ in range(5):
        for reached in (False, False, True):
            assert gates.enter(shop, now_s=0) is True
            gates.leave(shop, reached=reached, now_s=0)
    assert not shop.closed
    for _ in range(2):
        assert gates.enter(shop, now_s=0) is True
    waiting = gates.enter(shop, now_s=0)
    assert isinstance(waiting, asyncio.Future)
    shop.failures = 2
    gates.leave(shop, reached=False, now_s=0)
    assert shop.closed
    assert waiting.result() is False


@scenario
async def test_a_cancelled_probe_leaves_room_for_the_next() -> None:
    gates, _ = gate()
    shop = gates.of("http://shop/")
    for _ in range(3):
        gates.enter(shop, now_s=0)
        gates.leave(shop, reached=False, now_s=0)
    assert gates.enter(shop, now_s=10) is True
    gates.withdraw(shop)
    assert gates.enter(shop, now_s=10) is True


@scenario
async def test_a_failed_call_from_before_a_recovery_closes_nothing_and_is_parked() -> None:
    gates, returned = gate(calls_per_endpoint_max=9, calls_max=9)
    shop = gates.of("http://shop/")
    for _ in range(6):
        assert gates.enter(shop, now_s=0) is True
    before = shop.returns_count
    for number in range(3):
        gates.leave(shop, reached=False, gid=f"first{number}", now_s=0, returns=before)
    assert gates.enter(shop, now_s=10) is True
    gates.leave(shop, reached=True, gid="probe", now_s=10, returns=before)
    assert returned == ["back"]
    for number in range(3):
        gates.leave(shop, reached=False, gid=f"late{number}", now_s=11, returns=before)
    assert not shop.closed
    assert gates.unpark(shop, 100) == ["first0", "first1", "first2", "late0", "late1", "late2"]
    assert gates.enter(shop, now_s=12) is True
    gates.leave(shop, reached=False, gid="new", now_s=12, returns=shop.returns_count)
    assert gates.parking() == ()  # it waits for its back-off


@scenario
async def test_parked_pledges_leave_in_order_when_there_is_room() -> None:
    gates, _ = gate()
    shop = gates.of("http://shop/")
    for number in range(10):
        gates.park(shop, f"g{number}")
    assert gates.room(shop, now_s=0) == 4
    assert gates.unpark(shop, 4) == ["g0", "g1", "g2", "g3"]
    for number in range(3):
        gates.enter(shop, now_s=0)
        gates.leave(shop, reached=False, gid=f"called{number}", now_s=0)
    assert gates.room(shop, now_s=0) == 0
    assert gates.room(shop, now_s=100) == 1
    gates.hasten("http://shop/x")
    assert gates.room(shop, now_s=0) == 1
    assert gates.unpark(shop, 100)[-4:] == ["g9", "called0", "called1", "called2"]
    assert gates.parking() == ()


@scenario
async def test_unused_endpoints_are_forgotten() -> None:
    gates, _ = gate()
    busy = gates.of("http://busy/")
    gates.enter(busy, now_s=0)
    for number in range(module.ENDPOINTS_MAX + 10):
        gates.of(f"http://host{number}/")
    assert gates.statistics()["endpoints"] <= module.ENDPOINTS_MAX
    assert gates.of("http://busy/") is busy

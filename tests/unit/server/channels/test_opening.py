"""Parameters and rights with which a channel may be opened."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.unit.server.channels.channel_bench import Bench, run

from avow.errors import AvowError, Busy, ChannelFailed, Forbidden, InvalidRequest, NotCoordinator, UnknownQueue
from avow.server.access import Token, TokenEntry
from avow.server.http.schemas import ChannelParameters

HEX = "0" * 32


@pytest.mark.parametrize(
    ("asked", "error"),
    [
        ({"role": "producer", "queue": "nowhere"}, UnknownQueue),
        ({"role": "producer", "queue": "orders", "format": "ranges"}, InvalidRequest),
        ({"role": "producer", "queue": "orders", "format": "json"}, InvalidRequest),
        ({"role": "producer", "queue": "orders", "producer": HEX}, InvalidRequest),
        ({"role": "producer", "queue": "orders", "subscriber": "s"}, InvalidRequest),
        ({"role": "producer", "queue": "orders", "lane": "0"}, InvalidRequest),
        ({"role": "subscriber", "queue": "orders"}, InvalidRequest),
        ({"role": "subscriber", "queue": "orders", "subscriber": " "}, InvalidRequest),
        ({"role": "subscriber", "queue": "orders", "subscriber": "s", "member": " m"}, InvalidRequest),
        ({"role": "subscriber", "queue": "orders", "subscriber": "s", "after": "0:1"}, InvalidRequest),
        ({"role": "subscriber", "queue": "orders", "subscriber": "s", "format": "records"}, InvalidRequest),
        ({"role": "reader", "queue": "orders", "lane": "2"}, InvalidRequest),
        ({"role": "reader", "queue": "orders", "after": "2:1"}, InvalidRequest),
        ({"role": "reader", "queue": "orders", "after": "0:1,0:2"}, InvalidRequest),
        ({"role": "reader", "queue": "orders", "member": "m"}, InvalidRequest),
        ({"role": "reader", "queue": "news", "lane": "99"}, InvalidRequest),
        ({"role": "observer", "queue": "orders"}, InvalidRequest),
        ({"role": "observer", "queue": "news", "from": "end"}, InvalidRequest),
        ({"role": "reader", "queue": "elsewhere"}, NotCoordinator),
    ],
)
def test_a_wrong_request_is_refused_before_anything_is_opened(asked: dict[str, Any], error: type[AvowError]) -> None:
    async def scenario() -> None:
        async with Bench() as bench:
            bench.cluster.create("orders", lanes=2)
            bench.cluster.create("news", strategy="pub-sub")
            bench.cluster.create("elsewhere", peers=(2, 3))
            with pytest.raises(error):
                bench.road(1, **asked)
            assert sum(bench.channels[1].statistics()["open"].values()) == 0

    run(scenario)


@pytest.mark.parametrize("after", ["0", "0:", ":1", "0:1,", "0:x", "-1:1", "0:1 "])
def test_start_versions_are_lanes_and_numbers(after: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"role": "reader", "queue": "q", "after": after}, ChannelParameters, strict=False)


@pytest.mark.parametrize(
    ("role", "needed"),
    [
        ({"role": "producer"}, {"write"}),
        ({"role": "subscriber", "subscriber": "s"}, {"read", "write"}),
        ({"role": "reader"}, {"read"}),
        ({"role": "observer"}, {"read"}),
    ],
)
def test_each_role_needs_its_rights_on_that_queue(role: dict[str, str], needed: set[str]) -> None:
    async def scenario() -> None:
        async with Bench() as bench:
            bench.cluster.create("news", strategy="pub-sub")
            for rights in (["read"], ["write"], ["read", "write"], ["manage"]):
                token = Token(TokenEntry("t", "00" * 32, rights={"news": rights}))  # type: ignore[dict-item]
                if needed <= set(rights):
                    bench.road(1, token=token, queue="news", **role)
                else:
                    with pytest.raises(Forbidden):
                        bench.road(1, token=token, queue="news", **role)
            other = Token(TokenEntry("t", "00" * 32, rights={"olds": ["read", "write"]}))
            with pytest.raises(Forbidden):
                bench.road(1, token=other, queue="news", **role)

    run(scenario)


def test_the_number_of_channels_is_limited_by_the_setting() -> None:
    async def scenario() -> None:
        async with Bench(channels_max=2) as bench:
            bench.cluster.create("orders")
            held = [await bench.open(1, role="reader", queue="orders") for _ in range(2)]
            with pytest.raises(ChannelFailed) as refused:
                await bench.open(1, role="reader", queue="orders")
            assert refused.value.name == Busy.code
            held[0].close()
            await bench.until(lambda: bench.channels[1].statistics()["open"]["reader"] == 1)
            await bench.open(1, role="reader", queue="orders")

    run(scenario)


@pytest.mark.parametrize("window_s", [1.0, 4.0])
def test_a_channel_waits_for_its_client_as_long_as_the_setting_says(window_s: float) -> None:
    async def scenario() -> None:
        async with Bench(window_s=window_s) as bench:
            bench.cluster.create("orders")
            await bench.open(1, role="reader", queue="orders")
            bench.roads[-1].cut()
            since = bench.cluster.now
            await bench.until(lambda: bench.channels[1].statistics()["open"]["reader"] == 0)
            assert window_s <= bench.cluster.now - since < window_s + 1.0
            assert bench.channels[1].statistics()["expired"] == 1

    run(scenario)

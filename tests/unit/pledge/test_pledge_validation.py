"""Validation of pledge requests, and what they are turned into."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
from msgspec.structs import replace
from tests.unit.pledge.pledge_world import CHECKBACK, request

from avow.errors import (
    AlreadyExists,
    AvowError,
    InvalidRequest,
    NotInstalled,
    TooLarge,
    TooMany,
    UnknownSubscriber,
    UnknownTopic,
)
from avow.limits import PLEDGE_SIZE_BYTES_MAX, TOPIC_SUBSCRIBERS_MAX
from avow.pledge import validation
from avow.pledge.branches import schemes as branches_module
from avow.pledge.branches.schemes import Branches
from avow.pledge.record import Content
from avow.pledge.stores.memory import MemoryStore
from avow.pledge.stores.operations import id_bytes
from avow.pledge.topics import Topics


async def enqueue(
    *, queue: str, value: bytes, key: bytes, headers: Mapping[str, str], write_id: bytes, since_ms: int
) -> None: ...


def check(content: Content, *, prepare: bool = True) -> None:
    validation.check(content, Branches(enqueue=enqueue), prepare=prepare)


def topics_of(store: MemoryStore) -> Topics:
    return Topics(store, now_ms=lambda: 5, check=lambda url: Branches().check(url, protocol=""))


def test_point_1_prepare_without_a_checkback_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="checkback"):
        check(request(checkback=""))
    check(request(checkback=""), prepare=False)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "http://shop/in",
        "https://shop:8443/in?a=b",
        "http://[::1]:80/in",
        "grpc://shop:50051/busi.Busi/TransIn",
        "shop:50051/busi.Busi/TransIn",
        "queue://orders",
        "queue://orders?key=user%207",
        "topic://transfers",
    ],
)
def test_callable_branches_are_accepted(url: str) -> None:
    check(request("g", url))


@pytest.mark.parametrize(
    "url",
    [
        "ftp://shop/in",
        "shop",
        "shop/in",
        "http://",
        "http://shop:notaport/in",
        "http://[::1/in",
        "grpc://shop/busi.Busi/In",
        "grpc://shop:50051/In",
        "queue://",
        "queue://orders/1",
        "queue://orders?keys=7",
        "http://shop/" + "x" * 2000,
    ],
)
def test_branches_that_cannot_be_called_are_refused(url: str) -> None:
    with pytest.raises(InvalidRequest):
        check(request("g", url))


@pytest.mark.parametrize("url", ["queue://orders", "topic://t", "ftp://x"])
def test_a_checkback_must_be_callable(url: str) -> None:
    with pytest.raises(InvalidRequest):
        check(request(checkback=url))


def test_a_queue_is_refused_by_a_coordinator_without_queues() -> None:
    with pytest.raises(InvalidRequest, match="no queues"):
        validation.check(request("g", "queue://orders"), Branches(), prepare=True)


def test_a_grpc_branch_is_refused_where_the_library_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise NotInstalled("a gRPC branch", extra="grpc")

    monkeypatch.setattr(branches_module, "check_installed", missing)
    with pytest.raises(NotInstalled):
        check(request("g", "grpc://shop:1/a.B/C"))


@pytest.mark.parametrize("gid", ["two\nlines", "tab\t", "nul\0", "half of a pair \ud800"])
def test_a_gid_is_printable(gid: str) -> None:
    with pytest.raises(InvalidRequest, match="printable"):
        check(request(gid))


@pytest.mark.parametrize(("gid", "size_bytes"), [("", 0), ("x" * 129, 129), ("ä" * 65, 130), ("🚲" * 33, 132)])
def test_a_gid_is_measured_in_bytes_as_stores_measure_it(gid: str, size_bytes: int) -> None:
    with pytest.raises(InvalidRequest, match=f"1 to 128 bytes of UTF-8, but .* has {size_bytes}; "):
        check(request(gid))
    with pytest.raises(AvowError):
        id_bytes(gid)


@pytest.mark.parametrize("gid", ["x" * 128, "ä" * 64, "🚲" * 32])
def test_a_gid_of_maximum_size_is_accepted_here_and_by_stores(gid: str) -> None:
    check(request(gid))
    assert len(id_bytes(gid)) == 128


@pytest.mark.parametrize(
    "options",
    [
        {"branch_headers": {"a": "b\r\nc: d"}},
        {"branch_headers": {"a b": "c"}},
        {"branch_headers": {"Content-Length": "3"}},
        {"branch_headers": {"a": "snow ☃"}},
        {"delay_s": -1.0},
        {"delay_s": float("inf")},
        {"retry_interval_s": float("nan")},
        {"timeout_to_fail_s": -5.0},
        {"request_timeout_s": 1e9},
        {"retry_limit": -1},
        {"not_before_ms": -1},
    ],
)
def test_meaningless_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        check(request(**options))


def test_protocols_are_checked_and_steps_and_sizes_are_bounded() -> None:
    with pytest.raises(InvalidRequest):
        check(replace(request(), protocol="smtp"))
    with pytest.raises(TooLarge):
        check(request("g", *[CHECKBACK] * 100))
    with pytest.raises(TooLarge):
        check(request("g", ("http://shop/in", b"x" * (PLEDGE_SIZE_BYTES_MAX + 1))))


def test_branch_ids_are_those_of_dtm() -> None:
    async def go() -> None:
        topics = topics_of(MemoryStore())
        await topics.subscribe("one", "http://a/")
        await topics.subscribe("two", "http://b/")
        await topics.subscribe("two", "http://c/", remark="new")
        asked = request("g", "http://x/", "topic://one", "topic://two")
        made = await validation.expand(asked, topics)
        assert [(branch.branch_id, branch.url) for branch in made.branches] == [
            ("01", "http://x/"),
            ("02", "http://a/"),
            ("03-01", "http://b/"),
            ("03-02", "http://c/"),
        ]
        assert made.asked() == asked.steps

    asyncio.run(go())


def test_without_topics_the_steps_are_stored_once() -> None:
    made = asyncio.run(validation.expand(request("g", "http://a/", "http://b/"), topics_of(MemoryStore())))
    assert made.steps == ()
    assert made.asked() == request("g", "http://a/", "http://b/").steps


def test_an_unknown_topic_is_refused_and_fan_out_is_bounded() -> None:
    async def go() -> None:
        topics = topics_of(MemoryStore())
        with pytest.raises(UnknownTopic):
            await validation.expand(request("g", "topic://nobody"), topics)
        for number in range(8):
            await topics.subscribe("many", f"http://host{number}/")
        with pytest.raises(TooLarge):
            await validation.expand(request("g", ("topic://many", b"x" * (PLEDGE_SIZE_BYTES_MAX // 4))), topics)

    asyncio.run(go())


def test_topics_are_subscribed_unsubscribed_and_deleted() -> None:
    async def go() -> None:
        topics = topics_of(MemoryStore())
        first = await topics.subscribe("t", "http://a/", remark="first")
        assert (first.version, first.subscribers) == (1, (("http://a/", "first"),))
        with pytest.raises(AlreadyExists):
            await topics.subscribe("t", "http://a/")
        assert (await topics.subscribe("t", "http://b/")).version == 2
        with pytest.raises(UnknownSubscriber):
            await topics.unsubscribe("t", "http://c/")
        assert (await topics.unsubscribe("t", "http://a/")).subscribers == (("http://b/", ""),)
        assert [topic.name for topic in (await topics.list())[0]] == ["t"]
        await topics.delete("t")
        for gone in (topics.delete("t"), topics.unsubscribe("t", "http://b/"), topics.load("t"), topics.load("")):
            with pytest.raises(UnknownTopic):
                await gone
        for name, url in (("", "http://a/"), ("t", ""), ("t", "topic://t"), ("t", "ftp://a"), ("x" * 200, "http://a/")):
            with pytest.raises(InvalidRequest):
                await topics.subscribe(name, url)

    asyncio.run(go())


def test_subscribers_of_a_topic_are_bounded() -> None:
    async def go() -> None:
        topics = topics_of(MemoryStore())
        for number in range(TOPIC_SUBSCRIBERS_MAX):
            await topics.subscribe("t", f"http://host{number}/")
        with pytest.raises(TooMany):
            await topics.subscribe("t", "http://one.more/")

    asyncio.run(go())


class Contended(MemoryStore):
    """Everybody reads a topic before anybody writes it."""

    async def load_topic(self, name: str) -> Any:
        await asyncio.sleep(0)
        return await super().load_topic(name)


def test_twenty_concurrent_subscribes_all_succeed() -> None:
    async def go() -> None:
        topics = topics_of(Contended())
        await asyncio.gather(*(topics.subscribe("t", f"http://host{number}/") for number in range(20)))
        assert len((await topics.load("t")).subscribers) == 20

    asyncio.run(go())

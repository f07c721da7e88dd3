"""A submit that repeats its prepare to the byte is not read, checked and compared again; everything else is."""

from __future__ import annotations

import pytest
from tests.unit.pledge.pledge_world import BRANCH, Services, now_ms, request, run, world

from avow.errors import ContentDiffers, PledgeDecided
from avow.limits import PLEDGE_FRESH_SIZE_BYTES
from avow.pledge.coordinator import Coordinator
from avow.pledge.record import Submission

SOURCE = b'{"branches": []}'


def test_a_request_prepared_from_the_same_bytes_is_the_same_request() -> None:
    async def go() -> None:
        async with world() as w:
            asked = request()
            await w.coordinator.prepare(asked, source=SOURCE)
            assert w.coordinator.prepared_from("g", SOURCE) is asked
            assert w.coordinator.prepared_from("g", bytearray(SOURCE)) is asked
            submission = await w.coordinator.submit(asked)
            assert (submission.delivery.state, submission.repeated) == ("started", False)
            await w.until("g", "succeeded", within_s=1)
            assert w.services.count(BRANCH) == 1

    run(go)


def test_other_bytes_another_gid_and_a_second_submit_are_parsed_again() -> None:
    async def go() -> None:
        async with world() as w:
            asked = request()
            await w.coordinator.prepare(asked, source=SOURCE)
            assert w.coordinator.prepared_from("g", SOURCE + b" ") is None
            assert w.coordinator.prepared_from("h", SOURCE) is None
            await w.coordinator.submit(asked)
            assert w.coordinator.prepared_from("g", SOURCE) is None
            assert (await w.coordinator.submit(asked)).repeated

    run(go)


def test_a_prepare_without_a_source_or_with_a_long_one_is_parsed_again() -> None:
    async def go() -> None:
        async with world() as w:
            await w.coordinator.prepare(request())
            assert w.coordinator.prepared_from("g", b"") is None
            long = bytes(PLEDGE_FRESH_SIZE_BYTES)
            await w.coordinator.prepare(request("h"), source=long)
            assert w.coordinator.prepared_from("h", long) is None
            await w.coordinator.submit(request("h"))
            await w.until("h", "succeeded", within_s=1)

    run(go)


def test_an_equal_request_that_is_not_the_same_one_is_compared() -> None:
    async def go() -> None:
        async with world() as w:
            await w.coordinator.prepare(request(), source=SOURCE)
            with pytest.raises(ContentDiffers):
                await w.coordinator.submit(request("g", (BRANCH, b"something else")))
            await w.coordinator.submit(request())
            await w.until("g", "succeeded", within_s=1)

    run(go)


def test_a_decision_of_another_coordinator_is_seen_although_the_bytes_are_the_same() -> None:
    async def go() -> None:
        async with world() as w:
            asked = request()
            await w.coordinator.prepare(asked, source=SOURCE)
            other = Coordinator(w.store, Services(), now_ms=now_ms)
            await other.stop("g")
            with pytest.raises(PledgeDecided):
                await w.coordinator.submit(asked)
            assert w.services.count(BRANCH) == 0
            await other.close()

    run(go)


def test_on_stored_is_called_at_once_and_the_caller_s_task_delivers() -> None:
    async def go() -> None:
        async with world() as w:
            heard: list[tuple[str, int, int]] = []

            def submission(done: Submission) -> None:
                in_hand = w.coordinator.statistics()["in_hand"]
                heard.append((done.delivery.state, w.services.count(BRANCH), in_hand))

            done = await w.coordinator.submit(request(), on_stored=submission)
            assert heard == [("started", 0, 1)]
            assert done.delivery.state == "started"
            assert w.services.count(BRANCH) == 1
            assert (await w.coordinator.load("g")).status == "succeeded"
            assert w.coordinator.statistics()["in_hand"] == 0
            await w.coordinator.submit(request(), on_stored=submission)
            assert heard[1:] == [("succeeded", 1, 0)]

    run(go)

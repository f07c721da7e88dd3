from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from avow import limits
from avow.client.batches import Batch, ByteBudget, PendingBatches
from avow.client.message_columns import OVERHEAD_BYTES, columns_of, pairs_of, plain_bytes, split
from avow.client.outcomes import Done
from avow.errors import Busy, InvalidRequest, Offline, TooLarge
from avow.wire.batch import check


def pending(budget: ByteBudget | None = None, wake: Callable[[], None] = lambda: None) -> PendingBatches:
    return PendingBatches(budget=budget or ByteBudget(), timeout_s=10.0, wake=wake)


def closed(value: bytes = b"v") -> Batch:
    batch = Batch(deadline=10.0)
    batch.put(value, None, None, None)
    return batch


def test_columns_begin_with_the_first_message_that_needs_them() -> None:
    batch = Batch(deadline=1.0)
    batch.put(b"a", None, None, None)
    assert batch.plain
    batch.put(b"b", b"key", (("name", b"text"),), 77)
    batch.put(b"c", None, None, None)
    record = check(batch.encode())
    assert record.values() == [b"a", b"b", b"c"]
    assert record.keys() == [None, b"key", None]
    assert [record.headers(n) for n in range(3)] == [[], [("name", b"text")], []]
    times = record.times()
    assert times is not None
    assert times[1] == 77
    assert record.write_id == batch.write_id


def test_a_batch_keeps_only_its_record_once_it_is_encoded() -> None:
    batch = closed()
    first = batch.encode()
    assert batch.values == []
    assert batch.encode() is first
    assert batch.count == 1


def test_each_message_of_a_batch_gets_its_own_version() -> None:
    async def go() -> list[Done]:
        batch = Batch(deadline=1.0)
        for value in (b"a", b"b", b"c"):
            batch.put(value, None, None, None)
            batch.futures.append(asyncio.get_running_loop().create_future())
        futures = list(batch.futures)
        futures[1].cancel()  # a cancelled wait does not affect the others
        batch.encode()
        batch.done("q", 2, 40)
        return [await futures[0], await futures[2]]

    first, third = asyncio.run(go())
    assert (first.lane, first.first_version, first.last_version) == (2, 40, 40)
    assert third.first_version == 42


def test_a_batch_that_fails_reports_to_every_waiter() -> None:
    async def go() -> None:
        batch = closed()
        batch.futures.append(asyncio.get_running_loop().create_future())
        future = batch.futures[0]
        batch.fail(Offline("no"))
        with pytest.raises(Offline):
            await future

    asyncio.run(go())


def test_batches_leave_in_the_order_they_were_added_and_the_open_one_last() -> None:
    lane = pending()
    lane.begin(0.0).put(b"1", None, None, None)
    lane.add(closed(b"2"))
    lane.begin(0.0).put(b"3", None, None, None)
    found = [lane.take(), lane.take(), lane.take()]
    assert [check(batch.encode()).values() for batch in found if batch] == [[b"1"], [b"2"], [b"3"]]
    assert lane.take() is None
    assert not lane


def test_returned_batches_go_before_unsent_ones() -> None:
    lane = pending()
    for value in (b"1", b"2", b"3"):
        lane.add(closed(value))
    first, second = lane.take(), lane.take()
    assert first is not None
    assert second is not None
    lane.put_back([second, first])
    found = [lane.take(), lane.take(), lane.take()]
    assert [batch.number for batch in found if batch] == [1, 2, 3]


def test_an_open_batch_that_must_wait_grows_and_wakes_the_sender_once() -> None:
    woken: list[int] = []
    lane = pending(wake=lambda: woken.append(1))
    batch = lane.begin(0.0)
    batch.put(b"1", None, None, None)
    assert lane.open is batch
    batch.put(b"2", None, None, None)
    assert woken == [1]
    taken = lane.take()
    assert taken is batch
    assert taken.count == 2


def test_expired_batches_are_returned_once_including_the_open_one() -> None:
    lane = pending()
    lane.add(closed())
    lane.begin(5.0).put(b"later", None, None, None)
    assert len(lane.expired(10.0)) == 1
    assert len(lane.expired(14.9)) == 0
    assert len(lane.expired(15.0)) == 1
    assert not lane


def test_a_full_client_refuses_and_wakes_waiters_when_there_is_room() -> None:
    async def go() -> None:
        budget = ByteBudget(size_bytes_max=100)
        budget.take(100)
        with pytest.raises(Busy, match="nothing was sent"):
            budget.require()
        waiting = asyncio.get_running_loop().create_task(budget.wait())
        await asyncio.sleep(0)
        assert not waiting.done()
        budget.give_back(50)
        await asyncio.wait_for(waiting, 1)
        budget.require()

    asyncio.run(go())


def test_a_batch_takes_room_until_its_outcome_is_known() -> None:
    budget = ByteBudget(size_bytes_max=OVERHEAD_BYTES + 1)
    lane = pending(budget)
    lane.add(closed(b"v"))
    with pytest.raises(Busy):
        lane.add(closed())
    batch = lane.take()
    assert batch is not None
    lane.release(batch)
    lane.add(closed())


def test_splitting_respects_both_limits_and_loses_nothing() -> None:
    many = list(split([0] * (limits.BATCH_COUNT_MAX + 5)))
    assert [len(span) for span in many] == [limits.BATCH_COUNT_MAX, 5]
    large = [limits.MESSAGE_SIZE_BYTES_MAX] * 20
    spans = list(split(large))
    assert [number for span in spans for number in span] == list(range(20))
    for span in spans:
        record = Batch(deadline=1.0)
        for _ in span:
            record.put(bytes(limits.MESSAGE_SIZE_BYTES_MAX), None, None, None)
        check(record.encode())
    assert list(split([])) == []
    assert list(split([5])) == [range(1)]


def test_mutable_buffers_are_copied() -> None:
    value = bytearray(b"abc")
    kept = plain_bytes(value)
    value[0] = 0
    assert kept == b"abc"
    assert plain_bytes(memoryview(b"abc")[1:]) == b"bc"
    with pytest.raises(TypeError, match="bytes, not str"):
        plain_bytes("text")  # type: ignore[arg-type]


def test_headers_are_a_mapping_or_pairs() -> None:
    assert pairs_of({"a": b"1"}) == (("a", b"1"),)
    assert pairs_of([("a", b"1"), ("a", b"2")]) == (("a", b"1"), ("a", b"2"))
    assert pairs_of(None) is None


def test_columns_of_different_lengths_and_messages_too_large_are_refused_before_anything_is_sent() -> None:
    with pytest.raises(InvalidRequest, match="2 values but 1 keys"):
        columns_of([b"a", b"b"], keys=[b"k"], headers=None, times=None)
    with pytest.raises(TooLarge, match="nothing was sent"):
        columns_of([bytes(limits.MESSAGE_SIZE_BYTES_MAX + 1)], keys=None, headers=None, times=None)


def test_headers_and_keys_count_when_messages_are_split_into_batches() -> None:
    large = bytes(limits.MESSAGE_SIZE_BYTES_MAX // 2)
    columns = columns_of([b"v"] * 20, keys=[large] * 20, headers=[{"h": large}] * 20, times=[1] * 20)
    spans = list(split(columns.sizes(range(20))))
    assert sum(map(len, spans)) == 20
    for span in spans:
        batch = Batch(deadline=1.0)
        columns.fill(batch, span)
        assert check(batch.encode()).count == len(span)

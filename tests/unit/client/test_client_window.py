"""A producer's data: lane batches, records, the window, and the store that keeps records for the next run."""

from __future__ import annotations

from pathlib import Path

import pytest

from avow.channel.stores import FileStore, MemoryStore
from avow.client.batches import OVERHEAD_BYTES, Batch
from avow.client.lane_batcher import RECORD_SIZE_BYTES, LaneBatcher
from avow.client.pending_store import PendingRecordStore
from avow.client.window import UNBOUND, ProducerRecord, Window, message_of, messages_of, read_message
from avow.errors import InvalidRequest, Malformed, TooLarge
from avow.limits import MESSAGE_SIZE_BYTES_MAX
from avow.queue.key_to_lane import lane_for
from avow.wire.batch import check


def turn(lanes: int) -> LaneBatcher:
    made = LaneBatcher("q")
    made.know(lanes)
    return made


def sent(*values: bytes, lane: int = 0, key: bytes | None = None) -> ProducerRecord:
    batch = Batch(deadline=0.0)
    for value in values:
        batch.put(value, key, None, None)
    record = batch.encode()
    return ProducerRecord(message_of(record, lane=lane), lane=lane, count=batch.count, write_id=batch.write_id)


def window(*records: ProducerRecord, count_max: int = 100, size_bytes_max: int = 1 << 20) -> Window:
    made = Window(count_max=count_max, size_bytes_max=size_bytes_max)
    for record in records:
        made.add(record)
    return made


# ---------------------------------------------------------------------- turns


def test_messages_of_one_turn_share_a_batch_and_the_next_turn_goes_to_the_next_lane() -> None:
    made = turn(3)
    made.put_plain(b"a")
    made.put_plain(b"b")
    (first,) = made.open
    made.open.clear()
    made.pass_on()
    made.put_plain(b"c")
    (second,) = made.open
    assert second == (first + 1) % 3


def test_a_key_chooses_its_lane_regardless_of_the_rotation() -> None:
    made = turn(4)
    for _ in range(3):
        made.put(b"v", key=b"k", headers=None, time_ms=None, lane=None)
        made.pass_on()
    assert list(made.open) == [lane_for(b"k", 4)]
    assert made.messages_count == 3
    groups = made.groups(3, keys=[b"k", None, b"k"], lane=None)
    assert dict(groups)[lane_for(b"k", 4)] in ([0, 2], [0, 1, 2])


def test_columns_begin_with_the_first_message_that_needs_one() -> None:
    made = turn(1)
    made.put_plain(b"a")
    made.put(b"b", key=b"k", headers={"h": b"1"}, time_ms=7, lane=0)
    made.put_plain(b"c")
    found = check(made.open[0].encode())
    assert found.keys() == [None, b"k", None]


def test_a_batch_is_full_at_its_size_and_empty_messages_count() -> None:
    made = turn(1)
    count = RECORD_SIZE_BYTES // OVERHEAD_BYTES
    assert [made.put_plain(b"") for _ in range(count)][-2:] == [None, 0]
    made.open.clear()
    assert made.put_plain(bytes(RECORD_SIZE_BYTES)) == 0


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"key": "text"}, TypeError),
        ({"headers": {"h": "text"}}, TypeError),
        ({"headers": {"h": bytes(MESSAGE_SIZE_BYTES_MAX)}}, TooLarge),
        ({"time_ms": 1 << 63}, InvalidRequest),
        ({"lane": 2}, InvalidRequest),
    ],
)
def test_an_invalid_message_is_refused_before_it_is_added_to_a_batch(
    options: dict[str, object], error: type[Exception]
) -> None:
    made = turn(2)
    whole = {"key": None, "headers": None, "time_ms": None, "lane": None, **options}
    with pytest.raises(error):
        made.put(b"v", **whole)  # type: ignore[arg-type]
    with pytest.raises(TooLarge):
        made.put_plain(bytes(MESSAGE_SIZE_BYTES_MAX + 1))
    assert made.messages_count == 0


def test_pub_sub_messages_have_no_lane_yet() -> None:
    made = turn(0)
    made.put_plain(b"a")
    made.put(b"b", key=b"k", headers=None, time_ms=None, lane=None)
    assert list(made.open) == [UNBOUND]
    with pytest.raises(InvalidRequest, match="belongs to a peer"):
        made.put(b"c", key=None, headers=None, time_ms=None, lane=1)


# ---------------------------------------------------------------------- the window


def test_a_window_counts_messages_and_is_full_by_records_or_bytes() -> None:
    found = window(sent(b"a", b"b"), sent(b"c"), count_max=2)
    assert (found.messages_count, len(found), found.full, found.low) == (3, 2, True, False)
    assert window(sent(bytes(2_000)), size_bytes_max=1_000).full
    assert not window(sent(b"a")).full


def test_records_leave_in_order_and_a_commit_completes_when_all_before_it_left() -> None:
    found = window(sent(b"a", lane=1), sent(b"b", lane=1), sent(b"c", lane=2))
    first, second = found.give(), found.give()
    found.release(1)
    assert (found.passed(1), found.passed(2), found.passed(3)) == (True, False, False)
    found.release(1)
    assert (found.passed(2), found.passed(3)) == (True, False)
    assert found.messages_count == 1
    assert found.reached[1].first == first.write_id
    assert (found.reached[1].last, found.reached[1].messages) == (second.write_id, 2)


def test_records_of_a_failed_channel_wait_before_all_later_ones() -> None:
    a, b, c = sent(b"a"), sent(b"b"), sent(b"c")
    found = window(a, b, c)
    found.give()
    found.give()
    a.sent_at = b.sent_at = 5.0
    found.take_back(["delivered", "unsent"])
    assert list(found.waiting) == [a, b, c]
    assert [(one.maybe, one.sent_at) for one in (a, b, c)] == [(True, 5.0), (False, 0.0), (False, 0.0)]
    found.resolved(a)
    assert [one.number for one in found] == [2, 3]


def test_returned_messages_are_complete_and_say_what_may_have_happened() -> None:
    batch = Batch(deadline=0.0)
    batch.put(b"a", b"k", (("h", b"x"),), 7)
    batch.put(b"b", None, None, None)
    record = ProducerRecord(message_of(batch.encode(), lane=3), lane=3, count=2, write_id=batch.write_id)
    record.maybe = True
    first, second = messages_of(record)
    assert (first.value, first.key, first.headers, first.time_ms) == (b"a", b"k", (("h", b"x"),), 7)
    assert (first.fate, first.lane, first.write_id) == ("unknown", 3, batch.write_id)
    assert (second.value, second.key, second.headers) == (b"b", None, ())
    unbound = sent(b"c", lane=UNBOUND)
    assert [(one.fate, one.lane) for one in messages_of(unbound)] == [("unsent", None)]


def test_a_sent_record_counts_as_one_that_may_have_happened() -> None:
    found = window(sent(b"a"), sent(b"b"))
    found.give()
    assert [message.fate for message in found.messages()] == ["unknown", "unsent"]


# ---------------------------------------------------------------------- the store


def test_stored_records_are_loaded_as_ones_that_may_have_happened() -> None:
    store = MemoryStore()
    records = [sent(b"a", lane=1), sent(b"b", lane=UNBOUND)]
    PendingRecordStore(store).save(records)
    loaded = PendingRecordStore(store).load()
    assert [one.write_id for one in loaded] == [one.write_id for one in records]
    assert [(one.lane, one.maybe, one.count) for one in loaded] == [(1, True, 1), (UNBOUND, False, 1)]


def test_acknowledged_records_leave_the_store_and_new_ones_are_appended(tmp_path: Path) -> None:
    first = PendingRecordStore(tmp_path / "pending")
    first.save([sent(b"a"), sent(b"b"), sent(b"c")])
    first.close()
    saved = PendingRecordStore(str(tmp_path / "pending"))
    found = window(*saved.load())
    later = sent(b"d")
    found.add(later)
    saved.save([later])
    found.give()
    found.give()
    found.release(2)
    saved.release(found)
    saved.close()
    store = FileStore(tmp_path / "pending")
    assert [bytes(next(messages_of(read_message(value))).value) for value in store.load()] == [b"c", b"d"]
    store.close()


def test_the_last_of_two_bindings_of_a_record_counts() -> None:
    store = MemoryStore()
    saved, records = PendingRecordStore(store), [sent(b"a", lane=5), sent(b"b", lane=5)]
    saved.save(records)
    for record in records:
        record.bind(6)
    saved.save(records)
    again = PendingRecordStore(store)
    loaded = again.load()
    assert [(one.lane, one.write_id) for one in loaded] == [(6, one.write_id) for one in records]
    found = window(*loaded)
    again.release(found)
    assert len(store.load()) == 2
    for _ in loaded:
        found.give()
    found.release(2)
    again.release(found)
    assert store.load() == []


def test_a_stored_value_that_is_not_a_record_is_reported() -> None:
    with pytest.raises(Malformed):
        read_message(b"short")

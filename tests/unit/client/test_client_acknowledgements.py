"""Delivered and processed batches of a subscriber over several channels; decoding of pushed messages."""

from __future__ import annotations

import base64
import json

import pytest

from avow.client.acknowledgements import Acknowledgements, Delivery
from avow.client.observer import Committed, Enqueued, Stored, read_event
from avow.client.push_stream import LaneAssignment, from_version, moved, positions, read_pushed
from avow.client.reader import JoinedBatch, ReadBatch
from avow.errors import Malformed
from avow.wire.encode import encode_batch
from avow.wire.ranges import Range, range_parts
from avow.wire.record import unpack_entry


def group(acknowledgements: Acknowledgements, commit_id: int, lane: int, first: int, last: int) -> Delivery | None:
    """A group arrives with its commit. Returns the delivery of its new messages."""
    start = acknowledgements.received(lane, first, last)
    place = acknowledgements.deliver(lane, last) if start <= last else None
    acknowledgements.commit_received(commit_id)
    return place


def only(pushed: LaneAssignment | list[Range]) -> Range:
    assert isinstance(pushed, list)
    (found,) = pushed
    return found


def begun(lanes: dict[int, int]) -> Acknowledgements:
    acknowledgements = Acknowledgements()
    acknowledgements.begin(lanes)
    return acknowledgements


def test_a_commit_of_a_batch_acknowledges_all_earlier_ones() -> None:
    acknowledgements = begun({0: 0, 1: 5})
    group(acknowledgements, 1, 0, 1, 10)
    second = group(acknowledgements, 2, 1, 6, 7)
    group(acknowledgements, 3, 0, 11, 12)
    assert second is not None
    assert acknowledgements.ackable() == 0
    acknowledgements.process(second)
    assert acknowledgements.ackable() == 2
    assert acknowledgements.ackable() == 0
    assert acknowledgements.reported() == {0: (1, 10), 1: (2, 7)}


def test_a_commit_is_durable_when_the_barrier_after_it_is_answered() -> None:
    acknowledgements = begun({0: 0})
    place = group(acknowledgements, 1, 0, 1, 10)
    assert place is not None
    acknowledgements.process(place)
    acknowledgements.ackable()
    wanted = acknowledgements.processed()
    assert not acknowledgements.is_durable(wanted)
    acknowledgements.durable(acknowledgements.reported())
    assert acknowledgements.is_durable(wanted)


def test_redelivered_messages_are_not_returned_again_and_can_be_committed() -> None:
    acknowledgements = begun({0: 0})
    first = group(acknowledgements, 1, 0, 1, 10)
    group(acknowledgements, 2, 0, 11, 20)
    assert acknowledgements.begin({0: 0}) == []
    assert first is not None
    acknowledgements.process(first)
    assert acknowledgements.ackable() == 0  # nothing has arrived over the new channel yet
    assert acknowledgements.unreported() == {0: 10}
    assert group(acknowledgements, 1, 0, 1, 10) is None
    assert acknowledgements.ackable() == 1
    assert acknowledgements.unreported() == {}
    assert group(acknowledgements, 2, 0, 11, 20) is None
    assert acknowledgements.ackable() == 0


def test_only_the_new_messages_of_a_group_are_returned() -> None:
    acknowledgements = begun({0: 0})
    group(acknowledgements, 1, 0, 1, 10)
    acknowledgements.begin({0: 0})
    assert acknowledgements.received(0, 1, 14) == 11


def test_a_group_that_ends_elsewhere_than_the_batch_is_named_and_only_once() -> None:
    acknowledgements = begun({0: 0})
    first = group(acknowledgements, 1, 0, 1, 10)
    acknowledgements.begin({0: 0})
    group(acknowledgements, 1, 0, 1, 14)
    assert first is not None
    acknowledgements.process(first)
    assert acknowledgements.ackable() == 0
    assert acknowledgements.reported()[0] == (1, 0)
    assert acknowledgements.unreported() == {0: 10}
    assert acknowledgements.unreported() == {}
    assert acknowledgements.reported()[0] == (1, 10)


def test_acks_named_on_a_failed_channel_are_named_again_on_the_next() -> None:
    acknowledgements = begun({0: 0})
    first = group(acknowledgements, 1, 0, 1, 10)
    assert first is not None
    for _ in range(2):
        acknowledgements.begin({0: 0})
        group(acknowledgements, 1, 0, 1, 14)
        acknowledgements.process(first)
        assert acknowledgements.unreported() == {0: 10}


def test_a_lane_that_waits_for_another_one_is_named_too() -> None:
    acknowledgements = begun({0: 0, 1: 0})
    first = group(acknowledgements, 1, 0, 1, 10)
    group(acknowledgements, 2, 1, 1, 5)
    acknowledgements.begin({0: 0, 1: 0})
    group(acknowledgements, 1, 1, 1, 5)
    group(acknowledgements, 2, 0, 1, 10)
    assert first is not None
    acknowledgements.process(first)
    assert acknowledgements.ackable() == 0
    assert acknowledgements.unreported() == {0: 10}


def test_batches_of_a_lane_that_moved_to_another_member_are_released() -> None:
    acknowledgements = begun({0: 0, 1: 0})
    mine, theirs = group(acknowledgements, 1, 0, 1, 5), group(acknowledgements, 2, 1, 1, 5)
    assert mine is not None
    assert theirs is not None
    assert acknowledgements.begin({0: 0}) == [1]
    assert acknowledgements.holds(mine)
    assert not acknowledgements.holds(theirs)
    acknowledgements.process(theirs)  # covers the batches still held
    assert acknowledgements.processed() == {0: (1, 5)}


def test_a_batch_of_a_lost_lane_is_committed_or_unknown() -> None:
    acknowledgements = begun({0: 0})
    places = [group(acknowledgements, number, 0, number, number) for number in (1, 2, 3)]
    done, unconfirmed, left = [place for place in places if place is not None]
    acknowledgements.process(done)
    acknowledgements.ackable()
    acknowledgements.durable(acknowledgements.reported())
    acknowledgements.process(unconfirmed)
    acknowledgements.ackable()
    for _ in range(2):
        assert [acknowledgements.is_done(place) for place in (done, unconfirmed, left)] == [True, False, False]
        assert [acknowledgements.was_reported(place) for place in (done, unconfirmed, left)] == [True, True, False]
        acknowledgements.begin({})


def test_a_returned_lane_is_read_from_its_cursor_and_its_old_batches_stay_lost() -> None:
    acknowledgements = begun({0: 0})
    old = group(acknowledgements, 1, 0, 1, 5)
    acknowledgements.begin({})
    acknowledgements.begin({0: 0})
    again = group(acknowledgements, 1, 0, 1, 5)
    assert again is not None
    assert old is not None
    assert (acknowledgements.holds(again), acknowledgements.holds(old)) == (True, False)


def test_a_cursor_moved_by_others_means_that_the_lane_was_lost() -> None:
    acknowledgements = begun({0: 0})
    old = group(acknowledgements, 1, 0, 1, 5)
    assert old is not None
    assert acknowledgements.begin({0: 5}) == [0]
    assert not acknowledgements.holds(old)
    assert group(acknowledgements, 1, 0, 6, 9) is not None


def test_a_cursor_moved_by_an_unanswered_ack_is_durable() -> None:
    acknowledgements = begun({0: 0})
    place = group(acknowledgements, 1, 0, 1, 5)
    assert place is not None
    acknowledgements.process(place)
    acknowledgements.ackable()
    wanted = acknowledgements.processed()
    assert acknowledgements.begin({0: 5}) == []
    assert acknowledgements.is_durable(wanted)


def test_a_new_lane_is_accepted_with_its_first_group() -> None:
    acknowledgements = begun({3: 0})
    place = group(acknowledgements, 1, 7, 1, 4)
    assert place is not None
    acknowledgements.process(place)
    assert acknowledgements.ackable() == 1
    assert acknowledgements.reported()[7][1] == 4


# ---------------------------------------------------------------------- bytes


def pushed_range(values: list[bytes], *, lane: int = 0, first: int = 1) -> bytes:
    entry = unpack_entry(bytes(encode_batch(values, write_id=bytes(16))))
    return b"".join(range_parts(entry, lane=lane, first_version=first, offset=0, count=len(values)))


def test_lanes_and_ranges_are_distinguished_for_any_lane_number() -> None:
    assert read_pushed(memoryview(b'{"lanes":{"0":17,"3":0},"epoch":5}')) == LaneAssignment({0: 17, 3: 0}, 5)
    for lane in (0, int.from_bytes(b'{"la', "little") >> 16, 0x7B):
        found = only(read_pushed(memoryview(pushed_range([b"a"], lane=lane))))
        assert found.lane == lane
    with pytest.raises(Malformed):
        read_pushed(memoryview(b'{"lanes":17}'))
    with pytest.raises(Malformed):
        read_pushed(memoryview(pushed_range([b"a"])[:-8]))


def test_the_rest_of_a_range_begins_at_its_version() -> None:
    found = only(read_pushed(memoryview(pushed_range([b"a", b"b", b"c"], first=5))))
    assert from_version(found, 3) is found
    rest = ReadBatch(from_version(found, 6))
    assert (rest.first_version, rest.last_version, rest.values()) == (6, 7, [b"b", b"c"])


def test_joined_batches_are_read_as_one() -> None:
    parts = []
    for first, values in ((1, [b"a", b"b"]), (3, [b"c"])):
        found = only(read_pushed(memoryview(pushed_range(values, first=first))))
        parts.append(ReadBatch(found))
    joined = JoinedBatch(parts)
    assert (joined.first_version, joined.last_version, len(joined)) == (1, 3, 3)
    assert joined.values() == [b"a", b"b", b"c"]
    assert [message.version for message in joined.messages()] == [1, 2, 3]
    assert joined.to_arrow().column("value").to_pylist() == [b"a", b"b", b"c"]


def test_positions_and_moves_are_encoded_in_the_wire_format() -> None:
    assert positions({3: 7, 0: 1}) == "0:1,3:7"
    assert json.loads(moved({0: 12})) == {"versions": {"0": 12}}


def test_events_of_an_observer_are_typed() -> None:
    record = base64.b64encode(encode_batch([b"a", b"b"], write_id=bytes(16))).decode()
    event_fields = {"event": "enqueue", "lane": 3, "first_version": 5, "last_version": 6, "batch": record}
    event = read_event(memoryview(json.dumps(event_fields).encode()))
    assert isinstance(event, Enqueued)
    assert (event.lane, event.first_version, event.last_version, event.batch.values()) == (3, 5, 6, [b"a", b"b"])
    stored = {"event": "stored", "lane": 3, "peer": 2, "upto_version": 6}
    assert read_event(memoryview(json.dumps(stored).encode())) == Stored(3, 2, 6)
    committed = {"event": "committed", "lane": 3, "upto_version": 6}
    assert read_event(memoryview(json.dumps(committed).encode())) == Committed(3, 6)
    for wrong in (b"{}", b'{"event":"other"}', json.dumps({**event_fields, "batch": "!"}).encode()):
        with pytest.raises(Malformed):
            read_event(memoryview(wrong))

"""Small writes that wait for the same sync: one record, and an answer for each."""

from __future__ import annotations

import pytest
from tests.unit.node.queue_lane_hand import (
    NOW,
    PROOF,
    confirmed,
    coordinating,
    heard,
    lane,
    perform,
    section,
    small,
    stored,
    write,
)

from avow.limits import MERGED_SIZE_BYTES_MAX
from avow.node.answers import Done, Refusal
from avow.node.lane.queue_lane import QueueLane
from avow.node.lane.two_phase_lane import Write
from avow.wire.batch import Batch, merged_writes, pack_entry
from avow.wire.messages import Claim, Forward, Forwarded, Heartbeat, Kind, Ready


def busy() -> QueueLane:
    """A coordinator with one entry that is not synced yet: it takes position 2 and version 1."""
    peer = coordinating()
    peer.write(100, write(100), NOW)
    peer.drain()
    return peer


def land(peer: QueueLane) -> None:
    """Finishes the sync in flight."""
    peer.persisted(PROOF)


def test_a_single_write_is_appended_unchanged() -> None:
    peer = coordinating()
    peer.write(1, small(1), NOW)
    perform(peer)
    assert peer.core.log.entry(2).write_id == b"%016d" % 1
    stored(peer)
    assert heard(peer) == [(1, Done(1, 1))]


def test_writes_that_wait_for_a_sync_become_one_record_with_an_answer_for_each() -> None:
    peer = busy()
    for number in (1, 2, 3):
        peer.write(number, small(number, *[b"m%d" % number] * number), NOW)
    assert peer.core.log.end == 2
    land(peer)
    peer.drain()
    entry = peer.core.log.entry(3)
    assert (entry.write_id, entry.count, peer.core.log.end) == (b"", 6, 3)
    assert [write_id for write_id, _, _ in merged_writes(entry)] == [b"%016d" % number for number in (1, 2, 3)]
    land(peer)
    stored(peer)
    assert heard(peer) == [(100, Done(1, 1)), (1, Done(2, 2)), (2, Done(3, 4)), (3, Done(5, 7))]


def test_writes_of_one_moment_are_merged_without_waiting() -> None:
    peer = coordinating()
    peer.write(1, small(1), NOW)
    peer.write(2, small(2), NOW)
    peer.drain()
    assert peer.core.log.entry(2).count == 2


def test_a_coordinator_with_a_slow_disk_does_not_delay_commits_of_the_others() -> None:
    peer = busy()
    peer.write(1, small(1), NOW)
    for other in (2, 3):
        peer.receive(other, Ready(peer.core.promised, 2, True), NOW)
    assert peer.core.committed == 2
    assert peer.core.state.persisted_end == 1
    peer.drain()
    assert peer.core.log.end == 3


def test_a_repeated_write_id_joins_the_held_one() -> None:
    peer = busy()
    peer.write(1, small(1), NOW)
    peer.write(2, small(2), NOW)
    peer.write(3, small(1), NOW)
    land(peer)
    peer.drain()
    assert peer.core.log.entry(3).count == 2
    peer.write(4, small(2), NOW)  # in flight by now, in the middle of a record
    land(peer)
    stored(peer)
    assert set(heard(peer)) == {(100, Done(1, 1)), (1, Done(2, 2)), (3, Done(2, 2)), (2, Done(3, 3)), (4, Done(3, 3))}
    peer.write(5, small(1), NOW)
    assert heard(peer) == [(5, Done(2, 2))]


def test_any_other_write_goes_after_the_held_ones() -> None:
    peer = busy()
    peer.write(1, small(1), NOW)
    peer.write(2, small(2), NOW)
    peer.write(3, write(3, expected=3), NOW)  # counts what is held
    assert [peer.core.log.entry(position).count for position in (2, 3, 4)] == [1, 2, 1]
    stored(peer)
    assert heard(peer) == [(100, Done(1, 1)), (1, Done(2, 2)), (2, Done(3, 3)), (3, Done(4, 4))]


def test_not_equal_counts_held_writes() -> None:
    peer = busy()
    peer.write(1, small(1), NOW)
    peer.write(2, write(2, expected=1), NOW)
    confirmed(peer)
    stored(peer)
    assert heard(peer) == [(100, Done(1, 1)), (1, Done(2, 2)), (2, Refusal("NOT_EQUAL", 2))]


def test_writes_with_other_columns_are_not_merged() -> None:
    peer = busy()
    peer.write(1, small(1), NOW)
    peer.write(2, small(2), NOW)
    peer.write(3, small(3, key=b"k"), NOW)
    peer.write(4, small(4, key=b"k"), NOW)
    land(peer)
    peer.drain()
    assert peer.core.log.entry(3).count == 2  # let go of by the first with keys
    land(peer)
    stored(peer)
    batch = Batch(pack_entry(peer.core.log.entry(4)))
    assert [bytes(batch.key(number) or b"") for number in (0, 1)] == [b"k", b"k"]
    assert heard(peer)[-1] == (4, Done(5, 5))


def test_held_writes_are_bounded_in_bytes() -> None:
    peer = busy()
    large = b"x" * 16_000
    count = MERGED_SIZE_BYTES_MAX // len(section(large)) + 1
    for number in range(1, count + 1):
        peer.write(number, small(number, large), NOW)
    assert peer.core.log.end == 3
    assert peer.core.log.entry(3).count == count - 1


def test_writes_held_when_the_coordinator_changes_were_never_stored() -> None:
    peer = busy()
    peer.write(1, small(1), NOW)
    peer.write(2, small(1), NOW)
    peer.receive(3, Claim(peer.core.promised + (1 << 16)), NOW)
    assert (1, Refusal("OFFLINE")) in heard(peer)
    perform(peer)
    assert peer.core.log.end == 2


def test_a_full_disk_refuses_held_writes() -> None:
    peer = busy()
    peer.write(1, small(1), NOW)
    peer.disk_full(full=True)
    land(peer)
    peer.drain()
    assert heard(peer) == [(1, Refusal("DISK_FULL"))]


def test_forwarded_writes_are_merged_and_each_peer_gets_its_own_answers() -> None:
    peer = busy()
    for number, source in ((1, 2), (2, 3)):
        follower = lane(source)
        follower.receive(1, Heartbeat(65537, True, 0), NOW)
        follower.write(number, small(number), NOW)
        (forward,) = [message for _, message in perform(follower) if isinstance(message, Forward)]
        peer.receive(source, forward, NOW)
    land(peer)
    sent = perform(peer)
    peer.receive(2, Ready(peer.core.promised, peer.core.log.end, True), NOW)
    sent += perform(peer)
    assert peer.core.log.entry(3).count == 2
    assert {(2, Forwarded(1, "", 2, 2)), (3, Forwarded(2, "", 3, 3))} <= set(sent)


@pytest.mark.parametrize(
    "unfit",
    [
        Write(Kind.DATA, b"%016d" % 1, 1, -1, 0, b"", section(b"a")),  # not marked as mergeable
        Write(Kind.DATA, b"%016d" % 1, 1, -1, 0, b"", b"toy", mergeable=True),
        Write(Kind.DATA, b"", 1, -1, 0, b"", section(b"a"), mergeable=True),  # nobody could find it again
        Write(Kind.DATA, b"%016d" % 1, 1, -1, 0, b"", section(b"a" * 20_000), mergeable=True),
        Write(Kind.DATA, b"%016d" % 1, 2, -1, 0, b"", section(b"a"), mergeable=True),
    ],
)
def test_a_write_that_cannot_be_merged_is_appended_at_once(unfit: Write) -> None:
    peer = busy()
    peer.write(1, unfit, NOW)
    assert peer.core.log.end == 3


def test_a_message_about_to_be_merged_into_the_lane_is_found_by_its_version_id() -> None:
    peer = busy()
    peer.write(1, small(1), NOW)
    peer.write(2, small(2, b"a", b"b"), NOW)
    land(peer)
    peer.drain()
    found = peer.peek_version(4)
    assert found is not None
    assert (found[0].position, found[1], found[2]) == (3, 2, False)

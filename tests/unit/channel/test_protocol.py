"""One end as the application sees it: sending, commits, acknowledgements, the limit."""

from __future__ import annotations

import pytest
from tests.unit.channel.core_pair import CAP_BYTES, CAP_COUNT, Pair, core, ended, frames_of, hello, packet_of

from avow import limits
from avow.channel.protocol.core import Core, check_bounds
from avow.channel.protocol.events import (
    VALUE_OVERHEAD_BYTES,
    Bounds,
    CommitAcked,
    CommitDelivered,
    Connected,
    Messages,
    Pending,
    Resumed,
    Suspended,
)
from avow.channel.protocol.frames import Ack, Commit, Data, EndCode, Hello, hello_bytes
from avow.channel.protocol.states import Receiver
from avow.errors import Busy, ChannelFailed, InvalidRequest, TooLarge


def heard(end: Core) -> list[object]:
    """Events in a compact form."""
    noted: list[object] = []
    for event in end.take_events():
        if isinstance(event, Messages):
            noted += [bytes(value) for value in event.values]
        elif isinstance(event, CommitDelivered):
            noted.append((event.id, event.upto))
        elif isinstance(event, CommitAcked):
            noted.append(event.id)
        elif not isinstance(event, Connected):
            noted.append(event)
    return noted


# ------------------------------------------------------------------ S1, S2, S4


def test_a_commit_is_delivered_between_the_messages_before_and_after_it() -> None:
    pair = Pair().connect()
    pair.left.send(b"a")
    pair.left.commit()
    pair.left.send(b"b")
    pair.flow()
    assert heard(pair.right) == [b"a", (1, 1), b"b"]


def test_a_commit_does_not_complete_while_an_earlier_message_is_unsent() -> None:
    """The first defect of the known stub: its callback fires at once."""
    pair = Pair().connect().quiet()
    pair.left.send(b"a")
    pair.left.commit()
    assert heard(pair.left) == []
    pair.flow()
    assert heard(pair.left) == []
    assert heard(pair.right) == [b"a", (1, 1)]
    pair.right.ack_commit(1)
    pair.flow()
    assert heard(pair.left) == [1]


def test_a_commit_on_an_idle_channel_completes() -> None:
    """The second defect of the known stub: its callback never fires."""
    pair = Pair().connect().quiet()
    assert pair.left.commit() == 1
    pair.flow()
    assert heard(pair.right) == [(1, 0)]
    pair.right.ack_commit(1)
    pair.flow()
    assert heard(pair.left) == [1]


def test_both_directions_are_independent() -> None:
    pair = Pair().connect().quiet()
    pair.left.send(b"to the right")
    pair.right.send(b"to the left")
    pair.left.commit()
    pair.right.commit()
    pair.flow()
    assert heard(pair.left) == [b"to the left", (1, 1)]
    assert heard(pair.right) == [b"to the right", (1, 1)]


def test_sending_continues_while_a_commit_is_outstanding() -> None:
    pair = Pair().connect().quiet()
    pair.left.send(b"a")
    pair.left.commit()
    pair.flow()
    pair.left.send(b"b")
    pair.flow()
    assert heard(pair.right) == [b"a", (1, 1), b"b"]
    assert pair.left.non_acked_message_count == 2


def test_the_ack_of_a_superseded_commit_releases_the_messages_it_covers() -> None:
    pair = Pair().connect().quiet()
    for _ in range(3):
        pair.left.send(b"a")
        pair.left.commit()
    pair.flow()
    pair.right.ack_commit(2)
    pair.flow()
    assert heard(pair.left) == [2]
    assert pair.left.non_acked_message_count == 1


def test_only_the_newest_of_several_acks_in_one_turn_is_sent() -> None:
    pair = Pair().connect().quiet()
    for _ in range(3):
        pair.left.send(b"a")
        pair.left.commit()
    pair.flow()
    for commit_id in (1, 2, 3):
        pair.right.ack_commit(commit_id)
    assert frames_of(pair.right) == [Ack(3)]


def test_an_ack_overtakes_data_that_waits() -> None:
    pair = Pair().connect()
    pair.left.commit()
    pair.flow()
    for _ in range(10):
        pair.right.send(bytes(100))
    packet_of(pair.right, 100)
    pair.right.ack_commit(1)
    written = frames_of(pair.right, 100)
    assert written[0] == Ack(1)
    assert isinstance(written[1], Data)


def test_ids_continue_after_the_last_commit_of_an_earlier_channel() -> None:
    pair = Pair(core(last_commit=40)).connect().quiet()
    assert pair.left.commit() == 41
    pair.flow()
    assert heard(pair.right) == [(41, 0)]
    pair.right.ack_commit(41)
    pair.cut()
    pair.connect()
    assert heard(pair.left) == [41]


# ------------------------------------------------------------------ R1


def test_messages_are_delivered_while_an_ack_is_outstanding() -> None:
    pair = Pair().connect().quiet()
    pair.left.commit()
    pair.flow()
    pair.left.send(b"a")
    pair.flow()
    assert heard(pair.right) == [(1, 0), b"a"]
    assert pair.right.receiver is Receiver.OWING


def test_acking_twice_is_harmless() -> None:
    pair = Pair().connect().quiet()
    pair.left.commit()
    pair.flow()
    pair.right.ack_commit(1)
    pair.right.ack_commit(1)
    pair.flow()
    pair.right.ack_commit(1)
    assert not pair.right.has_output
    assert heard(pair.left) == [1]


@pytest.mark.parametrize("commit_id", [-1, 0, 2])
def test_acking_an_undelivered_message_is_an_application_error(commit_id: int) -> None:
    pair = Pair().connect()
    pair.left.commit()
    pair.flow()
    with pytest.raises(InvalidRequest, match="never delivered"):
        pair.right.ack_commit(commit_id)
    assert not pair.right.has_output
    assert pair.right.receiver is Receiver.OWING


def test_acking_after_the_end_is_harmless() -> None:
    end = core()
    end.end(EndCode.ABORTED)
    end.ack_commit(5)


# ------------------------------------------------------------------ S3: the limit


def test_the_message_that_reaches_the_limit_commits_by_itself() -> None:
    pair = Pair(core(pending_count=3)).connect().quiet()
    for value in (b"a", b"b", b"c"):
        pair.left.send(value)
    assert pair.left.suspended
    assert heard(pair.left) == [Suspended()]
    pair.flow()
    assert heard(pair.right) == [b"a", b"b", b"c", (1, 3)]


def test_a_suspended_sender_refuses_a_message_and_changes_nothing() -> None:
    end = core(pending_count=1)
    end.send(b"a")
    before = end.statistics()
    with pytest.raises(Busy, match="was not sent"):
        end.send(b"b")
    assert end.statistics() == before


def test_a_suspended_sender_still_commits() -> None:
    pair = Pair(core(pending_count=1)).connect().quiet()
    pair.left.send(b"a")
    assert pair.left.commit() == 2
    pair.flow()
    assert heard(pair.right) == [b"a", (1, 1), (2, 1)]


def test_the_limit_counts_bytes_and_the_overhead_of_empty_messages() -> None:
    end = core(pending_bytes=2 * VALUE_OVERHEAD_BYTES + 10)
    end.send(bytes(5))
    assert not end.suspended
    end.send(bytes(4))
    assert not end.suspended
    end.send(b"")
    assert end.suspended


def test_a_sender_resumes_at_half_the_limit_and_not_before() -> None:
    pair = Pair(core(pending_count=4)).connect()
    pair.left.send(b"a")
    pair.left.commit()
    pair.left.send(b"b")
    pair.left.commit()
    for _ in range(2):
        pair.left.send(b"c")
    pair.flow()
    pair.quiet()
    pair.right.ack_commit(1)
    pair.flow()
    assert heard(pair.left) == [1]
    assert pair.left.suspended
    pair.right.ack_commit(2)
    pair.flow()
    assert heard(pair.left) == [2, Resumed()]
    assert not pair.left.suspended


def test_a_sender_resumes_at_half_the_bytes_too() -> None:
    pair = Pair(core(pending_bytes=400)).connect()
    pair.left.send(bytes(100))
    pair.left.commit()
    pair.left.send(bytes(10))
    pair.left.commit()
    pair.left.send(bytes(200))
    pair.flow()
    assert pair.left.suspended
    for commit_id, suspended in ((1, True), (2, True), (3, False)):
        pair.right.ack_commit(commit_id)
        pair.flow()
        assert pair.left.suspended == suspended


def test_two_suspended_ends_do_not_deadlock() -> None:
    pair = Pair(core(pending_count=2), core(initiator=False, pending_count=2)).connect()
    for end in (pair.left, pair.right):
        end.send(b"a")
        end.send(b"b")
    pair.flow()
    assert pair.left.suspended
    assert pair.right.suspended
    for end in (pair.left, pair.right):
        end.ack_commit(1)
    pair.flow()
    assert not pair.left.suspended
    assert not pair.right.suspended


def test_a_sender_may_send_before_it_knows_the_other_ends_cap() -> None:
    end = core(pending_count=100_000)
    for _ in range(CAP_COUNT):
        end.send(b"")
    assert end.suspended


def test_the_limit_is_the_other_ends_cap_when_that_is_lower() -> None:
    pair = Pair(core(pending_count=100_000), core(initiator=False, cap_count=CAP_COUNT + 10)).connect()
    for _ in range(CAP_COUNT + 9):
        pair.left.send(b"")
    assert not pair.left.suspended
    pair.left.send(b"")
    assert pair.left.suspended
    pair.flow()
    assert not pair.right.ended


def test_a_limit_in_bytes_leaves_room_for_one_message_of_any_size_below_the_cap() -> None:
    end = core(pending_count=100_000, pending_bytes=1 << 40)
    largest = bytes(limits.CHANNEL_VALUE_SIZE_BYTES_MAX)
    while not end.suspended:
        end.send(largest)
    assert end.statistics()["pending_bytes"] <= CAP_BYTES  # type: ignore[operator]


def test_waiting_messages_are_committed_when_the_other_end_lowers_its_cap() -> None:
    end = core(pending_count=100_000)
    generation = end.socket()
    packet_of(end)
    end.received(generation, hello_bytes(hello(generation, cap_count=CAP_COUNT + 100)))
    for _ in range(CAP_COUNT + 50):
        end.send(b"")
    end.lost(generation)
    generation = end.socket()
    packet_of(end)
    end.take_events()
    end.received(generation, hello_bytes(hello(generation)))
    assert end.suspended
    assert heard(end) == [Suspended()]
    assert end.statistics()["commits"] == 1


def test_a_message_that_is_too_large_is_refused_and_not_sent() -> None:
    end = core()
    with pytest.raises(TooLarge, match="it was not sent"):
        end.send(bytes(limits.CHANNEL_VALUE_SIZE_BYTES_MAX + 1))
    assert end.non_acked_message_count == 0


def test_no_packet_exceeds_the_socket_limit() -> None:
    """Regression: a large message after a commit made the packet too large for any socket."""
    pair = Pair(core(pending_bytes=1 << 40)).connect()
    pair.left.send(bytes(65_500))
    pair.left.commit()
    pair.left.send(bytes(limits.CHANNEL_VALUE_SIZE_BYTES_MAX))
    while pair.left.has_output:
        assert len(packet_of(pair.left)) <= limits.CHANNEL_PACKET_SIZE_BYTES_MAX


# ------------------------------------------------------------------ sending again


def test_messages_of_a_failed_channel_are_resent_under_the_same_commit_ids() -> None:
    old = core()
    for value in (b"a", b"b"):
        old.send(value)
    old.out.skip_commits(6)
    old.commit()
    old.send(b"c")
    old.commit()
    old.send(b"d")
    old.end(EndCode.ABORTED)
    pair = Pair().connect().quiet()
    pair.left.resend(ended(old).pending)
    pair.flow()
    assert heard(pair.right) == [b"a", b"b", (7, 2), b"c", (8, 3), b"d"]
    assert pair.left.commit() == 9


def test_a_full_channel_is_resent_with_its_automatic_commit() -> None:
    old = core(pending_count=3)
    old.send(b"a")
    old.commit()
    old.send(b"b")
    old.send(b"c")
    old.end(EndCode.ABORTED)
    pair = Pair(core(pending_count=3)).connect().quiet()
    pair.left.resend(ended(old).pending)
    assert pair.left.suspended
    pair.flow()
    assert heard(pair.right) == [b"a", (1, 1), b"b", b"c", (2, 3)]


def test_pending_messages_that_exceed_the_limit_are_not_resent() -> None:
    """Regression: part of it was sent."""
    pending = [Pending(number, b"a", "unknown", 1) for number in range(1, 4)]
    end = core(pending_count=2)
    with pytest.raises(Busy, match="none was sent"):
        end.resend(pending)
    assert end.non_acked_message_count == 0
    end = core(pending_bytes=2 * VALUE_OVERHEAD_BYTES)
    with pytest.raises(Busy, match="none was sent"):
        end.resend(pending)
    assert end.non_acked_message_count == 0


def test_a_sender_with_a_limit_above_every_cap_resends_once_connected() -> None:
    pending = [Pending(number, b"", "unknown", 1) for number in range(1, CAP_COUNT + 2)]
    pair = Pair(core(pending_count=100_000), core(initiator=False, cap_count=2 * CAP_COUNT))
    with pytest.raises(Busy):
        pair.left.resend(pending)
    pair.connect()
    pair.left.resend(pending)
    pair.flow()
    assert pair.right.statistics()["received_to"] == CAP_COUNT + 1


def test_nothing_is_resent_on_an_ended_channel() -> None:
    end = core()
    end.end(EndCode.ABORTED)
    with pytest.raises(ChannelFailed):
        end.resend([Pending(1, b"a", "unknown", 1)])
    end.resend([])


# ------------------------------------------------------------------ setting up


@pytest.mark.parametrize(
    "bounds",
    [
        Bounds(pending_count=0),
        Bounds(pending_bytes=0),
        Bounds(cap_count=CAP_COUNT - 1),
        Bounds(cap_bytes=CAP_BYTES - 1),
        Bounds(cap_count=1 << 32),
        Bounds(cap_bytes=1 << 32),
    ],
)
def test_impossible_limits_are_refused(bounds: Bounds) -> None:
    with pytest.raises(InvalidRequest, match="the channel was not opened"):
        check_bounds(bounds)


def test_the_widest_limits_fit_in_a_hello() -> None:
    end = core(cap_count=(1 << 32) - 1, cap_bytes=(1 << 32) - 1)
    end.socket()
    (written,) = frames_of(end)
    assert isinstance(written, Hello)
    assert written.cap_bytes == (1 << 32) - 1


def test_the_initiator_learns_the_window() -> None:
    pair = Pair(core(window_s=5), core(initiator=False, window_s=30)).connect()
    assert (pair.left.window_s, pair.right.window_s) == (30, 30)


def test_statistics_show_both_directions() -> None:
    pair = Pair().connect()
    pair.left.send(b"abc")
    pair.left.commit()
    pair.flow()
    pair.right.ack_commit(1)
    left, right = pair.left.statistics(), pair.right.statistics()
    assert (left["sent_to"], left["pending"], left["pending_bytes"], left["commits"]) == (1, 1, 3 + 64, 1)
    assert (right["received_to"], right["commits_received_to"], right["acknowledged"]) == (1, 1, 1)
    pair.flow()
    assert pair.left.statistics()["acked"] == 1
    assert frames_of(pair.left) == []
    assert Commit(1, 1) not in frames_of(pair.right)

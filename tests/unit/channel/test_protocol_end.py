"""F2: how a channel ends, and what it hands back."""

from __future__ import annotations

import pytest
from tests.unit.channel.core_pair import CAP_COUNT, Pair, core, ended, frames_of, hello, packet_of

from avow.channel.protocol.core import Core
from avow.channel.protocol.events import CommitAcked, Ended, Messages, Pending
from avow.channel.protocol.frames import (
    POSITION_UNKNOWN,
    End,
    EndCode,
    ack_bytes,
    commit_bytes,
    data_parts,
    end_bytes,
    hello_bytes,
)
from avow.channel.protocol.states import Link, Receiver, Sender
from avow.errors import ChannelFailed

TOLD = [code for code in EndCode if code not in (EndCode.FENCED, EndCode.UNKNOWN_CHANNEL)]


def data(first: int, *values: bytes) -> bytes:
    return b"".join(data_parts(first, values or (b"x",)))


def fates(event: Ended) -> list[str]:
    return [one.fate for one in event.pending]


def last_word(end: Core) -> End:
    (frame,) = frames_of(end)
    assert isinstance(frame, End)
    return frame


def half_arrived() -> Pair:
    """Of three messages of the left end one has arrived, one is lost in flight, and one is not sent."""
    pair = Pair().connect()
    pair.left.send(b"a")
    pair.flow()
    pair.left.send(b"b")
    packet_of(pair.left)
    pair.cut()
    pair.left.send(b"c")
    return pair.quiet()


# ------------------------------------------------------------------ who ends it


@pytest.mark.parametrize("code", TOLD)
def test_an_end_is_sent_to_the_other_end_with_its_reason(code: EndCode) -> None:
    pair = Pair().connect().quiet()
    pair.left.end(code, name="WHY", text="because")
    assert ended(pair.left) == Ended(code, "WHY", "because", False, [])
    pair.flow()
    assert ended(pair.right) == Ended(code, "WHY", "because", True, [])
    assert not pair.right.has_output


def test_all_three_machines_end_together() -> None:
    end = core()
    end.end(EndCode.CLOSED)
    assert (end.link, end.sender, end.receiver) == (Link.ENDED, Sender.ENDED, Receiver.ENDED)


def test_an_end_happens_once() -> None:
    pair = Pair().connect().quiet()
    pair.left.send(b"a")
    pair.left.end(EndCode.ABORTED)
    pair.left.end(EndCode.CLOSED)
    pair.left.received(1, end_bytes(End(EndCode.ABORTED)))
    pair.left.lost(1)
    assert ended(pair.left).code == EndCode.ABORTED
    assert pair.left.take_events() == []


def test_after_the_end_nothing_can_be_sent_or_committed() -> None:
    end = core()
    end.end(EndCode.ABORTED)
    with pytest.raises(ChannelFailed, match="was not sent"):
        end.send(b"a")
    with pytest.raises(ChannelFailed, match="nothing was committed"):
        end.commit()


def test_after_the_end_nothing_is_received() -> None:
    pair = Pair().connect().quiet()
    pair.left.end(EndCode.ABORTED)
    pair.left.take_events()
    pair.left.received(1, data(1))
    assert pair.left.take_events() == []


def test_the_last_packet_is_the_end_and_there_is_no_other() -> None:
    pair = Pair().connect()
    pair.left.send(b"a")
    pair.left.end(EndCode.ABORTED)
    assert pair.left.has_output
    assert last_word(pair.left).code == EndCode.ABORTED
    assert not pair.left.has_output
    assert pair.left.packet() == []


def test_without_a_socket_the_end_is_not_sent() -> None:
    pair = Pair().connect()
    pair.cut()
    pair.left.end(EndCode.ABORTED)
    assert pair.left.packet() == []


def test_frames_after_an_end_are_ignored() -> None:
    pair = Pair().connect().quiet()
    pair.right.received(1, end_bytes(End(EndCode.ABORTED)) + data(1))
    assert [type(event) for event in pair.right.take_events()] == [Ended]


def test_an_unknown_end_code_is_an_abort() -> None:
    pair = Pair().connect().quiet()
    pair.right.received(1, end_bytes(End(99, name="NEW")))
    event = ended(pair.right)
    assert (event.code, event.name) == (EndCode.ABORTED, "NEW")


def test_a_reason_that_is_not_unicode_does_not_keep_a_channel_alive() -> None:
    pair = Pair().connect()
    pair.left.end(EndCode.ABORTED, text="\ud800")
    assert pair.left.ended
    assert last_word(pair.left).text == "?"


# ------------------------------------------------------------------ misbehaviour


@pytest.mark.parametrize(
    "packet",
    [
        data(2),
        data(0),
        commit_bytes(1, 1),
        commit_bytes(0, 0),
        ack_bytes(1),
        b"\xff",
        data(1)[:-1],
        data(1) + data(1),
        commit_bytes(1, 0) + commit_bytes(1, 0),
    ],
    ids=[
        "a gap",
        "a number that is none",
        "a commit of what did not come",
        "a commit id that is none",
        "an ack of what was not sent",
        "an unknown kind",
        "half a frame",
        "a message again",
        "a commit again",
    ],
)
def test_a_frame_that_violates_the_protocol_ends_the_channel_and_returns_pending_messages(packet: bytes) -> None:
    for end in (Pair().connect().left, Pair().connect().right):
        end.send(b"mine")
        end.take_events()
        end.received(1, packet)
        event = ended(end)
        assert (event.code, event.remote) == (EndCode.PROTOCOL, False)
        assert [one.value for one in event.pending] == [b"mine"]
        assert last_word(end).code == EndCode.PROTOCOL


def test_messages_before_a_broken_frame_are_delivered_and_reported_as_delivered() -> None:
    pair = Pair().connect().quiet()
    pair.right.received(1, data(1, b"good") + b"\xff")
    first, second = pair.right.take_events()
    assert isinstance(first, Messages)
    assert isinstance(second, Ended)
    assert last_word(pair.right).received_to == 1


def test_more_messages_than_the_cap_end_the_channel_and_none_of_them_is_delivered() -> None:
    """Regression: the End reported that they were."""
    pair = Pair(right=core(initiator=False, cap_count=CAP_COUNT)).connect().quiet()
    pair.right.received(1, data(1, *[b""] * CAP_COUNT))
    assert [type(event) for event in pair.right.take_events()] == [Messages]
    pair.right.received(1, data(CAP_COUNT + 1))
    assert [type(event) for event in pair.right.take_events()] == [Ended]
    frame = last_word(pair.right)
    assert (frame.code, frame.received_to) == (EndCode.CAP_EXCEEDED, CAP_COUNT)


def test_more_bytes_than_the_cap_end_the_channel() -> None:
    pair = Pair(right=core(initiator=False, cap_bytes=20 << 20)).connect().quiet()
    largest = bytes(9 << 20)
    pair.right.received(1, data(1, largest))
    pair.right.received(1, data(2, largest))
    assert not pair.right.ended
    pair.right.received(1, data(3, largest))
    assert ended(pair.right).code == EndCode.CAP_EXCEEDED


def test_an_ack_makes_room_below_the_cap() -> None:
    pair = Pair(right=core(initiator=False, cap_count=CAP_COUNT)).connect()
    pair.right.received(1, data(1, *[b""] * CAP_COUNT) + commit_bytes(1, CAP_COUNT))
    pair.right.ack_commit(1)
    pair.right.received(1, data(CAP_COUNT + 1, *[b""] * CAP_COUNT))
    assert not pair.right.ended


# ------------------------------------------------------------------ pending messages at the end


def test_pending_messages_are_returned_in_order_with_their_commits() -> None:
    pair = Pair().connect()
    for value in (b"a", b"b", b"c"):
        pair.left.send(value)
        if value != b"c":
            pair.left.commit()
    pair.flow()
    pair.right.ack_commit(1)
    pair.flow()
    pair.quiet()
    pair.left.end(EndCode.ABORTED)
    assert ended(pair.left).pending == [Pending(2, b"b", "unknown", 2), Pending(3, b"c", "unknown", 0)]


def test_giving_up_uses_only_what_the_other_end_reported() -> None:
    pair = half_arrived()
    pair.left.end(EndCode.ABORTED)
    assert fates(ended(pair.left)) == ["unknown", "unknown", "unsent"]


def test_a_hello_reports_what_was_delivered() -> None:
    pair = half_arrived()
    generation = pair.left.socket()
    packet_of(pair.left)
    pair.left.received(generation, hello_bytes(hello(generation, received_to=1)))
    pair.left.end(EndCode.ABORTED)
    assert fates(ended(pair.left)) == ["delivered", "unknown", "unsent"]


def test_an_end_frame_leaves_nothing_unknown() -> None:
    pair = half_arrived()
    generation = pair.left.socket()
    pair.left.received(generation, end_bytes(End(EndCode.EXPIRED, received_to=1)))
    assert fates(ended(pair.left)) == ["delivered", "unsent", "unsent"]


def test_an_end_from_a_peer_that_forgot_the_channel_reports_nothing() -> None:
    pair = half_arrived()
    generation = pair.left.socket()
    pair.left.received(generation, end_bytes(End(EndCode.UNKNOWN_CHANNEL)))
    event = ended(pair.left)
    assert event.code == EndCode.UNKNOWN_CHANNEL
    assert fates(event) == ["unknown", "unknown", "unsent"]


@pytest.mark.parametrize("code", TOLD)
@pytest.mark.parametrize("received_to", [0, POSITION_UNKNOWN])
def test_an_end_before_a_hello_that_names_no_position_decides_no_fate(code: EndCode, received_to: int) -> None:
    """Regression: a peer that shut down refused a socket before its Hello. What it had stored came back as unsent."""
    pair = half_arrived()
    generation = pair.left.socket()
    pair.left.received(generation, end_bytes(End(code, received_to=received_to)))
    assert fates(ended(pair.left)) == ["unknown", "unknown", "unsent"]


def test_an_end_after_a_hello_may_say_that_nothing_was_received() -> None:
    pair = Pair().connect()
    pair.left.send(b"a")
    packet_of(pair.left)
    pair.cut()
    pair.quiet()
    generation = pair.left.socket()
    pair.left.received(generation, hello_bytes(hello(generation)) + end_bytes(End(EndCode.GOING)))
    _, event = pair.left.take_events()
    assert isinstance(event, Ended)
    assert fates(event) == ["unsent"]


@pytest.mark.parametrize("received_to", [3, 1 << 50])
def test_an_impossible_end_frame_is_not_believed(received_to: int) -> None:
    pair = half_arrived()
    generation = pair.left.socket()
    pair.left.received(generation, end_bytes(End(EndCode.EXPIRED, acked=7, received_to=received_to)))
    assert fates(ended(pair.left)) == ["unknown", "unknown", "unsent"]


def test_the_ack_in_an_end_frame_completes_its_commit() -> None:
    pair = Pair().connect()
    pair.left.send(b"a")
    pair.left.commit()
    pair.flow()
    pair.left.send(b"b")
    pair.right.ack_commit(1)
    pair.right.end(EndCode.GOING)
    pair.quiet()
    pair.left.received(1, packet_of(pair.right))
    acked, event = pair.left.take_events()
    assert acked == CommitAcked(1)
    assert isinstance(event, Ended)
    assert [(one.value, one.fate) for one in event.pending] == [(b"b", "unsent")]


def test_both_ends_get_their_own_pending_messages_back() -> None:
    pair = Pair().connect()
    pair.left.send(b"left")
    pair.right.send(b"right")
    pair.flow()
    pair.quiet()
    pair.left.end(EndCode.ABORTED)
    pair.flow()
    assert [(one.value, one.fate) for one in ended(pair.left).pending] == [(b"left", "unknown")]
    assert [(one.value, one.fate) for one in ended(pair.right).pending] == [(b"right", "delivered")]


def test_two_ends_that_give_up_at_once_each_end_once() -> None:
    pair = Pair().connect().quiet()
    pair.left.end(EndCode.ABORTED)
    pair.right.end(EndCode.CLOSED)
    left, right = packet_of(pair.left), packet_of(pair.right)
    pair.right.received(1, left)
    pair.left.received(1, right)
    assert (ended(pair.left).code, ended(pair.right).code) == (EndCode.ABORTED, EndCode.CLOSED)

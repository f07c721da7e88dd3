"""F1: a channel while its sockets are lost and replaced: Hellos, resuming, fencing."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.unit.channel.core_pair import CHANNEL, TOKEN, Pair, core, ended, frames_of, hello, packet_of

from avow.channel.protocol.core import Core
from avow.channel.protocol.events import CommitAcked, Connected, Messages
from avow.channel.protocol.frames import (
    Ack,
    Commit,
    Data,
    End,
    EndCode,
    Hello,
    ack_bytes,
    commit_bytes,
    data_parts,
    end_bytes,
    hello_bytes,
    read_packet,
)
from avow.channel.protocol.states import Link


def greeting_of(end: Core) -> Hello:
    (frame,) = frames_of(end)
    assert isinstance(frame, Hello)
    return frame


def data(first: int, *values: bytes) -> bytes:
    return b"".join(data_parts(first, values or (b"x",)))


def sent_and_lost(count: int = 2) -> Pair:
    """The left end has written messages and a commit to a socket that lost them."""
    pair = Pair().connect()
    for _ in range(count):
        pair.left.send(b"x")
    pair.left.commit()
    packet_of(pair.left)
    pair.cut()
    return pair.quiet()


# ------------------------------------------------------------------ Hello


def test_only_a_hello_is_sent_before_the_other_end_was_heard() -> None:
    end = core()
    end.send(b"a")
    end.commit()
    assert frames_of(end) == []
    end.socket()
    assert greeting_of(end) == Hello(
        CHANNEL, TOKEN, 1, 0, 0, 0, end._bounds.cap_count, end._bounds.cap_bytes, 0, fresh=True
    )
    assert frames_of(end) == []
    assert not end.has_output


def test_an_acceptor_answers_with_the_same_generation_and_continues_in_the_same_packet() -> None:
    end = core(initiator=False)
    end.send(b"a")
    assert end.greeted(hello(3)) == 3
    first, second = frames_of(end)
    assert isinstance(first, Hello)
    assert (first.generation, first.fresh) == (3, False)
    assert isinstance(second, Data)


def test_an_initiator_is_fresh_until_it_has_heard_the_other_end() -> None:
    pair = Pair()
    pair.left.socket()
    assert greeting_of(pair.left).fresh
    pair.left.socket()
    assert greeting_of(pair.left).fresh
    pair.connect()
    pair.left.socket()
    assert not greeting_of(pair.left).fresh


def test_both_ends_connect_when_both_hellos_have_arrived() -> None:
    pair = Pair().connect()
    assert pair.left.take_events() == [Connected(1)]
    assert pair.right.take_events() == [Connected(1)]
    assert (pair.left.link, pair.right.link) == (Link.UP, Link.UP)


def test_a_hello_reports_the_position_of_its_end() -> None:
    pair = Pair().connect()
    for _ in range(3):
        pair.right.send(b"x")
    pair.right.commit()
    pair.right.commit()
    pair.flow()
    pair.left.ack_commit(1)
    pair.left.socket()
    frame = greeting_of(pair.left)
    assert (frame.generation, frame.received_to, frame.commits_received_to, frame.acked) == (2, 3, 2, 1)


# ------------------------------------------------------------------ resuming


def test_only_messages_that_did_not_arrive_are_resent() -> None:
    pair = sent_and_lost()
    pair.connect()
    events = pair.right.take_events()
    assert [bytes(value) for event in events if isinstance(event, Messages) for value in event.values] == [b"x", b"x"]
    assert not pair.left.out.waiting


def test_messages_that_arrived_are_not_resent() -> None:
    pair = Pair().connect()
    pair.left.send(b"a")
    pair.flow()
    pair.left.send(b"b")
    packet_of(pair.left)
    pair.cut()
    pair.quiet().connect()
    (messages,) = [event for event in pair.right.take_events() if isinstance(event, Messages)]
    assert (messages.first, list(map(bytes, messages.values))) == (2, [b"b"])


def test_a_lost_commit_is_resent() -> None:
    pair = Pair().connect()
    pair.left.send(b"a")
    pair.flow()
    pair.left.commit()
    assert frames_of(pair.left) == [Commit(1, 1)]
    pair.cut()
    pair.connect()
    assert pair.right.statistics()["commits_received_to"] == 1


def test_a_lost_ack_is_recovered_on_the_next_socket() -> None:
    pair = Pair().connect()
    pair.left.commit()
    pair.flow()
    pair.right.ack_commit(1)
    assert frames_of(pair.right) == [Ack(1)]
    pair.cut()
    pair.quiet().connect()
    assert CommitAcked(1) in pair.left.take_events()


def test_an_ack_made_while_disconnected_is_sent_on_the_next_socket() -> None:
    pair = Pair().connect()
    pair.left.commit()
    pair.right.commit()
    pair.flow()
    pair.cut()
    pair.right.ack_commit(1)
    pair.left.ack_commit(1)
    pair.quiet().connect()
    assert CommitAcked(1) in pair.left.take_events()
    assert CommitAcked(1) in pair.right.take_events()


def test_an_ack_made_between_the_two_hellos_is_sent_after_them() -> None:
    pair = Pair().connect()
    pair.right.commit()
    pair.flow()
    pair.generation = pair.left.socket()
    frame = greeting_of(pair.left)
    pair.left.ack_commit(1)
    pair.right.greeted(frame)
    pair.quiet()
    pair.flow()
    assert CommitAcked(1) in pair.right.take_events()


def test_messages_sent_while_disconnected_wait_for_the_next_socket() -> None:
    pair = Pair().connect()
    pair.cut()
    pair.left.send(b"a")
    pair.left.commit()
    assert frames_of(pair.left) == []
    pair.connect()
    assert pair.right.statistics()["commits_received_to"] == 1


# ------------------------------------------------------------------ fencing


def test_the_initiator_ignores_a_late_packet_of_a_replaced_socket() -> None:
    pair = Pair().connect()
    pair.right.send(b"late")
    late = packet_of(pair.right)
    pair.left.socket()
    pair.quiet()
    pair.left.received(1, late)
    assert pair.left.take_events() == []
    assert not pair.left.ended


def test_the_acceptor_ignores_a_late_packet_of_a_replaced_socket() -> None:
    pair = Pair().connect()
    pair.left.send(b"late")
    late = packet_of(pair.left)
    pair.connect()
    pair.quiet()
    before = pair.right.statistics()
    pair.right.received(1, late)
    assert pair.right.take_events() == []
    assert pair.right.statistics() == before


def test_a_packet_of_an_abandoned_socket_is_ignored() -> None:
    pair = Pair().connect()
    pair.left.send(b"late")
    late = packet_of(pair.left)
    pair.cut()
    pair.quiet()
    pair.right.received(1, late)
    assert pair.right.take_events() == []


@pytest.mark.parametrize("generation", [0, 1, 2])
def test_a_stale_hello_is_refused_and_changes_nothing(generation: int) -> None:
    pair = Pair().connect().connect()
    before = pair.right.statistics()
    assert pair.right.greeted(hello(generation, received_to=9)) == 0
    assert pair.right.statistics() == before
    assert not pair.right.ended


def test_a_fenced_socket_gets_a_fenced_frame() -> None:
    pair = Pair().connect().connect()
    (frame,) = read_packet(pair.right.fenced())
    assert isinstance(frame, End)
    assert frame.code == EndCode.FENCED
    assert "generation 2" in frame.text


def test_a_fenced_frame_ends_only_its_own_socket() -> None:
    """Regression: it ended the channel."""
    pair = Pair().connect()
    pair.left.send(b"a")
    pair.left.received(1, pair.right.fenced() + data(1))
    assert pair.left.link is Link.DOWN
    pair.connect()
    assert pair.right.statistics()["received_to"] == 1


def test_the_late_loss_of_a_replaced_socket_changes_nothing() -> None:
    pair = Pair().connect().connect()
    pair.left.lost(1)
    pair.right.lost(1)
    assert (pair.left.link, pair.right.link) == (Link.UP, Link.UP)


@pytest.mark.parametrize("stranger", [{"channel": b"x" * 16}, {"token": b"x" * 16}])
def test_a_hello_of_another_channel_or_with_another_token_is_refused(stranger: dict[str, bytes]) -> None:
    pair = Pair().connect()
    before = pair.right.statistics()
    assert pair.right.greeted(replace(hello(2), **stranger)) == 0
    assert pair.right.statistics() == before


def test_an_ended_acceptor_refuses_a_hello() -> None:
    end = core(initiator=False)
    end.end(EndCode.ABORTED)
    assert end.greeted(hello(1)) == 0


# ------------------------------------------------------------------ what may not come first


@pytest.mark.parametrize(
    "packet",
    [
        data(1),
        commit_bytes(1, 0),
        ack_bytes(1),
        hello_bytes(hello(2)),
        hello_bytes(replace(hello(1), token=b"x" * 16)),
        hello_bytes(replace(hello(1), channel=b"x" * 16)),
    ],
    ids=["data", "commit", "ack", "another generation", "another token", "another channel"],
)
def test_an_initiator_refuses_frames_before_the_answering_hello(packet: bytes) -> None:
    end = core()
    end.socket()
    packet_of(end)
    end.received(1, packet)
    assert ended(end).code == EndCode.PROTOCOL


def test_a_second_hello_on_one_socket_is_a_violation() -> None:
    for end in (Pair().connect().left, Pair().connect().right):
        end.take_events()
        end.received(1, hello_bytes(hello(1)))
        assert ended(end).code == EndCode.PROTOCOL


# ------------------------------------------------------------------ impossible Hellos


@pytest.mark.parametrize(
    "claim",
    [
        {"received_to": 3, "commits_received_to": 1},
        {"received_to": 2, "commits_received_to": 2},
        {"received_to": 2, "commits_received_to": 1, "acked": 2},
        {"received_to": 2, "commits_received_to": 0, "acked": 1},
        {"received_to": 1, "commits_received_to": 1},
    ],
    ids=["messages not sent", "commits not sent", "acks not sent", "ack of a commit it lacks", "commit without data"],
)
def test_a_hello_that_claims_unsent_messages_is_impossible_for_either_end(claim: dict[str, int]) -> None:
    pair = sent_and_lost()
    generation = pair.left.socket()
    packet_of(pair.left)
    pair.left.received(generation, hello_bytes(hello(generation, **claim)))
    event = ended(pair.left)
    assert (event.code, event.remote, len(event.pending)) == (EndCode.IMPOSSIBLE, False, 2)
    (frame,) = frames_of(pair.left)
    assert isinstance(frame, End)
    assert frame.code == EndCode.IMPOSSIBLE


@pytest.mark.parametrize(
    "claim",
    [
        {"received_to": 1, "commits_received_to": 1, "acked": 1},
        {"received_to": 2},
        {"received_to": 2, "commits_received_to": 1},
    ],
    ids=["message missing", "commit missing", "ack taken back"],
)
def test_a_hello_that_lacks_acknowledged_messages_is_impossible(claim: dict[str, int]) -> None:
    pair = Pair().connect()
    pair.right.send(b"a")
    pair.right.send(b"b")
    pair.right.commit()
    pair.flow()
    pair.left.ack_commit(1)
    pair.flow()
    pair.right.take_events()
    assert pair.right.greeted(hello(2, **claim)) == 2
    assert ended(pair.right).code == EndCode.IMPOSSIBLE
    (frame,) = frames_of(pair.right)
    assert isinstance(frame, End)


def test_a_message_after_a_missing_commit_is_impossible() -> None:
    pair = Pair().connect()
    pair.right.send(b"a")
    pair.right.commit()
    pair.right.send(b"b")
    packet_of(pair.right)
    pair.right.take_events()
    pair.right.greeted(hello(2, received_to=2))
    assert ended(pair.right).code == EndCode.IMPOSSIBLE


@pytest.mark.parametrize("poor", [{"cap_count": 4_095}, {"cap_bytes": (20 << 20) - 1}])
def test_a_hello_with_a_cap_below_the_minimum_is_a_violation(poor: dict[str, int]) -> None:
    end = core(initiator=False)
    end.greeted(hello(1, **poor))
    assert ended(end).code == EndCode.PROTOCOL


def test_an_ack_of_a_commit_that_the_hello_lacked_is_a_violation() -> None:
    """Regression: the sender then built a packet that never ended."""
    pair = sent_and_lost()
    generation = pair.left.socket()
    packet_of(pair.left)
    pair.left.received(generation, hello_bytes(hello(generation)) + ack_bytes(1))
    assert ended(pair.left).code == EndCode.PROTOCOL
    assert isinstance(frames_of(pair.left)[0], End)


def test_an_end_as_the_first_frame_is_accepted() -> None:
    end = core()
    end.socket()
    end.received(1, end_bytes(End(EndCode.REFUSED, name="BUSY", text="full")))
    event = ended(end)
    assert (event.code, event.name, event.text, event.remote) == (EndCode.REFUSED, "BUSY", "full", True)

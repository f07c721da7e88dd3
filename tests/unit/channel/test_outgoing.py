"""The sending side of one end, without the other end."""

from __future__ import annotations

import pytest

from avow.channel.protocol.events import VALUE_OVERHEAD_BYTES
from avow.channel.protocol.frames import Ack, Commit, Data, read_packet
from avow.channel.protocol.outgoing import Outgoing


def sent(*values: bytes, last_commit: int = 0) -> Outgoing:
    out = Outgoing(last_commit=last_commit)
    for value in values:
        out.send(value)
    return out


def taken(out: Outgoing, size_bytes: int = 65_536) -> list[object]:
    """The content of the next packet: values and (commit, upto)."""
    items: list[object] = []
    for frame in read_packet(b"".join(out.next_frames(size_bytes))):
        if isinstance(frame, Data):
            items += [bytes(value) for value in frame.values]
        elif isinstance(frame, Commit):
            items.append((frame.id, frame.upto))
        else:
            assert not isinstance(frame, Ack)
    return items


def fates(out: Outgoing) -> list[tuple[int, str, int]]:
    return [(one.number, one.fate, one.commit) for one in out.pending()]


# ------------------------------------------------------------------ giving


def test_messages_are_numbered_from_one() -> None:
    out = Outgoing()
    assert [out.send(b"a"), out.send(b"b")] == [1, 2]


def test_a_commit_follows_exactly_what_it_covers() -> None:
    out = sent(b"a", b"b")
    out.commit()
    out.send(b"c")
    out.commit()
    out.send(b"d")
    assert taken(out) == [b"a", b"b", (1, 2), b"c", (2, 3), b"d"]
    assert not out.waiting


def test_an_empty_commit_on_an_idle_channel_is_sent() -> None:
    out = Outgoing()
    out.commit()
    assert taken(out) == [(1, 0)]


def test_the_first_and_newest_of_commits_at_the_same_place_are_sent() -> None:
    out = sent(b"a")
    for _ in range(5):
        out.commit()
    assert taken(out) == [b"a", (1, 1), (5, 1)]


def test_a_commit_after_a_sent_one_at_the_same_place_is_sent_too() -> None:
    out = sent(b"a")
    out.commit()
    assert taken(out) == [b"a", (1, 1)]
    out.commit()
    assert taken(out) == [(2, 1)]


def test_a_thousand_commits_without_a_message_take_no_memory() -> None:
    out = sent(b"a")
    for _ in range(1_000):
        out.commit()
    assert len(out._runs) == 1


def test_a_full_packet_is_closed_and_the_next_one_continues() -> None:
    out = sent(*[b"12345678"] * 5)
    assert [len(taken(out, 24)) for _ in range(3)] == [2, 2, 1]


def test_a_message_larger_than_a_packet_gets_its_own_packet() -> None:
    out = sent(b"a", b"x" * 100, b"b")
    assert [taken(out, 20) for _ in range(3)] == [[b"a"], [b"x" * 100], [b"b"]]


def test_a_message_that_does_not_fit_behind_a_commit_waits_for_the_next_packet() -> None:
    out = sent(b"a" * 10)
    out.commit()
    out.send(b"x" * 100)
    assert taken(out, 40) == [b"a" * 10, (1, 1)]
    assert taken(out, 40) == [b"x" * 100]


def test_nothing_waits_when_everything_was_sent() -> None:
    out = sent(b"a")
    assert out.waiting
    taken(out)
    assert not out.waiting
    assert taken(out) == []


# ------------------------------------------------------------------ acknowledgement


def test_an_ack_releases_exactly_the_messages_its_commit_covers() -> None:
    out = sent(b"a", b"bb")
    out.commit()
    out.send(b"ccc")
    out.commit()
    taken(out)
    assert out.ack(1)
    assert (out.released_to, out.count, out.size_bytes) == (2, 1, 3 + VALUE_OVERHEAD_BYTES)
    assert out.ack(2)
    assert (out.released_to, out.count, out.size_bytes) == (3, 0, 0)


def test_an_ack_of_a_newer_commit_releases_the_messages_of_older_ones() -> None:
    out = sent(b"a")
    out.commit()
    out.send(b"b")
    out.commit()
    taken(out)
    assert out.ack(2)
    assert (out.released_to, out.acked) == (2, 2)


def test_an_older_ack_after_a_newer_one_is_ignored() -> None:
    out = sent(b"a")
    out.commit()
    out.commit()
    taken(out)
    assert out.ack(2)
    assert out.ack(1)
    assert out.ack(2)
    assert out.acked == 2


def test_an_ack_of_an_unsent_commit_is_a_violation() -> None:
    out = sent(b"a")
    out.commit()
    assert not out.ack(1)  # issued, but not written to a socket
    taken(out)
    assert not out.ack(2)
    assert out.ack(1)


def test_an_ack_in_the_middle_of_a_run_leaves_the_rest_of_it_to_be_acknowledged() -> None:
    out = sent(b"a")
    out.commit()
    taken(out)
    out.commit()
    out.commit()
    assert out.ack(1)
    assert (out.count, out.waiting) == (0, True)
    assert taken(out) == [(2, 1), (3, 1)]
    assert out.ack(3)
    assert not out._runs


def test_an_ack_of_a_commit_that_the_other_end_lacked_is_a_violation() -> None:
    """Regression: released_to passed given_to, and the next packet never ended."""
    out = sent(b"a")
    out.commit()
    taken(out)
    out.resume(0, 0)
    assert not out.ack(1)
    assert taken(out) == [b"a", (1, 1)]
    assert out.ack(1)


# ------------------------------------------------------------------ resuming


def test_a_resumed_socket_gets_what_the_other_end_lacks() -> None:
    out = sent(b"a", b"b")
    out.commit()
    out.send(b"c")
    taken(out)
    out.resume(1, 0)
    assert taken(out) == [b"b", (1, 2), b"c"]
    out.resume(2, 0)
    assert taken(out) == [(1, 2), b"c"]
    out.resume(2, 1)
    assert taken(out) == [b"c"]
    out.resume(3, 1)
    assert taken(out) == []


@pytest.mark.parametrize(
    ("received_to", "commits_received_to", "acked"),
    [(1, 0, 0), (2, 1, 1), (2, 1, 0), (3, 1, 0), (3, 2, 0), (3, 2, 1), (3, 2, 2)],
)
def test_where_the_other_end_may_stand(received_to: int, commits_received_to: int, acked: int) -> None:
    out = sent(b"a", b"b")
    out.commit()
    out.send(b"c")
    out.commit()
    taken(out)
    assert out.possible(received_to, commits_received_to, acked) == ""


@pytest.mark.parametrize(
    ("received_to", "commits_received_to", "acked"),
    [
        (4, 2, 0),  # a message that was not sent
        (3, 3, 0),  # a commit that was not sent
        (3, 2, 3),
        (3, 1, 2),  # an ack of a commit it does not have
        (1, 1, 0),  # a commit without the messages it covers
        (3, 0, 0),  # a message after a commit it does not have
        (2, 2, 0),
    ],
)
def test_where_the_other_end_cannot_stand(received_to: int, commits_received_to: int, acked: int) -> None:
    out = sent(b"a", b"b")
    out.commit()
    out.send(b"c")
    out.commit()
    taken(out)
    assert out.possible(received_to, commits_received_to, acked)


def test_an_acknowledged_message_cannot_be_missing() -> None:
    out = sent(b"a", b"b")
    out.commit()
    taken(out)
    out.ack(1)
    assert out.possible(1, 1, 1)
    assert out.possible(2, 0, 0)
    assert out.possible(2, 1, 0)
    assert out.possible(2, 1, 1) == ""


def test_a_message_that_was_never_sent_cannot_have_arrived() -> None:
    out = sent(b"a")
    assert out.possible(1, 0, 0)
    assert out.possible(0, 0, 0) == ""


# ------------------------------------------------------------------ ids that begin elsewhere


def test_ids_continue_after_the_last_commit_of_an_earlier_channel() -> None:
    out = sent(b"a", last_commit=40)
    assert out.commit() == 41
    assert taken(out) == [b"a", (41, 1)]


def test_an_end_without_commits_is_at_the_first_id() -> None:
    out = sent(b"a", last_commit=40)
    out.commit()
    taken(out)
    assert out.possible(0, 0, 0) == ""
    assert out.possible(1, 0, 0) == ""
    assert out.possible(1, 41, 41) == ""
    assert out.possible(1, 5, 0)
    out.resume(0, 0)
    assert taken(out) == [b"a", (41, 1)]


def test_skipped_ids_are_never_sent() -> None:
    out = sent(b"a")
    out.skip_commits(6)
    assert out.commit() == 7
    assert taken(out) == [b"a", (7, 1)]
    out.skip_commits(3)
    assert out.commit() == 8


# ------------------------------------------------------------------ fates


def test_pending_lists_uncovered_messages_with_the_first_commit_that_covers_them() -> None:
    out = sent(b"a")
    out.commit()
    out.send(b"b")
    out.send(b"c")
    out.commit()
    out.commit()
    out.send(b"d")
    assert fates(out) == [(1, "unsent", 1), (2, "unsent", 2), (3, "unsent", 2), (4, "unsent", 0)]
    taken(out)
    out.ack(1)
    assert fates(out) == [(2, "unknown", 2), (3, "unknown", 2), (4, "unknown", 0)]


def test_sent_messages_are_unknown_until_the_other_end_reports_them() -> None:
    out = sent(b"a", b"b", b"c")
    taken(out, 10)
    assert [fate for _, fate, _ in fates(out)] == ["unknown", "unknown", "unsent"]
    out.resume(1, 0)
    assert [fate for _, fate, _ in fates(out)] == ["delivered", "unknown", "unsent"]


def test_after_the_end_frame_of_the_other_end_nothing_is_unknown() -> None:
    out = sent(b"a", b"b", b"c")
    taken(out, 10)
    out.received_to, out.final = 1, True
    assert [fate for _, fate, _ in fates(out)] == ["delivered", "unsent", "unsent"]


def test_messages_sent_on_one_socket_stay_unknown_when_the_next_one_restarts() -> None:
    out = sent(b"a", b"b")
    taken(out)
    out.resume(0, 0)
    assert [fate for _, fate, _ in fates(out)] == ["unknown", "unknown"]

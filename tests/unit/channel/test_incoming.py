"""The receiving side of one end, without the other end."""

from __future__ import annotations

import pytest

from avow.channel.protocol.events import VALUE_OVERHEAD_BYTES
from avow.channel.protocol.incoming import Incoming


def incoming(*, cap_count: int = 10, cap_bytes: int = 10_000) -> Incoming:
    return Incoming(cap_count=cap_count, cap_bytes=cap_bytes)


def test_messages_must_be_consecutive() -> None:
    received = incoming()
    assert received.data(1, 2, 20) == ""
    assert received.data(3, 1, 5) == ""
    assert received.received_to == 3


@pytest.mark.parametrize("first", [0, 1, 2, 4, 5])
def test_a_message_that_is_not_the_next_is_refused_and_not_counted(first: int) -> None:
    received = incoming()
    received.data(1, 2, 20)
    assert f"message {first} arrived after message 2" in received.data(first, 1, 5)
    assert received.received_to == 2


def test_a_commit_comes_after_the_message_it_names() -> None:
    received = incoming()
    received.data(1, 2, 20)
    assert received.commit(1, 2) == ""
    assert received.commits_received_to == 1


@pytest.mark.parametrize("upto", [0, 1, 3])
def test_a_commit_at_another_place_is_refused_and_not_counted(upto: int) -> None:
    received = incoming()
    received.data(1, 2, 20)
    assert f"covers messages up to {upto}" in received.commit(1, upto)
    assert (received.commits_received_to, received.owing) == (0, False)


@pytest.mark.parametrize("commit_id", [0, 4, 5])
def test_a_commit_id_that_does_not_grow_is_refused(commit_id: int) -> None:
    received = incoming()
    received.commit(5, 0)
    assert f"commit {commit_id} arrived after commit 5" in received.commit(commit_id, 0)


def test_ids_may_be_skipped() -> None:
    received = incoming()
    assert received.commit(7, 0) == ""
    assert received.commit(19, 0) == ""


def test_an_ack_of_the_newest_commit_leaves_nothing_unacknowledged() -> None:
    received = incoming()
    received.commit(1, 0)
    received.data(1, 1, 1)
    received.commit(2, 1)
    assert received.ack(2)
    assert (received.acked, received.owing) == (2, False)


def test_an_ack_of_an_older_commit_leaves_the_newer_one_unacknowledged() -> None:
    received = incoming()
    received.data(1, 1, 1)
    received.commit(1, 1)
    received.data(2, 1, 1)
    received.commit(2, 2)
    assert received.ack(1)
    assert (received.acked, received.owing) == (1, True)


def test_an_ack_of_an_older_commit_at_the_same_place_leaves_the_newer_one_unacknowledged() -> None:
    received = incoming()
    received.commit(1, 0)
    received.commit(2, 0)
    assert received.ack(1)
    assert received.owing
    assert received.ack(2)
    assert not received.owing


def test_a_repeated_or_older_ack_is_harmless() -> None:
    received = incoming()
    received.commit(1, 0)
    received.commit(2, 0)
    assert received.ack(2)
    assert received.ack(2)
    assert received.ack(1)
    assert received.acked == 2


@pytest.mark.parametrize("commit_id", [-1, 0, 2, 4])
def test_an_undelivered_message_cannot_be_acknowledged(commit_id: int) -> None:
    received = incoming()
    assert not received.ack(commit_id)
    received.data(1, 1, 1)
    received.commit(3, 1)
    assert not received.ack(commit_id)
    assert (received.acked, received.owing) == (0, True)


def test_commits_at_the_same_place_take_no_memory() -> None:
    received = incoming()
    for commit_id in range(1, 1_001):
        received.commit(commit_id, 0)
    assert len(received._delivered) == 1


def test_the_cap_counts_messages_beyond_the_last_acknowledged_commit() -> None:
    received = incoming(cap_count=3)
    received.data(1, 2, 0)
    received.commit(1, 2)
    assert received.takes(1, 0)
    assert not received.takes(2, 0)
    received.data(3, 1, 0)
    assert not received.takes(1, 0)
    received.ack(1)
    assert received.takes(2, 0)
    assert not received.takes(3, 0)


def test_the_cap_counts_bytes_and_the_overhead_of_empty_messages() -> None:
    received = incoming(cap_bytes=100 + 2 * VALUE_OVERHEAD_BYTES)
    received.data(1, 1, 60)
    received.commit(1, 1)
    assert received.takes(1, 40)
    assert not received.takes(1, 41)
    received.ack(1)
    assert received.takes(2, 100)
    assert not received.takes(2, 101)


def test_checking_for_room_reserves_nothing() -> None:
    received = incoming(cap_count=1)
    assert not received.takes(2, 0)
    assert received.received_to == 0
    assert received.takes(1, 0)

"""Scripts for reconnecting sockets: rule F1, and impossible resumes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from avow.channel.protocol.frames import (
    End,
    EndCode,
    Hello,
    ack_bytes,
    end_bytes,
    hello_bytes,
)
from tools.channel_vectors.stage import CHANNEL, TOKEN, Script, connect, converse, cut

SMALL: Final[dict[str, Any]] = {"bounds": {"pending_count": 4}}


def a_hello_is_fresh_until_one_was_heard(script: Script) -> None:
    a, b = script.ends()
    a.socket()
    a.lost()
    connect(a, b)
    cut(a, b)
    connect(a, b)


def the_acceptors_window_counts(script: Script) -> None:
    a, b = script.pair(a={"window_s": 600}, b={"window_s": 45})
    cut(a, b)
    connect(a, b)


def without_a_window_of_the_acceptor_the_wish_stays(script: Script) -> None:
    a, b = script.pair(a={"window_s": 600})
    cut(a, b)
    connect(a, b)


def caps_are_said_in_every_hello(script: Script) -> None:
    bounds = {"cap_count": 5_000, "cap_bytes": 1 << 30}
    a, b = script.pair(a={"bounds": bounds}, b={"bounds": bounds})
    cut(a, b)
    connect(a, b)


def what_was_lost_with_a_socket_is_sent_again(script: Script) -> None:
    a, b = script.pair()
    a.send(b"lost")
    a.commit()
    b.send(b"lost too")
    cut(a, b)
    connect(a, b)
    converse(a, b, from_b=b.ack(1))


def what_arrived_is_not_sent_again(script: Script) -> None:
    a, b = script.pair()
    converse(a, b, a.send(b"arrived"))
    a.send(b"lost")
    cut(a, b)
    connect(a, b)


def a_commit_that_was_lost_is_sent_again(script: Script) -> None:
    a, b = script.pair()
    converse(a, b, a.send(b"arrived"))
    a.commit()
    cut(a, b)
    connect(a, b)
    converse(a, b, from_b=b.ack(1))


def an_ack_that_was_lost_is_repeated_by_the_hello(script: Script) -> None:
    a, b = script.pair()
    a.send(take=0)
    converse(a, b, a.commit())
    b.ack(1)
    cut(a, b)
    connect(a, b)


def an_ack_given_without_a_socket_is_in_the_hello(script: Script) -> None:
    a, b = script.pair()
    converse(a, b, from_b=b.commit())
    converse(a, b, a.commit())
    cut(a, b)
    a.ack(1)
    b.ack(1)
    connect(a, b)


def an_ack_between_the_socket_and_its_hello_is_in_the_hello(script: Script) -> None:
    a, b = script.pair()
    converse(a, b, from_b=b.commit())
    cut(a, b)
    a.socket(take=0)
    (hello,) = a.ack(1)
    converse(a, b, from_b=b.greeted(hello))


def an_ack_while_the_answer_is_awaited_comes_after_it(script: Script) -> None:
    a, b = script.pair()
    converse(a, b, from_b=b.commit())
    cut(a, b)
    (hello,) = a.socket()
    a.ack(1)
    a.send(b"waits for the answer")
    converse(a, b, from_b=b.greeted(hello))


def sending_and_committing_go_on_without_a_socket(script: Script) -> None:
    a, b = script.pair(a=SMALL)
    cut(a, b)
    a.send(times=3)
    a.commit()
    a.send()
    a.commit()
    a.send()
    connect(a, b)
    converse(a, b, from_b=b.ack(3))


def a_suspended_sender_resumes_by_the_ack_in_a_hello(script: Script) -> None:
    a, b = script.pair(a=SMALL)
    converse(a, b, a.send(times=4))
    cut(a, b)
    b.ack(1)
    connect(a, b)


def a_socket_lost_between_two_commits_at_one_place(script: Script) -> None:
    a, b = script.pair()
    a.send(take=0)
    converse(a, b, a.commit())
    a.commit()
    cut(a, b)
    a.commit()
    connect(a, b)
    converse(a, b, from_b=b.ack(3))


def a_resume_in_the_middle_of_data_and_commits(script: Script) -> None:
    a, b = script.pair()
    given = []
    for value in (b"1", b"2", b"3"):
        given += a.send(value)
        given += a.commit()
    b.received(*given[:3])
    cut(a, b)
    connect(a, b)
    converse(a, b, from_b=b.ack(2))
    cut(a, b)
    connect(a, b)


def one_packet_says_all_that_waits(script: Script) -> None:
    a, b = script.pair()
    converse(a, b, from_b=b.commit())
    cut(a, b)
    b.send(b"down")
    b.commit()
    a.send(b"up")
    a.commit()
    (hello,) = a.socket()
    answer = b.greeted(hello)
    a.ack(1)
    converse(a, b, from_b=answer)


def a_newer_socket_fences_the_older_at_the_initiator(script: Script) -> None:
    a, b = script.pair()
    (hello,) = a.socket()
    late = b.send(b"late")
    a.received(*late, generation=1)
    a.lost(generation=1)
    converse(a, b, from_b=b.greeted(hello))
    a.received(*late, generation=1)


def a_newer_socket_fences_the_older_at_the_acceptor(script: Script) -> None:
    a, b = script.pair()
    late = a.send(b"late")
    connect(a, b)
    b.received(*late, generation=1)
    b.lost(generation=1)
    converse(a, b, a.send(b"now"))


def a_stale_hello_is_refused_and_changes_nothing(script: Script) -> None:
    a, b = script.ends()
    (first,) = a.socket()
    a.lost()
    (second,) = a.socket()
    converse(a, b, from_b=b.greeted(second))
    b.greeted(first)
    b.greeted(second)
    converse(a, b, a.send())


def a_hello_with_another_channel_or_token_is_refused(script: Script) -> None:
    a, b = script.pair()
    b.greeted(_hello(2, channel=TOKEN))
    b.greeted(_hello(2, token=CHANNEL))
    converse(a, b, a.send())


def generations_may_be_skipped(script: Script) -> None:
    a, b = script.ends()
    for _ in range(3):
        a.socket()
        a.lost()
    connect(a, b)


def after_fenced_the_channel_waits_for_a_socket(script: Script) -> None:
    a, b = script.pair()
    a.send(b"kept")
    a.received(end_bytes(End(EndCode.FENCED, 0, 0, "", "another took over")) + ack_bytes(77))
    a.send(b"kept too")
    connect(a, b)


def what_comes_without_a_socket_is_not_heard(script: Script) -> None:
    a, b = script.pair()
    given = a.send(b"too late")
    b.lost()
    b.received(*given)
    b.lost()
    a.lost()
    connect(a, b)


def a_socket_before_the_answer_to_the_last(script: Script) -> None:
    a, b = script.ends()
    (first,) = a.socket()
    answers = b.greeted(first)
    (second,) = a.socket()
    a.received(*answers, generation=1)
    converse(a, b, from_b=b.greeted(second))


def a_hello_lost_on_its_way_back(script: Script) -> None:
    a, b = script.ends()
    a.send(b"early")
    (hello,) = a.socket()
    b.greeted(hello)
    cut(a, b)
    connect(a, b)


# ---------------------------------------------------------------------- impossible positions


def impossible_a_message_that_was_never_sent(script: Script) -> None:
    _resumed_from(script, received_to=3)


def impossible_a_message_that_no_socket_was_given(script: Script) -> None:
    a, b = script.pair()
    cut(a, b)
    a.send(b"waits")
    a.socket()
    a.received(_hello(2, received_to=1))


def impossible_a_message_lacks_that_was_acknowledged(script: Script) -> None:
    _resumed_from(script, received_to=0, commits_received_to=1, acked=1, acknowledged=True)


def impossible_a_commit_that_was_never_sent(script: Script) -> None:
    _resumed_from(script, received_to=2, commits_received_to=2)


def impossible_an_ack_above_the_commits(script: Script) -> None:
    _resumed_from(script, received_to=2, commits_received_to=0, acked=1)


def impossible_an_ack_of_a_commit_it_says_it_lacks(script: Script) -> None:
    _resumed_from(script, received_to=1, commits_received_to=0, acked=1)


def impossible_an_ack_taken_back(script: Script) -> None:
    _resumed_from(script, received_to=2, commits_received_to=1, acked=0, acknowledged=True)


def impossible_a_commit_without_what_it_covers(script: Script) -> None:
    _resumed_from(script, received_to=0, commits_received_to=1)


def impossible_a_message_without_the_commit_before_it(script: Script) -> None:
    _resumed_from(script, received_to=2, commits_received_to=0)


def impossible_for_an_acceptor(script: Script) -> None:
    a, b = script.pair()
    converse(a, b, from_b=b.send(b"sent"))
    b.greeted(_hello(2, received_to=2))


def a_commit_that_only_an_older_socket_carried_cannot_be_acknowledged(script: Script) -> None:
    a = script.end("a", initiator=True)
    a.socket()
    a.received(_hello(1))
    a.send()
    a.commit()
    a.lost()
    a.socket(take=0)
    a.received(_hello(2) + ack_bytes(1), take=0)


def _resumed_from(
    script: Script, *, received_to: int, commits_received_to: int = 0, acked: int = 0, acknowledged: bool = False
) -> None:
    """One message, a commit, another message; then a Hello from that position."""
    a, b = script.pair()
    a.send(b"1", take=0)
    converse(a, b, a.commit())
    if acknowledged:
        converse(a, b, from_b=b.ack(1))
    a.send(b"2")
    a.lost()
    a.socket()
    a.received(_hello(2, received_to=received_to, commits_received_to=commits_received_to, acked=acked))


def _hello(
    generation: int,
    *,
    channel: bytes = CHANNEL,
    token: bytes = TOKEN,
    received_to: int = 0,
    commits_received_to: int = 0,
    acked: int = 0,
) -> bytes:
    return hello_bytes(
        Hello(channel, token, generation, received_to, commits_received_to, acked, cap_count=1 << 16, cap_bytes=1 << 25)
    )


SCRIPTS: Final[list[Callable[[Script], None]]] = [
    play for name, play in list(globals().items()) if getattr(play, "__module__", "") == __name__ and name[0] != "_"
]

"""Scripts for messages, commits and acknowledgements on stable sockets: rules S1 to S4 and R1."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from avow import limits
from avow.channel.protocol.frames import Hello, hello_bytes
from tools.channel_vectors.stage import CHANNEL, TOKEN, Script, connect, converse, cut

SMALL: Final[dict[str, Any]] = {"bounds": {"pending_count": 4}}


def messages_of_one_turn_share_a_frame(script: Script) -> None:
    a, b = script.pair()
    a.send(b"one", take=0)
    a.send(b"", take=0)
    converse(a, b, a.send(b"three"))


def a_commit_comes_right_behind_what_it_covers(script: Script) -> None:
    a, b = script.pair()
    a.send(b"one", take=0)
    a.commit(take=0)
    a.send(b"two", take=0)
    converse(a, b, a.commit())
    converse(a, b, from_b=b.ack(2))


def what_is_sent_before_the_first_socket_waits(script: Script) -> None:
    a, b = script.ends()
    a.send(b"early")
    a.commit()
    b.send(b"early too")
    connect(a, b)
    converse(a, b, from_b=b.ack(1))


def sending_goes_on_while_a_commit_is_outstanding(script: Script) -> None:
    a, b = script.pair()
    for value in (b"1", b"2", b"3"):
        converse(a, b, a.send(value))
        converse(a, b, a.commit())
    converse(a, b, from_b=b.ack(3))


def the_ack_of_a_superseded_commit_releases_what_that_covers(script: Script) -> None:
    a, b = script.pair()
    for _ in range(3):
        a.send(take=0)
        converse(a, b, a.commit())
    converse(a, b, from_b=b.ack(1))
    converse(a, b, from_b=b.ack(2))


def a_commit_on_an_idle_channel_is_acknowledged(script: Script) -> None:
    a, b = script.pair()
    converse(a, b, a.commit())
    converse(a, b, from_b=b.ack(1))


def of_commits_at_one_place_the_first_and_the_last_are_sent(script: Script) -> None:
    a, b = script.pair()
    a.send(take=0)
    for _ in range(4):
        a.commit(take=0)
    converse(a, b, a.commit())
    converse(a, b, from_b=b.ack(5))


def an_ack_in_the_middle_of_commits_at_one_place_leaves_the_rest(script: Script) -> None:
    a, b = script.pair()
    a.send(take=0)
    for _ in range(4):
        converse(a, b, a.commit())
    converse(a, b, from_b=b.ack(2))
    converse(a, b, a.commit())
    converse(a, b, from_b=b.ack(4))
    converse(a, b, from_b=b.ack(5))


def the_message_that_reaches_the_count_commits_and_suspends(script: Script) -> None:
    a, b = script.pair(a=SMALL)
    converse(a, b, a.send(times=3))
    converse(a, b, a.send())
    a.send()
    converse(a, b, from_b=b.ack(1))


def the_message_that_reaches_the_bytes_commits_and_suspends(script: Script) -> None:
    a, b = script.pair(a={"bounds": {"pending_bytes": 1_000}})
    converse(a, b, a.send(bytes(400)))
    converse(a, b, a.send(bytes(400)))
    converse(a, b, a.send(bytes(1_000)))
    converse(a, b, from_b=b.ack(1))


def a_suspended_sender_commits_and_does_not_send(script: Script) -> None:
    a, b = script.pair(a=SMALL)
    converse(a, b, a.send(times=4))
    a.send()
    converse(a, b, a.commit())
    converse(a, b, from_b=b.ack(2))
    converse(a, b, a.send())


def it_resumes_when_an_ack_leaves_half_of_the_limit(script: Script) -> None:
    a, b = script.pair(a={"bounds": {"pending_count": 5}})
    for _ in range(4):
        a.send(take=0)
        converse(a, b, a.commit())
    converse(a, b, a.send())
    converse(a, b, from_b=b.ack(2))
    converse(a, b, from_b=b.ack(3))


def half_of_an_even_limit_is_enough_to_resume(script: Script) -> None:
    a, b = script.pair(a=SMALL)
    a.send(take=0, times=2)
    converse(a, b, a.commit())
    converse(a, b, a.send(times=2))
    converse(a, b, from_b=b.ack(1))


def an_ack_that_leaves_too_many_bytes_does_not_resume(script: Script) -> None:
    a, b = script.pair(a={"bounds": {"pending_bytes": 2_000}})
    a.send(take=0)
    a.commit(take=0)
    converse(a, b, a.send(bytes(2_000)))
    converse(a, b, from_b=b.ack(1))
    converse(a, b, from_b=b.ack(2))


def a_limit_of_one_message_waits_for_each(script: Script) -> None:
    a, b = script.pair(a={"bounds": {"pending_count": 1}})
    for number in (1, 2):
        converse(a, b, a.send())
        converse(a, b, from_b=b.ack(number))


def a_limit_of_one_byte_waits_for_each(script: Script) -> None:
    a, b = script.pair(a={"bounds": {"pending_bytes": 1}})
    converse(a, b, a.send(b""))
    converse(a, b, from_b=b.ack(1))
    converse(a, b, a.send(b""))


def before_the_first_hello_the_limit_is_what_every_receiver_takes(script: Script) -> None:
    a, b = script.ends(a={"bounds": {"pending_count": 9_000}})
    a.send(b"", times=4_095)
    a.send(b"the last")
    a.send()
    connect(a, b)
    converse(a, b, from_b=b.ack(1))
    converse(a, b, a.send(b"", times=8_999))
    converse(a, b, a.send(b""))


def the_other_ends_cap_is_a_limit(script: Script) -> None:
    a, b = script.pair(a={"bounds": {"pending_count": 9_000}}, b={"bounds": {"cap_count": 4_100}})
    converse(a, b, a.send(b"", times=4_099))
    converse(a, b, a.send(b""))


def the_other_ends_cap_in_bytes_leaves_room_for_one_message_of_any_size(script: Script) -> None:
    cap = limits.CHANNEL_CAP_SIZE_BYTES_MIN
    a, b = script.pair(a={"bounds": {"pending_bytes": 1 << 40}}, b={"bounds": {"cap_bytes": cap}})
    room = cap - limits.CHANNEL_VALUE_SIZE_BYTES_MAX - 64
    converse(a, b, a.send(bytes(room - 9_000_000 - 129)))
    converse(a, b, a.send(bytes(9_000_000)))
    converse(a, b, a.send(bytes(limits.CHANNEL_VALUE_SIZE_BYTES_MAX)))
    converse(a, b, from_b=b.ack(1))


def a_higher_cap_in_bytes_raises_the_limit(script: Script) -> None:
    a, b = script.pair(a={"bounds": {"pending_bytes": 1 << 40}})
    converse(a, b, a.send(bytes(6 << 20)))
    converse(a, b, a.send(bytes(6 << 20)))


def a_cap_that_sinks_commits_and_suspends(script: Script) -> None:
    """No end sends this; one that receives it accepts it."""
    a = script.end("a", initiator=True, bounds={"pending_count": 9_000})
    a.socket()
    a.received(_hello(1, cap_count=20_000))
    a.send(b"", times=5_000)
    a.lost()
    a.socket()
    a.received(_hello(2, cap_count=4_096))
    a.send()


def a_value_that_is_too_large_is_not_sent(script: Script) -> None:
    a, _ = script.pair()
    a.send(bytes(limits.CHANNEL_VALUE_SIZE_BYTES_MAX + 1))


def a_value_that_does_not_fit_has_a_packet_of_its_own(script: Script) -> None:
    a, b = script.pair()
    for size in (10, 70_000, 10, 65_532, 65_532, 65_533):
        a.send(bytes(size), take=0)
    converse(a, b, a.commit())


def packets_are_closed_at_the_size_that_was_asked_for(script: Script) -> None:
    a, b = script.pair()
    for value in (b"12345678", b"12345678", b"1", b"123456789012345678901234567890"):
        a.send(value, take=0)
        a.commit(take=0)
    converse(a, b, a.send(b"end", size_bytes=24))


def a_packet_that_is_exactly_full_is_closed(script: Script) -> None:
    a, b = script.pair()
    a.send(b"12345678", take=0)
    a.send(b"12345678", take=0)
    converse(a, b, a.commit(size_bytes=24))


def an_ack_overtakes_data_that_waits(script: Script) -> None:
    a, b = script.pair()
    converse(a, b, a.commit())
    b.send(b"waits", take=0)
    converse(a, b, from_b=b.ack(1))


def of_several_acks_the_newest_is_sent(script: Script) -> None:
    a, b = script.pair()
    for _ in range(3):
        a.send(take=0)
        converse(a, b, a.commit())
    b.ack(1, take=0)
    b.ack(3, take=0)
    converse(a, b, from_b=b.ack(2))


def acknowledging_twice_is_harmless(script: Script) -> None:
    a, b = script.pair()
    for _ in range(2):
        a.send(take=0)
        converse(a, b, a.commit())
    converse(a, b, from_b=b.ack(2))
    b.ack(2)
    b.ack(1)


def acknowledging_what_never_came_is_refused(script: Script) -> None:
    a, b = script.pair(a={"last_commit": 10})
    b.ack(0)
    b.ack(1)
    a.send(take=0)
    converse(a, b, a.commit())
    b.ack(0)
    b.ack(5)
    b.ack(12)
    converse(a, b, from_b=b.ack(11))
    b.ack(0)
    b.ack(5)


def ids_that_were_skipped_cannot_be_acknowledged(script: Script) -> None:
    a, b = script.pair()
    converse(a, b, a.resend((b"one", 3), (b"two", 7)))
    b.ack(5)
    converse(a, b, from_b=b.ack(3))
    b.ack(6)
    converse(a, b, from_b=b.ack(7))


def data_is_delivered_while_an_ack_is_owed(script: Script) -> None:
    a, b = script.pair()
    converse(a, b, a.commit())
    converse(a, b, a.send(b"more"))
    converse(a, b, a.commit())
    converse(a, b, a.send(b"and more"))
    converse(a, b, from_b=b.ack(1))
    converse(a, b, from_b=b.ack(2))


def commit_ids_go_on_after_the_last_one_elsewhere(script: Script) -> None:
    a, b = script.ends(a={"last_commit": 100})
    connect(a, b)
    a.send(take=0)
    converse(a, b, a.commit())
    cut(a, b)
    connect(a, b)
    converse(a, b, from_b=b.ack(101))


def what_a_commit_covered_it_covers_again(script: Script) -> None:
    a, b = script.ends()
    a.resend((b"1", 4), (b"2", 4), (b"3", 6), (b"4", 0))
    connect(a, b)
    converse(a, b, a.commit())
    converse(a, b, from_b=b.ack(4))
    converse(a, b, from_b=b.ack(7))


def what_was_not_committed_is_sent_again_without_a_commit(script: Script) -> None:
    a, b = script.pair()
    converse(a, b, a.resend((b"1", 0), (b"2", 0)))


def resending_up_to_the_limit_suspends(script: Script) -> None:
    a, b = script.pair(a=SMALL)
    converse(a, b, a.resend((b"1", 1), (b"2", 2), (b"3", 2), (b"4", 2)))
    converse(a, b, from_b=b.ack(2))


def two_suspended_ends_let_acks_pass(script: Script) -> None:
    a, b = script.pair(a=SMALL, b=SMALL)
    from_a, from_b = a.send(times=4), b.send(times=4)
    converse(a, b, from_a, from_b)
    converse(a, b, a.ack(1), b.ack(1))


def _hello(generation: int, *, cap_count: int) -> bytes:
    return hello_bytes(Hello(CHANNEL, TOKEN, generation, cap_count=cap_count, cap_bytes=1 << 25))


SCRIPTS: Final[list[Callable[[Script], None]]] = [
    play for name, play in list(globals().items()) if getattr(play, "__module__", "") == __name__ and name[0] != "_"
]

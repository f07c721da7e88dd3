"""Scripts for permanent ends: what is handed back (rule F2), protocol violations, and the cap (rule R1)."""

from __future__ import annotations

from collections.abc import Callable
from struct import pack
from typing import Final

from avow import limits
from avow.channel.protocol.frames import (
    POSITION_UNKNOWN,
    End,
    EndCode,
    Hello,
    ack_bytes,
    commit_bytes,
    data_parts,
    end_bytes,
    hello_bytes,
)
from tools.channel_vectors.stage import CHANNEL, TOKEN, Actor, Script, connect, converse, cut


def closing_with_nothing_pending(script: Script) -> None:
    a, b = script.pair()
    a.send(take=0)
    converse(a, b, a.commit())
    converse(a, b, from_b=b.ack(1))
    converse(a, b, a.finish("CLOSED"))


def an_own_end_hands_back_delivered_unknown_and_unsent(script: Script) -> None:
    a, b = script.pair()
    _some_of_each_fate(a, b)
    a.finish("ABORTED", text="enough")


def the_other_ends_last_word_tells_delivered_from_unsent(script: Script) -> None:
    a, b = script.pair()
    _some_of_each_fate(a, b)
    (hello,) = a.socket()
    b.greeted(hello)
    a.received(*b.finish("GOING"))


def a_channel_that_is_unknown_there_leaves_what_was_sent_unknown(script: Script) -> None:
    a, b = script.pair()
    _some_of_each_fate(a, b)
    a.socket()
    a.received(_end(EndCode.UNKNOWN_CHANNEL))


def a_channel_that_is_unknown_there_has_not_said_what_it_had(script: Script) -> None:
    a, b = script.pair()
    converse(a, b, a.send(b"delivered, and nobody here knows"))
    a.send(b"sent")
    a.received(_end(EndCode.UNKNOWN_CHANNEL))


def the_last_word_acknowledges_what_this_socket_was_given(script: Script) -> None:
    a, b = script.pair()
    for value in (b"1", b"2", b"3"):
        a.send(value, take=0)
        converse(a, b, a.commit())
    b.ack(2, take=0)
    a.received(*b.finish("MOVED", name="FENCED", text="elsewhere"))


def the_last_word_of_a_tombstone_comes_before_any_hello(script: Script) -> None:
    a, b = script.pair()
    a.send(b"1", take=0)
    converse(a, b, a.commit())
    a.send(b"2")
    a.lost()
    a.socket()
    a.received(_end(EndCode.EXPIRED, acked=1, received_to=1, text="too long"))


def an_end_before_a_hello_without_a_position_decides_no_fate(script: Script) -> None:
    for position in (0, POSITION_UNKNOWN):
        name = "known" if position else ""
        a, b = script.end(f"a{name}", initiator=True), script.end(f"b{name}", initiator=False)
        connect(a, b)
        converse(a, b, a.send(b"delivered"))
        a.send(b"lost")
        cut(a, b)
        a.socket()
        a.received(_end(EndCode.GOING, received_to=position))


def an_end_after_a_hello_may_say_that_nothing_was_received(script: Script) -> None:
    a, b = script.pair()
    a.send(b"lost")
    cut(a, b)
    (hello,) = a.socket()
    a.received(*b.greeted(hello), take=0)
    a.received(*b.finish("GOING"))


def a_last_word_that_cannot_be_is_not_believed(script: Script) -> None:
    a, b = script.pair()
    a.send(b"1", take=0)
    converse(a, b, a.commit())
    a.received(_end(EndCode.ABORTED, acked=2, received_to=2))


def a_last_word_below_what_was_acknowledged_is_not_believed(script: Script) -> None:
    a, b = script.pair()
    a.send(b"1", take=0)
    converse(a, b, a.commit())
    converse(a, b, from_b=b.ack(1))
    a.send(b"2")
    a.received(_end(EndCode.ABORTED, acked=0, received_to=0))


def a_suspended_sender_that_hears_the_end(script: Script) -> None:
    a, b = script.pair(a={"bounds": {"pending_count": 2}})
    converse(a, b, a.send(times=2))
    b.ack(1, take=0)
    a.received(*b.finish("CLOSED"))


def a_suspended_sender_that_ends(script: Script) -> None:
    a, b = script.pair(a={"bounds": {"pending_count": 2}})
    converse(a, b, a.send(times=2))
    converse(a, b, a.finish("CLOSED"))


def an_end_with_an_owed_ack(script: Script) -> None:
    a, b = script.pair()
    converse(a, b, a.commit())
    converse(a, b, from_b=b.finish("REFUSED", name="OFFLINE", text="no quorum"))


def a_code_of_the_future_is_an_abort(script: Script) -> None:
    a, _ = script.pair()
    a.received(pack("<BBQQHH", 5, 99, 0, 0, 4, 4) + b"NAMEtext")


def texts_are_utf_8_and_bounded(script: Script) -> None:
    a, b = script.pair()
    converse(a, b, a.finish("REFUSED", name="Größe", text="€" * 1_400))


def a_text_that_is_no_utf_8_is_read_as_well_as_it_can_be(script: Script) -> None:
    a, _ = script.pair()
    a.received(pack("<BBQQHH", 5, 8, 0, 0, 2, 5) + b"\xc3\x28" + b"a\xe2\x82b\xff")


def an_end_without_a_socket_tells_nobody(script: Script) -> None:
    a, b = script.pair()
    a.send(b"sent")
    cut(a, b)
    a.send(b"not sent")
    a.finish("EXPIRED", text="no connection")


def an_end_before_the_hello_left_is_all_that_is_said(script: Script) -> None:
    a, _ = script.ends()
    a.socket(take=0)
    a.finish("ABORTED")


def an_end_takes_the_place_of_what_waits(script: Script) -> None:
    a, b = script.pair()
    a.send(b"waits", take=0)
    converse(a, b, a.finish("ABORTED", name="", text="now"))


def after_the_end_nothing_happens(script: Script) -> None:
    a, b = script.pair()
    converse(a, b, from_b=b.commit())
    a.finish("CLOSED")
    a.send()
    a.commit()
    a.ack(1)
    a.ack(99)
    a.finish("ABORTED")
    a.received(_data(1))
    a.lost()
    a.resend((b"again", 1))
    b.finish("ABORTED", text="both at once")
    b.greeted(_hello(2))


def commits_that_cover_pending_messages_are_named(script: Script) -> None:
    a, b = script.pair(a={"last_commit": 7})
    for covered in (True, False, True, True, False):
        a.send(take=0)
        if covered:
            a.commit(take=0)
    a.commit(take=0)
    a.commit(take=0)
    a.send(b"not covered", take=0)
    converse(a, b, a.commit(take=0))
    a.send(b"neither")
    a.finish("ABORTED")


# ---------------------------------------------------------------------- rules broken


def broken_data_before_a_hello(script: Script) -> None:
    a, _ = script.ends()
    a.socket()
    a.received(_data(1))


def broken_a_hello_of_another_generation(script: Script) -> None:
    a, _ = script.ends()
    a.socket()
    a.received(_hello(2))


def broken_a_hello_with_another_token(script: Script) -> None:
    a, _ = script.ends()
    a.socket()
    a.received(_hello(1, token=CHANNEL))


def broken_a_second_hello(script: Script) -> None:
    a, _ = script.pair()
    a.received(_hello(1))


def broken_a_second_hello_for_an_acceptor(script: Script) -> None:
    _, b = script.pair()
    b.received(_hello(2))


def broken_a_receiver_that_takes_too_few_messages(script: Script) -> None:
    a, _ = script.ends()
    a.socket()
    a.received(_hello(1, cap_count=4_095))


def broken_a_receiver_that_takes_too_few_bytes(script: Script) -> None:
    a, b = script.ends()
    b.greeted(_hello(1, cap_bytes=20 * 2**20 - 1))
    a.send()


def broken_a_message_is_missing(script: Script) -> None:
    _, b = script.pair()
    b.received(_data(2))


def broken_a_message_comes_twice(script: Script) -> None:
    _, b = script.pair()
    b.received(_data(1), _data(1))


def broken_a_commit_that_covers_more_than_came(script: Script) -> None:
    _, b = script.pair()
    b.received(_data(1) + commit_bytes(1, 2))


def broken_a_commit_that_covers_less_than_came(script: Script) -> None:
    _, b = script.pair()
    b.received(_data(1) + commit_bytes(1, 0))


def broken_a_commit_id_that_does_not_rise(script: Script) -> None:
    _, b = script.pair()
    b.received(commit_bytes(2, 0) + commit_bytes(2, 0))


def broken_a_commit_id_of_nothing(script: Script) -> None:
    _, b = script.pair()
    b.received(commit_bytes(0, 0))


def broken_an_ack_of_a_commit_that_was_never_sent(script: Script) -> None:
    a, b = script.pair()
    converse(a, b, a.commit())
    a.received(ack_bytes(1) + ack_bytes(2))


def an_ack_of_nothing_says_nothing(script: Script) -> None:
    a, _ = script.pair()
    a.received(ack_bytes(0))


def broken_frames_of_no_kind(script: Script) -> None:
    for number, kind in enumerate((0, 6, 255)):
        _pair_that_receives(script, number, bytes([kind]) + bytes(64))


def broken_frames_that_are_cut_off(script: Script) -> None:
    whole = (
        _hello(1),
        _data(1, 2),
        commit_bytes(1, 0),
        ack_bytes(0),
        end_bytes(End(EndCode.CLOSED, 0, 0, "NAME", "text")),
    )
    cuts = [frame[:size] for frame in whole for size in (1, 2, len(frame) // 2, len(frame) - 1)]
    for number, packet in enumerate(cuts):
        _pair_that_receives(script, number, packet)


def broken_counts_and_sizes(script: Script) -> None:
    bad = (
        pack("<BQI", 2, 1, 0),
        pack("<BQI", 2, 1, 0xFFFFFFFF) + bytes(64),
        pack("<BQII", 2, 1, 1, limits.CHANNEL_VALUE_SIZE_BYTES_MAX + 1) + bytes(64),
        pack("<BQIII", 2, 1, 2, 0, 1),
    )
    for number, packet in enumerate(bad):
        _pair_that_receives(script, number, packet)


def broken_numbers_that_a_browser_cannot_count(script: Script) -> None:
    bad = (
        pack("<BQII", 2, 1 << 53, 1, 0),
        pack("<BQQ", 3, 1 << 53, 0),
        pack("<BQQ", 3, 1, (1 << 64) - 1),
        pack("<BQ", 4, 1 << 53),
        pack("<BBQQHH", 5, 0, 1 << 53, 0, 0, 0),
        pack("<BBQQHH", 5, 0, 0, 1 << 63, 0, 0),
    )
    for number, packet in enumerate(bad):
        _pair_that_receives(script, number, packet)


def the_highest_number_is_read(script: Script) -> None:
    a, b = script.pair(a={"last_commit": (1 << 53) - 2})
    converse(a, b, a.commit())
    converse(a, b, from_b=b.ack((1 << 53) - 1))


def broken_a_hello_of_something_else(script: Script) -> None:
    hello = bytearray(_hello(1))
    for number, at in enumerate((1, 5)):
        other = hello.copy()
        other[at] ^= 3
        end = script.end(f"a{number}", initiator=True)
        end.socket()
        end.received(bytes(other))


def flags_of_the_future_are_let_be(script: Script) -> None:
    a, _ = script.ends()
    a.socket()
    hello = bytearray(_hello(1))
    hello[6] = 0xFF
    a.received(bytes(hello))


def frames_before_the_broken_one_count(script: Script) -> None:
    a, b = script.pair()
    a.commit()
    a.received(_data(1) + commit_bytes(1, 1) + ack_bytes(1) + b"\x09" + _data(2))
    b.received(_data(1))


def frames_behind_an_end_are_not_read(script: Script) -> None:
    a, _ = script.pair()
    a.received(_end(EndCode.CLOSED) + b"\x09")


def an_empty_packet_says_nothing(script: Script) -> None:
    a, _ = script.pair()
    a.received(b"")


# ---------------------------------------------------------------------- the cap


def the_cap_in_messages_is_kept(script: Script) -> None:
    b = _receiver(script, cap_count=4_096)
    b.received(_data(1, 4_000) + commit_bytes(1, 4_000))
    b.received(_data(4_001, 96))
    b.ack(1)
    b.received(_data(4_097, 4_000))
    b.received(_data(8_097))


def the_cap_in_bytes_is_kept(script: Script) -> None:
    b = _receiver(script, cap_bytes=20 << 20)
    half = (10 << 20) - 64
    sizes = (half - (2 << 20), (2 << 20) - 64)
    for number, size in enumerate((*sizes, *sizes), 1):
        b.received(_data(number, size=size))
    b.received(_data(5, size=0))


def an_ack_makes_room_up_to_its_commit(script: Script) -> None:
    b = _receiver(script, cap_count=4_096)
    b.received(_data(1, 2_000) + commit_bytes(5, 2_000) + _data(2_001, 2_000) + commit_bytes(6, 4_000))
    b.ack(5)
    b.received(_data(4_001, 2_096))
    b.received(_data(6_097))


def the_cap_comes_before_the_number(script: Script) -> None:
    b = _receiver(script, cap_count=4_096)
    b.received(_data(7, 4_097))


def _some_of_each_fate(a: Actor, b: Actor) -> None:
    """Ends without a socket. The messages: 1 acknowledged, 2 delivered, 3 sent, 4 not sent."""
    a.send(b"1", take=0)
    converse(a, b, a.commit())
    converse(a, b, from_b=b.ack(1))
    converse(a, b, a.send(b"2"))
    cut(a, b)
    connect(a, b)
    a.send(b"3")
    a.commit()
    a.lost()
    a.send(b"4")


def _pair_that_receives(script: Script, number: int, packet: bytes) -> None:
    end = script.end(f"a{number}", initiator=True)
    end.socket(take=0)
    end.received(_hello(1), take=0)
    end.received(packet)


def _receiver(script: Script, **bounds: int) -> Actor:
    b = script.end("b", initiator=False, bounds=bounds)
    b.greeted(_hello(1))
    return b


def _hello(generation: int, *, token: bytes = TOKEN, cap_count: int = 1 << 16, cap_bytes: int = 1 << 25) -> bytes:
    return hello_bytes(Hello(CHANNEL, token, generation, cap_count=cap_count, cap_bytes=cap_bytes))


def _data(first: int, count: int = 1, *, size: int = 0) -> bytes:
    return b"".join(data_parts(first, [bytes(size)] * count))


def _end(code: EndCode, *, acked: int = 0, received_to: int = 0, text: str = "") -> bytes:
    return end_bytes(End(code, acked, received_to, "", text))


SCRIPTS: Final[list[Callable[[Script], None]]] = [
    play for name, play in list(globals().items()) if getattr(play, "__module__", "") == __name__ and name[0] != "_"
]

"""The registry of channels: results of a Hello, windows, ended channels, bounds."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.unit.channel.memory_sockets import MemorySocket, Network, open_pair, run, turns

from avow.channel.connector import open_channel
from avow.channel.endpoint import Channel
from avow.channel.protocol.events import Bounds
from avow.channel.protocol.frames import (
    POSITION_UNKNOWN,
    Buffer,
    Commit,
    Data,
    End,
    EndCode,
    Hello,
    hello_bytes,
    read_packet,
)
from avow.channel.registry import Registry
from avow.channel.transports.socket import Socket
from avow.errors import ChannelFailed, Forbidden

CHANNEL, TOKEN = b"c" * 16, b"t" * 16


class Stranger:
    """A scripted socket user that records the packets it receives."""

    def __init__(self) -> None:
        self.heard: list[Any] = []
        self.gone = False
        self.socket: MemorySocket

    def opened(self, socket: Socket) -> None:
        assert isinstance(socket, MemorySocket)
        self.socket = socket

    def packet(self, socket: Socket, data: Buffer) -> None:
        self.heard += read_packet(data)

    def writable(self, socket: Socket) -> None:
        pass

    def lost(self, socket: Socket, reason: str) -> None:
        self.gone = True

    async def say(self, packet: bytes) -> None:
        self.socket.send([packet])
        await turns()


def come(registry: Registry, *, begun: list[Channel] | None = None, purpose: str = "test") -> Stranger:
    stranger = Stranger()
    taken: list[Channel] = [] if begun is None else begun
    Network(registry, taken.append, purpose=purpose).connect(stranger)
    return stranger


def hello(generation: int = 1, *, fresh: bool = True, token: bytes = TOKEN, **where: int) -> bytes:
    bounds = Bounds()
    return hello_bytes(
        Hello(
            CHANNEL,
            token,
            generation,
            cap_count=bounds.cap_count,
            cap_bytes=bounds.cap_bytes,
            fresh=fresh,
            **where,
        )
    )


def code_of(stranger: Stranger) -> EndCode:
    last = stranger.heard[-1]
    assert isinstance(last, End)
    return EndCode(last.code)


def new_registry(**settings: Any) -> Registry:
    return Registry(**({"window_s": 10.0, "channels_max": 4} | settings))


def test_a_fresh_hello_begins_a_channel_once() -> None:
    async def scenario() -> None:
        registry, begun = new_registry(), list[Channel]()
        stranger = come(registry, begun=begun)
        await stranger.say(hello())
        assert [type(one) for one in stranger.heard] == [Hello]
        assert stranger.heard[0].window_s == 10
        again = come(registry, begun=begun)  # the answer was lost, and it reconnects
        await again.say(hello(2))
        assert len(begun) == 1
        assert dict(registry.channels) == {CHANNEL: begun[0]}
        assert code_of(stranger) is EndCode.FENCED
        assert registry.statistics()["begun"] == registry.statistics()["resumed"] == 1

    run(scenario)


def test_messages_are_delivered_after_begin_also_when_they_follow_the_hello_at_once() -> None:
    async def scenario() -> None:
        registry = new_registry()
        seen: list[bytes] = []

        def begin(channel: Channel) -> None:
            channel.on_messages = lambda values: seen.extend(map(bytes, values))
            channel.send(b"from begin")

        network = Network(registry, begin)
        near = await open_channel(network.dial)
        near.send(b"one")
        await near.commit()
        assert seen == [b"one"]
        assert await anext(near) == b"from begin"

    run(scenario)


@pytest.mark.parametrize(
    ("packet", "code"),
    [
        (hello(fresh=False), EndCode.UNKNOWN_CHANNEL),
        (hello(0), EndCode.PROTOCOL),
        (b"\x63garbage", EndCode.PROTOCOL),
        (b"", EndCode.PROTOCOL),
        (hello() + hello(2), EndCode.PROTOCOL),
        (hello()[:-1], EndCode.PROTOCOL),
    ],
)
def test_an_invalid_first_frame_is_answered_and_leaves_no_state(packet: bytes, code: EndCode) -> None:
    async def scenario() -> None:
        registry = new_registry()
        stranger = come(registry)
        await stranger.say(packet)
        assert code_of(stranger) is code
        assert stranger.gone
        assert registry.statistics()["open"] == registry.statistics()["silent"] == 0

    run(scenario)


def test_a_stale_hello_is_fenced_and_changes_nothing() -> None:
    async def scenario() -> None:
        registry = new_registry()
        current, stale = come(registry), come(registry)
        await current.say(hello(5))
        await stale.say(hello(5))
        assert code_of(stale) is EndCode.FENCED
        assert stale.gone
        assert not current.gone
        assert registry.statistics()["fenced"] == 1

    run(scenario)


def test_a_channel_is_resumed_with_its_token_and_for_its_purpose_only() -> None:
    async def scenario() -> None:
        registry = new_registry()
        current = come(registry, purpose="reading orders")
        await current.say(hello())
        for thief, packet in (
            (come(registry, purpose="reading orders"), hello(2, token=b"x" * 16)),
            (come(registry, purpose="reading payments"), hello(2)),
        ):
            await thief.say(packet)
            assert code_of(thief) is EndCode.UNKNOWN_CHANNEL
        assert not current.gone
        rightful = come(registry, purpose="reading orders")
        await rightful.say(hello(2))
        assert [type(one) for one in rightful.heard] == [Hello]

    run(scenario)


def test_a_socket_that_sends_no_hello_is_closed_after_a_timeout() -> None:
    async def scenario() -> None:
        registry = new_registry()
        stranger = come(registry)
        await asyncio.sleep(9)
        assert not stranger.gone
        await asyncio.sleep(2)
        assert code_of(stranger) is EndCode.PROTOCOL
        assert stranger.gone
        assert registry.statistics()["silent"] == 0

    run(scenario)


def test_a_full_registry_answers_busy() -> None:
    async def scenario() -> None:
        registry = new_registry(channels_max=2)
        network = Network(registry, lambda channel: None)
        await open_channel(network.dial)
        second = await open_channel(network.dial)
        with pytest.raises(ChannelFailed) as caught:
            await open_channel(network.dial)
        assert (caught.value.reason, caught.value.name) == ("REFUSED", "BUSY")
        second.close()
        await turns()
        await open_channel(network.dial)
        silent = [come(registry) for _ in range(3)]
        await turns()
        assert [one.gone for one in silent] == [False, False, True]
        assert registry.statistics()["refused"] == 2

    run(scenario)


def test_begin_may_refuse_and_the_other_end_gets_the_reason() -> None:
    async def scenario() -> None:
        ended: list[object] = []

        def begin(channel: Channel) -> None:
            channel.on_end = ended.append
            raise Forbidden("this token may not read that queue")

        registry = new_registry()
        with pytest.raises(ChannelFailed, match="may not read") as caught:
            await open_channel(Network(registry, begin).dial)
        assert (caught.value.reason, caught.value.name) == ("REFUSED", "FORBIDDEN")
        assert (registry.statistics()["open"], registry.statistics()["begun"]) == (0, 0)
        assert ended == []

    run(scenario)


def test_begin_that_fails_is_reported_and_ends_the_channel() -> None:
    reported: list[dict[str, Any]] = []

    async def scenario() -> None:
        def begin(channel: Channel) -> None:
            raise ZeroDivisionError

        registry = new_registry()
        with pytest.raises(ChannelFailed) as caught:
            await open_channel(Network(registry, begin).dial)
        assert caught.value.reason == "ABORTED"
        assert registry.statistics()["open"] == 0

    run(scenario, reported=reported)
    assert len(reported) == 1


def test_without_a_socket_a_channel_expires_and_its_end_is_remembered() -> None:
    async def scenario() -> None:
        ids: list[int] = []

        def begin(channel: Channel) -> None:
            channel.on_messages = lambda values: None
            channel.on_commit = ids.append

        pair = await open_pair(begin=begin, keep={"window_s": 5.0}, patience_s=60.0)
        pair.far.send(b"never taken")
        pair.near.send(b"one")
        pair.near.commit()
        pair.near.send(b"two")
        pair.near.commit()
        await turns()
        pair.near.send(b"three")
        pair.near.commit()
        pair.network.errors += [OSError("unplugged")] * 1_000
        pair.near.cut()
        await turns()
        pair.far.ack_commit(ids[0])  # no socket carries it now
        gone = await pair.far.wait_ended()
        assert gone is not None
        assert gone.reason == "EXPIRED"
        assert [one.value for one in gone.pending] == [b"never taken"]
        found = pair.network.registry.statistics()
        assert (found["open"], found["expired"], found["ended"]) == (0, 1, 1)

        pair.network.errors.clear()
        failed = await pair.near.wait_ended()
        assert failed is not None
        assert failed.reason == "EXPIRED"
        assert [(one.value, one.fate) for one in failed.pending] == [(b"two", "delivered"), (b"three", "unsent")]

    run(scenario)


def test_a_socket_that_comes_back_within_the_window_keeps_the_channel() -> None:
    async def scenario() -> None:
        pair = await open_pair(keep={"window_s": 5.0}, patience_s=60.0)
        for _ in range(5):
            pair.network.errors += [OSError("unplugged")] * 4
            pair.near.cut()
            await asyncio.sleep(4)
            assert pair.near.connected
        assert pair.network.registry.statistics()["resumed"] == 5
        assert pair.network.registry.statistics()["detached"] == 0

    run(scenario)


def test_an_initiator_may_ask_for_a_shorter_window_but_not_for_a_longer_one() -> None:
    async def scenario() -> None:
        for wish, given in ((0, 10), (3, 3), (60, 10)):
            registry = new_registry()
            stranger = come(registry)
            await stranger.say(hello(window_s=wish))
            assert stranger.heard[0].window_s == given
            stranger.socket.lose()
            await asyncio.sleep(given - 1)
            assert registry.statistics()["detached"] == 1
            await asyncio.sleep(2)
            assert registry.statistics()["open"] == 0

    run(scenario)


def test_the_oldest_ended_channel_is_forgotten_first() -> None:
    async def scenario() -> None:
        registry = new_registry(ended_channels_max=2, channels_max=10)
        begun: list[Channel] = []
        for number in range(3):
            stranger = come(registry, begun=begun)
            await stranger.say(hello().replace(CHANNEL, bytes([number]) * 16))
            begun[-1].abort("enough")
            await turns()
            assert code_of(stranger) is EndCode.ABORTED
        assert registry.statistics()["ended"] == 2
        codes = []
        for number in range(3):
            late = come(registry)
            await late.say(hello(2, fresh=False).replace(CHANNEL, bytes([number]) * 16))
            codes.append(code_of(late))
        assert codes == [EndCode.UNKNOWN_CHANNEL, EndCode.ABORTED, EndCode.ABORTED]

    run(scenario)


def test_a_channel_that_ended_in_this_loop_turn_cannot_be_resumed() -> None:
    async def scenario() -> None:
        registry, begun = new_registry(), list[Channel]()
        stranger = come(registry, begun=begun)
        await stranger.say(hello())
        late = come(registry, begun=begun)
        begun[0].close()
        late.socket.other.deliver(hello(2))
        await turns()
        assert code_of(late) is EndCode.CLOSED
        assert len(begun) == 1

    run(scenario)


def test_an_ended_channel_answers_only_with_the_right_token() -> None:
    async def scenario() -> None:
        registry, begun = new_registry(), list[Channel]()
        stranger = come(registry, begun=begun)
        await stranger.say(hello())
        begun[0].close()
        await turns()
        late = come(registry)
        await late.say(hello(2, token=b"x" * 16))
        assert code_of(late) is EndCode.UNKNOWN_CHANNEL
        rightful = come(registry)
        await rightful.say(hello(3))
        assert code_of(rightful) is EndCode.CLOSED

    run(scenario)


def test_closing_a_registry_ends_every_channel() -> None:
    async def scenario() -> None:
        pair = await open_pair()
        pair.near.send(b"one")
        await turns()
        silent = come(pair.network.registry)
        pair.network.registry.close()
        failed = await pair.near.wait_ended()
        assert failed is not None
        assert (failed.reason, [one.fate for one in failed.pending]) == ("GOING", ["delivered"])
        await turns()
        late = come(pair.network.registry)
        await turns()
        assert code_of(silent) is code_of(late) is EndCode.GOING

    run(scenario)


def test_a_socket_refused_before_its_hello_leaves_what_was_sent_unknown() -> None:
    """Regression: a peer in a rolling restart refused the socket, and what it had stored came back as unsent."""

    async def scenario() -> None:
        registry = new_registry()
        pair = await open_pair(registry=registry)
        pair.near.send(b"stored")
        await turns()
        pair.socket.lose()
        registry.close()
        failed = await pair.near.wait_ended()
        assert failed is not None
        assert (failed.reason, [one.fate for one in failed.pending]) == ("GOING", ["unknown"])

    run(scenario)


def test_an_end_for_a_channel_that_is_not_known_here_names_no_position() -> None:
    """Clients of an older release believe every position that is possible."""

    async def scenario() -> None:
        registry = new_registry(channels_max=1)
        stranger, silent = come(registry), come(registry)
        await stranger.say(hello(fresh=False))
        late = come(registry)
        await late.say(b"garbage")
        patient = come(registry)
        registry.close()
        await turns()
        last = come(registry)
        await turns()
        ends = [one.heard[-1] for one in (stranger, silent, late, patient, last)]
        assert [one.code for one in ends] == [
            EndCode.UNKNOWN_CHANNEL,
            EndCode.REFUSED,
            EndCode.PROTOCOL,
            EndCode.GOING,
            EndCode.GOING,
        ]
        assert {one.received_to for one in ends} == {POSITION_UNKNOWN}

    run(scenario)


def test_a_protocol_error_ends_only_its_own_channel() -> None:
    async def scenario() -> None:
        registry, begun = new_registry(), list[Channel]()
        stranger = come(registry, begun=begun)
        await stranger.say(hello())
        pair = await open_pair(registry=registry)
        await stranger.say(b"\x03" + bytes(16))  # a commit with id 0
        assert code_of(stranger) is EndCode.PROTOCOL
        failed = await begun[0].wait_ended()
        assert failed is not None
        assert failed.reason == "PROTOCOL"
        assert pair.near.connected

    run(scenario)


def test_frames_have_the_documented_meaning() -> None:
    async def scenario() -> None:
        registry, begun = new_registry(), list[Channel]()
        stranger = come(registry, begun=begun)
        await stranger.say(hello())
        begun[0].send(b"one")
        begun[0].commit()
        await turns()
        assert [type(one) for one in stranger.heard] == [Hello, Data, Commit]

    run(scenario)

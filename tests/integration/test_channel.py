"""Channels over real WebSockets: broken connections, killed processes, withheld acks, silence, windows."""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trustme
import uvloop
from benchmarks.channel_faults import run_resets, run_withheld
from tests.integration.channel_programs import value_of
from tests.integration.reset_proxy import ResetProxy

from avow.channel.connector import connect_channel
from avow.channel.endpoint import Channel
from avow.channel.listener import ChannelListener, listen
from avow.channel.protocol.events import Bounds
from avow.channel.transports.websocket import Patience
from avow.errors import ChannelFailed, Forbidden, Offline

RESETS = int(os.environ.get("AVOW_TEST_RESETS", "60"))
MESSAGES = int(os.environ.get("AVOW_TEST_MESSAGES", "6000"))
WITHHELD_S = 5.0
LONG_S = 120.0
WATCHFUL = Patience(ping_s=0.1, silent_s=0.3)


def run(scenario: Callable[[], Awaitable[None]], *, timeout_s: float = 300.0) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(asyncio.wait_for(scenario(), timeout_s))


async def until(predicate: Callable[[], object]) -> None:
    for _ in range(12_000):
        if predicate():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("it did not come to pass")


class Other:
    """The accepting application: records messages, and acknowledges on request."""

    def __init__(self, *, acks: bool = True) -> None:
        self.acks = acks
        self.seen: list[bytes] = []
        self.commits: list[int] = []
        self.channels: list[Channel] = []

    def begin(self, channel: Channel) -> None:
        self.channels.append(channel)
        channel.on_messages = lambda values: self.seen.extend(map(bytes, values))
        channel.on_commit = self.committed

    def committed(self, commit_id: int) -> None:
        self.commits.append(commit_id)
        if self.acks:
            self.channel.ack_commit(commit_id)

    @property
    def channel(self) -> Channel:
        return self.channels[-1]


@asynccontextmanager
async def listening(other: Other, **settings: Any) -> AsyncIterator[ChannelListener]:
    listener = await listen(other.begin, **settings)
    try:
        yield listener
    finally:
        await listener.close()


@asynccontextmanager
async def proxied(listener: ChannelListener) -> AsyncIterator[ResetProxy]:
    proxy = ResetProxy(listener.address)
    await proxy.start()
    try:
        yield proxy
    finally:
        await proxy.close()


# ---------------------------------------------------------------------- the two defects of the known stub


def test_a_commit_callback_never_fires_while_an_earlier_message_is_unsent() -> None:
    async def scenario() -> None:
        other = Other()
        async with listening(other) as listener, proxied(listener) as proxy:
            channel = await connect_channel(proxy.url)
            proxy.stall()  # what is sent from now on does not arrive
            called: list[int] = []
            channel.send(b"one")
            channel.commit(lambda: called.append(len(other.seen)))
            channel.send(b"two")
            channel.commit(lambda: called.append(len(other.seen)))
            for _ in range(20):
                await asyncio.sleep(0.01)
                assert called == []
            proxy.reset_all()
            await until(lambda: len(called) == 2)
            assert called[0] >= 1
            assert called[1] == 2
            assert other.seen == [b"one", b"two"]
            channel.close()

    run(scenario)


def test_a_commit_on_an_idle_channel_completes() -> None:
    async def scenario() -> None:
        other = Other()
        async with listening(other) as listener:
            channel = await connect_channel(listener.url)
            called: list[str] = []
            await channel.commit()
            channel.commit(lambda: called.append("by callback"))
            channel.send(b"one")
            await channel.commit()
            await channel.commit()
            assert called == ["by callback"]
            assert other.commits == [1, 2, 3, 4]
            assert channel.non_acked_message_count == 0
            await other.channel.commit()  # the other way
            channel.close()

    run(scenario)


# ---------------------------------------------------------------------- broken connections


def test_resets_at_random_bytes_lose_duplicate_and_reorder_nothing() -> None:
    async def scenario() -> None:
        found = await run_resets(messages=MESSAGES, resets=RESETS)
        assert found.sockets >= RESETS / 2

    run(scenario, timeout_s=LONG_S)


def test_a_channel_survives_resets_before_any_whole_packet_arrived() -> None:
    async def scenario() -> None:
        other = Other()
        async with listening(other) as listener:
            proxy = ResetProxy(listener.address, budget=lambda: 12_000)
            channel = await _connect_through(await proxy.start())
            for number in range(2_000):
                channel.send(value_of(number))
            await channel.commit()
            assert other.seen == [value_of(number) for number in range(2_000)]
            assert proxy.resets > 15
            channel.close()
            await proxy.close()

    run(scenario, timeout_s=60.0)


def test_a_silent_connection_is_detected_and_the_channel_continues_on_another() -> None:
    async def scenario() -> None:
        other = Other()
        async with listening(other, patience=WATCHFUL) as listener, proxied(listener) as proxy:
            channel = await connect_channel(proxy.url, patience=WATCHFUL)
            channel.send(b"one")
            await channel.commit()
            proxy.stall()
            channel.send(b"two")
            other.channel.send(b"from the other side")
            await channel.commit()
            assert other.seen == [b"one", b"two"]
            assert await anext(channel) == b"from the other side"
            assert proxy.connections == 2
            assert channel.statistics()["sockets"] == 2
            channel.close()

    run(scenario)


def test_an_idle_channel_detects_a_silent_connection_too() -> None:
    async def scenario() -> None:
        other = Other()
        async with listening(other, patience=WATCHFUL) as listener, proxied(listener) as proxy:
            channel = await connect_channel(proxy.url, patience=WATCHFUL)
            proxy.stall()
            await until(lambda: proxy.connections == 2 and channel.connected)
            assert listener.statistics()["resumed"] == 1
            channel.close()

    run(scenario)


def test_a_channel_resumes_over_tls() -> None:
    async def scenario() -> None:
        authority = trustme.CA()
        accepting, dialling = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH), ssl.create_default_context()
        authority.issue_cert("127.0.0.1").configure_cert(accepting)
        authority.configure_trust(dialling)
        other = Other()
        async with listening(other, tls=accepting) as listener:
            assert listener.url.startswith("wss://")
            channel = await connect_channel(listener.url, tls=dialling)
            for number in range(500):
                channel.send(value_of(number))
                if number % 100 == 50:
                    channel.cut()
                    await until(lambda: channel.connected)
            await channel.commit()
            assert other.seen == [value_of(number) for number in range(500)]
            channel.close()

    run(scenario)


# ---------------------------------------------------------------------- push-back


def test_withheld_acks_stop_a_fast_sender_and_bound_the_memory_of_both_ends() -> None:
    found = run_withheld(seconds=WITHHELD_S)
    assert found.pending_bytes <= 9 * 1024 * 1024


def test_two_suspended_ends_are_resumed_by_each_others_acks() -> None:
    async def scenario() -> None:
        other = Other(acks=False)
        bounds = Bounds(pending_count=1_000)
        async with listening(other, bounds=bounds) as listener:
            channel = await connect_channel(listener.url, bounds=bounds)
            back: list[int] = []
            got: list[bytes] = []
            channel.on_messages = lambda values: got.extend(map(bytes, values))
            channel.on_commit = back.append
            await until(lambda: other.channels)
            for number in range(1_000):
                channel.send(value_of(number))
                other.channel.send(value_of(number))
            assert channel.suspended
            assert other.channel.suspended
            await until(lambda: other.commits and back)
            other.channel.ack_commit(other.commits[-1])
            channel.ack_commit(back[-1])
            await channel.writable()
            await other.channel.writable()
            assert other.seen == got == [value_of(number) for number in range(1_000)]
            channel.close()

    run(scenario)


def test_floods_in_both_directions_at_once_end() -> None:
    """Values of a size at which sockets fill up, and limits at which both ends are suspended most of the time."""

    async def scenario() -> None:
        other = Other()
        bounds = Bounds(pending_bytes=2 * 1024 * 1024)
        async with listening(other, bounds=bounds) as listener:
            channel = await connect_channel(listener.url, bounds=bounds)
            got: list[bytes] = []
            channel.on_messages = lambda values: got.extend(bytes(value[:9]) for value in values)
            await until(lambda: other.channels)
            other.channel.on_messages = lambda values: other.seen.extend(bytes(value[:9]) for value in values)

            async def flood(end: Channel) -> int:
                suspended = 0
                for number in range(200):
                    suspended += end.suspended
                    await end.writable()
                    end.send(b"%09d" % number + bytes(300_000))
                await end.commit()
                return suspended

            suspended = await asyncio.gather(flood(channel), flood(other.channel))
            assert min(suspended) > 10
            assert other.seen == got == [b"%09d" % number for number in range(200)]
            channel.close()

    run(scenario, timeout_s=60.0)


def test_cancelling_the_wait_for_a_commit_does_not_cancel_it() -> None:
    async def scenario() -> None:
        other = Other(acks=False)
        async with listening(other) as listener:
            channel = await connect_channel(listener.url)
            called: list[int] = []
            channel.send(b"one")
            commit = channel.commit(lambda: called.append(1))
            for _ in range(3):
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.02):
                        await commit
            assert called == []
            await until(lambda: other.commits)
            other.channel.ack_commit(other.commits[-1])
            await commit
            assert called == [1]
            channel.close()

    run(scenario)


# ---------------------------------------------------------------------- windows, ended channels, restarts


def test_after_the_window_the_channel_expires_and_pending_messages_are_returned() -> None:
    async def scenario() -> None:
        other = Other(acks=False)
        async with listening(other, window_s=0.3) as listener, proxied(listener) as proxy:
            channel = await connect_channel(proxy.url)
            channel.send(b"one")
            channel.commit()
            channel.send(b"two")
            channel.commit()
            await until(lambda: len(other.commits) == 2)
            channel.send(b"three")
            other.channel.send(b"never taken")
            proxy.refusing = True
            proxy.reset_all()
            other.channel.cut()
            other.channel.ack_commit(1)  # no socket sends it; the stored End carries it
            gone = await other.channel.wait_ended()
            assert gone is not None
            assert (gone.reason, [bytes(one.value) for one in gone.pending]) == ("EXPIRED", [b"never taken"])
            assert listener.statistics()["expired"] == listener.statistics()["ended"] == 1
            proxy.refusing = False
            failed = await channel.wait_ended()
            assert failed is not None
            assert failed.reason == "EXPIRED"
            found = [(one.value, one.fate) for one in failed.pending]
            assert found == [(b"two", "delivered"), (b"three", "unsent")]

    run(scenario)


def test_pending_messages_are_returned_when_the_sender_cannot_reconnect_in_time() -> None:
    async def scenario() -> None:
        other = Other(acks=False)
        listener = await listen(other.begin)
        async with proxied(listener) as proxy:
            channel = await _connect_through(proxy.url, patience_s=1.0)
            channel.send(b"one")
            await until(lambda: other.seen)
            proxy.refusing = True
            proxy.reset_all()
            with pytest.raises(ChannelFailed) as caught:
                await channel.commit()
            assert caught.value.reason == "EXPIRED"
            assert [(one.value, one.fate) for one in caught.value.pending] == [(b"one", "unknown")]
        await listener.close()

    run(scenario)


def test_a_restarted_listener_does_not_know_the_channel() -> None:
    async def scenario() -> None:
        other = Other(acks=False)
        listener = await listen(other.begin)
        async with proxied(listener) as proxy:
            channel = await connect_channel(proxy.url)
            channel.send(b"one")
            await until(lambda: other.seen)
            async with listening(Other()) as restarted:
                proxy.target = restarted.address
                proxy.reset_all()
                failed = await channel.wait_ended()
                assert failed is not None
                assert failed.reason == "UNKNOWN_CHANNEL"
                assert [(one.value, one.fate) for one in failed.pending] == [(b"one", "unknown")]
                again = await connect_channel(proxy.url)
                again.resend(failed.pending)
                await again.commit()
                again.close()
        await listener.close()

    run(scenario)


def test_a_listener_that_closes_ends_its_channels() -> None:
    async def scenario() -> None:
        other = Other(acks=False)
        listener = await listen(other.begin)
        channel = await connect_channel(listener.url)
        channel.send(b"one")
        await until(lambda: other.seen)
        await listener.close()
        failed = await channel.wait_ended()
        assert failed is not None
        assert (failed.reason, [one.fate for one in failed.pending]) == ("GOING", ["delivered"])
        with pytest.raises(Offline):
            await connect_channel(listener.url)

    run(scenario)


def test_a_refusal_of_begin_reaches_the_initiator() -> None:
    async def scenario() -> None:
        def refuse(channel: Channel) -> None:
            raise Forbidden("this application takes nobody")

        listener = await listen(refuse)
        with pytest.raises(ChannelFailed, match="takes nobody") as caught:
            await connect_channel(listener.url)
        assert caught.value.name == "FORBIDDEN"
        await listener.close()

    run(scenario)


async def _connect_through(url: str, *, patience_s: float = 30.0) -> Channel:
    """The handshake itself may be reset, or take longer than the patience: that is the application's to try again."""
    for _ in range(100):
        try:
            return await connect_channel(url, patience_s=patience_s)
        except Offline:
            continue
    raise AssertionError("no connection was had")

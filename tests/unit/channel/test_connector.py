"""The connector: the first connection, pauses between attempts, timeout, what ends the attempts."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest
from tests.unit.channel.memory_sockets import Network, open_pair, run, turns

from avow.channel.connector import PAUSE_S, PAUSE_S_MAX, open_channel
from avow.channel.endpoint import Channel
from avow.channel.registry import Registry
from avow.channel.transports.socket import Socket, SocketUser
from avow.errors import NotAuthenticated, Offline


def test_an_error_of_the_first_connection_is_raised_unchanged() -> None:
    async def scenario() -> None:
        network = Network(Registry(window_s=10, channels_max=4), lambda channel: None)
        for error in (OSError("refused"), NotAuthenticated("no such token"), Offline("nobody there")):
            network.errors.append(error)
            with pytest.raises(type(error)):
                await open_channel(network.dial)
        assert len(network.dialled_at) == 3

    run(scenario)


def test_a_socket_that_is_lost_before_the_answer_is_replaced() -> None:
    async def scenario() -> None:
        begun: list[Channel] = []
        network = Network(Registry(window_s=10, channels_max=4), begun.append)

        async def dial(user: SocketUser) -> Socket:
            socket = await network.dial(user)
            if len(network.sockets) < 4:
                network.sockets[-1].lose()
            return socket

        channel = await open_channel(dial)
        assert channel.connected
        assert len(network.sockets) == 4

    run(scenario)


def test_an_end_that_never_answers_is_given_up_after_the_timeout() -> None:
    async def scenario() -> None:
        network = Network(Registry(window_s=10, channels_max=4), lambda channel: None)
        network.deaf = True
        began = asyncio.get_running_loop().time()
        with pytest.raises(Offline):
            await open_channel(network.dial, patience_s=25.0)
        assert asyncio.get_running_loop().time() - began == pytest.approx(25.0, abs=0.5)
        assert len(network.sockets) == 3  # each had ten seconds
        await turns()
        assert not any(socket.open for socket in network.sockets)

    run(scenario)


def test_a_failed_first_connection_leaves_nothing_open() -> None:
    async def scenario() -> None:
        network = Network(Registry(window_s=10, channels_max=4), lambda channel: None)
        network.deaf = True
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await open_channel(network.dial)
        await turns()
        assert not any(socket.open for socket in network.sockets)

    run(scenario)


def test_the_first_attempt_is_immediate_and_pauses_grow_to_a_bound() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        pair = await open_pair(keep={"window_s": 100.0}, rng=lambda: 1.0, patience_s=60.0)
        pair.network.dialled_at.clear()
        pair.network.errors += [OSError("unplugged")] * 9
        lost_at = loop.time()
        pair.near.cut()
        while not pair.near.connected:
            await asyncio.sleep(0.5)
        times = [lost_at, *pair.network.dialled_at]
        pauses = [after - before for before, after in pairwise(times)]
        expected = [0.0, *(min(PAUSE_S_MAX, PAUSE_S * 2**number) for number in range(9))]
        assert pauses == pytest.approx(expected, abs=0.001)

        pair.network.dialled_at.clear()
        pair.near.send(b"of use")
        assert await anext(pair.far) == b"of use"
        await turns()
        await asyncio.sleep(PAUSE_S_MAX)
        lost_at = loop.time()
        pair.near.cut()
        await turns()
        assert pair.network.dialled_at == [lost_at]

    run(scenario)


def test_a_useless_socket_counts_as_a_failed_attempt() -> None:
    """A peer that accepts, answers the Hello and dies must not be reconnected to in a tight loop."""

    async def scenario() -> None:
        pair = await open_pair(rng=lambda: 1.0)
        pair.network.dialled_at.clear()
        pair.near.on_connect = pair.near.cut
        pair.near.cut()
        began = asyncio.get_running_loop().time()
        await asyncio.sleep(10)
        assert 5 < len(pair.network.dialled_at) < 15
        assert pair.network.dialled_at[0] == pytest.approx(began, abs=0.001)

    run(scenario)


def test_without_a_socket_until_its_timeout_a_channel_ends_and_returns_all_messages() -> None:
    async def scenario() -> None:
        pair = await open_pair(patience_s=20.0, keep={"window_s": 1_000.0})
        pair.near.send(b"one")
        await turns()
        pair.network.errors += [OSError("unplugged")] * 1_000
        began = asyncio.get_running_loop().time()
        pair.near.cut()
        pair.near.send(b"two")
        failed = await pair.near.wait_ended()
        assert asyncio.get_running_loop().time() - began == pytest.approx(20.0, abs=0.1)
        assert failed is not None
        assert failed.reason == "EXPIRED"
        assert [(one.value, one.fate) for one in failed.pending] == [(b"one", "unknown"), (b"two", "unsent")]
        tries = len(pair.network.dialled_at)
        await asyncio.sleep(60)
        assert len(pair.network.dialled_at) == tries

    run(scenario)


def test_each_connection_resets_the_timeout() -> None:
    async def scenario() -> None:
        pair = await open_pair(patience_s=10.0, keep={"window_s": 1_000.0}, rng=lambda: 0.5)
        for _ in range(4):
            pair.network.errors += [OSError("unplugged")] * 10
            pair.near.cut()
            await asyncio.sleep(9)
            assert pair.near.connected

    run(scenario)


def test_a_definite_error_while_reconnecting_ends_the_channel_at_once() -> None:
    async def scenario() -> None:
        pair = await open_pair()
        pair.network.errors.append(NotAuthenticated("the token is not known any more; nothing was done"))
        pair.near.cut()
        failed = await pair.near.wait_ended()
        assert failed is not None
        assert (failed.reason, failed.name) == ("REFUSED", "NOT_AUTHENTICATED")

    run(scenario)


def test_a_restarted_other_end_does_not_know_the_channel() -> None:
    async def scenario() -> None:
        pair = await open_pair()
        pair.near.send(b"one")
        await turns()
        pair.network.registry = Registry(window_s=10, channels_max=4)
        pair.near.cut()
        failed = await pair.near.wait_ended()
        assert failed is not None
        assert failed.reason == "UNKNOWN_CHANNEL"
        assert [(one.value, one.fate) for one in failed.pending] == [(b"one", "unknown")]

    run(scenario)


def test_closing_while_connecting_ends_the_attempt() -> None:
    async def scenario() -> None:
        pair = await open_pair(patience_s=60.0)
        pair.network.errors += [OSError("unplugged")] * 1_000
        pair.near.cut()
        await asyncio.sleep(1)
        pair.near.close()
        assert await pair.near.wait_ended() is None
        tries = len(pair.network.dialled_at)
        await asyncio.sleep(60)
        assert len(pair.network.dialled_at) == tries

    run(scenario)


def test_a_failing_connect_function_is_reported() -> None:
    reported: list[dict[str, object]] = []

    async def scenario() -> None:
        pair = await open_pair()
        pair.network.errors.append(ZeroDivisionError())
        pair.near.cut()
        failed = await pair.near.wait_ended()
        assert failed is not None
        assert failed.reason == "ABORTED"

    run(scenario, reported=reported)
    assert len(reported) == 1

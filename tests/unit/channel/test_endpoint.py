"""A channel on the event loop over in-memory sockets: turns, hooks, waits, inbox, store, lost sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from tests.unit.channel.memory_sockets import open_pair, run, turns

from avow.channel.endpoint import Channel
from avow.channel.protocol.events import Bounds
from avow.channel.protocol.frames import EndCode
from avow.errors import Busy, ChannelFailed, InvalidRequest, UnknownQueue

# ---------------------------------------------------------------------- sending


def test_messages_of_one_turn_leave_in_one_packet_without_a_copy() -> None:
    async def scenario() -> None:
        pair = await open_pair()
        values = [b"value %d" % number for number in range(100)]
        before = len(pair.socket.sent)
        for value in values:
            pair.near.send(value)
        assert len(pair.socket.sent) == before  # not yet
        await turns()
        assert len(pair.socket.sent) == before + 1
        assert all(any(piece is value for piece in pair.socket.sent[-1]) for value in values)

    run(scenario)


def test_a_full_socket_gets_nothing_until_it_is_writable() -> None:
    async def scenario() -> None:
        pair = await open_pair()
        before = len(pair.socket.sent)
        pair.socket.hold_up()
        pair.near.send(b"one")
        await turns()
        assert len(pair.socket.sent) == before
        pair.socket.let_go()
        assert len(pair.socket.sent) == before + 1
        assert await anext(pair.far) == b"one"

    run(scenario)


def test_a_commit_callback_is_called_once_on_the_ack_of_a_newer_commit() -> None:
    async def scenario() -> None:
        ids: list[int] = []
        pair = await open_pair(begin=lambda channel: setattr(channel, "on_commit", ids.append))
        heard: list[str] = []
        pair.far.on_messages = lambda values: None
        pair.near.send(b"one")
        pair.near.commit(lambda: heard.append("first"))
        pair.near.send(b"two")
        pair.near.commit(lambda: heard.append("second"))
        await turns()
        assert (ids, heard) == ([1, 2], [])
        pair.far.ack_commit(2)
        pair.far.ack_commit(1)
        pair.far.ack_commit(2)
        await turns()
        assert heard == ["first", "second"]
        assert pair.near.non_acked_message_count == 0

    run(scenario)


def test_a_cancelled_wait_does_not_cancel_the_commit_and_leaves_nothing() -> None:
    async def scenario() -> None:
        ids: list[int] = []
        pair = await open_pair(begin=lambda channel: setattr(channel, "on_commit", ids.append))
        commit = pair.near.commit()
        for _ in range(100):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(1):
                    await commit
        assert pair.near.statistics()["waits"] <= 2
        pair.far.ack_commit(ids[0])
        await commit
        await commit  # again, and at once

    run(scenario)


def test_waits_end_in_the_order_of_their_commits() -> None:
    async def scenario() -> None:
        ids: list[int] = []
        pair = await open_pair(begin=lambda channel: setattr(channel, "on_commit", ids.append))
        pair.far.on_messages = lambda values: None
        order: list[int] = []

        async def wait(commit: Any) -> None:
            await commit
            order.append(commit.id)

        commits = []
        for _ in range(20):
            pair.near.send(b"x")
            commits.append(pair.near.commit())
        tasks = [asyncio.create_task(wait(commit)) for commit in reversed(commits)]
        await turns()
        pair.far.ack_commit(ids[9])
        await turns()
        assert order == list(range(1, 11))
        pair.far.ack_commit(ids[-1])
        await asyncio.gather(*tasks)
        assert order == list(range(1, 21))

    run(scenario)


def test_a_suspended_sender_is_resumed_once() -> None:
    async def scenario() -> None:
        ids: list[int] = []
        pair = await open_pair(
            begin=lambda channel: setattr(channel, "on_commit", ids.append), bounds=Bounds(pending_count=10)
        )
        resumed: list[int] = []
        pair.far.on_messages = lambda values: None
        pair.near.on_resume = lambda: resumed.append(pair.near.non_acked_message_count)
        for number in range(10):
            pair.near.send(b"%d" % number)
        assert pair.near.suspended
        with pytest.raises(Busy):
            pair.near.send(b"too much")
        waiting = asyncio.create_task(pair.near.writable())
        await turns()
        assert not waiting.done()
        pair.far.ack_commit(ids[-1])
        await waiting
        assert resumed == [0]
        assert not pair.near.suspended

    run(scenario)


def test_resume_is_not_called_when_another_hook_has_filled_the_channel_again() -> None:
    async def scenario() -> None:
        pair = await open_pair(bounds=Bounds(pending_count=10))
        pair.far.on_messages = lambda values: None
        resumed: list[int] = []

        def refill(commit_id: int) -> None:
            if commit_id == 1:
                for _ in range(10):
                    pair.near.send(b"again")

        pair.near.on_acked = refill
        pair.near.on_resume = lambda: resumed.append(1)
        for _ in range(10):
            pair.near.send(b"x")
        await turns(20)
        assert resumed == [1]
        assert pair.near.non_acked_message_count == 0

    run(scenario)


# ---------------------------------------------------------------------- receiving


def test_without_hooks_a_commit_is_acknowledged_when_its_messages_were_taken() -> None:
    async def scenario() -> None:
        pair = await open_pair()
        for value in (b"one", b"two", b"three"):
            pair.near.send(value)
        commit = asyncio.create_task(_wait(pair.near.commit()))
        pair.near.send(b"four")
        taken = []
        for _ in range(3):
            await turns()
            assert not commit.done()
            taken.append(await anext(pair.far))
        await commit
        assert [*taken, await anext(pair.far)] == [b"one", b"two", b"three", b"four"]
        assert pair.near.non_acked_message_count == 1

    run(scenario)


def test_a_hook_that_is_set_late_first_gets_the_inbox() -> None:
    async def scenario() -> None:
        pair = await open_pair()
        pair.near.send(b"one")
        pair.near.commit()
        await turns()
        seen: list[bytes] = []
        ids: list[int] = []
        pair.far.on_commit = ids.append
        pair.far.on_messages = lambda values: seen.extend(map(bytes, values))
        pair.near.send(b"two")
        await turns()
        assert seen == [b"one", b"two"]
        assert ids == [1]

    run(scenario)


def test_the_commit_hook_is_called_after_the_messages_it_covers() -> None:
    async def scenario() -> None:
        seen: list[object] = []

        def begin(channel: Channel) -> None:
            channel.on_messages = lambda values: seen.extend(map(bytes, values))
            channel.on_commit = seen.append

        pair = await open_pair(begin=begin)
        pair.near.send(b"one")
        pair.near.commit()
        pair.near.commit()
        pair.near.send(b"two")
        pair.near.commit()
        await turns()
        assert seen == [b"one", 1, 2, b"two", 3]

    run(scenario)


def test_unread_commits_do_not_accumulate() -> None:
    async def scenario() -> None:
        pair = await open_pair()
        pair.near.send(b"one")
        for _ in range(50):
            last = pair.near.commit()
            await turns()
        assert pair.far.statistics()["commits_due"] == 2  # the first one and the newest
        assert await anext(pair.far) == b"one"
        await last

    run(scenario)


def test_iteration_ends_with_a_close_and_raises_after_a_failure() -> None:
    async def scenario() -> None:
        pair = await open_pair()
        async with pair.near as near:
            near.send(b"one")
            near.send(b"two")
            taken = asyncio.create_task(_take_all(pair.far))
        assert await taken == [b"one", b"two"]
        assert await pair.far.wait_ended() is None

        pair = await open_pair()
        pair.near.send(b"one")
        await turns()
        pair.near.abort("enough")
        await turns()
        assert await anext(pair.far) == b"one"  # it arrived before
        with pytest.raises(ChannelFailed, match="enough"):
            await anext(pair.far)

    run(scenario)


# ---------------------------------------------------------------------- the end


def test_closing_returns_the_messages_that_no_acknowledged_commit_covers() -> None:
    async def scenario() -> None:
        pair = await open_pair()
        ends: list[ChannelFailed | None] = []
        pair.near.on_end = ends.append
        pair.far.on_end = ends.append
        pair.near.send(b"one")
        await turns()
        pair.near.send(b"two")
        pair.near.close()
        failed = await pair.near.wait_ended()
        assert failed is not None
        assert failed.reason == "CLOSED"
        assert [(one.value, one.fate) for one in failed.pending] == [(b"one", "unknown"), (b"two", "unsent")]
        assert await pair.far.wait_ended() is None
        await turns()
        assert len(ends) == 2
        assert ends[1] is None
        with pytest.raises(ChannelFailed):
            pair.near.send(b"three")
        with pytest.raises(ChannelFailed):
            await pair.near.writable()
        pair.near.ack_commit(7)  # ignored after the end

    run(scenario)


def test_every_wait_ends_with_the_channel() -> None:
    async def scenario() -> None:
        pair = await open_pair(bounds=Bounds(pending_count=1))
        called: list[int] = []
        pair.far.on_commit = called.append
        pair.near.send(b"one")
        commit = pair.near.commit(lambda: called.append(-1))
        waits = [
            asyncio.create_task(wait)
            for wait in (_wait(commit), pair.near.writable(), _take_all(pair.near), _wait(pair.near.commit()))
        ]
        await turns()
        pair.far.abort("no more")
        for wait in waits:
            with pytest.raises(ChannelFailed, match="no more") as caught:
                await wait
            assert [one.value for one in caught.value.pending] == [b"one"]
        with pytest.raises(ChannelFailed):
            await commit
        assert -1 not in called

    run(scenario)


def test_an_avow_error_in_a_hook_refuses_and_is_sent_to_the_other_end() -> None:
    async def scenario() -> None:
        def refuse(values: Sequence[memoryview]) -> None:
            raise UnknownQueue("there is no queue of that name; nothing was stored")

        pair = await open_pair(begin=lambda channel: setattr(channel, "on_messages", refuse))
        pair.near.send(b"one")
        failed = await pair.near.wait_ended()
        assert failed is not None
        assert (failed.reason, failed.name) == ("REFUSED", "UNKNOWN_QUEUE")
        assert "there is no queue" in str(failed)

    run(scenario)


@pytest.mark.parametrize("hook", ["on_messages", "on_commit", "on_acked", "on_connect", "on_resume", "callback"])
def test_a_hook_that_fails_ends_the_channel_and_is_reported(hook: str) -> None:
    reported: list[dict[str, Any]] = []

    async def scenario() -> None:
        def fail(*_: object) -> None:
            raise ZeroDivisionError(hook)

        def begin(channel: Channel) -> None:
            if hook in ("on_messages", "on_commit"):
                setattr(channel, hook, fail)

        pair = await open_pair(begin=begin, bounds=Bounds(pending_count=1))
        if hook in ("on_acked", "on_resume", "on_connect"):
            setattr(pair.near, hook, fail)
        if hook == "on_connect":
            pair.near.cut()
        else:
            taking = asyncio.create_task(_take_quietly(pair.far))
            pair.near.send(b"one")
            pair.near.commit(fail if hook == "callback" else None)
            await taking
        failed = await pair.far.wait_ended()
        assert failed is not None
        assert failed.reason == "ABORTED"
        failed = await pair.near.wait_ended()
        assert failed is not None
        assert failed.reason == "ABORTED"

    run(scenario, reported=reported)
    assert [type(context["exception"]) for context in reported] == [ZeroDivisionError]


def test_after_giving_up_an_application_gets_no_more_received_messages() -> None:
    async def scenario() -> None:
        seen: list[bytes] = []

        def begin(channel: Channel) -> None:
            def take(values: Sequence[memoryview]) -> None:
                seen.extend(map(bytes, values))
                channel.abort()

            channel.on_messages = take
            channel.on_commit = lambda commit_id: seen.append(b"commit")

        pair = await open_pair(begin=begin)
        pair.near.send(b"one")
        pair.near.commit()
        pair.near.send(b"two")
        await pair.near.wait_ended()
        assert seen == [b"one"]

    run(scenario)


# ---------------------------------------------------------------------- sockets


def test_a_lost_socket_loses_and_duplicates_nothing() -> None:
    async def scenario() -> None:
        seen: list[bytes] = []
        pair = await open_pair(
            begin=lambda channel: setattr(channel, "on_messages", lambda values: seen.extend(map(bytes, values))),
            rng=lambda: 0.0,
        )
        back: list[bytes] = []
        pair.near.on_messages = lambda values: back.extend(map(bytes, values))
        for number in range(300):
            pair.near.send(b"%d" % number)
            pair.far.send(b"%d" % number)
            if number % 3 == 0:
                pair.near.commit()
            await turns(number % 4)
            if number % 9 == 0:
                (pair.near, pair.far)[number % 2].cut()
        await pair.near.commit()
        await pair.far.commit()
        assert seen == back == [b"%d" % number for number in range(300)]
        assert len(pair.network.sockets) > 20

    run(scenario)


def test_a_newer_socket_fences_the_older() -> None:
    async def scenario() -> None:
        pair = await open_pair()
        old = pair.socket
        old.silenced = True  # the acceptor does not learn of its loss
        old.open = False
        pair.near.lost(1, old, "unplugged")
        await turns()
        assert pair.near.connected
        assert len(pair.network.sockets) == 2
        assert old.other.sent[-1][0][:2] == bytes([5, EndCode.FENCED])
        assert old.other.closed_by_user
        pair.near.send(b"over the new one")
        assert await anext(pair.far) == b"over the new one"
        assert pair.network.registry.statistics()["resumed"] == 1

    run(scenario)


def test_acknowledging_a_message_that_never_arrived_is_an_application_error() -> None:
    async def scenario() -> None:
        pair = await open_pair()
        with pytest.raises(InvalidRequest):
            pair.near.ack_commit(1)
        assert pair.near.connected

    run(scenario)


async def _wait(commit: Any) -> None:
    await commit


async def _take_all(channel: Channel) -> list[bytes]:
    return [value async for value in channel]


async def _take_quietly(channel: Channel) -> None:
    with pytest.raises(ChannelFailed):
        await _take_all(channel)

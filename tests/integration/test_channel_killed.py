"""Processes with a channel that are killed: nothing committed is lost, and nothing sent is unaccounted for."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import uvloop
from tests.integration.channel_programs import COMMIT_EVERY, numbers_in, value_of

from avow.channel.connector import connect_channel
from avow.channel.endpoint import Channel
from avow.channel.listener import listen
from avow.channel.stores import FileStore
from avow.errors import ChannelFailed


def run(scenario: Callable[[], Awaitable[None]], *, timeout_s: float = 300.0) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(asyncio.wait_for(scenario(), timeout_s))


async def until(predicate: Callable[[], object]) -> None:
    for _ in range(12_000):
        if predicate():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("it did not come to pass")


@asynccontextmanager
async def program(*arguments: object) -> AsyncIterator[tuple[subprocess.Popen[str], str]]:
    """A process of channel_programs, and the first line it says. It is killed in the end, if it still lives."""
    command = [sys.executable, "-m", "tests.integration.channel_programs", *map(str, arguments)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield process, (await asyncio.to_thread(process.stdout.readline)).strip()
    finally:
        kill(process)
        process.stdout.close()


def kill(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGKILL)
    process.wait(60)


async def send_until_it_fails(channel: Channel, sent: list[int]) -> ChannelFailed:
    try:
        while True:
            await channel.writable()
            number = len(sent) + 1
            channel.send(value_of(number))
            sent.append(number)
            if number % COMMIT_EVERY == 0:
                channel.commit()
            if number % 10 == 0:
                await asyncio.sleep(0)
    except ChannelFailed:
        failed = await channel.wait_ended()
        assert failed is not None
        return failed


@pytest.mark.parametrize(("restarted", "acked_min"), [(False, 500), (False, 5_000), (True, 2_000)])
def test_a_killed_receivers_commits_and_the_returned_messages_are_all_that_was_sent(
    tmp_path: Path, restarted: bool, acked_min: int
) -> None:
    path, sent = tmp_path / "committed", list[int]()

    async def scenario() -> None:
        async with program("receive", path, 0) as (receiver, port):
            url = f"ws://127.0.0.1:{port}/"
            channel = await connect_channel(url, patience_s=120.0 if restarted else 0.5)
            sending = asyncio.create_task(send_until_it_fails(channel, sent))
            await until(lambda: channel.statistics()["released_to"] >= acked_min)
            kill(receiver)
        async with program("receive", path, port if restarted else 0) as (_, port):
            failed = await sending
            assert failed.reason == ("UNKNOWN_CHANNEL" if restarted else "EXPIRED")
            handed_back = [int(bytes(one.value)[:9]) for one in failed.pending]
            acked_to = len(sent) - len(handed_back)
            assert acked_to >= acked_min
            assert handed_back == sent[acked_to:]
            committed = numbers_in(path)
            assert committed == sent[: len(committed)]
            assert acked_to <= len(committed)  # more only by groups whose ack did not arrive
            assert all(one.fate != "unsent" for one in failed.pending if one.number <= len(committed))

            again = await connect_channel(f"ws://127.0.0.1:{port}/")
            again.resend(failed.pending)
            await again.commit()
            assert numbers_in(path) == sent
            again.close()

    run(scenario)


@pytest.mark.parametrize("received_min", [1, 1_000, 9_000])
def test_messages_stored_by_a_killed_sender_are_resent_by_its_next_run(tmp_path: Path, received_min: int) -> None:
    path = tmp_path / "pending"

    async def scenario() -> None:
        seen: list[list[int]] = []
        acked_to = 0

        def begin(channel: Channel) -> None:
            seen.append([])
            channel.on_messages = lambda values: seen[-1].extend(int(bytes(value)[:9]) for value in values)
            channel.on_commit = lambda commit_id: acknowledge(channel, commit_id)

        def acknowledge(channel: Channel, commit_id: int) -> None:
            nonlocal acked_to
            if commit_id % 3 == 0 or len(seen) > 1:  # leave some owing
                acked_to = seen[-1][-1]
                channel.ack_commit(commit_id)

        listener = await listen(begin)
        async with program("send", listener.url, path, 1) as (sender, _):
            await until(lambda: seen and len(seen[0]) >= received_min)
            kill(sender)
        first, acked_before = list(seen[0]), acked_to
        assert first == list(range(1, len(first) + 1))
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tests.integration.channel_programs",
            "finish",
            listener.url,
            str(path),
            stdout=asyncio.subprocess.PIPE,
        )
        output, _ = await process.communicate()
        resent, left = map(int, output.split())
        assert (process.returncode, left) == (0, 0)
        second = seen[1]
        assert len(second) == resent
        assert second == list(range(second[0], second[0] + resent))
        assert second[0] <= acked_before + 1  # nothing was let go that was not acknowledged
        assert second[-1] >= first[-1]  # nothing had left that was not stored
        store = FileStore(path)
        assert store.load() == []
        store.close()
        await listener.close()

    run(scenario)

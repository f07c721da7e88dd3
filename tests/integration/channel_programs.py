"""Applications with a channel that tests kill, each in a separate process.

    receive FILE PORT        listens; appends the numbers of each committed group to FILE and syncs it before it acks.
                             What the file has already is not appended again: numbers are this application's own ids
    send URL STORE FIRST     sends numbers from FIRST on, for as long as it lives, through a file store
    finish URL STORE         sends again what the store holds, commits, and ends

Run as `python -m tests.integration.channel_programs receive ...`. The first line on standard output says it is ready.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import uvloop

from avow.channel.connector import connect_channel
from avow.channel.endpoint import Channel
from avow.channel.listener import listen
from avow.channel.stores import FileStore

COMMIT_EVERY = 50


def say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def numbers_in(path: Path) -> list[int]:
    """The commits of a receiver. A line that was being written when it was killed does not count."""
    text = path.read_text() if path.exists() else ""
    return [int(line) for line in text[: text.rfind("\n") + 1].split()]


class Receiver:
    def __init__(self, path: Path) -> None:
        known = numbers_in(path)
        self._last = known[-1] if known else 0
        self._file = path.open("a")
        self._file.truncate(sum(len(f"{number}\n") for number in known))
        self._group: list[int] = []

    def begin(self, channel: Channel) -> None:
        channel.on_messages = lambda values: self._group.extend(int(bytes(value)[:9]) for value in values)
        channel.on_commit = lambda commit_id: self._store(channel, commit_id)

    def _store(self, channel: Channel, commit_id: int) -> None:
        fresh = [number for number in self._group if number > self._last]
        self._group = []
        self._file.write("".join(f"{number}\n" for number in fresh))
        self._file.flush()
        os.fdatasync(self._file.fileno())
        self._last = fresh[-1] if fresh else self._last
        channel.ack_commit(commit_id)


async def receive(path: str, port: str) -> None:
    listener = await listen(Receiver(Path(path)).begin, port=int(port))
    say(listener.address[1])
    await asyncio.Event().wait()


async def send(url: str, path: str, first: str) -> None:
    channel = await connect_channel(url, store=FileStore(path))
    say("ready")
    number = int(first)
    while True:
        await channel.writable()
        channel.send(value_of(number))
        if number % COMMIT_EVERY == 0:
            channel.commit()
        if number % 7 == 0:
            await asyncio.sleep(0)
        number += 1


async def finish(url: str, path: str) -> None:
    store = FileStore(path)
    waiting = store.load()
    async with await connect_channel(url, store=store) as channel:
        for value in waiting:
            channel.send(value)
    say(len(waiting), len(store.load()))
    store.close()


def value_of(number: int) -> bytes:
    return b"%09d" % number + bytes(91)


PROGRAMS: dict[str, Callable[..., Coroutine[Any, Any, None]]] = {"receive": receive, "send": send, "finish": finish}

if __name__ == "__main__":
    uvloop.run(PROGRAMS[sys.argv[1]](*sys.argv[2:]))

"""kill -9 under load: acknowledged operations survive, and nothing was done twice."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.contract.pledges import pledge_load
from tests.contract.pledges.pledge_load import Notes, check, work
from tests.contract.pledges.pledge_places import PLACES, Place, run, wait_until
from tests.services import Server

TASKS = 64
_ROOT = Path(__file__).parents[3]


@pytest.fixture(params=[name for name in PLACES if name != "memory"])
def durable_place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    kind = PLACES[request.param]
    server = request.getfixturevalue(kind.server) if kind.server else None
    with kind.make(server, tmp_path) as made:
        yield made


def _killed_after(url: str, name: str, *, lines: int) -> Notes:
    """The notes of a process that was killed once it had written so many."""
    environment = {**os.environ, "PYTHONPATH": str(_ROOT)}
    command = [sys.executable, pledge_load.__file__, url, name]
    notes = Notes()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        for number, line in enumerate(process.stdout, 1):
            gid, revision, fence = line.split()
            notes.note(gid, int(revision), int(fence))
            if number == lines:
                os.kill(process.pid, signal.SIGKILL)  # what was written before is still read
        assert process.wait(60) == -signal.SIGKILL, "it ended before it was killed"
    return notes


def test_acknowledged_operations_survive_kill_9_of_the_coordinator(durable_place: Place) -> None:
    async def main() -> None:
        for round_, lines in enumerate((1, 700, 1500)):
            notes = await asyncio.to_thread(_killed_after, durable_place.url, f"round-{round_}", lines=lines)
            async with durable_place.opened() as store:
                await check(store, notes)

    run(main())


def test_acknowledged_operations_survive_kill_9_of_the_server(served_place: Place) -> None:
    """Three times, while 64 tasks work. Each outcome is true: refused means unchanged, unknown is either."""
    server = served_place.server
    assert server is not None

    async def main() -> None:
        notes = Notes()
        async with served_place.opened() as store:
            tasks = [asyncio.create_task(work(store, f"t{n}", notes.note, notes)) for n in range(TASKS)]
            for _ in range(3):
                await _go_on(tasks, notes, more=1_000)
                await asyncio.to_thread(_restart, server)
            await _go_on(tasks, notes, more=500)
            for task in tasks:
                task.cancel()
            for task in tasks:
                with contextlib.suppress(asyncio.CancelledError):
                    await task
            assert notes.definite + notes.unknown > 0, "nobody noticed"
            assert store.statistics()["connects"] > 1
        async with served_place.opened() as again:
            await check(again, notes)

    run(main())


async def _go_on(tasks: list[asyncio.Task[None]], notes: Notes, *, more: int) -> None:
    wanted = notes.yes + more

    async def enough() -> bool:
        for task in tasks:
            if task.done():
                task.result()
        return notes.yes >= wanted

    await wait_until(enough)


def _restart(server: Server) -> None:
    server.kill()
    server.start()

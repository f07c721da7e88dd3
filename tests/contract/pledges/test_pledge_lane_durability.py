"""kill -9 of a whole cluster of one or three peers under load: acknowledged operations survive.

Claims are not: in a lane they are the memory of the peer that gave them. What they protect is the revision.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.contract.pledges import lane_load
from tests.contract.pledges.lane_places import LanePlace
from tests.contract.pledges.pledge_load import Notes, check
from tests.contract.pledges.pledge_places import run

_ROOT = Path(__file__).parents[3]


def _killed_after(url: str, name: str, *, lines: int) -> Notes:
    environment = {**os.environ, "PYTHONPATH": str(_ROOT)}
    command = [sys.executable, lane_load.__file__, url, name]
    notes = Notes()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        for number, line in enumerate(process.stdout, 1):
            gid, revision, _fence = line.split()
            notes.note(gid, int(revision), 0)
            if number == lines:
                os.kill(process.pid, signal.SIGKILL)
        assert process.wait(60) == -signal.SIGKILL, "it ended before it was killed"
    return notes


@pytest.mark.parametrize("peers", [1, 3])
def test_acknowledged_operations_survive_kill_9_of_all_peers_at_once(peers: int, tmp_path: Path) -> None:
    place = LanePlace(f"lane:{tmp_path}?peers={peers}")

    async def main() -> None:
        for round_, lines in enumerate((1, 700, 1500)):
            notes = await asyncio.to_thread(_killed_after, place.url, f"round-{round_}", lines=lines)
            async with place.opened() as store:
                await check(store, notes)

    run(main())

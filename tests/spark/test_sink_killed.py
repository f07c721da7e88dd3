"""A driver that is killed with -9 at every stage of a batch, and started again each time: each row is there once.

The same batch is interrupted three times, each time one step further, because a query that starts again does its last
batch again. Killed is the whole session of the driver: its JVM and its Python workers die with it, as on a machine
that loses power.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.spark.holding_proxy import HOST, HoldingProxy

from avow.client.blocking import BlockingQueue, connect_blocking
from avow.testing.cluster import LocalCluster, wait_until

PROGRAM = Path(__file__).parent / "sink_program.py"
QUEUE = "lines"
FILES, LINES = 2, 40
START_S = 300.0


def test_a_driver_killed_at_any_step_neither_loses_nor_duplicates_a_row(tmp_path: Path) -> None:
    first, everything = _write_files(tmp_path / "in")
    with LocalCluster(1, settings={"advertise": HOST}) as cluster:
        port = int(cluster.api(1).rpartition(":")[2])
        with HoldingProxy(port=port) as proxy, connect_blocking(cluster.api(1)) as client:
            client.create_queue(QUEUE, lanes=2)
            queue = client.queue(QUEUE)
            arguments = [proxy.url, str(tmp_path / "in"), str(tmp_path / "checkpoint"), QUEUE]

            proxy.hold("/messages?lane=", what="request", after=1)
            _kill_when_held(proxy, arguments, tmp_path)
            assert _visible(queue) == []  # some of it staged

            proxy.hold("/publish", what="request")
            _kill_when_held(proxy, arguments, tmp_path)
            assert _visible(queue) == []  # all of it is staged, twice by now, and published in no lane

            proxy.hold("/publish", what="answer")
            _kill_when_held(proxy, arguments, tmp_path)
            assert sorted(_visible(queue)) == sorted(first)  # published, and the checkpoint does not know

            proxy.let_go()
            with _driver(arguments, tmp_path) as process:
                assert process.wait(START_S) == 0, _output(tmp_path)
            assert sorted(_visible(queue)) == sorted(everything)


def _write_files(folder: Path) -> tuple[set[str], set[str]]:
    """The lines of the first file, and of all. Spark takes files in the order of their age."""
    folder.mkdir()
    lines = [[f"{number}-{line}" for line in range(LINES)] for number in range(FILES)]
    for number, found in enumerate(lines):
        path = folder / f"{number}.txt"
        path.write_text("\n".join(found) + "\n")
        os.utime(path, (1_000_000 + number * 10, 1_000_000 + number * 10))
    return set(lines[0]), {line for found in lines for line in found}


def _visible(queue: BlockingQueue) -> list[str]:
    return [bytes(value).decode() for batch in queue.read(level="linearizable") for value in batch.values()]


def _kill_when_held(proxy: HoldingProxy, arguments: list[str], folder: Path) -> None:
    with _driver(arguments, folder) as process:
        wait_until(
            lambda: proxy.held.is_set() or process.poll() is not None, timeout_s=START_S, what=lambda: _output(folder)
        )
        assert process.poll() is None, _output(folder)


@contextmanager
def _driver(arguments: list[str], folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Ends with the death of all of it."""
    with (folder / "output.txt").open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, str(PROGRAM), *arguments], stdout=output, stderr=output, start_new_session=True
        )
        try:
            yield process
        finally:
            wait_until(lambda: not _kill_session(process.pid), what="the driver's processes to end")
            process.wait()


def _kill_session(session: int) -> list[int]:
    """Processes of the session that were still alive; a driver's workers have groups of their own, but its session."""
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError, ValueError, IndexError):
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            if int(fields[3]) == session and fields[0] != "Z":
                found.append(int(entry.name))
                os.kill(int(entry.name), signal.SIGKILL)
    return found


def _output(folder: Path) -> str:
    return (folder / "output.txt").read_text(errors="replace")[-3_000:]

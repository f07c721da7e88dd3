"""A driver of Spark as a program under test: Python, its JVM and all processes below it. They are killed together."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from avow.errors import Offline
from avow.testing import processes
from avow.testing.cluster_wait import wait_until
from avow_lab.campaigns.harness.programs import Program

JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"
QUICK: Final = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xshare:auto"
SETTINGS: Final = {
    "spark.driver.memory": "1g",
    JAVA_OPTIONS: QUICK,
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
}
"""A driver that lives for a minute has no use for compilers and collectors that need one to warm up."""


class SparkDriver(Program):
    def kill(self) -> None:
        if self.alive:
            processes.kill(self.pid, *processes.descendants(self.pid))
        super().kill()

    def kill_worker(self, choice: float) -> bool:
        """One of the processes that Spark runs Python in. False when there is none, or it has just ended."""
        found = sorted(processes.workers(self.pid))
        return bool(found) and processes.kill(found[int(choice * len(found))]) == 1

    def check_running(self) -> None:
        """Raises Offline when it has ended. No fault ends it without being waited for."""
        if not self.alive:
            raise Offline(f"the driver ended with exit code {self.exit_code}; {self.log_tail()}")

    def wait(self, condition: Callable[[], bool], *, timeout_s: float) -> None:
        """Raises Offline when the driver ends meanwhile."""

        def reached() -> bool:
            self.check_running()
            return condition()

        wait_until(reached, timeout_s=timeout_s, what=self.log_tail)


def last_batch(folder: Path) -> int:
    """The number of the latest batch in a checkpoint's `offsets` or `commits`; -1 when there is none."""
    with suppress(OSError):
        return max((int(path.name) for path in folder.glob("[0-9]*") if path.name.isdigit()), default=-1)
    return -1

"""A class archive for the JVMs of a campaign, which would spend half of their time on loading Spark's classes.

When a program ends, Java can write the classes that it has loaded, parsed and verified into an archive, and map that
archive when the next program starts. One driver runs some batches and ends by itself; all drivers that are killed later
use its archive. Processor time of a JVM until both queries have planned their first batch: 8.6 s without it, 4.6 s with
it. A Java that cannot read the archive goes on without it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import msgspec

from avow.client.blocking import connect_blocking
from avow.testing import processes
from avow.testing.cluster import LocalCluster
from avow.testing.cluster_wait import wait_until
from avow_lab.campaigns.harness.spark_driver import JAVA_OPTIONS, QUICK, SparkDriver
from avow_lab.campaigns.spark.driver import BATCH_ROWS, DRIVER, SINK, SOURCE

BATCHES: Final = 2
ARCHIVED_S: Final = 600.0
ARCHIVE: Final = "classes.jsa"


def make_archive(cluster: LocalCluster, *, folder: Path) -> dict[str, str]:
    """Returns the settings of drivers that use the archive; empty when Java wrote none."""
    folder.mkdir(parents=True, exist_ok=True)
    archive = folder / ARCHIVE
    with connect_blocking(cluster.addresses) as client:
        client.create_queue(SOURCE)
        client.create_queue(SINK)
        client.queue(SOURCE).enqueue_many([b"%d" % number for number in range(BATCHES * BATCH_ROWS)])
    settings = msgspec.json.encode({JAVA_OPTIONS: f"{QUICK} -XX:ArchiveClassesAtExit={archive}"}).decode()
    with SparkDriver("driver", ["-m", DRIVER], folder=folder) as program:
        flags = ["--servers", cluster.addresses, "--folder", str(folder), "--batches", str(BATCHES)]
        program.launch(*flags, "--settings", settings)
        _wait_ended(program)
    return {JAVA_OPTIONS: f"{QUICK} -XX:SharedArchiveFile={archive}"} if archive.exists() else {}


def _wait_ended(program: SparkDriver) -> None:
    """Waits for its JVM too, which writes the archive after Python has ended."""
    below = list[int]()

    def ended() -> bool:
        if program.alive:
            below[:] = processes.descendants(program.pid) or below
            return False
        return not any(os.path.exists(f"/proc/{pid}") for pid in below)

    try:
        wait_until(ended, timeout_s=ARCHIVED_S, what=program.log_tail)
    finally:
        processes.kill(*below)

"""A JVM that is killed after two batches spends half of its life on loading Spark's classes: so they are learned once.

Java can write the classes that a program has loaded, parsed and verified, into an archive when that program ends, and
map it when the next one starts. One driver lives for some batches and ends by itself; all that are killed later start
from what it left. Measured as processor time of a JVM until both queries have planned their first batch: 8.6 s without,
4.6 with it. A Java that cannot read the archive goes on without.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import msgspec

from avow.client.blocking import connect_blocking
from avow.testing.cluster import LocalCluster
from avow.testing.cluster_wait import wait_until
from avow.testing.programs import Program
from avow.testing.prove_chain import processes
from avow.testing.prove_spark.driver import BATCH_ROWS, DRIVER, JAVA_OPTIONS, QUICK, SINK, SOURCE

BATCHES: Final = 2
LEARNED_S: Final = 600.0
ARCHIVE: Final = "classes.jsa"


def learn(cluster: LocalCluster, *, folder: Path) -> dict[str, str]:
    """The settings of drivers that start from the archive; none where Java left no archive."""
    folder.mkdir(parents=True, exist_ok=True)
    archive = folder / ARCHIVE
    with connect_blocking(cluster.addresses) as client:
        client.create_queue(SOURCE)
        client.create_queue(SINK)
        client.queue(SOURCE).enqueue_many([b"%d" % number for number in range(BATCHES * BATCH_ROWS)])
    settings = msgspec.json.encode({JAVA_OPTIONS: f"{QUICK} -XX:ArchiveClassesAtExit={archive}"}).decode()
    with Program("driver", ["-m", DRIVER], folder=folder) as program:
        flags = ["--servers", cluster.addresses, "--folder", str(folder), "--batches", str(BATCHES)]
        program.launch(*flags, "--settings", settings)
        _wait_ended(program)
    return {JAVA_OPTIONS: f"{QUICK} -XX:SharedArchiveFile={archive}"} if archive.exists() else {}


def _wait_ended(program: Program) -> None:
    """Its JVM, too, which writes the archive after Python has ended."""
    below = list[int]()

    def ended() -> bool:
        if program.alive:
            below[:] = processes.descendants(program.pid) or below
            return False
        return not any(os.path.exists(f"/proc/{pid}") for pid in below)

    try:
        wait_until(ended, timeout_s=LEARNED_S, what=program.last_words)
    finally:
        processes.kill(*below)

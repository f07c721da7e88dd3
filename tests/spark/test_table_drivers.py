"""Drivers that commit batch after batch and are killed with -9 at any moment, for every table. No JVM is used."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.unit.spark.table_rows import SCHEMA

from avow.spark.tables.tables import open_store
from avow.spark.tables.version_ranges import LANES, archived_ends

LIVES = 3

_DRIVER = """
import itertools, sys

sys.path.insert(0, sys.argv[3])
from tests.unit.spark.table_rows import append, rows
from avow.spark.tables.tables import open_store

store = open_store(sys.argv[1])
for version in itertools.count(int(sys.argv[2])):
    first = 10 * version + 1
    append(store, rows(first, first + 4), rows(first + 5, first + 9), version=version)
    sys.stdout.write(f"{version}\\n")
    sys.stdout.flush()
"""


@pytest.fixture(params=["delta", "parquet", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param != "postgresql":
        return f"{request.param}:{tmp_path}/t"
    return f"{request.getfixturevalue('postgres_server').dsn}?table=orders_{tmp_path.name}"


def life_of_a_driver(url: str, *, first: int, batches: int) -> int:
    """Starts with batch `first`, as its checkpoint would say, and dies some time after `batches` of them. Answers the
    last batch that it knew to be committed: the table may hold one more."""
    root = str(Path(__file__).parents[2])
    command = [sys.executable, "-c", _DRIVER, url, str(first), root]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as driver:
        assert driver.stdout is not None
        known = [int(driver.stdout.readline()) for _ in range(batches)]
        driver.send_signal(signal.SIGKILL)
        known += [int(line) for line in driver.stdout if line.endswith("\n")]
    return known[-1]


def test_a_driver_killed_at_any_moment_neither_loses_nor_duplicates_rows(url: str) -> None:
    store = open_store(url)
    store.prepare(SCHEMA, partition_by=None if url.startswith("postgresql") else LANES)
    known = -1
    for life in range(LIVES):
        known = life_of_a_driver(url, first=known + 1, batches=2 + life)
    last = store.committed("query")
    assert last in (known, known + 1)
    assert store.count() == 10 * (last + 1)
    assert archived_ends(store.ranges()) == {("orders", 0): 10 * (last + 1)}

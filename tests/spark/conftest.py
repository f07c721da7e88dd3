"""One Spark session for all files that a worker runs; every Spark starts with a third of the work (class_archive.py).

The session is not stopped between files, nor while the worker runs tests of other folders. A file that needs other
settings ends the JVM before and after its tests (java.py).

Programs that tests start inherit it; what Avow itself sets for Spark stays as it is. `make` has made the archive;
without it the tests only take longer.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.spark.class_archive import SHORT_LIFE, options

from avow.spark.session import session

os.environ.setdefault("SPARK_SUBMIT_OPTS", options(Path(sys.prefix) / "spark.jsa"))
os.environ.setdefault("SPARK_LAUNCHER_OPTS", SHORT_LIFE)


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> SparkSession:
    """A task has three attempts: the number after the cores. If a file has ended the session, this starts another."""
    settings = {
        "spark.driver.memory": "1g",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(tmp_path_factory.getbasetemp() / "warehouse"),
    }
    made = session("tests", master="local[2,3]", config=settings)
    made.sparkContext.setLogLevel("OFF")
    return made

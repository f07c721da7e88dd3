"""A Spark session on this machine, with the settings that suit.

What is set, and why:

    PYSPARK_PYTHON           tasks run in this very Python, where Avow is installed
    JAVA_HOME                a Java that Spark runs on, found before Spark looks for one
    checkpoints              Spark's default manager starts a process for each file; renaming is enough on a local disk
    Arrow                    on, also for rows that leave for pandas
    daemon                   workers start sooner and do not look for garbage in what was imported; see `daemon`
    UI                       off: it takes a port and a second of every start
    Arrow's checks           off in the JVM: each access to a value checks its bounds and its null otherwise, a tenth of
                             what a read costs; Spark checks for nulls itself

Everything can be overridden through `config`. A session that exists already in this process is what Spark gives back,
with its own settings.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from avow.spark.java import find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CHECKPOINT_MANAGER: Final = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)

ARROW_UNCHECKED: Final = "-Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false"

DAEMON: Final = "avow.spark.daemon"
SETTINGS: Final[Mapping[str, str]] = {
    "spark.python.daemon.module": DAEMON,
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.streaming.checkpointFileManagerClass": CHECKPOINT_MANAGER,
    "spark.driver.extraJavaOptions": ARROW_UNCHECKED,
    "spark.executor.extraJavaOptions": ARROW_UNCHECKED,
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
}


def session(name: str = "avow", *, master: str = "local[*]", config: Mapping[str, str] | None = None) -> SparkSession:
    """A session with Avow's source and sink in it. Raises NoJava where Spark could not start."""
    from pyspark.sql import SparkSession

    os.environ.setdefault("JAVA_HOME", str(find_java().home))
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    local = {} if master.startswith("local") else {"spark.driver.bindAddress": "", "spark.driver.host": ""}
    builder = SparkSession.builder.appName(name).master(master)
    for key, value in {**SETTINGS, **local, **(config or {})}.items():
        if value:
            builder = builder.config(key, value)
    made: SparkSession = builder.getOrCreate()
    return made


def register(spark: SparkSession) -> None:
    """Only where Spark does not find `pyspark_avow` on its own: a path that was put together by hand."""
    from avow.spark.source import AvowSource

    spark.dataSource.register(AvowSource)

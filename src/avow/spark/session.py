"""A Spark session on this machine with suitable settings.

    PYSPARK_PYTHON           this Python, in which Avow is installed, so that tasks run in it
    JAVA_HOME                a Java that Spark supports, found before Spark looks for one
    checkpoints              Spark's default manager starts a process for each file; on a local disk a rename is enough
    Arrow                    on, also for conversion to pandas
    daemon                   faster start and cheaper garbage collection of workers; see `daemon`
    UI                       off: it takes a port and one second at every start
    Arrow's checks           off in the JVM: bounds and null checks at each access are a tenth of the cost of a read,
                             and Spark checks for nulls itself

`config` overrides any of them. If this process already has a session, Spark returns that one with its own settings.
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
    """A Spark session with Avow's source and sink. Raises NoJava if there is no Java that Spark supports."""
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
    """Register the source by hand. Only needed if `pyspark_avow` is not on Spark's Python path."""
    from avow.spark.source.data_source import AvowSource

    spark.dataSource.register(AvowSource)

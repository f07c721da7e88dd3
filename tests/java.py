"""The JVM that PySpark starts in this process, ended.

It outlives the session that it was started for, and keeps two things of that moment for all that follow: the folder
that relative paths are in, and the first session's settings, as defaults. Files of tests that run in one process would
get those of another file.
"""

from __future__ import annotations

from pyspark import SparkContext

END_S = 60.0


def end_java() -> None:
    """Empty if there is no Java."""
    if (context := SparkContext._active_spark_context) is not None:
        context.stop()
    gateway = SparkContext._gateway
    if gateway is None:
        return
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(END_S)
    SparkContext._gateway = SparkContext._jvm = None

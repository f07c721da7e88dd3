"""Avow in Spark: a source, a sink, tables and pipelines, all through PySpark.

    spark.read.format("avow").option("servers", ...).option("subscribe", "orders").load()

works as soon as Avow is installed, since Spark finds `pyspark_avow`. `session` creates a Spark session on this machine
with suitable settings; `register` is for a session whose Python path lacks that module. Modules that need no JVM
(options, offsets, planning, rows, tables) do not start one, and PySpark is imported only where it is used.
"""

from __future__ import annotations

from importlib.util import find_spec

from avow.errors import NotInstalled

if find_spec("pyspark") is None:
    raise NotInstalled("Spark", extra="spark")

from avow.spark.session import register, session

__all__ = ["register", "session"]

"""Avow in Spark: a source, a sink, tables and pipelines, all through PySpark.

    spark.read.format("avow").option("servers", ...).option("subscribe", "orders").load()

needs nothing but an installation, since Spark finds `pyspark_avow`. `session` makes a Spark session on this machine
with the settings that suit; `register` is for a session whose Python path lacks the module. What needs no JVM (options,
offsets, planning, rows, tables) imports without starting one, and PySpark is imported where it is used.
"""

from __future__ import annotations

from importlib.util import find_spec

from avow.errors import NotInstalled

if find_spec("pyspark") is None:
    raise NotInstalled("Spark", extra="spark")

from avow.spark.session import register, session

__all__ = ["register", "session"]

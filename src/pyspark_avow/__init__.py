"""Registers Avow's data source: Spark finds modules whose names begin with `pyspark_` and that have a `DefaultSource`.

So `spark.read.format("avow")` works without a registration, wherever Avow is installed.
"""

from __future__ import annotations

from avow.spark.source.data_source import AvowSource as DefaultSource

__all__ = ["DefaultSource"]

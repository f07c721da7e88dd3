"""Found by Spark on its own: a module whose name begins with `pyspark_` and that has a `DefaultSource`.

So `spark.read.format("avow")` works without a registration, wherever Avow is installed.
"""

from __future__ import annotations

from avow.spark.source import AvowSource as DefaultSource

__all__ = ["DefaultSource"]

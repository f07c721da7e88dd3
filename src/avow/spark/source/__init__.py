"""`spark.read.format("avow")`: queues as rows, in batches and streams."""

from typing import TYPE_CHECKING

from avow.moved import moved_names

if not TYPE_CHECKING:
    __getattr__ = moved_names(__name__)

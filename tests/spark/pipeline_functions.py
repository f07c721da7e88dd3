"""Functions that the tests' pipelines name, as an application would have them in the folder of its files."""

from __future__ import annotations

import json
from typing import Any

from pyspark.sql import DataFrame

from avow.spark.pipelines import Message


def priced(message: Message) -> dict[str, Any] | None:
    """Fails for invalid JSON and for a price that is not a number; drops rows with price 0."""
    order = json.loads(message.value)
    if order["price"] == 0:
        return None
    return {"id": order["id"], "price": order["price"], "version": message.version}


def doubled(message: Message) -> list[bytes]:
    if message.value == b"bad":
        raise ValueError("this one is bad")
    return [message.value + b"-1", message.value + b"-2"]


def loud(rows: DataFrame) -> DataFrame:
    return rows.selectExpr("key", "upper(string(value)) AS value")

"""Converts a statement's result into rows for the sink and into dead letters.

A statement (SQL, a function of DataFrames, a function of messages) returns rows. Columns whose names begin with `_` are
for the pipeline, the others are the result:

    _error      why this row failed; null if it did not           only with a dead-letter queue
    _value      value of the dead letter; default: `value`, else all columns of the result as JSON
    _key, _headers, _source     its key and headers, and the place of the source message, as text

For a queue the result has `value`, and may have `key`, `headers`, `timestamp`, and `lane` (an int). The source's
columns `topic`, `partition`, `offset` and `timestampType` are dropped, so that `SELECT *` works. A table gets every
column as it is.

A dead letter has two additional headers: `error`, and `source` if it is known. Good rows and dead letters of a queue
are one write with two topics, published as one transaction.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from avow.errors import InvalidRequest

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

RESERVED: Final = ("_error", "_value", "_key", "_headers", "_source")
OF_THE_SOURCE: Final = ("topic", "partition", "offset", "timestampType")
HEADERS_TYPE: Final = "array<struct<key:string,value:binary>>"


def check_result(columns: list[str], *, dead_letters: str) -> None:
    """Raises InvalidRequest. Pure."""
    unknown = [name for name in columns if name.startswith("_") and name not in RESERVED]
    if unknown:
        raise InvalidRequest(
            f"the statement returns {', '.join(unknown)}, but names with _ are reserved for {', '.join(RESERVED)}; "
            "nothing was started. Rename the column"
        )
    if dead_letters and "_error" not in columns:
        raise InvalidRequest(
            "dead_letters is set, but the statement returns no column _error, which marks failed rows; nothing was "
            "started"
        )
    if "_error" in columns and not dead_letters:
        raise InvalidRequest(
            "the statement returns a column _error, but there is no queue for failed rows; nothing was started. Set "
            "dead_letters"
        )


def table_rows(result: DataFrame) -> DataFrame:
    """The good rows, with the columns of the table."""
    good = result.where("_error IS NULL") if "_error" in result.columns else result
    return good.drop(*RESERVED)


def messages(result: DataFrame, *, queue: str, dead_letters: str) -> DataFrame:
    """Rows for the sink, each with its topic: the queue or the dead-letter queue."""
    from pyspark.sql import functions as F

    good = _good(result).withColumn("topic", F.lit(queue))
    if not dead_letters:
        return good
    dead = _dead(result)
    failed = F.col("_error").isNotNull()
    chosen = {
        name: F.when(failed, _or_null(dead.get(name), name)).otherwise(_or_null(_good_columns(result).get(name), name))
        for name in ("value", "key", "headers", "timestamp", "partition")
        if name in dead or name in _good_columns(result)
    }
    topic = F.when(failed, F.lit(dead_letters)).otherwise(F.lit(queue))
    return result.select(*(column.alias(name) for name, column in chosen.items()), topic.alias("topic"))


def dead_messages(result: DataFrame, *, dead_letters: str) -> DataFrame:
    """Only the failed rows."""
    from pyspark.sql import functions as F

    columns = [column.alias(name) for name, column in _dead(result).items()]
    return result.where("_error IS NOT NULL").select(*columns, F.lit(dead_letters).alias("topic"))


def _good(result: DataFrame) -> DataFrame:
    return result.select(*(column.alias(name) for name, column in _good_columns(result).items()))


def _good_columns(result: DataFrame) -> dict[str, Column]:
    """Columns under the names that the sink uses. The sink refuses unknown ones."""
    from pyspark.sql import functions as F

    found: dict[str, Column] = {}
    for name in result.columns:
        if name in OF_THE_SOURCE or name in RESERVED:
            continue
        column = F.col(f"`{name}`")
        match name:
            case "value" | "key":
                found[name] = column.cast("binary")
            case "lane":
                found["partition"] = column.cast("int")
            case _:
                found[name] = column
    if "value" not in found:
        raise InvalidRequest(
            "the statement returns no column value, the content of a message; nothing was started. Add one, such as "
            "to_json(struct(*)) AS value"
        )
    return found


def _dead(result: DataFrame) -> dict[str, Column]:
    from pyspark.sql import functions as F

    columns = result.columns
    own = [F.col(f"`{name}`") for name in columns if name not in RESERVED]
    spare = F.col("value") if "value" in columns else F.to_json(F.struct(*own))
    value = F.coalesce(F.col("_value").cast("binary"), spare.cast("binary")) if "_value" in columns else spare
    found = {"value": F.coalesce(value.cast("binary"), F.lit(b""))}
    for name, given in (("key", "_key"), ("key", "key"), ("timestamp", "timestamp")):
        if given in columns and name not in found:
            found[name] = F.col(given).cast("binary") if name == "key" else F.col(given)
    found["headers"] = _dead_headers(columns)
    return found


def _dead_headers(columns: list[str]) -> Column:
    from pyspark.sql import functions as F

    given = next((name for name in ("_headers", "headers") if name in columns), None)
    empty = F.array().cast(HEADERS_TYPE)
    parts = [F.coalesce(F.col(given).cast(HEADERS_TYPE), empty)] if given else []
    parts.append(_header("error", F.col("_error")))
    if "_source" in columns:
        parts.append(F.when(F.col("_source").isNotNull(), _header("source", F.col("_source"))).otherwise(empty))
    return F.concat(*parts)


def _header(name: str, text: Column) -> Column:
    from pyspark.sql import functions as F

    pair = F.struct(F.lit(name).alias("key"), text.cast("string").cast("binary").alias("value"))
    return F.array(pair).cast(HEADERS_TYPE)


def _or_null(column: Column | None, name: str) -> Column:
    from pyspark.sql import functions as F

    kinds = {"value": "binary", "key": "binary", "partition": "int", "timestamp": "timestamp", "headers": HEADERS_TYPE}
    return F.lit(None).cast(kinds[name]) if column is None else column.cast(kinds[name])

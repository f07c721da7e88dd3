"""`row = "module:function"`: a function of one message that runs in Spark's tasks; failures become dead letters.

    def price(message: Message) -> Row | Iterable[Row] | None

A Row is bytes or text (the value; key, headers and time are kept) or a mapping: for a queue with `value` and optionally
`key`, `headers`, `lane`; for a table with its columns. None drops the message, a list produces several rows.

An exception, or a result that does not fit the columns, is an error of this message only. Without a dead-letter queue
it ends the batch, and the error names the message.

The function must be deterministic: a batch that is repeated after a crash must produce the same rows.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from avow.errors import InvalidRequest
from avow.spark.pipelines.result_rows import HEADERS_TYPE

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

MESSAGE_COLUMNS: Final = f"value binary, key binary, headers {HEADERS_TYPE}, timestamp timestamp, lane int"
OF_DEAD_LETTERS: Final = f"_error string, _value binary, _key binary, _headers {HEADERS_TYPE}, _source string"
ERROR_CHARS: Final = 2_000


class Message(Struct, frozen=True):
    value: bytes
    key: bytes | None
    headers: tuple[tuple[str, bytes], ...]
    queue: str
    lane: int
    version: int
    time_ms: int


def load_function(name: str, folder: str) -> Callable[..., Any]:
    """Modules are first searched in the pipeline's folder. Raises InvalidRequest."""
    module, _, function = name.partition(":")
    if folder and folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        found = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as cause:
        raise InvalidRequest(f"{name} cannot be loaded: {cause}; nothing was started") from cause
    if not callable(found):
        raise InvalidRequest(f"{name} is not a function but {type(found).__name__}; nothing was started")
    return found  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True)
class RowFunction:
    """The function that tasks run; Spark pickles it. `catches`: failures become rows with an `_error`."""

    name: str
    folder: str
    schema: StructType
    for_table: bool
    catches: bool

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa
        from pyspark.sql.pandas.types import to_arrow_schema

        schema = to_arrow_schema(self.schema, timezone="UTC")
        function = load_function(self.name, self.folder)
        for batch in batches:
            made = [(message, self._rows(function, message, schema)) for message in _messages(batch)]
            try:
                yield _as_batch([row for _, rows in made for row in rows], schema)
            except (pa.ArrowException, TypeError, ValueError, OverflowError):
                yield self._one_by_one(made, schema)

    def _rows(self, function: Callable[..., Any], message: Message, schema: pa.Schema) -> list[dict[str, Any]]:
        try:
            return [self._row(one, message, schema) for one in _several(function(message))]
        except Exception as error:  # the user's function may raise anything
            return self._failed(message, error)

    def _one_by_one(self, made: list[tuple[Message, list[dict[str, Any]]]], schema: pa.Schema) -> pa.RecordBatch:
        """Some result does not fit the columns: find the messages with such results."""
        import pyarrow as pa

        kept: list[dict[str, Any]] = []
        for message, rows in made:
            try:
                _as_batch(rows, schema)
            except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
                rows = self._failed(message, error)
            kept += rows
        return _as_batch(kept, schema)

    def _failed(self, message: Message, error: Exception) -> list[dict[str, Any]]:
        if not self.catches:
            error.add_note(f"in {self.name}, for message {_place(message)}; dead_letters is not set")
            raise error
        return [_dead(message, error)]

    def _row(self, result: Any, message: Message, schema: pa.Schema) -> dict[str, Any]:
        if self.for_table:
            return _of_table(result, schema)
        own = {"value": result} if isinstance(result, bytes | bytearray | memoryview | str) else dict(result)
        if unknown := sorted(set(own) - {"value", "key", "headers", "lane"}):
            raise InvalidRequest(f"a message has only value, key, headers and lane, not {', '.join(unknown)}")
        if own.get("value") is None:
            raise InvalidRequest("a message needs a value")
        headers: Any = own.get("headers", message.headers)
        pairs: Iterable[Any] = headers.items() if isinstance(headers, Mapping) else headers or ()
        return {
            "value": _bytes(own["value"]),
            "key": _bytes(own.get("key", message.key)),
            "headers": [{"key": name, "value": _bytes(value)} for name, value in pairs],
            "timestamp": message.time_ms * 1000,
            "lane": own.get("lane"),
        }


def _of_table(result: Any, schema: pa.Schema) -> dict[str, Any]:
    row = dict(result)
    names = [name for name in schema.names if not name.startswith("_")]
    if unknown := sorted(set(row) - set(names)):
        raise InvalidRequest(f"the table has the columns {', '.join(names)}, but not {', '.join(unknown)}")
    return row


def _messages(batch: pa.RecordBatch) -> Iterator[Message]:
    import pyarrow as pa

    names = ("value", "key", "topic", "partition", "offset")
    times = batch.column("timestamp").cast(pa.timestamp("ms", tz="UTC")).cast(pa.int64()).to_pylist()
    headers = batch.column("headers").to_pylist() if "headers" in batch.schema.names else [None] * batch.num_rows
    columns = [batch.column(name).to_pylist() for name in names]
    for value, key, queue, lane, version, time_ms, pairs in zip(*columns, times, headers, strict=True):
        own = tuple((pair["key"], pair["value"]) for pair in pairs or ())
        yield Message(value, key, own, queue, lane, version, time_ms)


def _several(result: Any) -> Iterable[Any]:
    if result is None:
        return ()
    return (result,) if isinstance(result, bytes | bytearray | memoryview | str | Mapping) else result


def _bytes(value: Any) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    return value.encode() if isinstance(value, str) else bytes(memoryview(value))


def _dead(message: Message, error: BaseException) -> dict[str, Any]:
    return {
        "_error": f"{type(error).__name__}: {error}"[:ERROR_CHARS],
        "_value": message.value,
        "_key": message.key,
        "_headers": [{"key": name, "value": value} for name, value in message.headers],
        "_source": _place(message),
    }


def _place(message: Message) -> str:
    return f"{message.queue}/{message.lane}/{message.version}"


def _as_batch(rows: list[dict[str, Any]], schema: pa.Schema) -> pa.RecordBatch:
    import pyarrow as pa

    columns = [pa.array([row.get(field.name) for row in rows], field.type) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)

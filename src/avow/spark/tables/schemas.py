"""The schema of a table's rows, and the check whether other rows fit it.

The types of Spark's Arrow batches depend on its session: the time zone of timestamps, large or small strings,
nullability. A table must not depend on the writer's session, so rows are first normalized: microseconds in UTC, small
offsets, every column nullable. Nothing else is converted: rows of other types are refused with the names of the
columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from avow.errors import InvalidRequest, NotInstalled

try:
    import pyarrow as pa
except ImportError:
    pa = None

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


def require_pyarrow() -> None:
    if pa is None:
        raise NotInstalled("a table's rows", extra="spark")


def normal(schema: pa.Schema) -> pa.Schema:
    return pa.schema([pa.field(field.name, _normal_type(field.type)) for field in schema])


def _normal_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", tz=None if kind.tz is None else "UTC")
    if pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_large_binary(kind):
        return pa.binary()
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(each.name, _normal_type(each.type)) for each in kind])
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(pa.field("element", _normal_type(kind.value_type)))
    if pa.types.is_map(kind):
        return pa.map_(_normal_type(kind.key_type), _normal_type(kind.item_type))
    return kind


def from_spark(schema: StructType) -> pa.Schema:
    from pyspark.sql.pandas.types import to_arrow_schema

    require_pyarrow()
    return normal(to_arrow_schema(schema, timezone="UTC"))


def to_spark(schema: pa.Schema) -> StructType:
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(schema)


def check_fits(rows: pa.Schema, *, table: pa.Schema, where: str) -> None:
    """Raises InvalidRequest unless the rows have the table's columns and types, in any order."""
    found, wanted = (dict(zip(schema.names, schema.types, strict=True)) for schema in (normal(rows), normal(table)))
    wrong = [f"{name} is missing" for name in wanted if name not in found]
    wrong += [f"{name} is not in the table" for name in found if name not in wanted]
    wrong += [
        f"{name} is {found[name]}, but {kind} in the table"
        for name, kind in wanted.items()
        if name in found and not _same(found[name], kind)
    ]
    if wrong:
        raise InvalidRequest(f"these rows do not fit {where}: {'; '.join(wrong)}. Nothing was written")


def _same(one: pa.DataType, other: pa.DataType) -> bool:
    """Whether two types are equal, ignoring the names of a map's inner fields, which differ between libraries."""
    if pa.types.is_map(one) and pa.types.is_map(other):
        return _same(one.key_type, other.key_type) and _same(one.item_type, other.item_type)
    if pa.types.is_list(one) and pa.types.is_list(other):
        return _same(one.value_type, other.value_type)
    if pa.types.is_struct(one) and pa.types.is_struct(other):
        return one.names == other.names and all(_same(a.type, b.type) for a, b in zip(one, other, strict=True))
    return bool(one.equals(other))


def check_partitions(names: Sequence[str], schema: pa.Schema) -> None:
    for name in names:
        if name not in schema.names:
            raise InvalidRequest(f"the rows have no column {name} to partition by; nothing was written")
        kind = schema.field(name).type
        fit = (pa.types.is_string, pa.types.is_integer, pa.types.is_date32, pa.types.is_boolean)
        if not any(is_kind(kind) for is_kind in fit):
            raise InvalidRequest(
                f"column {name} is {kind}, but only strings, integers, dates and booleans can partition a table; "
                "nothing was written"
            )
    if names and len(set(names)) == len(schema.names):
        raise InvalidRequest("a table cannot be partitioned by all of its columns; nothing was written")

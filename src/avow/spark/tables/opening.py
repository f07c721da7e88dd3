"""The store behind a table's URL. Only its own libraries are imported: Spark opens one anew for each commit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeAlias, Union

from avow.spark.tables.address import Address, Kind, parse

if TYPE_CHECKING:
    from avow.spark.tables.delta import DeltaStore
    from avow.spark.tables.parquet import ParquetStore
    from avow.spark.tables.postgres import PostgresStore

FolderStore: TypeAlias = Union["DeltaStore", "ParquetStore"]
AnyStore: TypeAlias = Union["DeltaStore", "ParquetStore", "PostgresStore"]


def open_store(url: str, options: Mapping[str, str] | None = None) -> AnyStore:
    """Opens nothing yet: a missing table or server is told by the first use."""
    return store_of(parse(url, options))


def store_of(address: Address) -> AnyStore:
    if address.kind is Kind.DELTA:
        from avow.spark.tables.delta import DeltaStore

        return DeltaStore(address)
    if address.kind is Kind.PARQUET:
        from avow.spark.tables.parquet import ParquetStore

        return ParquetStore(address)
    from avow.spark.tables.postgres import PostgresStore

    return PostgresStore(address)

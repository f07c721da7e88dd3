from __future__ import annotations

from pathlib import Path

import pytest

from avow.errors import InvalidRequest
from avow.spark.tables.address import Kind, parse


def test_a_delta_and_a_parquet_url_name_a_folder(tmp_path: Path) -> None:
    assert parse(f"delta:{tmp_path}/t").kind is Kind.DELTA
    assert parse(f"parquet:file://{tmp_path}/a%20b").place == f"{tmp_path}/a b"


def test_a_path_that_is_a_table_needs_no_scheme(tmp_path: Path) -> None:
    (tmp_path / "d" / "_delta_log").mkdir(parents=True)
    (tmp_path / "p" / "_avow").mkdir(parents=True)
    (tmp_path / "p" / "_avow" / "table.json").touch()
    assert parse(f"{tmp_path}/d").kind is Kind.DELTA
    assert parse(f"file:{tmp_path}/p").kind is Kind.PARQUET


def test_the_table_of_a_database_is_taken_out_of_its_url() -> None:
    found = parse("postgresql://me:word@host:5433/db?sslmode=require&table=sales.orders")
    assert (found.schema, found.table) == ("sales", "orders")
    assert found.place == "postgresql://me:word@host:5433/db?sslmode=require"
    assert parse("postgres://host/db?table=orders").schema == "public"


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("mysql://host/db", "mysql"),
        ("delta:s3://bucket/t", "s3"),
        ("delta:", "no path"),
        ("/nowhere/at/all", "must name the kind"),
        ("postgresql://me:word@host/db", r"\?table=schema.name"),
        ("postgresql://host/db?table=a.b.c", "a.b.c"),
        ("postgresql://host/db?table=.c", "not a valid table name"),
    ],
)
def test_an_invalid_url_is_refused_with_the_reason(url: str, expected: str) -> None:
    with pytest.raises(InvalidRequest, match=expected) as raised:
        parse(url)
    assert "word" not in str(raised.value)


def test_unknown_options_are_named() -> None:
    assert parse("delta:/t", {"Compression": "snappy"}).compression == "snappy"
    with pytest.raises(InvalidRequest, match="compresion"):
        parse("delta:/t", {"compresion": "snappy"})
    with pytest.raises(InvalidRequest, match="zstd, snappy, none"):
        parse("delta:/t", {"compression": "best"})
    with pytest.raises(InvalidRequest, match="known here: none"):
        parse("postgresql://host/db?table=t", {"compression": "zstd"})

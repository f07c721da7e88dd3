"""Meaning of database errors, supported connections, and the text of the migrations."""

from __future__ import annotations

import sqlite3

import psycopg
import pymysql
import pytest
from sqlalchemy.exc import DBAPIError

from avow.barrier.db_connection import DbApiSession
from avow.barrier.dialects import MYSQL, POSTGRESQL, SQLITE, Dialect, dialect_of, trouble_of
from avow.barrier.schema import migration
from avow.barrier.sql import Barrier, check_back, create_table
from avow.errors import InvalidRequest


def sqlite_error(code: int) -> sqlite3.OperationalError:
    error = sqlite3.OperationalError("of SQLite")
    error.sqlite_errorcode = code
    return error


@pytest.mark.parametrize(
    ("error", "dialect", "trouble"),
    [
        (psycopg.errors.LockNotAvailable(), POSTGRESQL, "locked"),
        (psycopg.errors.DeadlockDetected(), POSTGRESQL, "deadlock"),
        (psycopg.errors.UndefinedTable(), POSTGRESQL, ""),
        (psycopg.OperationalError("connection lost"), POSTGRESQL, ""),
        (pymysql.err.OperationalError(1205, "wait"), MYSQL, "locked"),
        (pymysql.err.OperationalError(3572, "nowait"), MYSQL, "locked"),
        (pymysql.err.OperationalError(1213, "deadlock"), MYSQL, "deadlock"),
        (pymysql.err.IntegrityError(1062, "duplicate"), MYSQL, "duplicate"),
        (pymysql.err.OperationalError(2013, "lost"), MYSQL, ""),
        (pymysql.err.InterfaceError(), MYSQL, ""),
        (sqlite_error(sqlite3.SQLITE_BUSY), SQLITE, "locked"),
        (sqlite_error(sqlite3.SQLITE_BUSY_SNAPSHOT), SQLITE, "locked"),
        (sqlite_error(sqlite3.SQLITE_LOCKED), SQLITE, "locked"),
        (sqlite_error(sqlite3.SQLITE_FULL), SQLITE, ""),
        (sqlite3.ProgrammingError("closed"), SQLITE, ""),
    ],
)
def test_an_error_is_recognized_directly_and_wrapped_by_sqlalchemy(
    error: Exception, dialect: Dialect, trouble: str
) -> None:
    assert trouble_of(error, dialect) == trouble
    assert trouble_of(DBAPIError("statement", {}, error), dialect) == trouble


def test_mariadb_is_mysql_and_others_are_refused() -> None:
    assert dialect_of("mariadb") is dialect_of("mysql") is MYSQL
    with pytest.raises(InvalidRequest, match="oracle"):
        dialect_of("oracle")


@pytest.mark.parametrize("table", ["barrier", "own.rows_2", "_a"])
def test_valid_table_names_are_accepted(table: str) -> None:
    assert SQLITE.on(table).table == table


@pytest.mark.parametrize("table", ["a.b.c", "a b", "a;b", "a'b", "1a", "a.", ".a", "ä", "a\n"])
def test_an_invalid_table_name_is_refused(table: str) -> None:
    with pytest.raises(InvalidRequest):
        SQLITE.on(table)


def test_a_migration_names_schema_table_and_the_unique_key_as_dtm_does() -> None:
    text = migration("postgresql")
    assert text.startswith("create schema if not exists dtm_barrier;\n")
    assert "constraint uniq_barrier unique (gid, branch_id, op, barrier_id)" in text
    assert "create database if not exists dtm_barrier" in migration("mysql")
    assert "utf8mb4_nopad_bin" in migration("mariadb")
    assert "create schema" not in migration("postgresql", table="own")
    assert "create database" not in migration("mysql", table="own")
    assert migration("sqlite").startswith("create table if not exists barrier (")


def test_an_object_that_is_not_a_connection_is_refused() -> None:
    for wrong in (None, "sqlite://", object()):
        with pytest.raises(InvalidRequest, match="nothing was done"):
            DbApiSession(wrong)


def test_a_connection_of_an_unknown_driver_is_refused() -> None:
    class Connection:
        def commit(self) -> None: ...

    with pytest.raises(InvalidRequest, match="are not supported, only those of sqlite3, psycopg"):
        DbApiSession(Connection())


def test_a_subclass_of_a_known_connection_is_recognized() -> None:
    class Own(sqlite3.Connection):
        pass

    connection = sqlite3.connect(":memory:", factory=Own)
    create_table(connection)
    with Barrier("g").transaction(connection):
        pass
    assert check_back(connection, "g") == "SUCCESS"
    connection.close()

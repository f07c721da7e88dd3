"""The barrier's table: made in one call or by a migration, shared with dtm, and cleaned up without losing a verdict."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import psycopg
import pymysql
import pytest
from tests.integration.barrier_databases import Database, MariaDB, PostgreSQL, new_gid

from avow.barrier.cleanup import clean_up_rows
from avow.barrier.db_connection import DbApiSession, Outcome
from avow.barrier.dialects import Trouble
from avow.barrier.key import HORIZON_MIN_S, MARGIN_S, START_S, Verdict
from avow.barrier.schema import migration, upgrade
from avow.barrier.sql import Barrier, check_back, clean_up, create_table
from avow.errors import AlreadyDecided, InvalidRequest, Trimmed

ON_ALL = pytest.mark.parametrize("kind", ["sqlite", "postgresql", "mariadb"])
ON_POSTGRESQL = pytest.mark.parametrize("kind", ["postgresql"])
ON_MARIADB = pytest.mark.parametrize("kind", ["mariadb"])
DAY_S = 24 * 3600


def new_table(database: Database) -> str:
    """A new table: a clean-up leaves a mark for all users of the table."""
    schema = {"sqlite": "", "postgresql": f"s{time.time_ns()}.", "mysql": "avow."}[database.dialect]
    return f"{schema}barrier_{time.time_ns()}"


def now_ms(*, ago_s: float = 0) -> int:
    return int((time.time() - ago_s) * 1000)


@ON_ALL
def test_any_number_of_services_can_create_the_table_at_once(database: Database) -> None:
    table, failed = new_table(database), []

    def create(connection: Any) -> None:
        try:
            create_table(connection, table=table)
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=create, args=(database.connect(),)) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert failed == []
    assert check_back(database.connect(), new_gid(), table=table) is Verdict.FAILURE


@ON_ALL
def test_the_printed_migration_makes_the_same_table(database: Database) -> None:
    connection, gid, table = database.connect(), new_gid(), new_table(database)
    for _ in range(2):
        for statement in migration(database.dialect, table=table).split(";"):
            if statement.strip():
                database.do(connection, statement)
    with Barrier(gid, table=table).transaction(connection):
        pass
    assert check_back(connection, gid, table=table) is Verdict.SUCCESS


@ON_POSTGRESQL
def test_a_user_without_the_right_to_create_can_use_an_existing_table(database: PostgreSQL) -> None:
    connection, user = database.connect(), f"u{time.time_ns()}"
    database.do(connection, f"create role {user} login")
    database.do(connection, f"grant usage on schema dtm_barrier to {user}")
    database.do(connection, f"grant select, insert on dtm_barrier.barrier to {user}")
    database.do(connection, f"grant usage on dtm_barrier.barrier_seq to {user}")
    with psycopg.connect(database.url().replace("postgres@", f"{user}@")) as limited:
        create_table(limited)
        assert check_back(limited, new_gid()) is Verdict.FAILURE


@ON_MARIADB
def test_a_user_with_few_rights_can_use_an_existing_table(database: MariaDB) -> None:
    connection, user = database.connect(), f"u{time.time_ns()}"
    database.do(connection, f"create user {user}@'127.0.0.1'")
    database.do(connection, f"grant select, insert, update on dtm_barrier.* to {user}@'127.0.0.1'")
    limited = pymysql.connect(host="127.0.0.1", port=connection.port, user=user)
    create_table(limited)
    assert check_back(limited, new_gid()) is Verdict.FAILURE
    limited.close()


@ON_POSTGRESQL
def test_a_table_created_by_dtm_is_used_unchanged(database: PostgreSQL) -> None:
    connection, gid, table = database.connect(), new_gid(), f"dtm{time.time_ns()}.barrier"
    schema = table.partition(".")[0]
    database.do(connection, f"create schema {schema}")
    database.do(connection, f"create sequence {table}_seq")
    columns = "trans_type varchar(45), gid varchar(128), branch_id varchar(128), op varchar(45), barrier_id varchar(45)"
    times = "create_time timestamp(0) with time zone default null, update_time timestamp(0) with time zone default null"
    database.do(
        connection,
        f"create table {table} (id bigint not null default nextval('{table}_seq'), {columns}, reason varchar(45), "
        f"{times}, primary key (id), constraint uniq_barrier unique (gid, branch_id, op, barrier_id))",
    )
    create_table(connection, table=table)
    with Barrier(gid, table=table).transaction(connection):
        pass
    assert check_back(connection, gid, table=table) is Verdict.SUCCESS
    database.do(connection, f"update {table} set create_time = create_time - interval '30 days'")
    assert clean_up(connection, 8 * DAY_S, table=table) == 1


@ON_MARIADB
def test_a_table_that_confuses_ids_is_refused_with_the_statement_that_fixes_it(
    database: MariaDB,
) -> None:
    connection, table = database.connect(), new_table(database)
    database.do(connection, f"create table {table} like dtm_barrier.barrier")
    database.do(connection, f"alter table {table} convert to character set utf8mb4 collate utf8mb4_general_ci")
    with pytest.raises(InvalidRequest, match="utf8mb4_general_ci") as refused:
        create_table(connection, table=table)
    assert upgrade(table) in str(refused.value)
    database.do(connection, upgrade(table))
    create_table(connection, table=table)
    gid = new_gid("Order")
    with Barrier(gid, table=table).transaction(connection):
        pass
    assert check_back(connection, gid.lower(), table=table) is Verdict.FAILURE


def test_an_invalid_table_name_is_refused() -> None:
    connection = sqlite3.connect(":memory:")
    with pytest.raises(InvalidRequest, match="not a valid table name"):
        create_table(connection, table="barrier; drop table works")
    connection.close()


@pytest.fixture
def cleaned(database: Database) -> tuple[Any, str]:
    """A connection, and a table that is cleaned up in the test."""
    connection, table = database.connect(), new_table(database)
    create_table(connection, table=table)
    return connection, table


def commit(connection: Any, table: str, gid: str) -> None:
    with Barrier(gid, table=table).transaction(connection):
        pass


def age(database: Database, connection: Any, table: str, *, days: int) -> None:
    """As if all that is in the table had been written so long ago."""
    earlier = {
        "sqlite": f"datetime(create_time, '-{days} days')",
        "postgresql": f"create_time - interval '{days} days'",
        "mysql": f"create_time - interval {days} day",
    }
    database.do(connection, f"update {table} set create_time = {earlier[database.dialect]}")


@ON_ALL
def test_point_12_expiry_never_turns_committed_into_rolled_back(database: Database, cleaned: tuple[Any, str]) -> None:
    connection, table = cleaned
    gid, never_started = new_gid(), new_gid()
    commit(connection, table, gid)
    age(database, connection, table, days=30)
    assert clean_up(connection, 8 * DAY_S, table=table) == 1
    for prepared_ms in (None, now_ms(ago_s=30 * DAY_S), now_ms(ago_s=8 * DAY_S)):
        for _ in range(2):  # nothing is left behind that a second question would take for an answer
            with pytest.raises(Trimmed):
                check_back(connection, gid, prepared_ms=prepared_ms, table=table)
    assert check_back(connection, never_started, prepared_ms=now_ms(ago_s=60), table=table) is Verdict.FAILURE
    before_mark = now_ms(ago_s=8 * DAY_S - MARGIN_S - 60)
    assert check_back(connection, new_gid(), prepared_ms=before_mark, table=table) is Verdict.FAILURE


class SteppedSession(DbApiSession):
    """Calls `before` ahead of every statement."""

    def __init__(self, connection: Any, *, table: str, before: Callable[[], None]) -> None:
        super().__init__(connection, table=table)
        self._before = before

    def execute(
        self, sql: str, parameters: Mapping[str, Any] | None = None, *, expected: Iterable[Trouble] = ()
    ) -> Outcome:
        self._before()
        return super().execute(sql, parameters, expected=expected)


@ON_ALL
def test_point_12_a_checkback_between_any_statements_of_a_clean_up_never_says_rolled_back(
    database: Database, cleaned: tuple[Any, str]
) -> None:
    connection, table = cleaned
    gid, asking = new_gid(), database.connect()
    verdicts: list[Verdict | None] = []

    def ask() -> None:
        try:
            verdicts.append(check_back(asking, gid, lock_timeout_s=0.02, table=table))
        except Trimmed:
            verdicts.append(None)

    commit(connection, table, gid)
    age(database, connection, table, days=30)
    assert clean_up_rows(SteppedSession(connection, table=table, before=ask), older_than_s=8 * DAY_S) == 1
    ask()
    assert len(verdicts) > 5
    assert verdicts[0] is Verdict.SUCCESS
    assert verdicts[-1] is None
    assert Verdict.FAILURE not in verdicts


@ON_ALL
def test_rows_younger_than_the_horizon_stay_and_keep_their_verdict(
    database: Database, cleaned: tuple[Any, str]
) -> None:
    connection, table = cleaned
    committed, rolled_back, old = new_gid(), new_gid(), new_gid()
    commit(connection, table, old)
    age(database, connection, table, days=9)
    commit(connection, table, committed)
    assert check_back(connection, rolled_back, table=table) is Verdict.FAILURE
    age(database, connection, table, days=7)
    assert clean_up(connection, 8 * DAY_S, table=table) == 1
    assert clean_up(connection, 8 * DAY_S, table=table) == 0
    assert check_back(connection, committed, table=table) is Verdict.SUCCESS
    assert check_back(connection, rolled_back, table=table) is Verdict.FAILURE
    with pytest.raises(AlreadyDecided):
        commit(connection, table, rolled_back)


@ON_ALL
def test_a_horizon_shorter_than_the_least_is_refused(database: Database, cleaned: tuple[Any, str]) -> None:
    connection, table = cleaned
    gid = new_gid()
    commit(connection, table, gid)
    for older_than_s in (0, 3600, HORIZON_MIN_S - 1, -1, float("nan")):
        with pytest.raises(InvalidRequest, match="must be kept"):
            clean_up(connection, older_than_s, table=table)
    assert check_back(connection, gid, table=table) is Verdict.SUCCESS
    assert check_back(connection, new_gid(), table=table) is Verdict.FAILURE


@ON_ALL
def test_the_mark_only_rises(database: Database, cleaned: tuple[Any, str]) -> None:
    connection, table = cleaned
    clean_up(connection, 8 * DAY_S, table=table)
    clean_up(connection, 300 * DAY_S, table=table)
    with pytest.raises(Trimmed):
        check_back(connection, new_gid(), prepared_ms=now_ms(ago_s=9 * DAY_S), table=table)


@ON_ALL
def test_a_clean_up_removes_in_pieces_up_to_its_limit(database: Database, cleaned: tuple[Any, str]) -> None:
    connection, table = cleaned
    values = ", ".join(f"('msg', 'many-{n}', '00', 'msg', '01', 'msg')" for n in range(1200))
    database.do(connection, f"insert into {table} (trans_type, gid, branch_id, op, barrier_id, reason) values {values}")
    age(database, connection, table, days=30)
    assert clean_up(connection, 8 * DAY_S, rows_max=700, table=table) == 700
    assert clean_up(connection, 8 * DAY_S, table=table) == 500
    with pytest.raises(Trimmed):
        check_back(connection, "many-5", table=table)


@ON_ALL
def test_a_branch_of_a_pledge_whose_rows_may_be_gone_is_not_done_again(
    database: Database, cleaned: tuple[Any, str]
) -> None:
    connection, table = cleaned
    query = {"gid": new_gid(), "branch_id": "01", "op": "action", "prepared_ms": str(now_ms(ago_s=30 * DAY_S))}
    assert Barrier.from_query(query, table=table).once(connection)
    connection.commit()
    age(database, connection, table, days=30)
    assert clean_up(connection, 8 * DAY_S, table=table) == 1
    with pytest.raises(Trimmed):
        Barrier.from_query(query, table=table).once(connection)
    connection.rollback()
    assert Barrier.from_query({**query, "prepared_ms": str(now_ms())}, table=table).once(connection)
    connection.rollback()


@ON_ALL
def test_a_transaction_that_begins_long_after_prepare_is_refused(database: Database) -> None:
    """Its tombstone might be gone."""
    gid, connection = new_gid(), database.connect()
    late = Barrier(gid, prepared_ms=now_ms(ago_s=START_S + 1))
    with pytest.raises(Trimmed, match="hours ago"):
        late.insert(connection)
    with pytest.raises(Trimmed, match="hours ago"), late.transaction(connection):
        pytest.fail("the block of a refused transaction ran")
    assert database.reasons(gid) == []

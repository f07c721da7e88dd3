"""The barrier on DB-API connections: transactions, checkbacks, branch handlers, on real databases."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
import pymysql
import pytest
from psycopg.rows import dict_row
from tests.integration.barrier_databases import KINDS, Database, MariaDB, PostgreSQL, SQLite, new_gid, wait_until
from tests.services import Server

from avow.barrier import sql_rules
from avow.barrier.db_connection import DbApiSession, Outcome
from avow.barrier.dialects import Trouble
from avow.barrier.key import LOCK_TIMEOUT_S, Call, Verdict
from avow.barrier.sql import Barrier, check_back
from avow.errors import AlreadyDecided, AlreadyExists, InvalidRequest, Malformed

ON_ALL = pytest.mark.parametrize("kind", KINDS)
ON_SERVERS = pytest.mark.parametrize("kind", ["postgresql", "postgresql-repeatable-read", "mariadb"])
ON_MARIADB = pytest.mark.parametrize("kind", ["mariadb"])


@ON_ALL
def test_a_pledge_whose_transaction_commits_is_committed(database: Database) -> None:
    gid, connection = new_gid(), database.connect()
    with Barrier(gid).transaction(connection) as cursor:
        cursor.execute(f"insert into works values ('{gid}')")
    assert check_back(database.connect(), gid) is Verdict.SUCCESS
    assert database.worked(gid) == 1
    assert database.reasons(gid) == [("00", "msg", "01", "msg")]


@ON_ALL
def test_a_pledge_whose_transaction_fails_is_rolled_back(database: Database) -> None:
    gid, connection = new_gid(), database.connect()
    with pytest.raises(ZeroDivisionError), Barrier(gid).transaction(connection) as cursor:
        fail_after(lambda: cursor.execute(f"insert into works values ('{gid}')"))
    assert check_back(connection, gid) is Verdict.FAILURE
    assert database.worked(gid) == 0


def fail_after(work: Callable[[], object]) -> None:
    work()
    raise ZeroDivisionError


@ON_ALL
def test_after_a_checkback_the_transaction_of_a_pledge_that_had_not_started_is_refused(database: Database) -> None:
    gid, connection = new_gid(), database.connect()
    assert check_back(database.connect(), gid) is Verdict.FAILURE
    with pytest.raises(AlreadyDecided), Barrier(gid).transaction(connection) as cursor:
        cursor.execute(f"insert into works values ('{gid}')")
    assert check_back(connection, gid) is Verdict.FAILURE
    assert database.worked(gid) == 0


@ON_ALL
def test_a_second_transaction_for_the_same_pledge_is_refused(database: Database) -> None:
    gid, connection = new_gid(), database.connect()
    with Barrier(gid).transaction(connection) as cursor:
        cursor.execute(f"insert into works values ('{gid}')")
    with pytest.raises(AlreadyExists), Barrier(gid).transaction(connection):
        pytest.fail("the block of a refused transaction ran")
    assert check_back(connection, gid) is Verdict.SUCCESS
    assert database.worked(gid) == 1


@ON_ALL
@pytest.mark.parametrize("by", ["connection", "cursor"])
def test_a_row_joins_the_transaction_that_the_caller_has_open(database: Database, by: str) -> None:
    committed, rolled_back, connection = new_gid(), new_gid(), database.connect()
    for gid, end in ((committed, connection.commit), (rolled_back, connection.rollback)):
        database.work(connection, gid)
        Barrier(gid).insert(connection if by == "connection" else connection.cursor())
        end()
    assert [check_back(connection, gid) for gid in (committed, rolled_back)] == [Verdict.SUCCESS, Verdict.FAILURE]
    assert [database.worked(gid) for gid in (committed, rolled_back)] == [1, 0]


@ON_ALL
def test_a_connection_in_autocommit_cannot_be_joined_outside_of_a_transaction(database: Database) -> None:
    gid, connection = new_gid(), autocommitting(database)
    with pytest.raises(InvalidRequest, match="autocommit mode"):
        Barrier(gid).insert(connection)
    with pytest.raises(InvalidRequest, match="autocommit mode"):
        Barrier(gid, "01", "action").once(connection)
    connection.cursor().execute("begin")
    Barrier(gid).insert(connection)
    connection.cursor().execute("commit")
    assert check_back(connection, gid) is Verdict.SUCCESS


@ON_ALL
def test_a_connection_in_autocommit_can_use_a_transaction_of_the_barrier(database: Database) -> None:
    committed, failed, connection = new_gid(), new_gid(), autocommitting(database)
    with Barrier(committed).transaction(connection) as cursor:
        cursor.execute(f"insert into works values ('{committed}')")
    with pytest.raises(ZeroDivisionError), Barrier(failed).transaction(connection) as cursor:
        fail_after(lambda: cursor.execute(f"insert into works values ('{failed}')"))
    assert [check_back(connection, gid) for gid in (committed, failed)] == [Verdict.SUCCESS, Verdict.FAILURE]
    assert [database.worked(gid) for gid in (committed, failed)] == [1, 0]


def autocommitting(database: Database) -> Any:
    connection = database.connect()
    if isinstance(connection, sqlite3.Connection):
        connection.isolation_level = None
    elif isinstance(connection, psycopg.Connection):
        connection.autocommit = True
    else:
        connection.autocommit(True)
    return connection


@ON_ALL
def test_a_barrier_transaction_refuses_a_connection_that_is_in_one(database: Database) -> None:
    gid, connection = new_gid(), database.connect()
    database.work(connection, gid)
    with pytest.raises(InvalidRequest, match="in a transaction"):
        check_back(connection, gid)
    with pytest.raises(InvalidRequest, match="in a transaction"), Barrier(gid).transaction(connection):
        pytest.fail("the block of a refused transaction ran")
    connection.commit()
    assert database.worked(gid) == 1
    assert database.reasons(gid) == []


@ON_ALL
def test_an_error_that_the_block_swallows_does_not_pass_for_a_commit(database: Database) -> None:
    """PostgreSQL ends the transaction at any error, MariaDB at a deadlock; a commit after that commits nothing."""
    gid, connection = new_gid(), database.connect()
    with pytest.raises((AlreadyDecided, psycopg.Error)), Barrier(gid).transaction(connection) as cursor:
        end_inside(database, cursor)
    assert check_back(connection, gid) is Verdict.FAILURE
    assert database.worked(gid) == 0


def end_inside(database: Database, cursor: Any) -> None:
    cursor.execute("insert into works values ('x')")
    if database.dialect == "postgresql":
        with suppress(psycopg.Error):
            cursor.execute("select 1 / 0")
    else:
        cursor.execute("rollback")


@ON_ALL
def test_a_branch_delivered_several_times_does_its_work_once(database: Database) -> None:
    gid, connection = new_gid(), database.connect()
    query = {"gid": gid, "trans_type": "msg", "branch_id": "01", "op": "action"}
    for delivery in range(3):
        barrier = Barrier.from_query(query)
        works = [barrier.once(connection), barrier.once(connection)]
        assert works == [delivery == 0] * 2
        if works[0]:
            database.work(connection, gid)
        connection.commit()
    assert database.worked(gid) == 1
    assert database.reasons(gid) == [("01", "action", "01", "action"), ("01", "action", "02", "action")]
    assert Barrier(gid, "02", "action").once(connection)
    connection.rollback()


@ON_ALL
def test_a_branch_whose_transaction_was_rolled_back_does_its_work_again(database: Database) -> None:
    gid, connection = new_gid(), database.connect()
    assert Barrier(gid, "01", "action").once(connection)
    connection.rollback()
    assert Barrier(gid, "01", "action").once(connection)
    connection.commit()
    assert not Barrier(gid, "01", "action").once(connection)
    connection.rollback()


def test_an_open_transaction_is_ongoing_until_it_ends_and_then_has_its_verdict(
    tmp_path: Path, postgres_server: Server, mariadb_server: Server
) -> None:
    databases = [SQLite(tmp_path), PostgreSQL(postgres_server), MariaDB(mariadb_server)]
    held = []
    for database in databases:
        database.prepare()
        for commits in (True, False):
            gid, connection = new_gid(), database.connect()
            if commits or database.dialect != "sqlite":  # one writer at a time
                database.work(connection, gid)
                Barrier(gid).insert(connection)
                held.append((database, connection, gid, commits))
    askers = {database.name: database.connect() for database in databases}
    at_work = {database.name: database.others_at_work() for database in databases}
    assert LOCK_TIMEOUT_S < 1
    for _ in range(3):  # the transactions are held by this thread: a checkback that waited for them would not return
        for database, _, gid, _ in held:
            assert check_back(askers[database.name], gid) is Verdict.ONGOING
            wait_until(lambda database=database: database.others_at_work() == at_work[database.name])  # type: ignore[misc]
    for database, connection, gid, commits in held:
        (connection.commit if commits else connection.rollback)()
        assert check_back(askers[database.name], gid) is (Verdict.SUCCESS if commits else Verdict.FAILURE)
        assert database.worked(gid) == commits
    for database in databases:
        database.wait_for_rest()
        database.close()


@ON_ALL
def test_a_checkback_leaves_its_connection_as_it_was(database: Database) -> None:
    gid, holder = new_gid(), database.connect()
    for asking in (database.connect(wait_s=7), autocommitting(database)):
        before = state_of(asking)
        assert check_back(asking, new_gid()) is Verdict.FAILURE
        assert state_of(asking) == before
        Barrier(gid).insert(holder)
        assert check_back(asking, gid, lock_timeout_s=0.05) is Verdict.ONGOING
        assert state_of(asking) == before
        holder.rollback()
        with pytest.raises(Exception, match=r"no_such_table"):
            check_back(asking, gid, table="no_such_table")
        assert state_of(asking) == before
        database.wait_for_rest()


def state_of(connection: Any) -> tuple[Any, ...]:
    if isinstance(connection, sqlite3.Connection):
        return connection.in_transaction, connection.execute("pragma busy_timeout").fetchone()
    asked = "select current_setting('lock_timeout'), current_setting('default_transaction_isolation')"
    if not isinstance(connection, psycopg.Connection):
        asked = "select @@session.innodb_lock_wait_timeout, @@session.tx_isolation, @@session.autocommit"
    idle = not isinstance(connection, psycopg.Connection) or connection.info.transaction_status == 0
    with connection.cursor() as cursor:
        cursor.execute(asked)
        found = cursor.fetchone()
    connection.rollback()
    return idle, found


@ON_ALL
def test_rows_of_any_type_that_a_connection_returns_are_understood(database: Database) -> None:
    gid, connection = new_gid(), database.connect()
    if isinstance(connection, sqlite3.Connection):
        connection.row_factory = lambda cursor, row: {"never": row}
    elif isinstance(connection, psycopg.Connection):
        connection.row_factory = dict_row  # type: ignore[assignment]
    else:
        connection.cursorclass = pymysql.cursors.DictCursor
    with Barrier(gid).transaction(connection):
        pass
    assert check_back(connection, gid) is Verdict.SUCCESS


@ON_SERVERS
@pytest.mark.parametrize("commits", [True, False], ids=["commits", "rolls back"])
def test_point_14_three_checkbacks_at_once_do_not_deadlock_and_have_one_verdict(
    database: Database, *, commits: bool
) -> None:
    deadlocks = database.deadlocks() if isinstance(database, MariaDB) else 0
    for _ in range(10):
        gid, holder = new_gid(), database.connect()
        Barrier(gid).insert(holder)
        asked = Several([lambda gid=gid: check_back(database.connect(), gid, lock_timeout_s=60)] * 3)  # type: ignore[misc]
        time_to_wait(database, asked)
        (holder.commit if commits else holder.rollback)()
        assert asked.results() == [Verdict.SUCCESS if commits else Verdict.FAILURE] * 3
    assert (database.deadlocks() if isinstance(database, MariaDB) else 0) == deadlocks
    database.wait_for_rest()


def time_to_wait(database: Database, asked: Several) -> None:
    """Until the three wait for the lock, or have been at it: whatever is seen, they began before the end."""
    asked.all_began()
    if isinstance(database, PostgreSQL):
        wait_until(lambda: database.waiting() == 3)


class Several:
    """Calls in threads, and their results."""

    def __init__(self, calls: list[Callable[[], Any]]) -> None:
        self._found: list[Any] = [None] * len(calls)
        self._began = threading.Barrier(len(calls) + 1)
        self._threads = [threading.Thread(target=self._run, args=(at, call)) for at, call in enumerate(calls)]
        for thread in self._threads:
            thread.start()

    def _run(self, at: int, call: Callable[[], Any]) -> None:
        self._began.wait(10)
        try:
            self._found[at] = call()
        except Exception as error:
            self._found[at] = error

    def all_began(self) -> None:
        self._began.wait(10)

    def results(self) -> list[Any]:
        for thread in self._threads:
            thread.join(20)
            assert not thread.is_alive()
        return self._found


@ON_MARIADB
def test_plain_inserts_as_dtm_sends_them_do_deadlock(database: MariaDB) -> None:
    """dtm issue 318: so that the tests around this one are known to try what they should."""
    table = "dtm_barrier.barrier(trans_type, gid, branch_id, op, barrier_id, reason)"

    def insert(gid: str) -> None:
        connection = database.connect()
        connection.cursor().execute(
            f"insert ignore into {table} values ('msg', '{gid}', '00', 'msg', '01', 'rollback')"
        )
        connection.commit()

    errors: list[Any] = []
    while 1213 not in errors and len(errors) < 30:
        gid, holder = new_gid(), database.connect()
        Barrier(gid).insert(holder)
        asked = Several([lambda gid=gid: insert(gid)] * 3)  # type: ignore[misc]
        asked.all_began()
        wait_until(lambda: database.waiting() == 3)
        holder.rollback()
        errors += [error and error.args[0] for error in asked.results()]
    assert 1213 in errors


class WaitingSession(DbApiSession):
    """A server that cannot wait for less than a second, as MySQL. Calls `before` ahead of the insert."""

    def __init__(self, connection: Any, before: Callable[[], object]) -> None:
        super().__init__(connection)
        self._before = before

    def execute(
        self, sql: str, parameters: Mapping[str, Any] | None = None, *, expected: Iterable[Trouble] = ()
    ) -> Outcome:
        if sql == self.statements.insert:
            self._before()
        outcome = super().execute(sql, parameters, expected=expected)
        if sql.startswith("select version()"):
            return Outcome((("8.0.40", *outcome.rows[0][1:]),), outcome.count)
        return outcome


@ON_MARIADB
def test_checkbacks_waiting_for_a_transaction_survive_the_deadlock_of_its_rollback(database: MariaDB) -> None:
    """The transaction inserts after all three have seen nothing and before they insert: here they do wait."""
    seen, deadlocks = 0, database.deadlocks()
    for _ in range(10):
        gid, holder = new_gid(), database.connect()
        gate = threading.Barrier(4)

        def ask(gid: str = gid, gate: threading.Barrier = gate) -> Verdict:
            stops = iter([gate.wait, gate.wait])  # before the first insert only
            session = WaitingSession(database.connect(), lambda: [stop(60) for stop in stops])
            with sql_rules.short_waits(session, 60):
                return sql_rules.check_back(sql_rules.Checkback(session, Call(gid), lock_timeout_s=60))

        asked = Several([ask] * 3)
        asked.all_began()
        gate.wait(60)
        Barrier(gid).insert(holder)
        gate.wait(60)
        wait_until(lambda: database.waiting() == 3)
        holder.rollback()
        assert asked.results() == [Verdict.FAILURE] * 3
        assert database.reasons(gid) == [("00", "msg", "01", "rollback")]
        seen = database.deadlocks() - deadlocks
    assert seen > 0


@ON_ALL
def test_point_14_ids_compare_byte_for_byte(database: Database) -> None:
    gid, connection = new_gid("Order"), database.connect()
    with Barrier(gid).transaction(connection):
        pass
    for other in (gid.lower(), gid.upper(), gid + " ", gid.replace("O", "Ö"), gid.replace("Order", "Ｏrder")):
        assert check_back(connection, other) is Verdict.FAILURE
    assert check_back(connection, gid) is Verdict.SUCCESS


@ON_ALL
def test_point_14_an_id_that_is_too_long_is_an_error_and_the_longest_is_not(database: Database) -> None:
    connection = database.connect()
    longest = new_gid("ü" * 20).ljust(128, "é")
    with Barrier(longest).transaction(connection):
        pass
    assert check_back(connection, longest) is Verdict.SUCCESS
    for call in (lambda gid: Barrier(gid).insert(connection), lambda gid: check_back(connection, gid)):
        with pytest.raises(InvalidRequest, match="129 characters, at most 128 are allowed"):
            call(longest + "é")
    assert database.reasons(longest[:128]) == [("00", "msg", "01", "msg")]


@ON_MARIADB
def test_a_case_insensitive_table_gives_an_error_and_never_another_pledges_verdict(database: MariaDB) -> None:
    connection, table, gid = database.connect(), f"avow.ci_{time.time_ns()}", new_gid("Order")
    database.do(connection, f"create table {table} like dtm_barrier.barrier")
    database.do(connection, f"alter table {table} convert to character set utf8mb4 collate utf8mb4_general_ci")
    with Barrier(gid, table=table).transaction(connection):
        pass
    assert check_back(connection, gid, table=table) is Verdict.SUCCESS
    with pytest.raises(Malformed, match="byte for byte"):
        check_back(connection, gid.lower(), table=table)
    with pytest.raises(Malformed, match="byte for byte"), Barrier(gid.lower(), table=table).transaction(connection):
        pytest.fail("the block of a refused transaction ran")

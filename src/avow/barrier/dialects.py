"""The SQL dialects: their statements, and the meaning of their errors.

Statements have named parameters such as `:gid`; `{table}` is the barrier table. A database must have a unique key, an
insert that does not change an existing row, and a bounded wait for the locks of an open transaction:

    PostgreSQL       on conflict do nothing · lock_timeout, for one transaction · 55P03
    MySQL, MariaDB   a plain insert, error 1062 · innodb_lock_wait_timeout, for the session · 1205, 3572
    SQLite           on conflict do nothing · busy_timeout, for the connection · SQLITE_BUSY

MySQL's `insert ignore` is not used, because it also ignores that an id was truncated. MySQL's lock timeout is in whole
seconds, so a checkback there tests for a lock without waiting (`probe`) and retries. This also avoids deadlocks: dtm's
checkbacks all wait for a shared lock on the row of the open transaction, get it together when that one is rolled back,
and then each waits for the others before it can insert (error 1213).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from avow.errors import InvalidRequest

DialectName: TypeAlias = Literal["sqlite", "postgresql", "mysql"]
Trouble: TypeAlias = Literal["", "locked", "deadlock", "duplicate"]

CLEANED_OP: Final = "clean-up"  # of the row with the mark: see cleanup.py

_COLUMNS: Final = "trans_type, gid, branch_id, op, barrier_id, reason"
_VALUES: Final = ":trans_type, :gid, :branch_id, :op, :barrier_id, :reason"
_UNIQUE: Final = "(gid, branch_id, op, barrier_id)"
_WHERE: Final = "gid = :gid and branch_id = :branch_id and op = :op and barrier_id = :barrier_id"
_READ: Final = f"select gid, branch_id, op, barrier_id, reason from {{table}} where {_WHERE}"
_RAISE: Final = (
    f"insert into {{table}} as t ({_COLUMNS}) values ({_VALUES}) "
    f"on conflict {_UNIQUE} do update set reason = excluded.reason where t.reason < excluded.reason"
)
_OLD: Final = (
    f"select id from {{table}} where create_time < {{before}} and op <> '{CLEANED_OP}' order by id limit :rows"
)


@dataclass(frozen=True, slots=True)
class Dialect:
    name: DialectName
    table: str
    insert: str
    read: str
    read_joined: str  # within the caller's transaction: reads the latest committed row, whatever its snapshot
    probe: str  # fails at once if the row is locked; empty: not needed
    clock: str  # seconds since 1970
    find_old: str
    raise_mark: str  # stores the time up to which rows were removed

    def on(self, table: str) -> Statements:
        return Statements(self, table or self.table)


SQLITE: Final = Dialect(
    name="sqlite",
    table="barrier",
    insert=f"insert into {{table}} ({_COLUMNS}) values ({_VALUES}) on conflict {_UNIQUE} do nothing",
    read=_READ,
    read_joined=_READ,
    probe="",
    clock="select cast(strftime('%s', 'now') as integer)",
    find_old=_OLD.replace("{before}", "datetime(:before, 'unixepoch')"),
    raise_mark=_RAISE,
)
POSTGRESQL: Final = Dialect(
    name="postgresql",
    table="dtm_barrier.barrier",
    # dtm's table has no default for create_time, and now() would be the start of a long transaction
    insert=f"insert into {{table}} ({_COLUMNS}, create_time) values ({_VALUES}, clock_timestamp()) "
    f"on conflict {_UNIQUE} do nothing",
    read=_READ,
    read_joined=_READ,
    probe="",
    clock="select cast(extract(epoch from clock_timestamp()) as bigint)",
    find_old=_OLD.replace("{before}", "to_timestamp(:before)"),
    raise_mark=_RAISE,
)
MYSQL: Final = Dialect(
    name="mysql",
    table="dtm_barrier.barrier",
    insert=f"insert into {{table}} ({_COLUMNS}) values ({_VALUES})",
    read=_READ,
    read_joined=f"{_READ} lock in share mode",
    probe=f"{_READ} for update nowait",
    clock="select unix_timestamp()",
    find_old=_OLD.replace("{before}", "from_unixtime(:before)"),
    raise_mark=f"insert into {{table}} ({_COLUMNS}) values ({_VALUES}) "
    "on duplicate key update reason = greatest(reason, :reason)",
)
DIALECTS: Final[dict[str, Dialect]] = {dialect.name: dialect for dialect in (SQLITE, POSTGRESQL, MYSQL)}


def dialect_of(name: str) -> Dialect:
    dialect = DIALECTS.get("mysql" if name == "mariadb" else name)
    if dialect is None:
        raise InvalidRequest(
            f"the barrier supports sqlite, postgresql, mysql and mariadb, not {name}; nothing was done"
        )
    return dialect


class Statements:
    """A dialect's statements for one table."""

    def __init__(self, dialect: Dialect, table: str) -> None:
        if not re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)?", table, re.ASCII):
            raise InvalidRequest(f"{table!r} is not a valid table name, `table` or `schema.table`; nothing was done")
        self.dialect, self.table = dialect, table
        self.insert = dialect.insert.format(table=table)
        self.read = dialect.read.format(table=table)
        self.read_joined = dialect.read_joined.format(table=table)
        self.probe = dialect.probe.format(table=table)
        self.clock = dialect.clock
        self.find_old = dialect.find_old.format(table=table)
        self.raise_mark = dialect.raise_mark.format(table=table)

    def delete(self, ids: list[int]) -> str:
        return f"delete from {self.table} where id in ({', '.join(str(int(row)) for row in ids)})"


_SQLSTATES: Final[dict[str, Trouble]] = {"55P03": "locked", "40P01": "deadlock"}
_MYSQL_ERRORS: Final[dict[int, Trouble]] = {
    1062: "duplicate",
    1205: "locked",
    3572: "locked",  # MySQL's answer to nowait
    1213: "deadlock",
    1020: "deadlock",  # MariaDB with innodb_snapshot_isolation: the row was changed since the snapshot
}
_SQLITE_BUSY: Final = 5
_SQLITE_LOCKED: Final = 6


def trouble_of(error: BaseException, dialect: Dialect) -> Trouble:
    """The kind of contention behind a driver's error, also inside SQLAlchemy's; empty for any other error."""
    cause = getattr(error, "orig", None) or error
    if dialect is POSTGRESQL:
        state = getattr(cause, "sqlstate", None) or getattr(cause, "pgcode", None) or ""
        return _SQLSTATES.get(state, "")
    if dialect is MYSQL:
        number = getattr(cause, "errno", None) or next(iter(cause.args), None)
        return _MYSQL_ERRORS.get(number, "") if isinstance(number, int) else ""
    code = getattr(cause, "sqlite_errorcode", 0) & 0xFF
    return "locked" if code in (_SQLITE_BUSY, _SQLITE_LOCKED) else ""

"""The barrier's table, in dtm's layout, so that dtm's clients and Avow's can share it.

    database      table                 differs from dtm's
    PostgreSQL    dtm_barrier.barrier   ids in collation C; create_time is filled
    MySQL         dtm_barrier.barrier   ids compare byte for byte: `Order-A`, `order-a` and `Order-A ` are three
    SQLite        barrier               dtm does not support SQLite

A table created by dtm is used as it is, except on MySQL if its collation ignores case: two pledges could be confused,
so create_table refuses it, with the statement that fixes it.

A service needs the rights to select and insert; on MySQL also update, to test whether a row is locked, and on
PostgreSQL usage of schema and sequence. A clean-up needs update and delete.

Only *_bin collations compare bytes, and of these only those with `nopad` or `0900` in their names do not ignore
trailing spaces. Servers without such a collation get utf8mb4_bin, and gids that differ only in trailing spaces are an
error there.
"""

from __future__ import annotations

from typing import Final

from avow.barrier.db_connection import Session, text
from avow.barrier.dialects import MYSQL, POSTGRESQL, SQLITE, Dialect, dialect_of
from avow.barrier.key import CHARS_MAX
from avow.errors import InvalidRequest

_WIDTHS: Final = {**CHARS_MAX, "reason": 45}
_WAIT_S: Final = 10.0
_ADVISORY_LOCK: Final = 0x61766F77  # so that services that start together do not create the schema concurrently

_SQLITE: Final = """\
create table if not exists {table} (
  id integer primary key autoincrement,
{columns},
  create_time text not null default (datetime('now')),
  update_time text not null default (datetime('now')),
  unique (gid, branch_id, op, barrier_id)
);
create index if not exists {name}_create_time on {table} (create_time);
"""

_POSTGRESQL: Final = """\
create schema if not exists {schema};
create sequence if not exists {table}_seq;
create table if not exists {table} (
  id bigint not null default nextval('{table}_seq') primary key,
{columns},
  create_time timestamp(0) with time zone not null default now(),
  update_time timestamp(0) with time zone not null default now(),
  constraint uniq_{name} unique (gid, branch_id, op, barrier_id)
);
create index if not exists {name}_create_time on {table} (create_time);
"""

_MYSQL: Final = """\
create database if not exists {schema} default charset utf8mb4;
create table if not exists {table} (
  id bigint not null auto_increment primary key,
{columns},
  create_time datetime not null default current_timestamp,
  update_time datetime not null default current_timestamp,
  key (create_time),
  key (update_time),
  unique key uniq_{name} (gid, branch_id, op, barrier_id)
) engine = InnoDB default charset = utf8mb4 collate = utf8mb4_bin;
"""
_MYSQL_EXACT: Final = " /*!80017 collate utf8mb4_0900_bin */ /*M!100202 collate utf8mb4_nopad_bin */"  # per server
_OF_SCHEMAS: Final = ("create schema", "create database")
_TEXTS: Final = {"sqlite": _SQLITE, "postgresql": _POSTGRESQL, "mysql": _MYSQL}


def migration(dialect: str, *, table: str = "") -> str:
    """The statements that create the table if it is missing, for a migration tool."""
    return _script(dialect_of(dialect), table)


def create(session: Session) -> None:
    """Create the table if it does not exist. If it exists, no right to create is needed."""
    statements = session.statements
    if not _exists(session):
        for statement in _statements(statements.dialect, statements.table):
            session.execute(statement)
        session.commit()
    session.rollback()
    if statements.dialect is MYSQL:
        _check_collations(session)


def _exists(session: Session) -> bool:
    statements = session.statements
    if session.begin(wait_s=_WAIT_S, write=True):
        raise InvalidRequest("other transactions hold locks on the database; no table was created. Call again")
    if statements.dialect is SQLITE:
        return False  # `if not exists` needs no right and no lock in SQLite
    if statements.dialect is POSTGRESQL:
        session.execute(f"select pg_advisory_xact_lock({_ADVISORY_LOCK})")
        return session.execute("select to_regclass(:name)", {"name": statements.table}).rows[0][0] is not None
    return bool(_columns(session))


def _columns(session: Session) -> dict[str, str]:
    """MySQL: the collations of the key's columns."""
    schema, _, name = session.statements.table.rpartition(".")
    sql = (
        "select column_name, collation_name from information_schema.columns where table_name = :name and "
        "table_schema = coalesce(nullif(:schema, ''), database()) "
        "and column_name in ('gid', 'branch_id', 'op', 'barrier_id')"
    )
    rows = session.execute(sql, {"schema": schema, "name": name}).rows
    return {text(column): "binary" if collation is None else text(collation) for column, collation in rows}


def _check_collations(session: Session) -> None:
    session.begin(wait_s=_WAIT_S, write=False)
    try:
        found = _columns(session)
    finally:
        session.rollback()
    inexact = sorted({collation for collation in found.values() if not collation.endswith(("_bin", "binary"))})
    if inexact:
        raise InvalidRequest(
            f"table {session.statements.table} compares ids with {', '.join(inexact)}, which treats different pledges "
            f"as equal; it was not changed. Fix it with: {upgrade(session.statements.table)}"
        )


def upgrade(table: str = MYSQL.table) -> str:
    """MySQL: the statement that fixes a table with a collation that ignores case."""
    return f"alter table {table} convert to character set utf8mb4 collate utf8mb4_bin"


def _definitions(dialect: Dialect) -> list[str]:
    definitions = []
    for column, chars_max in _WIDTHS.items():
        exact = {"postgresql": ' collate "C"', "mysql": _MYSQL_EXACT}.get(dialect.name, "")
        check = f" check (length({column}) <= {chars_max})" if dialect is SQLITE else ""
        definitions.append(f"{column} varchar({chars_max}){exact} not null default ''{check}")
    return definitions


def _statements(dialect: Dialect, table: str) -> list[str]:
    return [statement.strip() for statement in _script(dialect, table).split(";") if statement.strip()]


def _script(dialect: Dialect, table: str) -> str:
    table = dialect.on(table).table
    schema, _, name = table.rpartition(".")
    columns = ",\n".join(f"  {definition}" for definition in _definitions(dialect))
    script = _TEXTS[dialect.name].format(table=table, schema=schema, name=name, columns=columns)
    if schema:
        return script
    return "".join(line for line in script.splitlines(keepends=True) if not line.startswith(_OF_SCHEMAS))

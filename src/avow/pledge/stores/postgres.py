"""Pledges in PostgreSQL, shared by any number of coordinators.

A group is one transaction and one round trip: BEGIN, one statement per kind of operation with its values as arrays
(`unnest`), COMMIT, all sent before the first answer is read. The server syncs once for all operations.

Within a statement rows are locked in the order of their ids; if a group changes rows with two statements, it locks all
of them first, in that order. So coordinators that change the same pledges wait for each other without deadlocks. If the
server aborts a transaction nevertheless, it is repeated. `claim` skips rows that are locked.

Plans are restricted to index scans: a plan made for the empty table would scan all of it when it is large.

If the connection is lost after a group was sent, its outcome is unknown, because COMMIT was sent with it. Before that,
and for reads, the error is Offline and nothing was changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NoReturn, TypeAlias, TypeVar

from avow import limits
from avow.errors import AvowError, Busy, Offline, Unknown
from avow.pledge.record import NEVER_MS, Pledge
from avow.pledge.stores import operations as ops
from avow.pledge.stores import postgres_statements as sql
from avow.pledge.stores.grouped import GroupedStore
from avow.pledge.stores.postgres_connection import Connecting, Link, packed, pg, psycopg, refusal, shown, text
from avow.pledge.stores.sql import Marks, check_version, finding

Found = TypeVar("Found")
Cursor: TypeAlias = psycopg.Cursor[tuple[Any, ...]]

_PLANS: Final = (
    "SET plan_cache_mode = force_generic_plan; SET enable_seqscan = off; SET enable_hashjoin = off; "
    "SET enable_mergejoin = off"
)
_LOCK_NUMBER: Final = 0x41564F57  # of the advisory lock while tables are created


class PostgresStore(GroupedStore):
    """`dsn`: a connection string of libpq. Tables are created in the first schema of its search_path."""

    def __init__(self, dsn: str) -> None:
        super().__init__(_Writing(dsn), _Reading(dsn), _Reading(dsn), name="postgres")


class _Writing:
    def __init__(self, dsn: str) -> None:
        self._connecting = Connecting(dsn, settings=_PLANS)
        self._retries = 0
        self._syncs = -1

    def prepare(self) -> None:
        link = self._connecting.link()
        try:
            self._make_tables(link)
            self._syncs = int(shown(link, "fsync") == "on")
        except psycopg.Error as error:
            self._connecting.drop()
            raise (Offline(text(error)) if error.sqlstate is None else refusal(error)) from error
        except AvowError:
            self._connecting.drop()
            raise

    def _make_tables(self, link: Link) -> None:
        with link.transaction():
            link.execute(f"SELECT pg_advisory_xact_lock({_LOCK_NUMBER})".encode())
            made = link.execute("SELECT to_regclass('avow_meta') IS NOT NULL").fetchone()
            if made == (False,):
                link.execute(sql.SCHEMA)
            version = link.execute("SELECT value FROM avow_meta WHERE name = 'version'").fetchone()
            check_version(version[0] if version else 0, where="PostgreSQL")

    # -------------------------------------------------------------- a group

    def perform(self, operations: Sequence[ops.Writing]) -> Sequence[Any]:
        for _ in range(limits.STORE_ATTEMPTS_MAX):
            link = self._connecting.link()
            try:
                return _Group(link, operations).outcomes()
            except (pg.DeadlockDetected, pg.SerializationFailure):
                self._retries += 1
                self._connecting.roll_back()
            except psycopg.Error as error:
                self._explain(link, error)
        raise Busy(
            "PostgreSQL aborted the transaction repeatedly because of concurrent ones; nothing was changed. Try again"
        )

    def _explain(self, link: Link, error: psycopg.Error) -> NoReturn:
        if link.closed or error.sqlstate is None:
            self._connecting.drop()
            raise Unknown(
                f"the connection to PostgreSQL was lost before it answered ({text(error)}); the change may or may not "
                "be stored. Load the pledge to find out"
            ) from error
        self._connecting.roll_back()
        raise refusal(error) from error

    def close(self) -> None:
        self._connecting.drop()

    def statistics(self) -> dict[str, int]:
        return {"server_syncs": self._syncs, "retries": self._retries, "connects": self._connecting.connects}


class _Group:
    """One transaction. All statements are sent in order before their answers are read."""

    def __init__(self, link: Link, operations: Sequence[ops.Writing]) -> None:
        self._link = link
        self._found: list[Any] = [None] * len(operations)
        self._by_kind: dict[type, list[tuple[int, Any]]] = {}
        for pair in enumerate(operations):
            self._by_kind.setdefault(type(pair[1]), []).append(pair)

    def _numbered(self, kind: type[Found]) -> list[tuple[int, Found]]:
        return self._by_kind.get(kind, [])

    def outcomes(self) -> list[Any]:
        inserts = sorted(self._numbered(ops.Insert), key=lambda pair: pair[1].row.gid)
        swaps = sorted(self._numbered(ops.Swap), key=lambda pair: pair[1].row.gid)
        leases = _rounds(sorted(self._numbered(ops.ClaimOne), key=lambda pair: pair[1].gid))
        claims = self._numbered(ops.Claim)
        rest: list[tuple[int, ops.Forget | ops.SwapTopic]] = []
        rest += self._numbered(ops.Forget)
        rest += self._numbered(ops.SwapTopic)
        with self._link.pipeline():
            self._send(b"BEGIN")
            inserted = self._send_rows(sql.INSERT, [op.row for _, op in inserts]) if inserts else None
            if swaps and leases:
                gids = {op.row.gid for _, op in swaps} | {op.gid for _, op in leases[0]}
                self._send(sql.LOCK, packed(sorted(gids)))
            swapped = self._send_rows(sql.SWAP, [_without_content(op.row) for _, op in swaps]) if swaps else None
            leased = [self._send_rows(sql.CLAIM_ONE, [op for _, op in round_]) for round_ in leases]
            claimed = [self._send(sql.CLAIM, *op) for _, op in claims]
            others = [self._send(*_other(op)) for _, op in rest]
            self._send(b"COMMIT")
        self._swapped(swaps, swapped)
        for round_, cursor in zip(leases, leased, strict=True):
            self._leased(round_, cursor)
        for (number, _), cursor in zip(claims, claimed, strict=True):
            longest_first = sorted(cursor.fetchall(), key=lambda row: row[:2])
            self._found[number] = [ops.pledge_of(row[2:]) for row in longest_first]
        for (number, op), cursor in zip(rest, others, strict=True):
            self._found[number] = cursor.rowcount if isinstance(op, ops.Forget) else cursor.rowcount == 1
        self._inserted(inserts, inserted)
        return self._found

    def _send(self, statement: bytes, *values: Any) -> Cursor:
        return self._link.execute(statement, values or None)

    def _send_rows(self, statement: bytes, rows: Sequence[tuple[Any, ...]]) -> Cursor:
        return self._send(statement, *map(packed, zip(*rows, strict=True)))

    def _swapped(self, swaps: list[tuple[int, ops.Swap]], cursor: Cursor | None) -> None:
        if cursor is not None:
            for (at,) in cursor.fetchall():
                number, op = swaps[at - 1]
                self._found[number] = op.after

    def _leased(self, round_: list[tuple[int, ops.ClaimOne]], cursor: Cursor) -> None:
        for at, *stored in cursor.fetchall():
            self._found[round_[at - 1][0]] = ops.pledge_of(stored)

    def _inserted(self, inserts: list[tuple[int, ops.Insert]], cursor: Cursor | None) -> None:
        """After the commit. Of several inserts with a gid the first is stored; the others get the stored pledge."""
        stored = set() if cursor is None else {gid for (gid,) in cursor.fetchall()}
        late = []
        for number, op in inserts:
            if op.row.gid in stored:
                stored.remove(op.row.gid)
            else:
                late.append((number, op))
        if late:
            self._load_existing(late)

    def _load_existing(self, late: list[tuple[int, ops.Insert]]) -> None:
        """These were not stored, so a lost connection here is not Unknown; the rest of the group is committed."""
        there: dict[bytes, Pledge] = {}
        missing: AvowError = Busy("the existing pledge with that gid was just removed; nothing was changed. Try again")
        try:
            rows = self._link.execute(sql.LOAD, [packed([op.row.gid for _, op in late])]).fetchall()
            there = {gid: ops.pledge_of(row) for gid, *row in rows}
        except psycopg.Error as error:
            missing = Offline(
                f"a pledge with that gid exists, but the connection was lost ({text(error)}); nothing was changed. "
                "Try again"
            )
        for number, op in late:
            self._found[number] = there.get(op.row.gid, missing)


def _rounds(leases: list[tuple[int, ops.ClaimOne]]) -> list[list[tuple[int, ops.ClaimOne]]]:
    """A statement can change a row only once, so repeated claims of a gid are in further statements."""
    rounds: list[list[tuple[int, ops.ClaimOne]]] = []
    seen: dict[bytes, int] = {}
    for number, op in leases:
        turn = seen.get(op.gid, 0)
        seen[op.gid] = turn + 1
        if turn == len(rounds):
            rounds.append([])
        rounds[turn].append((number, op))
    return rounds


def _without_content(row: ops.Row) -> tuple[Any, ...]:
    return row[:1] + row[2:]


def _other(op: ops.Forget | ops.SwapTopic) -> tuple[Any, ...]:
    if isinstance(op, ops.Forget):
        return (sql.FORGET, op.finished_before_ms, op.finished_before_ms, op.limit)
    if not op.version_before:
        return (sql.MAKE_TOPIC, op.name, op.subscribers, op.now_ms, op.now_ms)
    if not op.version:
        return (sql.REMOVE_TOPIC, op.name, op.version_before, op.before)
    return (sql.CHANGE_TOPIC, op.subscribers, op.version, op.now_ms, op.name, op.version_before, op.before)


class _Reading:
    def __init__(self, dsn: str) -> None:
        self._connecting = Connecting(dsn, settings="SET default_transaction_read_only = on")

    def prepare(self) -> None:
        self._connecting.link()

    def perform(self, operations: Sequence[ops.Reading]) -> Sequence[Any]:
        link = self._connecting.link()
        try:
            there = self._load(link, [op.gid for op in operations if isinstance(op, ops.Load)])
            return [there.get(op.gid) if isinstance(op, ops.Load) else self._read(link, op) for op in operations]
        except psycopg.Error as error:
            if link.closed or error.sqlstate is None:
                self._connecting.drop()
                raise Offline(f"the connection to PostgreSQL was lost ({text(error)}); nothing was changed") from error
            raise refusal(error) from error

    def _load(self, link: Link, gids: list[bytes]) -> dict[bytes, Pledge]:
        if not gids:
            return {}
        return {gid: ops.pledge_of(row) for gid, *row in link.execute(sql.LOAD, [packed(gids)]).fetchall()}

    def _read(self, link: Link, operation: ops.Reading) -> Any:
        match operation:
            case ops.NextDue():
                row = link.execute(sql.NEXT_DUE).fetchone()
                return NEVER_MS if row is None or row[0] is None else row[0]
            case ops.Find():
                marks = Marks("%s")
                query = finding(operation, marks).encode()
                found = link.execute(query, marks.values, prepare=False).fetchall()
                return ops.page_of(found, limit=operation.limit)
            case ops.LoadTopic(name):
                row = link.execute(sql.LOAD_TOPIC, [name]).fetchone()
                return None if row is None else ops.topic_of(row)
            case ops.ListTopics(after, limit):
                return ops.topics_of(link.execute(sql.LIST_TOPICS, [after, limit + 1]).fetchall(), limit=limit)

    def close(self) -> None:
        self._connecting.drop()

    def statistics(self) -> dict[str, int]:
        return {}

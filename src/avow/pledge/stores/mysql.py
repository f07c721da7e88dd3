"""Pledges in MariaDB (10.6 or newer) or MySQL (8.0 or newer), shared by any number of coordinators.

These databases do not report which rows a statement changed. So a group locks its rows in the order of their ids, reads
revision, fence and lease, decides every operation in this process, and writes the result with one statement for new
rows and one for changed ones:

    SELECT ... FOR UPDATE     all ids of the group, ascending: the same order for every coordinator avoids deadlocks.
                              READ COMMITTED: no gaps are locked
    INSERT, UPDATE            many rows each. If another transaction inserted an id in between, the group is repeated
    SELECT ... SKIP LOCKED    due pledges, for `claim`; it does not wait for locks
    COMMIT                    one sync for all operations

A transaction that the server aborts because of a deadlock is repeated; it changed nothing.

Ids are VARBINARY, compared byte for byte. In a text column `a` equals `A`, or `a ` with a space, with most collations.
Values that are too long for a column are refused, not truncated. If the connection is lost, the outcome is unknown only
if COMMIT was sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from msgspec.structs import replace

from avow import limits
from avow.errors import Busy, Offline, TooLarge, Unknown
from avow.pledge.record import NEVER_MS, UNFINISHED, Pledge
from avow.pledge.stores import mysql_statements as sql
from avow.pledge.stores import operations as ops
from avow.pledge.stores.grouped import GroupedStore
from avow.pledge.stores.mysql_connection import Connecting, Duplicate, Ended, Link
from avow.pledge.stores.sql import check_version, finding

_PACKET_MARGIN_BYTES: Final = 4_096  # for the part of a statement around its rows


class MySQLStore(GroupedStore):
    """`dsn`: mysql://user:password@host:port/database, optionally with ?unix_socket= or ?ssl_ca="""

    def __init__(self, dsn: str) -> None:
        super().__init__(_Writing(dsn), _Reading(dsn), _Reading(dsn), name="mysql")


class _Writing:
    def __init__(self, dsn: str) -> None:
        self._connecting = Connecting(dsn)
        self._retries = 0
        self._syncs = -1
        self._packet_bytes = 0

    def prepare(self) -> None:
        link = self._connecting.link()
        try:
            self._make_tables(link)
            ((syncs, packet),) = link.query("SELECT @@innodb_flush_log_at_trx_commit, @@max_allowed_packet")
            link.commit()
        except BaseException:
            self._connecting.drop()
            raise
        self._syncs, self._packet_bytes = int(syncs == 1), packet

    def _make_tables(self, link: Link) -> None:
        """Uses a named lock, because CREATE TABLE commits any transaction."""
        link.query(f"SELECT GET_LOCK('avow_pledges', {limits.STORE_ANSWER_TIMEOUT_S})")
        if not link.query("SHOW TABLES LIKE 'avow\\_meta'"):
            for statement in sql.SCHEMA:
                link.change(statement)
            link.commit()
        version = link.query("SELECT value FROM avow_meta WHERE name = 'version'")
        check_version(version[0][0] if version else 0, where="the database")
        link.query("SELECT RELEASE_LOCK('avow_pledges')")

    def perform(self, operations: Sequence[ops.Writing]) -> Sequence[Any]:
        for _ in range(limits.STORE_ATTEMPTS_MAX):
            link = self._connecting.link()
            try:
                outcomes = _Group(link, operations, packet_bytes=self._packet_bytes).outcomes()
                self._commit(link)
            except (Ended, Duplicate):
                self._retries += 1
                self._connecting.roll_back()
            except BaseException:
                self._connecting.roll_back()
                raise
            else:
                return outcomes
        raise Busy(
            "the database aborted the transaction repeatedly because of concurrent ones; nothing was changed. Try again"
        )

    def _commit(self, link: Link) -> None:
        try:
            link.commit()
        except Offline as error:
            self._connecting.drop()
            raise Unknown(
                f"the connection was lost during COMMIT ({error.__cause__}); the change may or may not be stored. "
                "Load the pledge to find out"
            ) from error

    def close(self) -> None:
        self._connecting.drop()

    def statistics(self) -> dict[str, int]:
        return {"server_syncs": self._syncs, "retries": self._retries, "connects": self._connecting.connects}


class _Group:
    """One transaction, up to its COMMIT. `_held`: the rows it has locked or created, with their new values."""

    def __init__(self, link: Link, operations: Sequence[ops.Writing], *, packet_bytes: int) -> None:
        self._link, self._operations = link, operations
        self._bytes_max = packet_bytes - _PACKET_MARGIN_BYTES
        self._held: dict[bytes, ops.Row] = {}
        self._made: set[bytes] = set()
        self._changed: set[bytes] = set()
        self._leased: set[bytes] = set()
        self._outcomes: list[Any] = [None] * len(operations)
        self._to_load: list[tuple[int, bytes]] = []  # operations whose outcome is the stored pledge

    def outcomes(self) -> list[Any]:
        self._lock()
        for number, operation in enumerate(self._operations):
            match operation:
                case ops.Insert(row):
                    self._insert(number, row)
                case ops.Swap():
                    self._swap(number, operation)
                case ops.ClaimOne():
                    self._claim_one(number, operation)
        self._write()
        self._load_outcomes()
        for number, operation in enumerate(self._operations):
            match operation:
                case ops.Claim():
                    self._outcomes[number] = self._claim(operation)
                case ops.Forget():
                    self._outcomes[number] = self._forget(operation)
                case ops.SwapTopic():
                    self._outcomes[number] = self._swap_topic(operation)
        return self._outcomes

    # -------------------------------------------------------------- operations on given ids

    def _lock(self) -> None:
        gids = {op.row.gid for op in self._operations if isinstance(op, (ops.Insert, ops.Swap))}
        gids |= {op.gid for op in self._operations if isinstance(op, ops.ClaimOne)}
        for statement in sql.locking(sorted(gids)):
            for gid, status, revision, fence, owner, lease_until_ms, next_at_ms, created_ms in self._link.query(
                statement
            ):
                self._held[gid] = ops.Row(
                    gid, b"", b"", status, revision, fence, owner, lease_until_ms, next_at_ms, 0, created_ms, 0
                )

    def _insert(self, number: int, row: ops.Row) -> None:
        if row.gid in self._held:
            self._to_load.append((number, row.gid))
        elif self._fits(number, row):
            self._held[row.gid] = row
            self._made.add(row.gid)

    def _swap(self, number: int, operation: ops.Swap) -> None:
        row, now = operation.row, self._held.get(operation.row.gid)
        if now is None or (now.revision, now.fence, now.created_ms) != (row.revision - 1, row.fence, row.created_ms):
            return
        if self._fits(number, row):
            self._outcomes[number] = operation.after
            self._held[row.gid] = row._replace(content=now.content)
            self._changed.add(row.gid)

    def _fits(self, number: int, row: ops.Row) -> bool:
        size = len(row.content) + len(row.progress)
        if size < self._bytes_max // 2 or len(b"".join(map(sql.literal, row))) + len(row) * 2 < self._bytes_max:
            return True
        self._outcomes[number] = TooLarge(
            f"a pledge of {size} bytes does not fit into the server's max_allowed_packet; nothing was changed. "
            "Increase that setting"
        )
        return False

    def _claim_one(self, number: int, operation: ops.ClaimOne) -> None:
        now = self._held.get(operation.gid)
        if now is None or now.status not in UNFINISHED:
            return
        if now.lease_until_ms > operation.now_ms and now.owner != operation.owner:
            return
        until_ms = operation.lease_until_ms
        held = now._replace(
            fence=now.fence + 1, owner=operation.owner, lease_until_ms=until_ms, due_ms=max(now.next_at_ms, until_ms)
        )
        self._held[operation.gid] = held
        self._leased.add(operation.gid)
        self._outcomes[number] = held
        self._to_load.append((number, operation.gid))

    def _write(self) -> None:
        def rows(gids: set[bytes]) -> list[ops.Row]:
            return [self._held[gid] for gid in sorted(gids)]

        room = self._bytes_max
        for statement in sql.inserting(rows(self._made), bytes_max=room):
            self._link.change(statement)
        for statement in sql.changing(rows(self._changed - self._made), bytes_max=room):
            self._link.change(statement)
        for statement in sql.leasing(rows(self._leased - self._made), bytes_max=room):
            self._link.change(statement)

    def _load_outcomes(self) -> None:
        """Loads the outcomes that are pledges. Several claims of a pledge in a group get a fence each."""
        if not self._to_load:
            return
        stored: dict[bytes, Pledge] = {}
        for statement in sql.loading(sorted({gid for _, gid in self._to_load})):
            stored |= {gid: ops.pledge_of(row) for gid, *row in self._link.query(statement)}
        for number, gid in self._to_load:
            pledge, leased = stored[gid], self._outcomes[number]
            if leased is not None:
                pledge = replace(
                    pledge, fence=leased.fence, owner=leased.owner.decode(), lease_until_ms=leased.lease_until_ms
                )
            self._outcomes[number] = pledge

    # -------------------------------------------------------------- operations that search for rows

    def _claim(self, operation: ops.Claim) -> list[Pledge]:
        found = self._link.query(sql.claiming(now_ms=operation.now_ms, limit=operation.limit))
        if not found:
            return []
        until_ms = operation.lease_until_ms
        for statement in sql.claimed([row[0] for row in found], owner=operation.owner, until_ms=until_ms):
            self._link.change(statement)
        owner = operation.owner.decode()
        pledges = (ops.pledge_of(row[1:]) for row in found)
        return [replace(pledge, fence=pledge.fence + 1, owner=owner, lease_until_ms=until_ms) for pledge in pledges]

    def _forget(self, operation: ops.Forget) -> int:
        found = self._link.query(sql.forgettable(before_ms=operation.finished_before_ms, limit=operation.limit))
        for statement in sql.removing([gid for (gid,) in found]):
            self._link.change(statement)
        return len(found)

    def _swap_topic(self, operation: ops.SwapTopic) -> bool:
        try:
            return self._link.change(sql.swapping_topic(operation)) == 1
        except Duplicate:
            return False


class _Reading:
    """Each statement sees everything that was committed before it began (READ COMMITTED)."""

    def __init__(self, dsn: str) -> None:
        self._connecting = Connecting(dsn)

    def prepare(self) -> None:
        self._connecting.link()

    def perform(self, operations: Sequence[ops.Reading]) -> Sequence[Any]:
        link = self._connecting.link()
        try:
            there = self._load(link, [op.gid for op in operations if isinstance(op, ops.Load)])
            outcomes = [there.get(op.gid) if isinstance(op, ops.Load) else self._read(link, op) for op in operations]
            link.commit()
        except Ended as error:
            self._connecting.drop()
            raise Busy(f"the database aborted a read ({error}); nothing was changed. Try again") from error
        except BaseException:
            self._connecting.drop()
            raise
        return outcomes

    def _load(self, link: Link, gids: list[bytes]) -> dict[bytes, Pledge]:
        rows = (row for statement in sql.loading(gids) for row in link.query(statement))
        return {gid: ops.pledge_of(row) for gid, *row in rows}

    def _read(self, link: Link, operation: ops.Reading) -> Any:
        match operation:
            case ops.NextDue():
                ((due_ms,),) = link.query(sql.NEXT_DUE)
                return NEVER_MS if due_ms is None else due_ms
            case ops.Find():
                return ops.page_of(link.query(finding(operation, sql.mark, sql.HINTS)), limit=operation.limit)
            case ops.LoadTopic(name):
                rows = link.query(sql.loading_topic(name))
                return ops.topic_of(rows[0]) if rows else None
            case ops.ListTopics(after, limit):
                return ops.topics_of(link.query(sql.listing_topics(after=after, limit=limit + 1)), limit=limit)

    def close(self) -> None:
        self._connecting.drop()

    def statistics(self) -> dict[str, int]:
        return {}

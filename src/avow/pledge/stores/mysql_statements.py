"""The tables and statements of the MySQL store.

Statements for many rows are built as bytes. All values are integers or bytes and encoded by `literal`, for which two
escapes are enough: sessions have backslash escapes enabled, and in utf8mb4 no character contains the byte of a quote.

These databases have no partial indexes. `stopped_ms` is NULL except for failed and dead pledges, so its index is small
and finds them among millions of others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from avow.pledge.record import NEVER_MS
from avow.pledge.stores.operations import COLUMNS, FORGETTABLE, Row, SwapTopic
from avow.pledge.stores.sql import READ, SCHEMA_VERSION, TOPIC_COLUMNS, Hints, listed

_TABLE: Final = "ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4"
SCHEMA: Final = (
    f"CREATE TABLE IF NOT EXISTS avow_meta (name VARBINARY(64) PRIMARY KEY, value BIGINT NOT NULL) {_TABLE}",
    f"""CREATE TABLE IF NOT EXISTS avow_pledges (
  gid VARBINARY(128) NOT NULL PRIMARY KEY, content LONGBLOB NOT NULL, progress LONGBLOB NOT NULL,
  status VARCHAR(16) CHARACTER SET ascii COLLATE ascii_bin NOT NULL, revision BIGINT NOT NULL, fence BIGINT NOT NULL,
  owner VARBINARY(200) NOT NULL, lease_until_ms BIGINT NOT NULL, next_at_ms BIGINT NOT NULL, due_ms BIGINT NOT NULL,
  created_ms BIGINT NOT NULL, finished_ms BIGINT NOT NULL, stopped_ms BIGINT NULL,
  KEY avow_pledges_due (due_ms), KEY avow_pledges_created (created_ms, gid), KEY avow_pledges_stopped (stopped_ms))
  {_TABLE}""",
    f"""CREATE TABLE IF NOT EXISTS avow_topics (
  name VARBINARY(128) NOT NULL PRIMARY KEY, subscribers LONGBLOB NOT NULL, version BIGINT NOT NULL,
  created_ms BIGINT NOT NULL, updated_ms BIGINT NOT NULL) {_TABLE}""",
    f"INSERT IGNORE INTO avow_meta VALUES ('version', {SCHEMA_VERSION})",
)

HELD: Final = ("gid", "status", "revision", "fence", "owner", "lease_until_ms", "next_at_ms", "created_ms")
_CHANGED: Final = tuple(name for name in COLUMNS if name not in ("content", "fence", "created_ms"))
_LEASED: Final = ("gid", "fence", "owner", "lease_until_ms", "due_ms")
_CHANGED_PLACES: Final = [COLUMNS.index(name) for name in _CHANGED]
_LEASED_PLACES: Final = [COLUMNS.index(name) for name in _LEASED]
_IDS_MAX: Final = 500  # MariaDB turns longer lists into a join with a temporary table
_INSERT: Final = f"INSERT INTO avow_pledges ({listed(COLUMNS)}, stopped_ms) VALUES ".encode()

HINTS: Final = Hints(
    newest="FORCE INDEX (avow_pledges_created)",
    stopped="FORCE INDEX (avow_pledges_stopped)",
    is_stopped="stopped_ms IS NOT NULL",
)

NEXT_DUE: Final = f"SELECT MIN(due_ms) FROM avow_pledges WHERE due_ms < {NEVER_MS}"


def literal(value: bytes | int | str) -> bytes:
    if isinstance(value, int):
        return b"%d" % value
    data = value.encode() if isinstance(value, str) else value
    return b"_binary'%s'" % data.replace(b"\\", b"\\\\").replace(b"'", b"\\'")


def mark(value: bytes | int | str) -> str:
    """A value in a text statement, as hex; ids and statuses are short."""
    if isinstance(value, int):
        return str(value)
    return f"X'{(value.encode() if isinstance(value, str) else value).hex()}'"


def _ids(gids: Sequence[bytes]) -> Iterator[bytes]:
    for first in range(0, len(gids), _IDS_MAX):
        yield b"gid IN (%s)" % b", ".join(map(literal, gids[first : first + _IDS_MAX]))


def locking(gids: Sequence[bytes]) -> Iterator[bytes]:
    """`gids` ascending: the rows are locked in this order."""
    start = f"SELECT {listed(HELD)} FROM avow_pledges FORCE INDEX (PRIMARY) WHERE ".encode()
    return (start + among + b" ORDER BY gid FOR UPDATE" for among in _ids(gids))


def loading(gids: Sequence[bytes]) -> Iterator[bytes]:
    start = f"SELECT gid, {READ} FROM avow_pledges WHERE ".encode()
    return (start + among for among in _ids(gids))


def inserting(rows: Iterable[Row], *, bytes_max: int) -> Iterator[bytes]:
    values = (b"(%s, %s)" % (b", ".join(map(literal, row)), _stopped(row)) for row in rows)
    return _joined(_INSERT, values, b", ", b"", bytes_max=bytes_max)


def _stopped(row: Row) -> bytes:
    return b"%d" % row.created_ms if row.status in ("failed", "dead") else b"NULL"


def changing(rows: Iterable[Row], *, bytes_max: int) -> Iterator[bytes]:
    values = ([*(literal(row[place]) for place in _CHANGED_PLACES), _stopped(row)] for row in rows)
    return _updating((*_CHANGED, "stopped_ms"), values, bytes_max=bytes_max)


def leasing(rows: Iterable[Row], *, bytes_max: int) -> Iterator[bytes]:
    values = ([literal(row[place]) for place in _LEASED_PLACES] for row in rows)
    return _updating(_LEASED, values, bytes_max=bytes_max)


def _updating(names: Sequence[str], rows: Iterable[list[bytes]], *, bytes_max: int) -> Iterator[bytes]:
    """Joins from the values to the table by id: in the other direction the database would lock every row it scans."""
    columns = f"SELECT {listed([f'NULL AS {name}' for name in names])} FROM DUAL WHERE FALSE"
    changes = listed([f"p.{name} = v.{name}" for name in names if name != "gid"])
    start = f"UPDATE ({columns} UNION ALL ".encode()
    end = f") v STRAIGHT_JOIN avow_pledges p FORCE INDEX (PRIMARY) ON p.gid = v.gid SET {changes}".encode()
    values = (b"SELECT " + b", ".join(row) for row in rows)
    return _joined(start, values, b" UNION ALL ", end, bytes_max=bytes_max)


def _joined(start: bytes, values: Iterator[bytes], between: bytes, end: bytes, *, bytes_max: int) -> Iterator[bytes]:
    held: list[bytes] = []
    size = 0
    for value in values:
        if held and size + len(value) > bytes_max:
            yield start + between.join(held) + end
            held, size = [], 0
        held.append(value)
        size += len(value) + len(between)
    if held:
        yield start + between.join(held) + end


def claiming(*, now_ms: int, limit: int) -> str:
    return (
        f"SELECT gid, {READ} FROM avow_pledges FORCE INDEX (avow_pledges_due) "
        f"WHERE due_ms <= {now_ms} AND due_ms < {NEVER_MS} ORDER BY due_ms, gid LIMIT {limit} FOR UPDATE SKIP LOCKED"
    )


def claimed(gids: Sequence[bytes], *, owner: bytes, until_ms: int) -> Iterator[bytes]:
    changes = b"fence = fence + 1, owner = %s, lease_until_ms = %d, due_ms = GREATEST(next_at_ms, %d)"
    start = b"UPDATE avow_pledges SET " + changes % (literal(owner), until_ms, until_ms) + b" WHERE "
    return (start + among for among in _ids(gids))


def forgettable(*, before_ms: int, limit: int) -> str:
    return (
        f"SELECT gid FROM avow_pledges FORCE INDEX (avow_pledges_created) WHERE created_ms < {before_ms} "
        f"AND finished_ms < {before_ms} AND status IN ({str(FORGETTABLE)[1:-1]}) "
        f"ORDER BY created_ms LIMIT {limit} FOR UPDATE SKIP LOCKED"
    )


def removing(gids: Sequence[bytes]) -> Iterator[bytes]:
    return (b"DELETE FROM avow_pledges WHERE " + among for among in _ids(gids))


def loading_topic(name: bytes) -> str:
    return f"SELECT {TOPIC_COLUMNS} FROM avow_topics WHERE name = {mark(name)}"


def listing_topics(*, after: bytes, limit: int) -> str:
    return f"SELECT {TOPIC_COLUMNS} FROM avow_topics WHERE name > {mark(after)} ORDER BY name LIMIT {limit}"


def swapping_topic(op: SwapTopic) -> bytes:
    if not op.version_before:
        values: tuple[bytes | int, ...] = (op.name, op.subscribers, 1, op.now_ms, op.now_ms)
        return f"INSERT INTO avow_topics ({TOPIC_COLUMNS}) VALUES ".encode() + b"(%s)" % b", ".join(
            map(literal, values)
        )
    same = b" WHERE name = %s AND version = %d AND subscribers = %s" % (
        literal(op.name),
        op.version_before,
        literal(op.before),
    )
    if not op.version:
        return b"DELETE FROM avow_topics" + same
    changes = b"subscribers = %s, version = %d, updated_ms = %d" % (literal(op.subscribers), op.version, op.now_ms)
    return b"UPDATE avow_topics SET " + changes + same

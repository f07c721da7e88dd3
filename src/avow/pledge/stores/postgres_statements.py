"""The tables and statements of the PostgreSQL store. `%b`: the value is sent in binary.

Statements with arrays number the elements and return the numbers of those that took effect. If two elements of a
statement are for the same row, PostgreSQL uses one and ignores the other, as compare-and-set requires.
"""

from __future__ import annotations

from typing import Final

from avow.pledge.record import NEVER_MS
from avow.pledge.stores.operations import COLUMNS, FORGETTABLE, READ_COLUMNS
from avow.pledge.stores.sql import READ, SCHEMA_VERSION, STOPPED, TOPIC_COLUMNS, UNDER_WAY, listed

_TYPES: Final = dict.fromkeys(COLUMNS, "bigint") | dict.fromkeys(("gid", "content", "progress", "owner"), "bytea")
_TYPES["status"] = "text"

SCHEMA: Final = f"""
CREATE TABLE avow_meta (name text PRIMARY KEY, value bigint NOT NULL);
CREATE TABLE avow_pledges (
  {listed([f"{name} {_TYPES[name]} NOT NULL" for name in COLUMNS])}, PRIMARY KEY (gid)) WITH (fillfactor = 80);
CREATE INDEX avow_pledges_due ON avow_pledges (due_ms) WHERE due_ms < {NEVER_MS};
CREATE INDEX avow_pledges_created ON avow_pledges (created_ms, gid);
CREATE INDEX avow_pledges_stopped ON avow_pledges (status, created_ms, gid) WHERE {STOPPED};
CREATE TABLE avow_topics (
  name bytea PRIMARY KEY, subscribers bytea NOT NULL, version bigint NOT NULL, created_ms bigint NOT NULL,
  updated_ms bigint NOT NULL);
INSERT INTO avow_meta VALUES ('version', {SCHEMA_VERSION});
""".encode()


def _unnest(names: tuple[str, ...]) -> str:
    return f"unnest({listed([f'%b::{_TYPES[name]}[]' for name in names])})"


_SWAPPED: Final = tuple(name for name in COLUMNS if name != "content")
_READ_P: Final = listed([f"p.{name}" for name in READ_COLUMNS])
_SET: Final = ("progress", "status", "revision", "owner", "lease_until_ms", "next_at_ms", "due_ms", "finished_ms")

INSERT: Final = (
    f"INSERT INTO avow_pledges ({listed(COLUMNS)}) SELECT * FROM {_unnest(COLUMNS)} "
    "ON CONFLICT DO NOTHING RETURNING gid"
).encode()
LOCK: Final = b"SELECT 1 FROM avow_pledges WHERE gid = ANY(%b::bytea[]) ORDER BY gid FOR NO KEY UPDATE"
SWAP: Final = (
    f"UPDATE avow_pledges p SET {listed([f'{name} = v.{name}' for name in _SET])} "
    f"FROM {_unnest(_SWAPPED)} WITH ORDINALITY v ({listed(_SWAPPED)}, at) "
    "WHERE p.gid = v.gid AND p.revision = v.revision - 1 AND p.fence = v.fence AND p.created_ms = v.created_ms "
    "RETURNING v.at"
).encode()
CLAIM_ONE: Final = (
    "UPDATE avow_pledges p SET fence = p.fence + 1, owner = v.owner, lease_until_ms = v.until, "
    "due_ms = greatest(p.next_at_ms, v.until) "
    "FROM unnest(%b::bytea[], %b::bytea[], %b::bigint[], %b::bigint[]) WITH ORDINALITY v (gid, owner, now, until, at) "
    f"WHERE p.gid = v.gid AND p.{UNDER_WAY} AND (p.lease_until_ms <= v.now OR p.owner = v.owner) "
    f"RETURNING v.at, {_READ_P}"
).encode()
CLAIM: Final = (
    "WITH asked AS (SELECT %b::bytea AS owner, %b::bigint AS now, %b::bigint AS until), "
    "due AS (SELECT gid, due_ms FROM avow_pledges "
    f"WHERE due_ms <= (SELECT now FROM asked) AND due_ms < {NEVER_MS} "
    "ORDER BY due_ms, gid LIMIT %b::bigint FOR NO KEY UPDATE SKIP LOCKED) "
    "UPDATE avow_pledges p SET fence = p.fence + 1, owner = asked.owner, lease_until_ms = asked.until, "
    "due_ms = greatest(p.next_at_ms, asked.until) "
    f"FROM due, asked WHERE p.gid = due.gid RETURNING due.due_ms, due.gid, {_READ_P}"
).encode()
LOAD: Final = f"SELECT gid, {READ} FROM avow_pledges WHERE gid = ANY(%b::bytea[])".encode()
NEXT_DUE: Final = f"SELECT min(due_ms) FROM avow_pledges WHERE due_ms < {NEVER_MS}".encode()
FORGET: Final = (
    "DELETE FROM avow_pledges WHERE gid = ANY(ARRAY(SELECT gid FROM avow_pledges "
    f"WHERE created_ms < %b::bigint AND finished_ms < %b::bigint AND status IN ({str(FORGETTABLE)[1:-1]}) "
    "ORDER BY created_ms LIMIT %b::bigint FOR UPDATE SKIP LOCKED))"
).encode()
LOAD_TOPIC: Final = f"SELECT {TOPIC_COLUMNS} FROM avow_topics WHERE name = %b".encode()
LIST_TOPICS: Final = f"SELECT {TOPIC_COLUMNS} FROM avow_topics WHERE name > %b ORDER BY name LIMIT %b::bigint".encode()
MAKE_TOPIC: Final = (
    f"INSERT INTO avow_topics ({TOPIC_COLUMNS}) VALUES (%b::bytea, %b::bytea, 1, %b::bigint, %b::bigint) "
    "ON CONFLICT DO NOTHING"
).encode()
_SAME: Final = "WHERE name = %b::bytea AND version = %b::bigint AND subscribers = %b::bytea"
REMOVE_TOPIC: Final = f"DELETE FROM avow_topics {_SAME}".encode()
CHANGE_TOPIC: Final = (
    f"UPDATE avow_topics SET subscribers = %b::bytea, version = %b::bigint, updated_ms = %b::bigint {_SAME}"
).encode()

"""The barrier on MongoDB, with pymongo. It needs a replica set, because it needs transactions.

    with client.start_session() as session:
        with session.start_transaction(write_concern=MAJORITY):
            Barrier(gid).insert(session)                 then your work, with session=session
    check_back(client, gid)                              in the checkback's handler
    if Barrier.from_query(query).once(session): ...      in a branch's handler, inside your transaction

Database dtm_barrier, collection barrier, in dtm's layout. If two transactions insert the same key, the second gets a
write conflict at once, without waiting. A checkback then answers ONGOING after a few attempts. All other calls raise
the driver's error (112, WriteConflict), and the caller must retry the whole transaction.

A duplicate key aborts a MongoDB transaction, so the row is read before it is inserted.

There is no clean-up, and the collection must not have a TTL index (see cleanup.py).
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from avow.barrier.key import COMMITTED, LOCK_TIMEOUT_S, ROLLED_BACK, Call, Key, Question, Verdict, verdict_of
from avow.errors import AlreadyDecided, AlreadyExists, InvalidRequest, NotInstalled

try:
    from pymongo import ASCENDING, MongoClient
    from pymongo.client_session import ClientSession
    from pymongo.collection import Collection
    from pymongo.errors import DuplicateKeyError, OperationFailure
    from pymongo.read_concern import ReadConcern
    from pymongo.read_preferences import ReadPreference
    from pymongo.write_concern import WriteConcern
except ImportError as cause:
    raise NotInstalled("the barrier in MongoDB", extra="mongo") from cause

Document = dict[str, Any]
MAJORITY: Final = WriteConcern("majority")
DATABASE: Final = "dtm_barrier"
COLLECTION: Final = "barrier"

_KEY: Final = ("gid", "branch_id", "op", "barrier_id")
_WRITE_CONFLICT: Final = 112
_PAUSE_S: Final = 0.02


class Barrier(Call):
    def insert(self, session: ClientSession) -> None:
        """Insert the row in the session's transaction. If it is refused, abort."""
        key = self.key_to_commit()
        found = _find(rows_of(session.client), key, session=session)
        if found == ROLLED_BACK:
            raise AlreadyDecided(
                f"a checkback declared pledge {key.gid} rolled back before this transaction; nothing was written. "
                "Abort, and prepare a new pledge"
            )
        if found:
            raise AlreadyExists(
                f"another transaction of pledge {key.gid} has already committed; this one wrote nothing. Abort it"
            )
        self._write(session, key, COMMITTED)

    def once(self, session: ClientSession) -> bool:
        """Insert the row in the session's transaction. False: an earlier delivery has done the work."""
        key = self.next_key()
        if _find(rows_of(session.client), key, session=session):
            return False
        self._write(session, key, key.op)
        return True

    def _write(self, session: ClientSession, key: Key, reason: str) -> None:
        if not session.in_transaction:
            raise InvalidRequest(
                "the session is not in a transaction, so the barrier row would not be committed together with your "
                "work; nothing was written. Call start_transaction first"
            )
        rows_of(session.client).insert_one(document_of(key, reason), session=session)

    def check_back(self, client: MongoClient[Document], *, lock_timeout_s: float = LOCK_TIMEOUT_S) -> Verdict:
        key, until = self.own_key(), time.monotonic() + lock_timeout_s
        while True:
            reason = _find(rows_of(client), key) or _bury(client, key)
            if reason:
                return verdict_of(reason)
            if time.monotonic() >= until:
                return Verdict.ONGOING
            time.sleep(_PAUSE_S * random.uniform(0.5, 1.5))


def check_back(client: MongoClient[Document], gid: str, *, lock_timeout_s: float = LOCK_TIMEOUT_S) -> Verdict:
    return Barrier(gid).check_back(client, lock_timeout_s=lock_timeout_s)


def checkback(
    client: MongoClient[Document], *, lock_timeout_s: float = LOCK_TIMEOUT_S
) -> Callable[[Question], Verdict]:
    """For the routes in avow.barrier.web."""
    return lambda question: check_back(client, question.gid, lock_timeout_s=lock_timeout_s)


def create_collection(client: MongoClient[Document]) -> None:
    """Create the collection's unique index, without which the barrier does not work."""
    rows_of(client).create_index([(name, ASCENDING) for name in _KEY], unique=True)


def rows_of(client: MongoClient[Document]) -> Collection[Document]:
    """Reads majority-committed documents from the primary, so a verdict survives the loss of any one server."""
    return client[DATABASE].get_collection(
        COLLECTION,
        read_concern=ReadConcern("majority"),
        write_concern=MAJORITY,
        read_preference=ReadPreference.PRIMARY,
    )


def document_of(key: Key, reason: str) -> Document:
    return {**key.columns(reason), "create_time": datetime.now(UTC)}


def query_of(key: Key) -> Mapping[str, str]:
    return dict(zip(_KEY, key.exact(), strict=True))


def _find(rows: Collection[Document], key: Key, *, session: ClientSession | None = None) -> str:
    found = rows.find_one(query_of(key), session=session)
    return str(found["reason"]) if found else ""


def _bury(client: MongoClient[Document], key: Key) -> str:
    """Insert the tombstone in a transaction, which fails at once instead of waiting for another. Empty: try again."""
    with client.start_session() as session:
        try:
            with session.start_transaction(write_concern=MAJORITY):
                rows_of(client).insert_one(document_of(key, ROLLED_BACK), session=session)
        except DuplicateKeyError:
            return ""
        except OperationFailure as error:
            if error.code != _WRITE_CONFLICT:
                raise
            return ""
    return ROLLED_BACK

"""The barrier on pymongo: on the replica set that AVOW_MONGODB names, or else on a stand-in (mongo_stand_in.py)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.errors import OperationFailure
from tests.integration.barrier_databases import new_gid
from tests.integration.mongo_stand_in import MongoStandIn

from avow.barrier.key import Question, Verdict
from avow.barrier.mongo import MAJORITY, Barrier, check_back, checkback, create_collection
from avow.errors import AlreadyDecided, AlreadyExists, InvalidRequest


@pytest.fixture
def client() -> Iterator[MongoClient[dict[str, Any]]]:
    stand_in = None if "AVOW_MONGODB" in os.environ else MongoStandIn()
    with MongoClient(os.environ.get("AVOW_MONGODB") or stand_in.url) as made:  # type: ignore[union-attr,var-annotated]
        create_collection(made)
        yield made
    if stand_in is not None:
        stand_in.close()


def commit(client: MongoClient[dict[str, Any]], barrier: Barrier) -> None:
    with client.start_session() as session, session.start_transaction(write_concern=MAJORITY):
        barrier.insert(session)


def test_committed_rolled_back_and_never_started(client: MongoClient[dict[str, Any]]) -> None:
    committed, rolled_back, never = new_gid(), new_gid(), new_gid()
    commit(client, Barrier(committed))
    with client.start_session() as session:
        session.start_transaction(write_concern=MAJORITY)
        Barrier(rolled_back).insert(session)
        session.abort_transaction()
    for _ in range(2):
        verdicts = [check_back(client, gid) for gid in (committed, rolled_back, never)]
        assert verdicts == [Verdict.SUCCESS, Verdict.FAILURE, Verdict.FAILURE]
    with pytest.raises(AlreadyDecided):
        commit(client, Barrier(never))
    with pytest.raises(AlreadyExists):
        commit(client, Barrier(committed))
    assert checkback(client)(Question(committed)) is Verdict.SUCCESS


def test_an_open_transaction_is_ongoing_and_then_has_its_verdict(
    client: MongoClient[dict[str, Any]],
) -> None:
    gid = new_gid()
    with client.start_session() as session:
        session.start_transaction(write_concern=MAJORITY)
        Barrier(gid).insert(session)
        assert check_back(client, gid) is Verdict.ONGOING  # asked by this thread, so it did not wait for the commit
        session.commit_transaction()
    assert check_back(client, gid) is Verdict.SUCCESS


def test_a_branch_does_its_work_once(client: MongoClient[dict[str, Any]]) -> None:
    query = {"gid": new_gid(), "branch_id": "01", "op": "action"}
    for delivery in range(3):
        with client.start_session() as session, session.start_transaction(write_concern=MAJORITY):
            barrier = Barrier.from_query(query)
            assert [barrier.once(session), barrier.once(session)] == [delivery == 0] * 2


def test_a_row_outside_of_a_transaction_is_refused(client: MongoClient[dict[str, Any]]) -> None:
    gid = new_gid()
    with client.start_session() as session:
        with pytest.raises(InvalidRequest, match="not in a transaction"):
            Barrier(gid).insert(session)
        with pytest.raises(InvalidRequest, match="not in a transaction"):
            Barrier(gid, "01", "action").once(session)


def test_other_errors_of_the_server_are_passed_on(client: MongoClient[dict[str, Any]]) -> None:
    gid = new_gid()
    with client.start_session() as session:
        session.start_transaction(write_concern=MAJORITY)
        Barrier(gid).insert(session)
        with client.start_session() as other:
            other.start_transaction(write_concern=MAJORITY)
            with pytest.raises(OperationFailure) as conflict:
                Barrier(gid).insert(other)
            assert conflict.value.code == 112
        session.abort_transaction()

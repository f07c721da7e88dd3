"""Pledges of the blocking client when it is not clear what a transaction did, or when it belongs to somebody else."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from contextlib import closing
from typing import Any

import pytest
from sqlalchemy import Engine, event
from sqlalchemy.orm import Session
from tests.integration.barrier_databases import wait_until
from tests.integration.pledge_bank import (
    WITHDRAW,
    Bank,
    delivered_once,
    pledge_of,
    status_of,
    withdraw_and_raise,
    withdraw_by,
)
from tests.integration.scripted_coordinator import ScriptedCoordinator, Service

from avow.barrier import sql
from avow.client.blocking import BlockingClient
from avow.client.pledge import CommittedPending, OutcomeUnknown, RolledBack
from avow.errors import InvalidRequest, Unknown

# --------------------------------------------------------------------------------------------- unclear commits


class CommitFails:
    """The engine's next commit raises: before it is done, or after."""

    def __init__(self, engine: Engine, *, after: bool) -> None:
        self._engine, self._after = engine, after

    def __enter__(self) -> None:
        event.listen(self._engine, "commit", self._fail)

    def __exit__(self, *_: object) -> None:
        if event.contains(self._engine, "commit", self._fail):
            event.remove(self._engine, "commit", self._fail)

    def _fail(self, connection: Any) -> None:
        event.remove(self._engine, "commit", self._fail)
        if self._after:
            connection.connection.dbapi_connection.commit()
        raise OSError("the connection was lost during commit")


def test_a_failed_commit_that_did_not_happen_is_raised_unchanged(
    client: BlockingClient, bank: Bank, coordinator: ScriptedCoordinator, service: Service, checkback: str
) -> None:
    pledge = pledge_of(client, service)
    with (
        pytest.raises(OSError, match="lost"),
        CommitFails(bank.engine, after=False),
        pledge.transaction(bank.engine, checkback=checkback) as connection,
    ):
        connection.execute(WITHDRAW)
    assert isinstance(pledge.outcome, RolledBack)
    assert bank.amount == 100
    wait_until(lambda: status_of(coordinator, pledge.gid) == "failed")
    assert not service.calls


def test_a_failed_commit_that_did_happen_is_delivered_without_an_error(
    client: BlockingClient, bank: Bank, service: Service, checkback: str
) -> None:
    pledge = pledge_of(client, service)
    with CommitFails(bank.engine, after=True), pledge.transaction(bank.engine, checkback=checkback) as connection:
        connection.execute(WITHDRAW)
    assert isinstance(pledge.outcome, CommittedPending)
    assert bank.amount == 70
    wait_until(lambda: delivered_once(service, pledge.gid))


@pytest.mark.parametrize("after", [False, True])
def test_do_and_submit_reports_which_of_the_two_happened(
    client: BlockingClient, bank: Bank, service: Service, checkback: str, after: bool
) -> None:
    with CommitFails(bank.engine, after=after):
        outcome = pledge_of(client, service).do_and_submit_db(bank.engine, withdraw_by, checkback=checkback)
    assert outcome.committed is after
    assert bank.amount == (70 if after else 100)


def test_a_commit_with_an_unreachable_database_is_unknown_until_the_checkback(
    client: BlockingClient, bank: Bank, service: Service, checkback: str
) -> None:
    def unreachable(_: object) -> Any:
        raise OSError("no database")

    pledge = pledge_of(client, service)
    with (
        pytest.raises(Unknown, match=pledge.gid),
        CommitFails(bank.engine, after=True),
        pledge.transaction(bank.engine, checkback=checkback, ask=unreachable) as connection,
    ):
        connection.execute(WITHDRAW)
    assert isinstance(pledge.outcome, OutcomeUnknown)
    assert pledge.outcome.committed is None
    wait_until(lambda: delivered_once(service, pledge.gid))  # the abort asked the checkback, which knew better
    assert bank.amount == 70


def test_a_block_that_committed_itself_and_then_raised_is_delivered(
    client: BlockingClient, bank: Bank, service: Service, checkback: str
) -> None:
    pledge = pledge_of(client, service)
    with pytest.raises(LookupError) as raised, pledge.transaction(bank.engine, checkback=checkback) as connection:
        withdraw_and_raise(connection, LookupError(), commit=True)
    assert isinstance(pledge.outcome, CommittedPending)
    assert "committed" in raised.value.__notes__[0]
    wait_until(lambda: delivered_once(service, pledge.gid))


def test_a_checkback_before_the_transaction_makes_it_fail(
    client: BlockingClient, bank: Bank, service: Service, checkback: str
) -> None:
    pledge = pledge_of(client, service)
    pledge.prepare(checkback)
    with closing(sqlite3.connect(bank.path)) as connection:
        assert sql.check_back(connection, pledge.gid) == "FAILURE"
    again = client.pledge(pledge.gid).call(service.url + "/in", {"amount": 30})
    outcome = again.do_and_submit_db(bank.engine, withdraw_by, checkback=checkback)
    assert isinstance(outcome, RolledBack)
    assert bank.amount == 100
    assert not service.calls


def test_an_interrupt_is_not_swallowed_and_the_checkback_decides(
    client: BlockingClient, bank: Bank, coordinator: ScriptedCoordinator, service: Service, checkback: str
) -> None:
    pledge = pledge_of(client, service)
    with pytest.raises(KeyboardInterrupt), pledge.transaction(bank.engine, checkback=checkback) as connection:
        withdraw_and_raise(connection, KeyboardInterrupt())
    assert pledge.outcome is not None
    assert pledge.outcome.committed is None
    wait_until(lambda: status_of(coordinator, pledge.gid) == "failed")
    assert bank.amount == 100


# ----------------------------------------------------------------------------------------- joined transactions


def test_a_joined_transaction_is_committed_by_its_owner(
    client: BlockingClient, bank: Bank, service: Service, checkback: str
) -> None:
    pledge = pledge_of(client, service)
    with Session(bank.engine) as session:
        session.execute(WITHDRAW)
        pledge.join(session, checkback=checkback)
        with pytest.raises(InvalidRequest, match="Commit it first"):
            pledge.submit()
        session.commit()
        assert isinstance(pledge.submit(), CommittedPending)
    wait_until(lambda: delivered_once(service, pledge.gid))
    assert bank.amount == 70


def test_a_joined_transaction_that_was_rolled_back_delivers_nothing(
    client: BlockingClient, bank: Bank, coordinator: ScriptedCoordinator, service: Service, checkback: str
) -> None:
    pledge = pledge_of(client, service)
    with closing(sqlite3.connect(bank.path)) as connection:
        connection.execute("update accounts set amount = amount - 30")
        pledge.join(connection, checkback=checkback)
        connection.rollback()
        assert isinstance(pledge.submit(), RolledBack)
    wait_until(lambda: status_of(coordinator, pledge.gid) == "failed")
    assert not service.calls
    assert bank.amount == 100


def test_a_joined_transaction_whose_owner_died_is_decided_by_the_checkback(
    client: BlockingClient, bank: Bank, service: Service, checkback: str
) -> None:
    pledge = pledge_of(client, service, timeout_to_fail_s=0.1)
    with closing(sqlite3.connect(bank.path)) as connection:
        pledge.join(connection, checkback=checkback)
        connection.commit()
    wait_until(lambda: delivered_once(service, pledge.gid))


DJANGO = """
import sys, django
from django.conf import settings
path, coordinator, service = sys.argv[1:]
settings.configure(DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": path}})
django.setup()
from django.db import connection, transaction
import avow
with avow.connect_blocking(coordinator) as client:
    pledge = client.pledge().call(service + "/in", {"amount": 30})
    with transaction.atomic():
        pledge.join(connection, checkback=service + "/checkback")
        with connection.cursor() as cursor:
            cursor.execute("update accounts set amount = amount - 30")
        transaction.on_commit(pledge.submit)
    print(type(pledge.outcome).__name__)
    lost = client.pledge().call(service + "/in", {"amount": 30})
    try:
        with transaction.atomic():
            lost.join(connection, checkback=service + "/checkback")
            transaction.on_commit(lost.submit)
            raise ZeroDivisionError
    except ZeroDivisionError:
        print(type(lost.submit()).__name__)
"""


def test_a_transaction_of_django_is_joined_and_submitted_when_it_commits(
    coordinator: ScriptedCoordinator, bank: Bank, service: Service
) -> None:
    program = [sys.executable, "-W", "error", "-c", DJANGO, str(bank.path), coordinator.url, service.url]
    ran = subprocess.run(program, capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.split() == ["CommittedPending", "RolledBack"]
    wait_until(lambda: len(service.calls) == 1)
    assert bank.amount == 70

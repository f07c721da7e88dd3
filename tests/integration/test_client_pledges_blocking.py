"""Pledges of the blocking client: the outcome that a caller gets, whatever fails."""

from __future__ import annotations

import sqlite3
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
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
from avow.client.pledge import CommittedPending, Delivered, RolledBack, Stopped
from avow.errors import Busy, ContentDiffers, Forbidden, InvalidRequest

# --------------------------------------------------------------------------------------------- it goes well


def test_work_and_message_are_atomic(client: BlockingClient, bank: Bank, service: Service, checkback: str) -> None:
    pledge = pledge_of(client, service)
    with pledge.transaction(bank.engine, checkback=checkback) as connection:
        connection.execute(WITHDRAW)
        assert not service.calls
    assert isinstance(pledge.outcome, CommittedPending)
    assert pledge.outcome.state == "started"
    wait_until(lambda: delivered_once(service, pledge.gid))
    wait_until(lambda: pledge.current() == Delivered(pledge.gid))
    expected = {"gid": pledge.gid, "trans_type": "msg", "branch_id": "01", "op": "action"}
    assert service.calls[0].items() >= expected.items()
    assert service.bodies == [b'{"amount":30}']
    assert bank.amount == 70
    assert service.asked == 0


def test_a_caller_waiting_for_the_result_learns_that_it_is_delivered(
    client: BlockingClient, bank: Bank, service: Service, checkback: str
) -> None:
    pledge = pledge_of(client, service, wait_result=True)
    outcome = pledge.do_and_submit_db(bank.engine, withdraw_by, checkback=checkback)
    assert isinstance(outcome, Delivered)
    assert outcome.committed
    assert delivered_once(service, pledge.gid)


def test_the_outcome_has_the_return_value_of_the_work(
    client: BlockingClient, bank: Bank, service: Service, checkback: str
) -> None:
    outcome = pledge_of(client, service).do_and_submit_db(bank.engine, lambda _: 7, checkback=checkback)
    assert isinstance(outcome, CommittedPending)
    assert outcome.result == 7


def test_a_session_or_a_connection_is_accepted_too(
    client: BlockingClient, bank: Bank, service: Service, checkback: str
) -> None:
    with Session(bank.engine) as session, pledge_of(client, service).transaction(session, checkback=checkback) as same:
        same.execute(WITHDRAW)
    with (
        bank.engine.connect() as connection,
        pledge_of(client, service).transaction(connection, checkback=checkback) as same,
    ):
        same.execute(WITHDRAW)
    assert bank.amount == 40
    wait_until(lambda: len(service.calls) == 2)


def test_a_plain_connection_of_sqlite3_is_accepted_too(
    client: BlockingClient, bank: Bank, service: Service, checkback: str
) -> None:
    with (
        closing(sqlite3.connect(bank.path)) as connection,
        pledge_of(client, service).transaction(connection, checkback=checkback) as cursor,
    ):
        cursor.execute("update accounts set amount = amount - 30")
    assert bank.amount == 70
    wait_until(lambda: len(service.calls) == 1)


def test_a_plain_message_needs_no_transaction(
    client: BlockingClient, coordinator: ScriptedCoordinator, service: Service
) -> None:
    pledge = client.pledge().call(service.url + "/in", b"\xff\x00").publish("transfers", {"amount": 3}, key="a/b c")
    assert isinstance(pledge.submit(), CommittedPending)
    wait_until(lambda: isinstance(pledge.current(), Delivered))
    assert service.bodies == [b"\xff\x00"]
    assert coordinator.enqueued == [("transfers", b'{"amount":3}', b"a/b c")]
    assert isinstance(pledge.submit(), Delivered)  # repeated: nothing runs again
    assert len(service.calls) == 1


# ------------------------------------------------------------------------------------------------ it fails


def test_an_error_of_the_work_is_raised_and_nothing_is_delivered(
    client: BlockingClient, bank: Bank, coordinator: ScriptedCoordinator, service: Service, checkback: str
) -> None:
    pledge = pledge_of(client, service)
    with pytest.raises(ZeroDivisionError), pledge.transaction(bank.engine, checkback=checkback) as connection:
        withdraw_and_raise(connection, ZeroDivisionError())
    assert isinstance(pledge.outcome, RolledBack)
    assert isinstance(pledge.outcome.error, ZeroDivisionError)
    assert bank.amount == 100
    assert bank.reasons(pledge.gid) == ["rollback"]
    wait_until(lambda: status_of(coordinator, pledge.gid) == "failed")  # aborted, without waiting for the timeout
    assert not service.calls


def test_do_and_submit_returns_an_error_of_the_work(
    client: BlockingClient, bank: Bank, service: Service, checkback: str
) -> None:
    def work(connection: Any) -> None:
        connection.execute(WITHDRAW)
        raise LookupError("no such account")

    outcome = pledge_of(client, service).do_and_submit_db(bank.engine, work, checkback=checkback)
    assert isinstance(outcome, RolledBack)
    assert outcome.committed is False
    assert isinstance(outcome.error, LookupError)
    assert bank.amount == 100


def test_without_a_coordinator_nothing_is_done(
    client: BlockingClient, bank: Bank, coordinator: ScriptedCoordinator, service: Service, checkback: str
) -> None:
    coordinator.faults["prepare"] = [Forbidden("no")]
    pledge = pledge_of(client, service)
    with pytest.raises(Forbidden), pledge.transaction(bank.engine, checkback=checkback):
        pytest.fail("the work ran")
    assert bank.reasons(pledge.gid) == []
    assert pledge.outcome is None


def test_a_prepare_whose_answer_was_lost_is_retried(
    client: BlockingClient, bank: Bank, coordinator: ScriptedCoordinator, service: Service, checkback: str
) -> None:
    coordinator.faults["prepare"] = ["act and drop", "drop", Busy("wait")]
    with pledge_of(client, service).transaction(bank.engine, checkback=checkback) as connection:
        connection.execute(WITHDRAW)
    assert len(coordinator.operations("prepare")) == 4
    wait_until(lambda: len(service.calls) == 1)


# ------------------------------------------------------------------------- committed, and something fails then


def test_point_13_an_unanswered_submit_is_committed_and_pending_not_failed(
    client: BlockingClient, bank: Bank, coordinator: ScriptedCoordinator, service: Service, checkback: str
) -> None:
    coordinator.faults["submit"] = ["drop"] * 100
    pledge = pledge_of(client, service, timeout_to_fail_s=0.1)
    with pledge.transaction(bank.engine, checkback=checkback) as connection:
        connection.execute(WITHDRAW)
    assert isinstance(pledge.outcome, CommittedPending)
    assert pledge.outcome.state == "prepared"
    wait_until(lambda: delivered_once(service, pledge.gid))  # the checkback said that it committed
    assert service.asked >= 1
    assert bank.amount == 70


def test_a_submit_whose_answer_was_lost_delivers_once(
    client: BlockingClient, bank: Bank, coordinator: ScriptedCoordinator, service: Service, checkback: str
) -> None:
    coordinator.faults["submit"] = ["act and drop", "act and drop"]
    pledge = pledge_of(client, service)
    with pledge.transaction(bank.engine, checkback=checkback):
        pass
    assert isinstance(pledge.outcome, CommittedPending | Delivered)
    wait_until(lambda: isinstance(pledge.current(), Delivered))
    assert len(service.calls) == 1


def test_point_13_a_failing_branch_is_reported_as_pending_while_delivery_continues(
    client: BlockingClient, bank: Bank, service: Service, checkback: str
) -> None:
    service.answers = [500, 409, 425]
    pledge = pledge_of(client, service, wait_result=True)
    outcome = pledge.do_and_submit_db(bank.engine, withdraw_by, checkback=checkback)
    assert isinstance(outcome, CommittedPending)
    assert outcome.state == "failing"
    assert "500" in outcome.reason
    wait_until(lambda: isinstance(pledge.current(), Delivered))


def test_a_delayed_pledge_is_reported_as_delayed(
    client: BlockingClient, bank: Bank, service: Service, checkback: str
) -> None:
    pledge = pledge_of(client, service, wait_result=True, delay_s=600.0)
    outcome = pledge.do_and_submit_db(bank.engine, withdraw_by, checkback=checkback)
    assert isinstance(outcome, CommittedPending)
    assert outcome.state == "delayed"
    assert not service.calls


def test_a_manually_stopped_pledge_is_reported_as_stopped(
    client: BlockingClient, bank: Bank, coordinator: ScriptedCoordinator, service: Service, checkback: str
) -> None:
    pledge = pledge_of(client, service)
    with pledge.transaction(bank.engine, checkback=checkback) as connection:
        connection.execute(WITHDRAW)
        coordinator.do(lambda wrapped: wrapped.stop(pledge.gid))
    assert isinstance(pledge.outcome, Stopped)
    assert pledge.outcome.committed
    assert bank.amount == 70


# --------------------------------------------------------------------------------------------------- requests


def test_an_abort_cannot_undo_a_commit(client: BlockingClient, bank: Bank, service: Service, checkback: str) -> None:
    pledge = pledge_of(client, service)
    pledge.prepare(checkback)
    with closing(sqlite3.connect(bank.path)) as connection, sql.Barrier(pledge.gid).transaction(connection):
        pass
    assert pledge.abort().committed
    wait_until(lambda: delivered_once(service, pledge.gid))


def test_an_abort_before_the_transaction_began_rolls_back(
    client: BlockingClient, service: Service, checkback: str
) -> None:
    pledge = pledge_of(client, service)
    pledge.prepare(checkback)
    assert isinstance(pledge.abort(), RolledBack)


def test_another_content_under_the_same_gid_is_refused(client: BlockingClient, service: Service) -> None:
    client.pledge("order-1").call(service.url + "/in", {"amount": 30}).submit()
    with pytest.raises(ContentDiffers):
        client.pledge("order-1").call(service.url + "/in", {"amount": 31}).submit()


def test_a_pledge_that_was_sent_cannot_be_changed(client: BlockingClient, service: Service) -> None:
    pledge = pledge_of(client, service)
    pledge.submit()
    with pytest.raises(InvalidRequest, match="content is fixed"):
        pledge.call(service.url + "/in")


def test_headers_are_sent_with_the_branch(client: BlockingClient, service: Service) -> None:
    client.pledge().call(service.url + "/in", {}, headers={"X-Tenant": "7"}).submit()
    wait_until(lambda: len(service.calls) == 1)
    assert service.headers[0]["x-tenant"] == "7"


def test_an_asyncio_source_is_refused_before_anything_is_sent(
    client: BlockingClient, coordinator: ScriptedCoordinator, service: Service
) -> None:
    from sqlalchemy.ext.asyncio import create_async_engine

    engine = create_async_engine("sqlite+aiosqlite://")
    with pytest.raises(InvalidRequest, match=r"avow\.connect"):
        pledge_of(client, service).do_and_submit_db(engine, withdraw_by, checkback="http://x/")
    assert not coordinator.operations("prepare")


def test_several_threads_pledge_with_one_client(
    client: BlockingClient, tmp_path: Path, service: Service, bank: Bank, checkback: str
) -> None:
    def transfer() -> None:
        with (
            closing(sqlite3.connect(bank.path, timeout=20)) as connection,
            pledge_of(client, service).transaction(connection, checkback=checkback) as cursor,
        ):
            cursor.execute("update accounts set amount = amount - 1")

    threads = [threading.Thread(target=transfer) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert bank.amount == 92
    wait_until(lambda: len({call["gid"] for call in service.calls}) == 8)

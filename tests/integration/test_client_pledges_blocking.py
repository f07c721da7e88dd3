"""Pledges of the blocking client: what a caller is told, whatever fails on the way."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from barrier_databases import wait_until
from pledge_desk import Desk, Service, served
from sqlalchemy import Engine, create_engine, event, text
from sqlalchemy.orm import Session

from avow import connect_blocking
from avow.barrier import sql, sqlalchemy
from avow.client.blocking import BlockingClient
from avow.client.blocking_pledge import BlockingPledge
from avow.client.pledge import CommittedPending, Delivered, OutcomeUnknown, RolledBack, Stopped
from avow.errors import Busy, ContentDiffers, Forbidden, InvalidRequest, Unknown


class Bank:
    """An account, a checkback, and a way to break the commit."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "bank.db"
        self.engine = create_engine(f"sqlite:///{self.path}")
        sqlalchemy.create_table(self.engine)
        with self.engine.begin() as connection:
            connection.execute(text("create table accounts (name text primary key, amount integer)"))
            connection.execute(text("insert into accounts values ('alice', 100)"))

    @property
    def amount(self) -> int:
        with self.engine.connect() as connection:
            return int(connection.execute(text("select amount from accounts")).scalar_one())

    def reasons(self, gid: str) -> list[str]:
        with self.engine.connect() as connection:
            rows = connection.execute(text("select reason from barrier where gid = :gid"), {"gid": gid})
            return [row[0] for row in rows]


WITHDRAW = text("update accounts set amount = amount - 30")


@pytest.fixture
def bank(tmp_path: Path) -> Iterator[Bank]:
    made = Bank(tmp_path)
    yield made
    made.engine.dispose()


@pytest.fixture
def service(bank: Bank) -> Iterator[Service]:
    with served(Service(sqlalchemy.checkback(bank.engine))) as service:
        yield service


@pytest.fixture
def desk() -> Iterator[Desk]:
    with Desk() as desk:
        yield desk


@pytest.fixture
def client(desk: Desk) -> Iterator[BlockingClient]:
    with connect_blocking(desk.url, timeout_s=3.0) as client:
        yield client


@pytest.fixture
def checkback(service: Service) -> str:
    return service.url + "/checkback"


def pledge_of(client: BlockingClient, service: Service, **options: Any) -> BlockingPledge:
    return client.pledge(**options).call(service.url + "/in", {"amount": 30})


def withdraw_by(connection: Any) -> None:
    connection.execute(WITHDRAW)


def withdraw_and_raise(connection: Any, error: BaseException, *, commit: bool = False) -> None:
    connection.execute(WITHDRAW)
    if commit:
        connection.commit()
    raise error


def delivered_once(service: Service, gid: str) -> bool:
    return [call["gid"] for call in service.calls] == [gid]


# --------------------------------------------------------------------------------------------- it goes well


def test_work_and_message_happen_together(client: BlockingClient, bank: Bank, service: Service, checkback: str) -> None:
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


def test_who_waits_for_the_result_is_told_that_it_is_delivered(
    client: BlockingClient, bank: Bank, service: Service, checkback: str
) -> None:
    pledge = pledge_of(client, service, wait_result=True)
    outcome = pledge.do_and_submit_db(bank.engine, withdraw_by, checkback=checkback)
    assert isinstance(outcome, Delivered)
    assert outcome.committed
    assert delivered_once(service, pledge.gid)


def test_what_the_work_returned_is_in_the_outcome(
    client: BlockingClient, bank: Bank, service: Service, checkback: str
) -> None:
    outcome = pledge_of(client, service).do_and_submit_db(bank.engine, lambda _: 7, checkback=checkback)
    assert isinstance(outcome, CommittedPending)
    assert outcome.result == 7


def test_a_session_and_a_connection_can_be_given_too(
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


def test_a_plain_connection_of_sqlite3_can_be_given_too(
    client: BlockingClient, bank: Bank, service: Service, checkback: str
) -> None:
    with (
        closing(sqlite3.connect(bank.path)) as connection,
        pledge_of(client, service).transaction(connection, checkback=checkback) as cursor,
    ):
        cursor.execute("update accounts set amount = amount - 30")
    assert bank.amount == 70
    wait_until(lambda: len(service.calls) == 1)


def test_a_plain_message_needs_no_transaction(client: BlockingClient, desk: Desk, service: Service) -> None:
    pledge = client.pledge().call(service.url + "/in", b"\xff\x00").publish("transfers", {"amount": 3}, key="a/b c")
    assert isinstance(pledge.submit(), CommittedPending)
    wait_until(lambda: isinstance(pledge.current(), Delivered))
    assert service.bodies == [b"\xff\x00"]
    assert desk.enqueued == [("transfers", b'{"amount":3}', b"a/b c")]
    assert isinstance(pledge.submit(), Delivered)  # repeated: nothing runs again
    assert len(service.calls) == 1


# ------------------------------------------------------------------------------------------------ it fails


def test_an_error_of_the_work_comes_out_and_nothing_is_delivered(
    client: BlockingClient, bank: Bank, desk: Desk, service: Service, checkback: str
) -> None:
    pledge = pledge_of(client, service)
    with pytest.raises(ZeroDivisionError), pledge.transaction(bank.engine, checkback=checkback) as connection:
        withdraw_and_raise(connection, ZeroDivisionError())
    assert isinstance(pledge.outcome, RolledBack)
    assert isinstance(pledge.outcome.error, ZeroDivisionError)
    assert bank.amount == 100
    assert bank.reasons(pledge.gid) == ["rollback"]
    wait_until(lambda: status_of(desk, pledge.gid) == "failed")  # aborted, without waiting for the timeout
    assert not service.calls


def status_of(desk: Desk, gid: str) -> str:
    found = desk.pledge(gid)
    return found.status if found else ""


def test_an_error_of_the_work_is_a_value_of_do_and_submit(
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
    client: BlockingClient, bank: Bank, desk: Desk, service: Service, checkback: str
) -> None:
    desk.faults["prepare"] = [Forbidden("no")]
    pledge = pledge_of(client, service)
    with pytest.raises(Forbidden), pledge.transaction(bank.engine, checkback=checkback):
        pytest.fail("the work ran")
    assert bank.reasons(pledge.gid) == []
    assert pledge.outcome is None


def test_a_prepare_whose_answer_was_lost_is_repeated(
    client: BlockingClient, bank: Bank, desk: Desk, service: Service, checkback: str
) -> None:
    desk.faults["prepare"] = ["act and drop", "drop", Busy("wait")]
    with pledge_of(client, service).transaction(bank.engine, checkback=checkback) as connection:
        connection.execute(WITHDRAW)
    assert len(desk.operations("prepare")) == 4
    wait_until(lambda: len(service.calls) == 1)


# ------------------------------------------------------------------------- committed, and something fails then


def test_point_13_a_submit_that_nobody_hears_is_committed_and_pending_not_failed(
    client: BlockingClient, bank: Bank, desk: Desk, service: Service, checkback: str
) -> None:
    desk.faults["submit"] = ["drop"] * 100
    pledge = pledge_of(client, service, timeout_to_fail_s=0.1)
    with pledge.transaction(bank.engine, checkback=checkback) as connection:
        connection.execute(WITHDRAW)
    assert isinstance(pledge.outcome, CommittedPending)
    assert pledge.outcome.state == "prepared"
    wait_until(lambda: delivered_once(service, pledge.gid))  # the checkback said that it committed
    assert service.asked >= 1
    assert bank.amount == 70


def test_a_submit_whose_answer_was_lost_delivers_once(
    client: BlockingClient, bank: Bank, desk: Desk, service: Service, checkback: str
) -> None:
    desk.faults["submit"] = ["act and drop", "act and drop"]
    pledge = pledge_of(client, service)
    with pledge.transaction(bank.engine, checkback=checkback):
        pass
    assert isinstance(pledge.outcome, CommittedPending | Delivered)
    wait_until(lambda: isinstance(pledge.current(), Delivered))
    assert len(service.calls) == 1


def test_point_13_a_branch_that_fails_is_told_as_pending_while_delivery_goes_on(
    client: BlockingClient, bank: Bank, service: Service, checkback: str
) -> None:
    service.answers = [500, 409, 425]
    pledge = pledge_of(client, service, wait_result=True)
    outcome = pledge.do_and_submit_db(bank.engine, withdraw_by, checkback=checkback)
    assert isinstance(outcome, CommittedPending)
    assert outcome.state == "failing"
    assert "500" in outcome.reason
    wait_until(lambda: isinstance(pledge.current(), Delivered))


def test_a_delayed_pledge_says_so(client: BlockingClient, bank: Bank, service: Service, checkback: str) -> None:
    pledge = pledge_of(client, service, wait_result=True, delay_s=600.0)
    outcome = pledge.do_and_submit_db(bank.engine, withdraw_by, checkback=checkback)
    assert isinstance(outcome, CommittedPending)
    assert outcome.state == "delayed"
    assert not service.calls


def test_one_that_a_person_stopped_is_told_as_stopped(
    client: BlockingClient, bank: Bank, desk: Desk, service: Service, checkback: str
) -> None:
    pledge = pledge_of(client, service)
    with pledge.transaction(bank.engine, checkback=checkback) as connection:
        connection.execute(WITHDRAW)
        desk.do(lambda coordinator: coordinator.stop(pledge.gid))
    assert isinstance(pledge.outcome, Stopped)
    assert pledge.outcome.committed
    assert bank.amount == 70


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


def test_a_commit_that_failed_and_did_not_happen_comes_out_as_it_is(
    client: BlockingClient, bank: Bank, desk: Desk, service: Service, checkback: str
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
    wait_until(lambda: status_of(desk, pledge.gid) == "failed")
    assert not service.calls


def test_a_commit_that_failed_and_did_happen_is_delivered_and_no_error(
    client: BlockingClient, bank: Bank, service: Service, checkback: str
) -> None:
    pledge = pledge_of(client, service)
    with CommitFails(bank.engine, after=True), pledge.transaction(bank.engine, checkback=checkback) as connection:
        connection.execute(WITHDRAW)
    assert isinstance(pledge.outcome, CommittedPending)
    assert bank.amount == 70
    wait_until(lambda: delivered_once(service, pledge.gid))


@pytest.mark.parametrize("after", [False, True])
def test_do_and_submit_says_which_of_the_two_it_was(
    client: BlockingClient, bank: Bank, service: Service, checkback: str, after: bool
) -> None:
    with CommitFails(bank.engine, after=after):
        outcome = pledge_of(client, service).do_and_submit_db(bank.engine, withdraw_by, checkback=checkback)
    assert outcome.committed is after
    assert bank.amount == (70 if after else 100)


def test_a_commit_that_nobody_can_ask_about_is_unknown_and_the_checkback_finds_out(
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


def test_a_block_that_committed_by_itself_and_then_raised_is_delivered(
    client: BlockingClient, bank: Bank, service: Service, checkback: str
) -> None:
    pledge = pledge_of(client, service)
    with pytest.raises(LookupError) as raised, pledge.transaction(bank.engine, checkback=checkback) as connection:
        withdraw_and_raise(connection, LookupError(), commit=True)
    assert isinstance(pledge.outcome, CommittedPending)
    assert "committed" in raised.value.__notes__[0]
    wait_until(lambda: delivered_once(service, pledge.gid))


def test_a_checkback_that_came_first_makes_the_transaction_fail(
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
    client: BlockingClient, bank: Bank, desk: Desk, service: Service, checkback: str
) -> None:
    pledge = pledge_of(client, service)
    with pytest.raises(KeyboardInterrupt), pledge.transaction(bank.engine, checkback=checkback) as connection:
        withdraw_and_raise(connection, KeyboardInterrupt())
    assert pledge.outcome is not None
    assert pledge.outcome.committed is None
    wait_until(lambda: status_of(desk, pledge.gid) == "failed")
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
    client: BlockingClient, bank: Bank, desk: Desk, service: Service, checkback: str
) -> None:
    pledge = pledge_of(client, service)
    with closing(sqlite3.connect(bank.path)) as connection:
        connection.execute("update accounts set amount = amount - 30")
        pledge.join(connection, checkback=checkback)
        connection.rollback()
        assert isinstance(pledge.submit(), RolledBack)
    wait_until(lambda: status_of(desk, pledge.gid) == "failed")
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


# --------------------------------------------------------------------------------------------------- requests


def test_an_abort_cannot_kill_what_committed(
    client: BlockingClient, bank: Bank, service: Service, checkback: str
) -> None:
    pledge = pledge_of(client, service)
    pledge.prepare(checkback)
    with closing(sqlite3.connect(bank.path)) as connection, sql.Barrier(pledge.gid).transaction(connection):
        pass
    assert pledge.abort().committed
    wait_until(lambda: delivered_once(service, pledge.gid))


def test_an_abort_of_what_never_began_rolls_back(client: BlockingClient, service: Service, checkback: str) -> None:
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


def test_headers_go_with_the_branch(client: BlockingClient, service: Service) -> None:
    client.pledge().call(service.url + "/in", {}, headers={"X-Tenant": "7"}).submit()
    wait_until(lambda: len(service.calls) == 1)
    assert service.headers[0]["x-tenant"] == "7"


def test_a_source_of_asyncio_is_refused_before_anything_is_sent(
    client: BlockingClient, desk: Desk, service: Service
) -> None:
    from sqlalchemy.ext.asyncio import create_async_engine

    engine = create_async_engine("sqlite+aiosqlite://")
    with pytest.raises(InvalidRequest, match=r"avow\.connect"):
        pledge_of(client, service).do_and_submit_db(engine, withdraw_by, checkback="http://x/")
    assert not desk.operations("prepare")


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


DJANGO = """
import sys, django
from django.conf import settings
path, desk, service = sys.argv[1:]
settings.configure(DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": path}})
django.setup()
from django.db import connection, transaction
import avow
with avow.connect_blocking(desk) as client:
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
    desk: Desk, bank: Bank, service: Service
) -> None:
    program = [sys.executable, "-W", "error", "-c", DJANGO, str(bank.path), desk.url, service.url]
    ran = subprocess.run(program, capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.split() == ["CommittedPending", "RolledBack"]
    wait_until(lambda: len(service.calls) == 1)
    assert bank.amount == 70

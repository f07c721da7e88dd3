"""Pledges on servers that die: the database is killed with -9 while the transaction is open."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.exc import DBAPIError
from tests.integration.barrier_databases import wait_until
from tests.integration.scripted_coordinator import ScriptedCoordinator, Service, served
from tests.services import MariaDBServer, PostgresServer, Server

from avow import connect_blocking
from avow.barrier import sqlalchemy
from avow.client.pledge import CommittedPending, OutcomeUnknown
from avow.errors import Unknown

WITHDRAW = text("update accounts set amount = amount - 30")
DRIVERS = {"postgres": (PostgresServer, "psycopg"), "mariadb": (MariaDBServer, "pymysql")}


@pytest.fixture(params=list(DRIVERS))
def bank(request: pytest.FixtureRequest) -> Iterator[tuple[Server, Engine]]:
    kind, driver = DRIVERS[request.param]
    with kind() as server:
        engine = create_engine(server.dsn.replace("://", f"+{driver}://"), pool_pre_ping=True)
        sqlalchemy.create_table(engine)
        with engine.begin() as connection:
            connection.execute(text("create table accounts (amount integer)"))
            connection.execute(text("insert into accounts values (100)"))
        yield server, engine
        wait_until(lambda: engine.pool.checkedout() == 0)  # type: ignore[attr-defined]
        engine.dispose()


def amount(engine: Engine) -> int:
    with engine.connect() as connection:
        return int(connection.execute(text("select amount from accounts")).scalar_one())


def status_of(coordinator: ScriptedCoordinator, gid: str) -> str:
    found: Any = coordinator.pledge(gid)
    return found.status if found else ""


@pytest.mark.parametrize("committed", [False, True], ids=["before the commit", "after the commit"])
def test_a_killed_database_is_queried_when_it_is_back(bank: tuple[Server, Engine], committed: bool) -> None:
    server, engine = bank
    with (
        ScriptedCoordinator() as coordinator,
        served(Service(sqlalchemy.checkback(engine))) as service,
        connect_blocking(coordinator.url, timeout_s=3.0) as client,
    ):
        pledge = client.pledge().call(service.url + "/in", {"amount": 30})
        with (
            suppress(Unknown, DBAPIError),
            pledge.transaction(engine, checkback=service.url + "/checkback") as connection,
        ):
            connection.execute(WITHDRAW)
            if committed:
                connection.commit()
            server.kill()
        assert isinstance(pledge.outcome, OutcomeUnknown | CommittedPending)
        server.start()
        wait_until(lambda: status_of(coordinator, pledge.gid) == ("succeeded" if committed else "failed"))
        assert len(service.calls) == committed
        assert amount(engine) == (70 if committed else 100)

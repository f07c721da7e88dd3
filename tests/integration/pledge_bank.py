"""A bank whose account is changed together with a pledge, the service that gets it, and a blocking client."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text
from tests.integration.scripted_coordinator import ScriptedCoordinator, Service, served

from avow import connect_blocking
from avow.barrier import sqlalchemy
from avow.client.blocking import BlockingClient
from avow.client.blocking_pledge import BlockingPledge


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
def coordinator() -> Iterator[ScriptedCoordinator]:
    with ScriptedCoordinator() as coordinator:
        yield coordinator


@pytest.fixture
def client(coordinator: ScriptedCoordinator) -> Iterator[BlockingClient]:
    with connect_blocking(coordinator.url, timeout_s=3.0) as client:
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


def status_of(coordinator: ScriptedCoordinator, gid: str) -> str:
    found = coordinator.pledge(gid)
    return found.status if found else ""

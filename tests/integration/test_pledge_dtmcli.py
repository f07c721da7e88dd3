"""The Python client of dtm from PyPI, dtmcli 1.7.7.0, unmodified, against a running peer and a real MariaDB.

A bank: its own transaction takes money from account 1 and its barrier row is written in it; the branch puts it on
account 2, guarded by a barrier row too. Whatever happens, what is gone there has arrived here, or will.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pymysql
import pytest
from dtmcli import barrier, msg, utils
from tests.integration.http_peer import PeerProcess, serving, wait_until
from tests.integration.pledge_services import FAILURE, SUCCESS, Heard, Service
from tests.services import Server

TABLES = (
    "drop database if exists dtm_barrier",  # other tests share this server, and have the table that Avow makes
    "create database if not exists dtm_barrier",
    (
        "create table if not exists dtm_barrier.barrier(id bigint(22) primary key auto_increment, "
        "trans_type varchar(45) default '', gid varchar(128) default '', branch_id varchar(128) default '', "
        "op varchar(45) default '', barrier_id varchar(45) default '', reason varchar(45) default '', "
        "create_time datetime default now(), update_time datetime default now(), key(create_time), key(update_time), "
        "unique key(gid, branch_id, op, barrier_id)) engine=InnoDB default charset=utf8mb4"
    ),
    "create or replace table avow.account(user_id int primary key, balance int not null) engine=InnoDB",
    "insert into avow.account values (1, 10000), (2, 10000)",
)


class Bank(Service):
    """Its routes run dtmcli's own barrier code."""

    def __init__(self, port: int) -> None:
        super().__init__()
        self._port = port
        self.always("/TransIn", 200, self._trans_in)
        self.always("/QueryPrepared", 0, self._query_prepared)

    def connect(self) -> pymysql.Connection[Any]:
        return pymysql.connect(host="127.0.0.1", port=self._port, user="root", database="avow")

    def _trans_in(self, heard: Heard) -> Any:
        with contextlib.closing(self.connect()) as connection, connection.cursor() as cursor:
            self._barrier(heard).call(cursor, lambda cursor: adjust(cursor, 2, heard.json["amount"]))
        return SUCCESS[1]

    def _query_prepared(self, heard: Heard) -> Any:
        with contextlib.closing(self.connect()) as connection, connection.cursor() as cursor:
            try:
                self._barrier(heard).query_prepared(cursor)
            except utils.DTMFailureError:
                return FAILURE
        return SUCCESS

    def _barrier(self, heard: Heard) -> barrier.BranchBarrier:
        query = heard.query
        return barrier.BranchBarrier(query["trans_type"], query["gid"], query["branch_id"], query["op"])

    def _answer(self, heard: Heard) -> tuple[int, Any]:
        """The checkback chooses its status itself."""
        status, body = super()._answer(heard)
        return body if isinstance(body, tuple) else (status, body)

    def balances(self) -> tuple[int, int]:
        with contextlib.closing(self.connect()) as connection, connection.cursor() as cursor:
            cursor.execute("select balance from avow.account order by user_id")
            one, two = (row[0] for row in cursor.fetchall())
            return one, two


def adjust(cursor: Any, user: int, amount: int) -> None:
    cursor.execute(f"update avow.account set balance = balance + {amount} where user_id = {user}")


@pytest.fixture
def bank(mariadb_server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bank]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    bank = Bank(mariadb_server.port)
    with contextlib.closing(bank.connect()) as connection, connection.cursor() as cursor:
        for statement in TABLES:
            cursor.execute(statement)
        connection.commit()
    with bank:
        yield bank
    with contextlib.closing(bank.connect()) as connection, connection.cursor() as cursor:
        cursor.execute("drop database dtm_barrier")


@pytest.fixture(scope="module")
def peer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PeerProcess]:
    with serving(tmp_path_factory.mktemp("peer"), pledge_retry_s=0.2) as peer:
        wait_until(lambda: peer.ask("GET", "/readyz").status == 200)
        yield peer


def message(peer: PeerProcess, bank: Bank) -> msg.Msg:
    server = f"{peer.url}/api/dtmsvr"
    return msg.Msg(server, utils.gen_gid(server)).add({"amount": 30}, bank.url("/TransIn"))


def transfer(made: msg.Msg, bank: Bank, business: Any) -> None:
    with contextlib.closing(bank.connect()) as connection, connection.cursor() as cursor:
        made.do_and_submit_db(bank.url("/QueryPrepared"), cursor, business)


def status(peer: PeerProcess, made: msg.Msg) -> str:
    found: str = peer.ask("GET", f"/api/dtmsvr/query?gid={made.trans_base.gid}").json["transaction"]["status"]
    return found


def until(peer: PeerProcess, made: msg.Msg, wanted: str) -> None:
    wait_until(lambda: status(peer, made) == wanted)


def test_success(peer: PeerProcess, bank: Bank) -> None:
    made = message(peer, bank)
    transfer(made, bank, lambda cursor: adjust(cursor, 1, -30))
    until(peer, made, "succeed")
    assert bank.balances() == (9970, 10030)
    assert not bank.calls("/QueryPrepared")


def test_success_with_waiting_for_the_result(peer: PeerProcess, bank: Bank) -> None:
    made = message(peer, bank).set_wait_result()
    transfer(made, bank, lambda cursor: adjust(cursor, 1, -30))
    assert bank.balances() == (9970, 10030)


def test_a_business_error_rolls_back_and_delivers_nothing(peer: PeerProcess, bank: Bank) -> None:
    def business(cursor: Any) -> None:
        adjust(cursor, 1, -30)
        raise ValueError("no such thing")

    made = message(peer, bank)
    with pytest.raises(ValueError, match="no such thing"):
        transfer(made, bank, business)
    until(peer, made, "failed")
    assert bank.balances() == (10000, 10000)


def test_a_failure_rolls_back_and_delivers_nothing(peer: PeerProcess, bank: Bank) -> None:
    def business(cursor: Any) -> None:
        adjust(cursor, 1, -30)
        raise utils.DTMFailureError("insufficient balance")

    made = message(peer, bank)
    with pytest.raises(utils.DTMFailureError):
        transfer(made, bank, business)
    until(peer, made, "failed")
    assert bank.balances() == (10000, 10000)
    assert not bank.calls("/TransIn")


def test_a_checkback_before_the_transaction_makes_it_fail(peer: PeerProcess, bank: Bank) -> None:
    """The business is so late that it was asked about already: its barrier row is taken."""
    made = message(peer, bank)
    made.trans_base.timeout_to_fail = 1
    made.prepare(bank.url("/QueryPrepared"))
    until(peer, made, "failed")
    with pytest.raises(utils.DTMFailureError):  # to prepare again is refused already
        transfer(made, bank, lambda cursor: adjust(cursor, 1, -30))
    late = barrier.BranchBarrier("msg", made.trans_base.gid, "00", "msg")
    with (
        contextlib.closing(bank.connect()) as connection,
        connection.cursor() as cursor,
        pytest.raises(Exception, match="msg duplicate error"),
    ):
        late.call(cursor, lambda cursor: adjust(cursor, 1, -30))
    assert bank.balances() == (10000, 10000)


def test_a_commit_whose_submit_was_lost_is_delivered_through_the_checkback(peer: PeerProcess, bank: Bank) -> None:
    made = message(peer, bank)
    made.trans_base.timeout_to_fail = 1
    made.prepare(bank.url("/QueryPrepared"))
    with contextlib.closing(bank.connect()) as connection, connection.cursor() as cursor:
        local = barrier.BranchBarrier("msg", made.trans_base.gid, "00", "msg")
        local.call(cursor, lambda cursor: adjust(cursor, 1, -30))
    until(peer, made, "succeed")
    assert bank.balances() == (9970, 10030)


def test_an_error_after_the_commit_is_still_delivered(peer: PeerProcess, bank: Bank) -> None:
    made = message(peer, bank)

    def busi_call(local: barrier.BranchBarrier) -> None:
        with contextlib.closing(bank.connect()) as connection, connection.cursor() as cursor:
            local.call(cursor, lambda cursor: adjust(cursor, 1, -30))
        raise ConnectionError("the answer to the commit was lost")

    with pytest.raises(ConnectionError):
        made.do_and_submit(bank.url("/QueryPrepared"), busi_call)
    until(peer, made, "succeed")
    assert bank.balances() == (9970, 10030)


def test_a_server_that_cannot_be_reached_fails_before_anything_is_done(bank: Bank) -> None:
    made = msg.Msg("http://127.0.0.1:9/api/dtmsvr", "nobody-hears").add({"amount": 30}, bank.url("/TransIn"))
    with pytest.raises(OSError):
        transfer(made, bank, lambda cursor: adjust(cursor, 1, -30))
    assert bank.balances() == (10000, 10000)


def test_a_repeated_branch_credits_the_money_once(peer: PeerProcess, bank: Bank) -> None:
    made = message(peer, bank)
    bank.says("/TransIn", 500, bank._trans_in)  # done, and the answer says otherwise
    transfer(made, bank, lambda cursor: adjust(cursor, 1, -30))
    until(peer, made, "succeed")
    assert len(bank.calls("/TransIn")) == 2
    assert bank.balances() == (9970, 10030)


def test_restart(tmp_path: Path, bank: Bank) -> None:
    """kill -9 of the peer between prepare and submit, and between submit and branch."""
    bank.says("/TransIn", 503, {}, times=2)
    with serving(tmp_path, pledge_retry_s=0.2) as peer:
        wait_until(lambda: peer.ask("GET", "/readyz").status == 200)
        delivered, asked = message(peer, bank), message(peer, bank)
        transfer(delivered, bank, lambda cursor: adjust(cursor, 1, -30))
        asked.trans_base.timeout_to_fail = 1

        def business(cursor: Any) -> None:
            adjust(cursor, 1, -30)
            peer.process.kill()
            peer.process.wait(60)

        with pytest.raises(OSError):  # the submit finds nobody
            transfer(asked, bank, business)
    assert bank.balances()[0] == 9940
    with serving(tmp_path, pledge_retry_s=0.2) as peer:
        wait_until(lambda: peer.ask("GET", "/readyz").status == 200)
        until(peer, delivered, "succeed")
        until(peer, asked, "succeed")
    assert bank.balances() == (9940, 10060)

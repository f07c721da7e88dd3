"""`avow pledge` against a running cluster: attempts are shown, and pledges can be retried."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import urllib.request
from contextlib import closing
from typing import Any

import pytest
from tests.e2e.cli_cluster import Up, as_json, avow

from avow.barrier.key import Verdict
from avow.barrier.schema import migration
from avow.barrier.sql import Barrier, check_back
from avow.testing.cluster import wait_until

NOWHERE = "http://127.0.0.1:9/in"


def done(run: subprocess.CompletedProcess[str]) -> str:
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


def submit(up: Up, gid: str, url: str, **options: Any) -> None:
    body = json.dumps({"branches": [{"url": url, "payload": "x"}], **options}).encode()
    address = up.addresses.split(",")[0]
    request = urllib.request.Request(
        f"{address}/v1/pledges/{gid}/submit", body, {"content-type": "application/json"}, method="POST"
    )
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=60) as answer:
        assert json.loads(answer.read())["gid"] == gid


def until(up: Up, gid: str, status: str) -> dict[str, Any]:
    def found() -> Any:
        pledge = as_json("pledge", "show", gid, api=up.addresses)
        return pledge if pledge["status"] == status else None

    pledge: dict[str, Any] = wait_until(found)
    return pledge


def test_a_dead_pledge_is_found_shown_with_its_timeline_and_redriven(up: Up) -> None:
    submit(up, "doomed", NOWHERE, retry_limit=2, retry_interval_s=0.1, request_timeout_s=1)
    until(up, "doomed", "dead")
    listed = done(avow("pledge", "list", "--status", "dead", "--since", "1h", api=up.addresses))
    assert "doomed" in listed
    assert "0 of 1" in listed
    shown = done(avow("pledge", "show", "doomed", api=up.addresses))
    lines = shown.splitlines()
    assert lines[0].startswith("doomed  dead")
    timeline = lines[lines.index("timeline") + 2 :]
    assert [line.split()[4] for line in timeline] == ["created", "branch", "branch", "dead"]
    assert "ERROR" in timeline[1]
    assert NOWHERE in shown
    assert avow("pledge", "retry", "doomed", api=up.addresses).returncode == 1
    assert done(avow("pledge", "redrive", "--all", api=up.addresses)) == "1 pledge will be tried now\n"
    until(up, "doomed", "dead")
    assert "doomed" in done(avow("pledge", "redrive", "doomed", api=up.addresses))
    stopped = done(avow("pledge", "stop", "doomed", "--reason", "enough", api=up.addresses))
    assert stopped == "doomed is failed: enough\n"


def test_a_waiting_pledge_is_retried_now(up: Up) -> None:
    submit(up, "waiting", NOWHERE, retry_interval_s=3_000, request_timeout_s=1)
    wait_until(lambda: as_json("pledge", "show", "waiting", api=up.addresses)["failures"] == 1)
    assert "submitted, failing" in done(avow("pledge", "retry", "waiting", api=up.addresses))
    wait_until(lambda: as_json("pledge", "show", "waiting", api=up.addresses)["failures"] == 2)
    assert "will be tried now" in done(avow("pledge", "retry", "--all", api=up.addresses))
    run = avow("pledge", "retry", api=up.addresses)
    assert (run.returncode, run.stderr.startswith("avow: INVALID_REQUEST")) == (1, True)
    assert avow("pledge", "show", "nobody", api=up.addresses).returncode == 1
    done(avow("pledge", "stop", "waiting", api=up.addresses))


def test_topics_are_listed_with_their_subscribers(up: Up) -> None:
    assert "no topics yet" in done(avow("pledge", "topics", api=up.addresses))
    assert done(avow("pledge", "subscribe", "goods", NOWHERE, "--remark", "r", api=up.addresses)) == (
        "goods has 1 subscriber\n"
    )
    assert avow("pledge", "subscribe", "goods", NOWHERE, api=up.addresses).returncode == 1
    listed = done(avow("pledge", "topics", api=up.addresses))
    assert all(part in listed for part in ("goods", NOWHERE, "r"))
    assert as_json("pledge", "topics", api=up.addresses)["topics"][0]["name"] == "goods"
    assert done(avow("pledge", "unsubscribe", "goods", NOWHERE, api=up.addresses)) == "goods has 0 subscribers\n"


def test_pledges_are_listed_in_pages(up: Up) -> None:
    for number in range(3):
        submit(up, f"page-{number}", "", wait_result=True)
    first = as_json("pledge", "list", "--status", "succeeded", "--limit", "2", api=up.addresses)
    text = done(avow("pledge", "list", "--status", "succeeded", "--limit", "2", api=up.addresses))
    assert f"next page: --position {first['next_position']}" in text
    rest = as_json("pledge", "list", "--status", "succeeded", "--position", first["next_position"], api=up.addresses)
    seen = [pledge["gid"] for page in (first, rest) for pledge in page["pledges"]]
    assert seen[:3] == ["page-2", "page-1", "page-0"]
    assert "no pledges" in done(avow("pledge", "list", "--before", "7d", api=up.addresses))


@pytest.mark.parametrize("dialect", ["postgresql", "mysql", "sqlite"])
def test_the_barriers_table_is_printed_for_a_tool_that_runs_migrations(dialect: str) -> None:
    printed = done(avow("pledge", "migration", "--dialect", dialect))
    assert printed == migration(dialect)
    json_output = json.loads(done(avow("pledge", "migration", "--dialect", dialect, "--json")))
    assert json_output == {"dialect": dialect, "sql": printed}
    assert "create table if not exists mine.rows" in done(
        avow("pledge", "migration", "--dialect", dialect, "--table", "mine.rows")
    )


def test_the_barrier_works_with_the_printed_table() -> None:
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(done(avow("pledge", "migration", "--dialect", "sqlite")))
        with Barrier("g").transaction(connection):
            pass
        assert check_back(connection, "g") is Verdict.SUCCESS


@pytest.mark.parametrize("wrong", [("--dialect", "oracle"), ("--dialect", "sqlite", "--table", "a b")])
def test_a_database_without_a_barrier_table_is_refused(wrong: tuple[str, ...]) -> None:
    run = avow("pledge", "migration", *wrong)
    assert (run.returncode, run.stderr.startswith("avow: INVALID_REQUEST")) == (1, True)

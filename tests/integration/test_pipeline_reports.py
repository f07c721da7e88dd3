"""Reports of pipelines in a queue: every state, a heartbeat each second; reporting never blocks the pipeline."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from tests.integration.http_peer import PeerProcess, serving, wait_until

from avow.client.blocking import BlockingClient, connect_blocking
from avow.limits import PIPELINES_QUEUE
from avow.spark.pipelines import reports
from avow.spark.pipelines.progress import Counts
from avow.spark.pipelines.reports import Report, Reporter, marked_crashed, read_reports
from avow.spark.pipelines.spec import Cluster
from avow.spark.pipelines.status import Status

RIGHTS = {
    "root": "admin = true",
    "writer": f'rights = {{ "{PIPELINES_QUEUE}" = ["read", "write"] }}',
    "other": 'rights = { "orders" = ["read", "write"] }',
}


@pytest.fixture(scope="module")
def peer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PeerProcess]:
    folder = tmp_path_factory.mktemp("peer")
    tokens = folder / "tokens.toml"
    tokens.write_text(
        "".join(
            f'[[token]]\nname = "{name}"\nsha256 = "{sha256(name.encode()).hexdigest()}"\n{rights}\n'
            for name, rights in RIGHTS.items()
        )
    )
    with serving(folder, tokens=tokens) as peer:
        peer.token = "root"
        wait_until(lambda: peer.ask("GET", "/readyz").status == 200)
        yield peer


@pytest.fixture(scope="module")
def client(peer: PeerProcess) -> Iterator[BlockingClient]:
    with connect_blocking(peer.url, token="root") as made:
        yield made


@pytest.fixture
def queue() -> str:
    return f"reports-{uuid4().hex}"


def status(name: str, state: str, **more: Any) -> Status:
    return Status(name=name, kind="archive", state=state, pid=7, started_s=5.0, **more)


def reports_of(client: BlockingClient, queue: str, name: str) -> list[dict[str, Any]]:
    messages = [message for batch in client.queue(queue).read() for message in batch.messages()]
    return [json.loads(message.value) for message in messages if message.key == name.encode()]


def test_each_state_is_reported_once_in_order_and_the_final_one_before_the_end(
    peer: PeerProcess, client: BlockingClient
) -> None:
    reporter = Reporter(Cluster(servers=peer.url, token="root"), PIPELINES_QUEUE)
    counts = Counts(batches=2, rows=30, batch_rows=10, batch_s=0.5, rows_per_s=20.0, lag=3)
    for state in ("starting", "running", "failed"):
        reporter.report(status("keep", state, counts=counts, error="why" if state == "failed" else ""))
    reporter.close()
    reporter.report(status("keep", "too late"))
    found = reports_of(client, PIPELINES_QUEUE, "keep")
    assert [one["state"] for one in found] == ["starting", "running", "failed"]
    last = found[-1]
    assert last.pop("host")
    assert last.pop("at_s") > 5
    assert last == {
        "name": "keep",
        "kind": "archive",
        "state": "failed",
        "pid": 7,
        "started_s": 5.0,
        "rows": 30,
        "batches": 2,
        "batch_rows": 10,
        "batch_s": 0.5,
        "rows_per_s": 20.0,
        "lag": 3,
        "error": "why",
    }
    shown = peer.ask("GET", f"/v1/queues/{PIPELINES_QUEUE}").json
    assert (shown["strategy"], len(shown["lanes"])) == ("two-phase", 1)
    assert shown["retention"] == {"age_s": 86_400, "size_bytes": 64 << 20, "passed": False}


def test_the_report_queue_is_not_listed_as_data_but_can_be_changed_with_rights(peer: PeerProcess) -> None:
    assert peer.ask("POST", "/v1/queues", {"name": PIPELINES_QUEUE, "retention": {"age_s": 9}}).status in (201, 409)
    listed = {queue["name"] for queue in peer.ask("GET", "/v1/queues").json["queues"]}
    assert PIPELINES_QUEUE not in listed
    path = f"/v1/queues/{PIPELINES_QUEUE}"
    rules = {"retention": {"age_s": 86_400, "size_bytes": 64 << 20}}
    assert peer.ask("PATCH", path, rules, token="writer").status == 403
    assert peer.ask("PATCH", path, rules).status == 200


def test_an_idle_run_reports_that_it_is_alive(peer: PeerProcess, client: BlockingClient, queue: str) -> None:
    reporter = Reporter(Cluster(servers=peer.url, token="root"), queue)
    reporter.report(status("slow", "starting"))
    wait_until(lambda: bool(client.queues()) and any(one.name == queue for one in client.queues()))
    wait_until(lambda: len(reports_of(client, queue, "slow")) >= 3)
    reporter.close()
    found = reports_of(client, queue, "slow")
    assert {one["state"] for one in found} == {"starting"}
    assert len({one["at_s"] for one in found}) == len(found)


def test_many_updates_of_one_state_become_few_reports(peer: PeerProcess, client: BlockingClient, queue: str) -> None:
    reporter = Reporter(Cluster(servers=peer.url, token="root"), queue)
    for rows in range(1_000):
        reporter.report(status("busy", "running", counts=Counts(rows=rows)))
    reporter.close()
    found = reports_of(client, queue, "busy")
    assert found[-1]["rows"] == 999
    assert len(found) < 100  # one a second


@pytest.mark.parametrize("servers", ["http://127.0.0.1:1", "nowhere at all"])
def test_an_unreachable_cluster_costs_one_warning_and_no_full_timeout_at_the_end(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, servers: str
) -> None:
    monkeypatch.setattr(reports, "CALL_TIMEOUT_S", 3600.0)
    caplog.set_level(logging.WARNING, logger="avow.spark")
    reporter = Reporter(Cluster(servers=servers), PIPELINES_QUEUE)
    reporter.report(status("lonely", "starting"))
    wait_until(lambda: servers == "http://127.0.0.1:1" or len(caplog.records) == 1)
    reporter.report(status("lonely", "done"))
    reporter.close()
    assert len(caplog.records) <= 1


def test_without_the_right_nothing_is_reported_and_one_warning_is_logged(
    peer: PeerProcess, client: BlockingClient, queue: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, logger="avow.spark")
    reporter = Reporter(Cluster(servers=peer.url, token="other"), queue)
    reporter.report(status("shy", "running"))
    wait_until(lambda: len(caplog.records) == 1)
    reporter.report(status("shy", "done"))
    reporter.close()
    assert len(caplog.records) == 1
    assert "has no 'use' right on queue" in caplog.text
    assert queue not in {one.name for one in client.queues()}


def test_a_run_silent_for_ten_seconds_has_crashed_and_an_ended_one_has_not() -> None:
    alive = Report(name="b", kind="replay", state="running", at_s=100.0)
    ended = Report(name="a", kind="audit", state="done", at_s=1.0)
    assert [one.state for one in marked_crashed([alive, ended], now_s=109.0)] == ["done", "running"]
    assert [one.state for one in marked_crashed([alive, ended], now_s=111.0)] == ["done", "crashed"]


def test_invalid_reports_are_skipped(client: BlockingClient, queue: str) -> None:
    client.create_queue(queue)
    client.queue(queue).enqueue(b"no json", key=b"x")
    client.queue(queue).enqueue(b'{"name": "y", "kind": "audit", "state": "done", "more": 1}', key=b"y")
    assert [one.name for one in read_reports(client, queue)] == ["y"]
    assert read_reports(client, "never-made") == []


def test_the_command_lists_the_reports_of_a_cluster(peer: PeerProcess, tmp_path: Path) -> None:
    reporter = Reporter(Cluster(servers=peer.url, token="root"), PIPELINES_QUEUE)
    reporter.report(status("listed", "running", counts=Counts(rows=1_234, lag=5)))
    reporter.close()
    words = [sys.executable, "-m", "avow.cli", "pipeline", "list", "--api", peer.url, "--token", "writer"]
    done = subprocess.run([*words, "--json"], capture_output=True, text=True, cwd=tmp_path, timeout=60, check=True)
    found = {one["name"]: one for one in json.loads(done.stdout)}
    assert (found["listed"]["state"], found["listed"]["rows"], found["listed"]["lag"]) == ("running", 1_234, 5)
    done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path, timeout=60, check=True)
    assert "1,234" in done.stdout

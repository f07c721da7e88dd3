"""Pledges through a running peer: /v1/pledges, its store of choice, its settings, restarts and kill -9."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine
from tests.integration.http_peer import PeerProcess, finish, serving, start, wait_until
from tests.integration.pledge_services import FAILURE, ONGOING, SUCCESS, Service
from tests.integration.scripted_coordinator import Service as AskedService
from tests.integration.scripted_coordinator import served

from avow.barrier.sqlalchemy import checkback, clean_up, create_table
from avow.barrier.web import answer

DAY_S = 24 * 3600


@pytest.fixture(scope="module")
def peer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PeerProcess]:
    with serving(tmp_path_factory.mktemp("peer"), pledge_retry_s=0.2) as peer:
        wait_until(lambda: peer.ask("GET", "/readyz").status == 200)
        peer.ask("POST", "/v1/queues", {"name": "transfers", "lanes": 3})
        peer.ask("POST", "/v1/queues", {"name": "news", "strategy": "pub-sub"})
        yield peer


@pytest.fixture
def service() -> Iterator[Service]:
    with Service() as service:
        yield service


def submit(peer: PeerProcess, gid: str, *branches: dict[str, Any], **options: Any) -> Any:
    return peer.ask("POST", f"/v1/pledges/{gid}/submit", {"branches": list(branches), **options})


def show(peer: PeerProcess, gid: str) -> dict[str, Any]:
    answer = peer.ask("GET", f"/v1/pledges/{gid}")
    assert answer.status == 200, answer.body
    found: dict[str, Any] = answer.json
    return found


def until(peer: PeerProcess, gid: str, status: str, *, timeout_s: float = 60.0) -> dict[str, Any]:
    wait_until(lambda: show(peer, gid)["status"] == status, timeout_s=timeout_s)
    return show(peer, gid)


def messages(peer: PeerProcess, queue: str, *, lanes: int = 1) -> list[dict[str, Any]]:
    found = []
    for lane in range(lanes):
        answer = peer.ask("GET", f"/v1/queues/{queue}/messages?lane={lane}&level=linearizable")
        found += [json.loads(line) for line in answer.body.splitlines()]
    return found


# ---------------------------------------------------------------------- the life of a pledge


def test_a_prepared_and_submitted_pledge_calls_its_branches_in_order(peer: PeerProcess, service: Service) -> None:
    body = {
        "branches": [
            {"url": service.url("/out"), "json": {"amount": 30}},
            {"url": service.url("/in?to=b"), "payload": "plain"},
            {"url": service.url("/none")},
        ],
        "checkback": service.url("/check"),
        "branch_headers": {"x-who": "me"},
    }
    assert peer.ask("POST", "/v1/pledges/order-1/prepare", body).json == {"gid": "order-1", "status": "prepared"}
    assert not service.heard
    answer = peer.ask("POST", "/v1/pledges/order-1/submit", {})
    assert answer.status == 200
    assert (answer.json["status"], answer.json["repeated"]) == ("submitted", False)
    done = until(peer, "order-1", "succeeded")
    assert [heard.path for heard in service.heard] == ["/out", "/in", "/none"]
    first, second, third = service.heard
    assert (first.method, first.json, first.headers["x-who"]) == ("POST", {"amount": 30}, "me")
    assert first.query == {"gid": "order-1", "trans_type": "msg", "branch_id": "01", "op": "action"}
    assert (second.body, second.query["to"], third.method) == (b"plain", "b", "GET")
    assert [branch["status"] for branch in done["branches"]] == ["succeeded"] * 3
    assert [attempt["verdict"] for attempt in done["attempts"]] == ["SUCCESS"] * 3
    assert done["branches"][0]["payload"] == '{"amount": 30}'
    assert done["finished_ms"] >= done["created_ms"]


def test_a_repeated_request_runs_nothing_again_and_other_content_is_refused(
    peer: PeerProcess, service: Service
) -> None:
    branch = {"url": service.url("/in"), "payload": "1"}
    assert submit(peer, "again", branch).json["repeated"] is False
    until(peer, "again", "succeeded")
    repeated = submit(peer, "again", branch)
    assert (repeated.status, repeated.json["repeated"], repeated.json["delivery"]) == (200, True, "succeeded")
    differs = submit(peer, "again", {"url": service.url("/in"), "payload": "2"})
    assert (differs.status, differs.code) == (409, "CONTENT_DIFFERS")
    assert len(service.calls("/in")) == 1


def test_a_prepare_without_a_checkback_is_refused(peer: PeerProcess, service: Service) -> None:
    answer = peer.ask("POST", "/v1/pledges/unchecked/prepare", {"branches": [{"url": service.url("/in")}]})
    assert (answer.status, answer.code) == (400, "INVALID_REQUEST")
    assert "checkback" in answer.json["error"]["message"]
    assert peer.ask("GET", "/v1/pledges/unchecked").status == 404


@pytest.mark.parametrize(("verdict", "status"), [(SUCCESS, "succeeded"), (FAILURE, "failed")])
def test_the_checkback_decides_an_unsubmitted_pledge(
    peer: PeerProcess, service: Service, verdict: tuple[int, Any], status: str
) -> None:
    gid = f"left-{status}"
    service.says("/check", *ONGOING)
    service.says("/check", 500, {"dtm_result": "FAILURE"})
    service.always("/check", *verdict)
    body = {
        "branches": [{"url": service.url("/in")}],
        "checkback": service.url("/check"),
        "timeout_to_fail_s": 0.3,
        "retry_interval_s": 0.1,
    }
    assert peer.ask("POST", f"/v1/pledges/{gid}/prepare", body).status == 200
    found = until(peer, gid, status)
    asked = service.calls("/check")
    prepared_ms = str(found["created_ms"])
    expected = {"gid": gid, "trans_type": "msg", "branch_id": "00", "op": "msg", "prepared_ms": prepared_ms}
    assert asked[0].query == expected
    assert [attempt["verdict"] for attempt in found["attempts"][:3]] == ["ONGOING", "ERROR", verdict[1]["dtm_result"]]
    assert len(service.calls("/in")) == (status == "succeeded")


def test_point_12_a_checkback_carries_the_time_its_pledge_was_prepared(peer: PeerProcess, tmp_path: Path) -> None:
    """After a clean-up a missing row proves something only of a pledge that is known to be younger."""
    engine = create_engine(f"sqlite:///{tmp_path / 'bank.db'}")
    create_table(engine)
    clean_up(engine, 8 * DAY_S)
    ask = checkback(engine)
    with served(AskedService(ask)) as service:
        body = {
            "branches": [{"url": f"{service.url}/in"}],
            "checkback": f"{service.url}/checkback",
            "timeout_to_fail_s": 0.1,
        }
        assert peer.ask("POST", "/v1/pledges/never-began/prepare", body).status == 200
        found = until(peer, "never-began", "failed")
        assert [attempt["verdict"] for attempt in found["attempts"]] == ["FAILURE"]
        assert (service.asked, service.calls) == (1, [])
    assert answer({"gid": "of-dtm"}, ask).status == 500  # whose server does not tell: no verdict
    engine.dispose()


def test_an_abort_asks_the_checkback_and_cannot_undo_a_commit(peer: PeerProcess, service: Service) -> None:
    service.always("/no", *FAILURE)
    for gid, path in (("rolled-back", "/no"), ("committed", "/yes")):
        body = {"branches": [{"url": service.url("/in")}], "checkback": service.url(path)}
        assert peer.ask("POST", f"/v1/pledges/{gid}/prepare", body).status == 200
    answer = peer.ask("POST", "/v1/pledges/rolled-back/abort")
    assert answer.json == {"gid": "rolled-back", "status": "failed"}
    answer = peer.ask("POST", "/v1/pledges/committed/abort")
    assert (answer.status, answer.code) == (409, "ALREADY_DECIDED")
    until(peer, "committed", "succeeded")
    assert len(service.calls("/in")) == 1


def test_a_failing_branch_is_retried_and_its_attempts_are_shown(peer: PeerProcess, service: Service) -> None:
    service.says("/in", 500, {"error": "sorry"}, times=2)
    submit(peer, "stubborn", {"url": service.url("/in")})
    found = until(peer, "stubborn", "succeeded")
    assert [attempt["verdict"] for attempt in found["attempts"]] == ["ERROR", "ERROR", "SUCCESS"]
    assert "sorry" in found["attempts"][0]["text"]
    assert found["branches"][0]["attempts"] == 3


def test_a_caller_waiting_for_the_result_gets_the_actual_status(peer: PeerProcess, service: Service) -> None:
    assert submit(peer, "w1", {"url": service.url("/in")}, wait_result=True).json["delivery"] == "succeeded"
    service.says("/slow", *ONGOING)
    answer = submit(peer, "w2", {"url": service.url("/slow")}, wait_result=True)
    assert (answer.status, answer.json["delivery"], answer.json["branch_id"]) == (200, "ongoing", "01")
    service.says("/bad", 500)
    answer = submit(peer, "w3", {"url": service.url("/bad")}, wait_result=True)
    assert (answer.json["status"], answer.json["delivery"]) == ("submitted", "failing")
    answer = submit(peer, "w4", {"url": service.url("/in")}, wait_result=True, delay_s=0.5)
    assert answer.json["delivery"] == "delayed"
    for gid in ("w2", "w3", "w4"):
        until(peer, gid, "succeeded")


def test_a_delay_survives_the_checkback(peer: PeerProcess, service: Service) -> None:
    body = {
        "branches": [{"url": service.url("/in")}],
        "checkback": service.url("/check"),
        "timeout_to_fail_s": 0.1,
        "delay_s": 1.5,
    }
    peer.ask("POST", "/v1/pledges/later/prepare", body)
    created_ms = show(peer, "later")["created_ms"]
    found = until(peer, "later", "succeeded")
    assert service.calls("/check")
    assert found["attempts"][-1]["at_ms"] >= created_ms + 1_500


def test_a_pledge_dies_after_its_limit_and_is_redriven_with_one_call(peer: PeerProcess, service: Service) -> None:
    service.always("/dead", 500)
    submit(peer, "mortal", {"url": service.url("/dead")}, retry_limit=2, retry_interval_s=0.05)
    found = until(peer, "mortal", "dead")
    assert "2 times" in found["reason"]
    assert [p["gid"] for p in peer.ask("GET", "/v1/pledges?status=dead").json["pledges"]] == ["mortal"]
    assert peer.ask("POST", "/v1/pledges/mortal/retry").code == "ALREADY_DECIDED"
    service.always("/dead", 200)
    assert peer.ask("POST", "/v1/pledges/redrive").json == {"changed": 1, "more": False}
    until(peer, "mortal", "succeeded")
    assert peer.ask("POST", "/v1/pledges/mortal/redrive").code == "ALREADY_DECIDED"


def test_retry_now_does_not_wait_for_the_back_off(peer: PeerProcess, service: Service) -> None:
    service.says("/in", 500)
    submit(peer, "patient", {"url": service.url("/in")}, retry_interval_s=3_000)
    service.wait_for("/in", 1)
    wait_until(lambda: show(peer, "patient")["failures"] == 1)
    assert peer.ask("POST", "/v1/pledges/patient/retry").status == 200
    until(peer, "patient", "succeeded")
    service.says("/in2", 500)
    submit(peer, "patient-2", {"url": service.url("/in2")}, retry_interval_s=3_000)
    wait_until(lambda: show(peer, "patient-2")["failures"] == 1)
    assert peer.ask("POST", "/v1/pledges/retry").json["changed"] >= 1
    until(peer, "patient-2", "succeeded")


def test_a_stopped_pledge_makes_no_more_deliveries(peer: PeerProcess, service: Service) -> None:
    service.always("/never", 500)
    submit(peer, "stopped", {"url": service.url("/never")}, retry_interval_s=0.2)
    service.wait_for("/never", 1)
    answer = peer.ask("POST", "/v1/pledges/stopped/stop", {"reason": "by order"})
    assert (answer.json["status"], answer.json["reason"]) == ("failed", "by order")
    assert peer.ask("POST", "/v1/pledges/stopped/stop", {}).code == "ALREADY_DECIDED"
    assert peer.ask("POST", "/v1/pledges/nobody/stop", {}).code == "UNKNOWN_PLEDGE"


# ---------------------------------------------------------------------- queues and topics


def test_a_queue_branch_is_enqueued_once_with_its_key_and_ids(peer: PeerProcess) -> None:
    branches: list[dict[str, Any]] = [
        {"url": "queue://transfers", "json": {"n": 1}},
        {"url": "queue://transfers?key=k%201", "payload": "2"},
    ]
    assert submit(peer, "to-queue", *branches, wait_result=True).json["delivery"] == "succeeded"
    submit(peer, "to-queue", *branches)
    found = sorted(messages(peer, "transfers", lanes=3), key=lambda message: message["value"])
    assert [message["value"] for message in found] == ["2", '{"n": 1}']
    assert found[0]["key"] == "k 1"
    assert found[1]["headers"] == {"avow-gid": "to-queue", "avow-branch-id": "01"}


@pytest.mark.parametrize(
    ("url", "code"),
    [
        ("queue://missing", "UNKNOWN_QUEUE"),
        ("queue://news", "INVALID_REQUEST"),
        ("queue://avow.pledges", "INVALID_REQUEST"),
        ("ftp://a/b", "INVALID_REQUEST"),
        ("topic://missing", "UNKNOWN_TOPIC"),
    ],
)
def test_a_branch_that_cannot_be_delivered_is_refused_when_it_is_pledged(
    peer: PeerProcess, url: str, code: str
) -> None:
    assert submit(peer, "undeliverable", {"url": url}).code == code
    assert peer.ask("GET", "/v1/pledges/undeliverable").status == 404


def test_a_topic_fans_out_to_earlier_subscribers(peer: PeerProcess, service: Service) -> None:
    for path in ("/a", "/b"):
        body = {"url": service.url(path), "remark": path}
        assert peer.ask("POST", "/v1/topics/goods/subscribers", body).status == 200
    assert peer.ask("POST", "/v1/topics/goods/subscribers", body).code == "ALREADY_EXISTS"
    shown = peer.ask("GET", "/v1/topics/goods").json
    assert (shown["version"], [s["remark"] for s in shown["subscribers"]]) == (2, ["/a", "/b"])
    assert [topic["name"] for topic in peer.ask("GET", "/v1/topics").json["topics"]] == ["goods"]
    submit(peer, "fan-out", {"url": "topic://goods", "payload": "x"}, wait_result=True)
    found = until(peer, "fan-out", "succeeded")
    assert [branch["branch_id"] for branch in found["branches"]] == ["01-01", "01-02"]
    assert (len(service.calls("/a")), len(service.calls("/b"))) == (1, 1)
    gone = service.url("/a").replace("/", "%2F").replace(":", "%3A")
    assert len(peer.ask("DELETE", f"/v1/topics/goods/subscribers?url={gone}").json["subscribers"]) == 1
    assert peer.ask("DELETE", f"/v1/topics/goods/subscribers?url={gone}").code == "UNKNOWN_SUBSCRIBER"
    assert peer.ask("DELETE", "/v1/topics/goods").json == {"name": "goods", "removed": True}
    assert peer.ask("GET", "/v1/topics/goods").code == "UNKNOWN_TOPIC"


# ---------------------------------------------------------------------- lists


def test_pledges_are_listed_in_pages_by_status_and_time(peer: PeerProcess, service: Service) -> None:
    for number in range(5):
        submit(peer, f"listed-{number}", {"url": service.url("/in"), "payload": "secret"}, delay_s=3_000)
    first_ms = show(peer, "listed-0")["created_ms"]
    seen, position = [], ""
    while True:
        page = peer.ask("GET", f"/v1/pledges?status=submitted&created_from_ms={first_ms}&limit=2&position={position}")
        assert len(page.json["pledges"]) <= 2
        seen += [pledge["gid"] for pledge in page.json["pledges"]]
        position = page.json["next_position"]
        if not position:
            break
    assert [gid for gid in seen if gid.startswith("listed")] == [f"listed-{n}" for n in reversed(range(5))]
    listed = peer.ask("GET", "/v1/pledges?gid=listed-1").json["pledges"]
    assert [pledge["gid"] for pledge in listed] == ["listed-1"]
    assert "payload" not in listed[0]["branches"][0]
    assert peer.ask("GET", "/v1/pledges?status=lost").code == "INVALID_REQUEST"
    assert peer.ask("GET", "/v1/pledges?position=nonsense").code == "INVALID_REQUEST"


# ---------------------------------------------------------------------- settings, stores, restarts


def test_a_cluster_without_pledges_has_no_lanes_for_them(tmp_path: Path) -> None:
    with serving(tmp_path) as peer:
        wait_until(lambda: peer.ask("GET", "/readyz").status == 200)
        assert peer.ask("GET", "/v1/queues?internal=true").json["queues"] == []
        assert "avow_pledges_stored 0.0" in peer.ask("GET", "/metrics").body.decode()


def test_pledges_continue_after_kill_9_and_restart(tmp_path: Path) -> None:
    with Service() as service:
        service.always("/in", 500)
        with serving(tmp_path, pledge_retry_s=0.2) as peer:
            wait_until(lambda: peer.ask("GET", "/readyz").status == 200)
            submit(peer, "survivor", {"url": service.url("/in")})
            body = {"branches": [{"url": service.url("/in2")}], "checkback": service.url("/check")}
            peer.ask("POST", "/v1/pledges/asked/prepare", {**body, "timeout_to_fail_s": 1})
            service.wait_for("/in", 1)
            peer.process.kill()
        service.always("/in", 200)
        with serving(tmp_path, pledge_retry_s=0.2) as peer:
            wait_until(lambda: peer.ask("GET", "/readyz").status == 200)
            service.wait_for("/check", 1)
            service.wait_for("/in2", 1)
            until(peer, "survivor", "succeeded")


@pytest.mark.parametrize("kind", ["sqlite", "postgres", "redis"])
def test_a_configured_store_is_opened_with_the_peer(
    tmp_path: Path, kind: str, request: pytest.FixtureRequest, service: Service
) -> None:
    url = f"sqlite:{tmp_path / 'pledges.db'}"
    if kind != "sqlite":
        url = request.getfixturevalue(f"{kind}_server").dsn
    with serving(tmp_path, pledge_store=url, pledge_retry_s=0.2) as peer:
        wait_until(lambda: peer.ask("GET", "/readyz").status == 200)
        service.always("/in", 500)
        submit(peer, f"kept-{kind}", {"url": service.url("/in")})
        service.wait_for("/in", 1)
        peer.process.kill()
    service.always("/in", 200)
    with serving(tmp_path, pledge_store=url, pledge_retry_s=0.2) as peer:
        until(peer, f"kept-{kind}", "succeeded")
        assert peer.ask("GET", "/v1/queues?internal=true").json["queues"] == []


def test_a_store_that_cannot_be_opened_ends_the_peer_with_a_reason(tmp_path: Path) -> None:
    process = start(tmp_path, pledge_store="paper:")
    try:
        assert process.wait(60) != 0
    finally:
        finish(process)
    assert "pledge_store must be lane, sqlite:PATH" in (tmp_path / "stderr").read_text()


def test_pledge_settings_are_applied(tmp_path: Path) -> None:
    settings = {"pledge_timeout_s": 0.3, "pledge_retry_s": 0.1, "pledge_dead_s": 1, "pledge_keep_s": 1}
    with Service() as service, serving(tmp_path, **settings, pledge_alert=service.url("/alert")) as peer:
        wait_until(lambda: peer.ask("GET", "/readyz").status == 200)
        body = {"branches": [{"url": service.url("/in")}], "checkback": service.url("/check")}
        peer.ask("POST", "/v1/pledges/soon/prepare", body)
        service.wait_for("/check", 1)
        service.always("/dead", 500)
        submit(peer, "dead-soon", {"url": service.url("/dead")})
        until(peer, "dead-soon", "dead")
        alert = service.wait_for("/alert", 1)[0].json
        assert alert["gid"] == "dead-soon"
        assert set(alert) == {"gid", "status", "branch", "error", "retry_count"}


def test_a_finished_pledge_is_remembered_only_for_its_retention_time(tmp_path: Path) -> None:
    """It is looked after now and then, and when a peer starts."""
    store = f"sqlite:{tmp_path / 'pledges.db'}"
    with serving(tmp_path, pledge_store=store) as peer:
        wait_until(lambda: peer.ask("GET", "/readyz").status == 200)
        assert submit(peer, "over", {"url": ""}, wait_result=True).json["delivery"] == "succeeded"
    with serving(tmp_path, pledge_store=store) as peer:
        assert show(peer, "over")["status"] == "succeeded"
    with serving(tmp_path, pledge_store=store, pledge_keep_s=0.1) as peer:
        wait_until(lambda: peer.ask("GET", "/v1/pledges/over").status == 404)


def test_metrics_cover_pledges(peer: PeerProcess, service: Service) -> None:
    submit(peer, "measured", {"url": service.url("/in")}, wait_result=True)
    text = peer.ask("GET", "/metrics").body.decode()
    for name in (
        'avow_pledges_ended_total{status="succeeded"}',
        'avow_pledge_requests_total{request="submit"}',
        'avow_pledge_calls_total{outcome="delivered"}',
        "avow_pledges_stored",
    ):
        (value,) = [line.split()[-1] for line in text.splitlines() if line.startswith(f"{name} ")]
        assert float(value) > 0, name


def test_a_client_that_hangs_up_does_not_stop_its_submit(tmp_path: Path, service: Service) -> None:
    with serving(tmp_path) as peer:
        wait_until(lambda: peer.ask("GET", "/readyz").status == 200)
        submit(peer, "first", {"url": ""}, wait_result=True)
        body = json.dumps({"branches": [{"url": service.url("/in")}]}).encode()
        head = "POST /v1/pledges/hung-up/submit HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n"
        with socket.create_connection(peer.address) as connection:
            connection.sendall(head.encode() + b"content-length: %d\r\n\r\n" % len(body) + body)
        service.wait_for("/in", 1)

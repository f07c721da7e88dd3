"""dtm's HTTP and JSON-RPC API for `msg`: its words, its statuses, and the cases of dtm's own tests."""

from __future__ import annotations

import concurrent.futures
import json
import re
import time
from base64 import b64decode
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest
from tests.integration.http_peer import Answer, PeerProcess, serving, wait_until
from tests.integration.pledge_services import FAILURE, ONGOING, Service

DTM_SUCCESS = {"dtm_result": "SUCCESS"}


@pytest.fixture(scope="module")
def peer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PeerProcess]:
    with serving(tmp_path_factory.mktemp("peer"), pledge_retry_s=0.2) as peer:
        wait_until(lambda: peer.ask("GET", "/readyz").status == 200)
        yield peer


@pytest.fixture
def service() -> Iterator[Service]:
    with Service() as service:
        yield service


@pytest.fixture
def gid(request: pytest.FixtureRequest) -> str:
    return re.sub(r"\W+", "-", request.node.name)[-100:]


def post(peer: PeerProcess, operation: str, body: Any) -> Answer:
    return peer.ask("POST", f"/api/dtmsvr/{operation}", body)


def get(peer: PeerProcess, operation: str, **query: Any) -> Answer:
    asked = "&".join(f"{name}={quote(str(value), safe='')}" for name, value in query.items())
    return peer.ask("GET", f"/api/dtmsvr/{operation}?{asked}")


def trans(gid: str, service: Service, *paths: str, **more: Any) -> dict[str, Any]:
    """As the Python client sends it, nulls included."""
    return {
        "gid": gid,
        "trans_type": "msg",
        "custom_data": None,
        "steps": [{"action": path if "://" in path else service.url(path)} for path in paths],
        "payloads": [json.dumps({"amount": 30, "number": number}) for number, _ in enumerate(paths)],
        "query_prepared": service.url("/check"),
        "protocol": None,
        "wait_result": False,
        "timeout_to_fail": 0,
        "request_timeout": 8,
        "retry_interval": 0,
        "passthrough_headers": [],
        "branch_headers": {},
        "concurrent": False,
        **more,
    }


def status(peer: PeerProcess, gid: str) -> tuple[str, list[str]]:
    reply = get(peer, "query", gid=gid).json
    return reply["transaction"]["status"], [branch["status"] for branch in reply["branches"]]


def until(peer: PeerProcess, gid: str, wanted: str) -> list[str]:
    wait_until(lambda: status(peer, gid)[0] == wanted)
    return status(peer, gid)[1]


def refused(answer: Answer, message: str) -> None:
    assert answer.status == 409, answer.body
    assert answer.json == {"dtm_result": "FAILURE", "message": message}


# ---------------------------------------------------------------------- msg_test.go


def test_simple_queries_are_answered_as_dtm_does(peer: PeerProcess) -> None:
    for method in ("GET", "POST", "PUT"):
        assert peer.ask(method, "/api/ping").json == {"msg": "pong"}
    assert get(peer, "version").json == {"version": "v1.19.0"}
    reply = get(peer, "newGid").json
    assert reply["dtm_result"] == "SUCCESS"
    assert re.fullmatch(r"[2-9A-HJ-NP-Za-km-z]{22}", reply["gid"])
    assert get(peer, "newGid").json["gid"] != reply["gid"]
    assert peer.ask("GET", "/api/dtmsvr/prepare").status == 404
    assert peer.ask("GET", "/api/nothing").status == 404


def test_normal(peer: PeerProcess, service: Service, gid: str) -> None:
    assert post(peer, "prepare", trans(gid, service, "/out", "/in")).json == DTM_SUCCESS
    assert status(peer, gid) == ("prepared", ["prepared", "prepared"])
    assert post(peer, "submit", trans(gid, service, "/out", "/in")).json == DTM_SUCCESS
    assert until(peer, gid, "succeed") == ["succeed", "succeed"]
    assert [heard.json["number"] for heard in service.heard] == [0, 1]


def test_a_message_is_submitted_without_prepare(peer: PeerProcess, service: Service, gid: str) -> None:
    body = trans(gid, service, "/in")
    del body["query_prepared"]
    assert post(peer, "submit", body).json == DTM_SUCCESS
    assert until(peer, gid, "succeed") == ["succeed"]


def test_timeout_success(peer: PeerProcess, service: Service, gid: str) -> None:
    service.says("/check", *ONGOING)
    service.says("/in", *ONGOING)
    body = trans(gid, service, "/in", timeout_to_fail=1, retry_interval=1)
    assert post(peer, "prepare", body).status == 200
    service.wait_for("/check", 1)
    assert status(peer, gid)[0] == "prepared"
    service.wait_for("/in", 1)
    assert status(peer, gid)[0] in ("submitted", "succeed")
    assert until(peer, gid, "succeed") == ["succeed"]
    assert (len(service.calls("/check")), len(service.calls("/in"))) == (2, 2)


def test_timeout_failed(peer: PeerProcess, service: Service, gid: str) -> None:
    service.says("/check", *ONGOING)
    service.says("/check", *FAILURE)
    assert post(peer, "prepare", trans(gid, service, "/out", "/in", timeout_to_fail=1, retry_interval=1)).status == 200
    assert until(peer, gid, "failed") == ["prepared", "prepared"]
    assert not service.calls("/in")
    assert get(peer, "query", gid=gid).json["transaction"]["rollback_time"]


def test_abnormal(peer: PeerProcess, service: Service, gid: str) -> None:
    body = trans(gid, service, "/in")
    assert post(peer, "prepare", body).json == DTM_SUCCESS
    assert post(peer, "prepare", body).json == DTM_SUCCESS
    assert post(peer, "submit", body).json == DTM_SUCCESS
    until(peer, gid, "succeed")
    refused(post(peer, "prepare", body), "current status 'succeed', cannot prepare. FAILURE")
    refused(post(peer, "submit", body), "current status 'succeed', cannot sumbmit. FAILURE")
    refused(post(peer, "abort", body), "trans type: 'msg' current status 'succeed', cannot abort. FAILURE")


def test_topic_not_found(peer: PeerProcess, service: Service, gid: str) -> None:
    for operation in ("prepare", "submit"):
        answer = post(peer, operation, trans(gid, service, "topic://nowhere"))
        assert (answer.status, answer.json) == (500, {"message": "topic not found"})


def test_abort(peer: PeerProcess, service: Service, gid: str) -> None:
    service.says("/check", *FAILURE)
    body = trans(gid, service, "/in")
    post(peer, "prepare", body)
    assert post(peer, "abort", body).json == DTM_SUCCESS
    assert status(peer, gid) == ("failed", ["prepared"])
    refused(post(peer, "submit", body), "current status 'failed', cannot sumbmit. FAILURE")
    answer = post(peer, "abort", {"gid": "unheard-of", "trans_type": "msg"})
    assert (answer.status, answer.json) == (500, {"message": "no TransGlobal with gid: unheard-of found"})


def test_an_abort_does_not_end_a_pledge_that_the_checkback_calls_committed(
    peer: PeerProcess, service: Service, gid: str
) -> None:
    body = trans(gid, service, "/in")
    post(peer, "prepare", body)
    answer = post(peer, "abort", body)
    assert answer.status == 409
    assert re.fullmatch(
        r"trans type: 'msg' current status '(submitted|succeed)', cannot abort. FAILURE", answer.json["message"]
    )
    assert until(peer, gid, "succeed") == ["succeed"]


# ---------------------------------------------------------------------- where ours differs


def test_a_prepare_without_query_prepared_is_a_failure(peer: PeerProcess, service: Service, gid: str) -> None:
    answer = post(peer, "prepare", trans(gid, service, "/in", query_prepared=None))
    assert (answer.status, answer.json["dtm_result"]) == (409, "FAILURE")
    assert get(peer, "query", gid=gid).json == {"transaction": None, "branches": []}


def test_the_same_gid_with_another_content_is_a_failure(peer: PeerProcess, service: Service, gid: str) -> None:
    post(peer, "prepare", trans(gid, service, "/in"))
    for operation in ("prepare", "submit"):
        answer = post(peer, operation, trans(gid, service, "/elsewhere"))
        assert (answer.status, answer.json["dtm_result"]) == (409, "FAILURE")
    assert status(peer, gid)[0] == "prepared"


def test_a_repeated_submit_runs_nothing_again(peer: PeerProcess, service: Service, gid: str) -> None:
    service.says("/in", *ONGOING)
    body = trans(gid, service, "/out", "/in", retry_interval=1)
    for _ in range(3):
        assert post(peer, "submit", body).json == DTM_SUCCESS
    until(peer, gid, "succeed")
    assert (len(service.calls("/out")), len(service.calls("/in"))) == (1, 2)


def test_a_caller_waiting_for_the_result_gets_ongoing_while_delivery_continues(
    peer: PeerProcess, service: Service, gid: str
) -> None:
    service.says("/in", 500, {"message": "FAILURE in a stack trace"})
    answer = post(peer, "submit", trans(gid, service, "/in", wait_result=True))
    assert answer.status == 425
    assert answer.json["dtm_result"] == "ONGOING"
    assert "FAILURE" not in answer.json["message"]
    until(peer, gid, "succeed")
    assert post(peer, "submit", trans(f"{gid}-2", service, "/in", wait_result=True)).json == DTM_SUCCESS


@pytest.mark.parametrize("kind", ["saga", "tcc", "xa", "workflow"])
def test_other_kinds_of_transactions_are_a_clear_failure(
    peer: PeerProcess, service: Service, gid: str, kind: str
) -> None:
    for operation in ("prepare", "submit", "abort"):
        answer = post(peer, operation, trans(gid, service, "/in", trans_type=kind))
        assert (answer.status, answer.json["dtm_result"]) == (409, "FAILURE")
        assert f"'{kind}' is not supported" in answer.json["message"]
    for operation in ("registerBranch", "registerXaBranch", "registerTccBranch"):
        assert post(peer, operation, {"gid": gid, "trans_type": kind}).status == 409
    assert post(peer, "prepareWorkflow", {"gid": gid}).status == 409


# ---------------------------------------------------------------------- requests as they come


def test_old_and_odd_requests_are_understood(peer: PeerProcess, service: Service, gid: str) -> None:
    body = trans(f"{gid};\n", service, "/in", payloads=None, unknown=[1])
    body["steps"][0]["data"] = "old"
    assert post(peer, "submit", body).json == DTM_SUCCESS
    until(peer, gid, "succeed")
    assert service.calls("/in")[0].body == b"old"
    answer = post(peer, "submit", trans(f"{gid}-2", service, "/in", payloads=[]))
    assert (answer.status, list(answer.json)) == (500, ["message"])
    assert post(peer, "submit", b"{").status == 500
    assert post(peer, "submit", {"trans_type": "msg"}).json == {"message": "no gid specified"}
    assert post(peer, "registerBranch", {"gid": gid, "trans_type": "msg"}).json == {"message": "unknow trans type: msg"}


def test_an_empty_action_is_delivered_at_once(peer: PeerProcess, service: Service, gid: str) -> None:
    body = trans(gid, service, "/in", wait_result=True)
    body["steps"] = [{"action": ""}]
    assert post(peer, "submit", body).json == DTM_SUCCESS
    assert status(peer, gid) == ("succeed", ["succeed"])


def test_branch_headers_and_the_request_are_as_dtm_sends_them(peer: PeerProcess, service: Service, gid: str) -> None:
    post(peer, "submit", trans(gid, service, "/in", branch_headers={"x-tenant": "t1"}, wait_result=True))
    (heard,) = service.calls("/in")
    assert (heard.method, heard.headers["x-tenant"], heard.headers["content-type"]) == (
        "POST",
        "t1",
        "application/json",
    )
    assert heard.query == {"gid": gid, "trans_type": "msg", "branch_id": "01", "op": "action"}


# ---------------------------------------------------------------------- msg_options_test.go, msg_delay_test.go, webhook


def test_concurrent_branches_do_not_wait_for_each_other(peer: PeerProcess, service: Service, gid: str) -> None:
    service.says("/out", *ONGOING)
    post(peer, "submit", trans(gid, service, "/out", "/in", concurrent=True, retry_interval=1))
    service.wait_for("/in", 1)
    assert until(peer, gid, "succeed") == ["succeed", "succeed"]
    assert len(service.calls("/in")) == 1


def test_a_pledges_own_timeout_is_used(peer: PeerProcess, service: Service, gid: str) -> None:
    post(peer, "prepare", trans(gid, service, "/in", timeout_to_fail=1))
    post(peer, "prepare", trans(f"{gid}-late", service, "/in", timeout_to_fail=3_000))
    until(peer, gid, "succeed")
    assert status(peer, f"{gid}-late")[0] == "prepared"


def test_a_delay_is_kept(peer: PeerProcess, service: Service, gid: str) -> None:
    began = time.monotonic()
    for name, path, delay_s in ((gid, "/in", 1), (f"{gid}-late", "/late", 3_000)):
        body = trans(name, service, path)
        post(peer, "prepare", body)
        assert post(peer, "submit", {**body, "custom_data": json.dumps({"delay": delay_s})}).json == DTM_SUCCESS
    assert service.wait_for("/in", 1)[0].at - began >= 1.0
    assert until(peer, gid, "succeed") == ["succeed"]
    assert status(peer, f"{gid}-late") == ("submitted", ["prepared"])
    assert service.calls("/late") == []


# ---------------------------------------------------------------------- api_test.go


def test_query(peer: PeerProcess, service: Service, gid: str) -> None:
    assert (get(peer, "query").status, get(peer, "query").json) == (500, {"message": "no gid specified"})
    assert get(peer, "query", gid="unheard-of").json == {"transaction": None, "branches": []}
    post(peer, "prepare", trans(gid, service, "/in", retry_interval=7, branch_headers={"a": "b"}, custom_data="mine"))
    reply = get(peer, "query", gid=gid).json
    found = reply["transaction"]
    assert found["id"] == 0
    assert (found["gid"], found["trans_type"], found["status"]) == (gid, "msg", "prepared")
    assert (found["protocol"], found["query_prepared"]) == ("http", service.url("/check"))
    assert (found["retry_interval"], found["concurrent"], found["branch_headers"]) == (7, False, {"a": "b"})
    assert json.loads(found["options"])["retry_interval"] == 7
    assert (found["custom_data"], found["next_cron_interval"]) == ("mine", 7)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", found["create_time"])
    assert {"finish_time", "rollback_time", "owner"}.isdisjoint(found)
    (branch,) = reply["branches"]
    assert json.loads(b64decode(branch["bin_data"])) == {"amount": 30, "number": 0}
    assert (branch["branch_id"], branch["op"], branch["url"]) == ("01", "action", service.url("/in"))
    assert "finish_time" not in branch


def test_all(peer: PeerProcess, service: Service, gid: str) -> None:
    names = [f"{gid}-{number}" for number in range(5)]
    for name in names:
        post(peer, "prepare", trans(name, service, "/in", timeout_to_fail=3_000))
    start = get(peer, "query", gid=names[0]).json["transaction"]["create_time"]
    seen, position = [], ""
    while True:
        page = get(peer, "all", limit=2, position=position, status="prepared").json
        seen += [found["gid"] for found in page["transactions"]]
        position = page["next_position"]
        if not position:
            break
    assert [name for name in seen if name.startswith(gid)] == names[::-1]
    assert len(get(peer, "all").json["transactions"]) <= 100
    assert [found["gid"] for found in get(peer, "all", gid=names[1]).json["transactions"]] == [names[1]]
    assert get(peer, "all", transType="saga").json == {"transactions": [], "next_position": ""}
    assert get(peer, "all", transType="msg", gid=names[1]).json["transactions"]
    assert get(peer, "all", status="aborting").json["transactions"] == []
    assert get(peer, "all", createTimeEnd=1).json["transactions"] == []
    assert get(peer, "all", createTimeStart=1, limit=1).json["transactions"]
    assert start <= get(peer, "all", limit=1, status="prepared").json["transactions"][0]["create_time"]
    assert get(peer, "all", limit="x").status == 500
    assert get(peer, "all", position="nonsense").status in (409, 500)


def test_force_stop(peer: PeerProcess, service: Service, gid: str) -> None:
    service.always("/in", 500)
    post(peer, "submit", trans(gid, service, "/in", retry_interval=1))
    assert post(peer, "forceStop", {"gid": gid}).json == DTM_SUCCESS
    assert status(peer, gid) == ("failed", ["prepared"])
    refused(
        post(peer, "forceStop", {"gid": gid}), "global transaction force stop error. status: failed. error: FAILURE"
    )
    answer = post(peer, "forceStop", {"gid": "unheard-of"})
    assert (answer.status, answer.json) == (500, {"message": "no TransGlobal with gid: unheard-of found"})


def test_reset_next_cron_time(peer: PeerProcess, service: Service, gid: str) -> None:
    service.says("/in", 500)
    post(peer, "submit", trans(gid, service, "/in", retry_interval=3_000))
    service.wait_for("/in", 1)
    wait_until(lambda: "failing" in peer.ask("GET", f"/v1/pledges/{gid}").json["delivery"])
    assert post(peer, "resetNextCronTime", {"gid": gid}).json == DTM_SUCCESS
    assert until(peer, gid, "succeed") == ["succeed"]
    answer = post(peer, "resetNextCronTime", {"gid": "unheard-of"})
    assert (answer.status, answer.json) == (500, {"message": "no TransGlobal with gid: unheard-of found"})


def test_reset_cron_time(peer: PeerProcess, service: Service, gid: str) -> None:
    service.says("/in", 500, times=3)
    for number in range(3):
        post(peer, "submit", trans(f"{gid}-{number}", service, "/in", retry_interval=30_000))
    for number in range(3):
        wait_until(lambda n=number: peer.ask("GET", f"/v1/pledges/{gid}-{n}").json["failures"] == 1)  # type: ignore[misc]
    reply = get(peer, "resetCronTime", timeout=1, limit=1).json
    assert reply["succeed_count"] == 1
    assert reply["has_remaining"] is True
    assert get(peer, "resetCronTime", timeout=100_000).json == {"has_remaining": False, "succeed_count": 0}
    get(peer, "resetCronTime", timeout=1, limit=1_000)
    for number in range(3):
        until(peer, f"{gid}-{number}", "succeed")


def test_metrics(peer: PeerProcess, service: Service, gid: str) -> None:
    post(peer, "submit", trans(gid, service, "/in", wait_result=True))
    text = peer.ask("GET", "/api/metrics").body.decode()
    for sample in (
        "dtm_server_info{",
        'dtm_server_process_total{api="submit",status="ok",type="http"}',
        'dtm_server_response_duration_bucket{api="submit",le="0.005",type="http"}',
        'dtm_transaction_process_total{model="msg",status="ok"}',
        'dtm_transaction_handled_duration_count{model="msg"}',
        'dtm_branch_process_total{branchid="01",branchtype="action",model="msg",status="ok"}',
    ):
        assert sample in text, text


# ---------------------------------------------------------------------- topic_test.go


def test_topics(peer: PeerProcess, service: Service, gid: str) -> None:
    def call(operation: str, **query: str) -> tuple[int, Any]:
        answer = get(peer, operation, **query)
        return answer.status, answer.json

    assert call("subscribe", topic="", url="http://a") == (500, {"message": "empty topic"})
    assert call("subscribe", topic=gid, url="") == (500, {"message": "empty url"})
    assert call("unsubscribe", topic=gid, url="http://a") == (500, {"message": "no such a topic"})
    for path in ("/a", "/b"):
        assert call("subscribe", topic=gid, url=service.url(path), remark="test") == (200, DTM_SUCCESS)
    assert call("subscribe", topic=gid, url=service.url("/a")) == (500, {"message": "this url exists"})
    assert call("unsubscribe", topic=gid, url="http://nobody") == (500, {"message": "no such an url "})
    (row,) = get(peer, "queryKV", cat="topics", key=gid).json["kv"]
    assert (row["cat"], row["k"], row["version"]) == ("topics", gid, 2)
    assert json.loads(row["v"]) == [{"url": service.url(path), "remark": "test"} for path in ("/a", "/b")]
    assert row in get(peer, "scanKV", cat="topics").json["kv"]
    assert get(peer, "scanKV", cat="other").json == {"kv": [], "next_position": ""}
    assert get(peer, "queryKV", cat="topics", key="nobody").json == {"kv": []}
    assert post(peer, "submit", trans(f"{gid}-t", service, f"topic://{gid}", wait_result=True)).json == DTM_SUCCESS
    assert (len(service.calls("/a")), len(service.calls("/b"))) == (1, 1)
    assert [b.query["branch_id"] for b in service.heard] == ["01-01", "01-02"]
    assert call("unsubscribe", topic=gid, url=service.url("/a")) == (200, DTM_SUCCESS)
    assert peer.ask("DELETE", f"/api/dtmsvr/topic/{gid}").json == DTM_SUCCESS
    assert peer.ask("DELETE", f"/api/dtmsvr/topic/{gid}").status == 500


def test_concurrent_subscribes_all_succeed(peer: PeerProcess, gid: str) -> None:
    urls = [f"http://s{number}" for number in range(20)]
    with concurrent.futures.ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(lambda url: get(peer, "subscribe", topic=gid, url=url).status, urls))
    assert answers == [200] * 20
    (row,) = get(peer, "queryKV", cat="topics", key=gid).json["kv"]
    assert (row["version"], len(json.loads(row["v"]))) == (20, 20)


def test_keys_are_scanned_in_pages(peer: PeerProcess, gid: str) -> None:
    names = [f"{gid}-{number}" for number in range(5)]
    for name in names:
        get(peer, "subscribe", topic=name, url="http://a")
    seen, position = [], ""
    while True:
        page = get(peer, "scanKV", cat="topics", limit=2, position=position).json
        seen += [row["k"] for row in page["kv"]]
        position = page["next_position"]
        if not position:
            break
    assert [name for name in seen if name.startswith(gid)] == names


# ---------------------------------------------------------------------- msg_jrpc_test.go


def rpc(peer: PeerProcess, method: str, params: Any = None, **more: Any) -> Any:
    body = {"jsonrpc": "2.0", "id": "1", "method": method, "params": params, **more}
    answer = peer.ask("POST", "/api/json-rpc", body)
    assert answer.status == 200
    return answer.json


def test_json_rpc_normal(peer: PeerProcess, service: Service, gid: str) -> None:
    assert len(rpc(peer, "newGid")["result"]["gid"]) == 22
    service.says("/in", 200, {"jsonrpc": "2.0", "error": {"code": -32902, "message": "ONGOING"}})
    for operation in ("prepare", "submit"):
        reply = rpc(peer, operation, trans(gid, service, "/in"))
        assert reply == {"jsonrpc": "2.0", "id": "1", "error": None, "result": None}
    assert until(peer, gid, "succeed") == ["succeed"]
    reply = rpc(peer, "submit", trans(gid, service, "/in"))
    assert reply["error"] == {"code": -32901, "message": "current status 'succeed', cannot sumbmit. FAILURE"}


def test_json_rpc_branches_are_called_and_judged_as_such(peer: PeerProcess, service: Service, gid: str) -> None:
    def result(more: dict[str, Any]) -> Any:
        return lambda heard: {"jsonrpc": "2.0", "id": heard.json["id"], **more}

    for code in (-32603, -32902, -32901):
        service.says("/rpc", 200, result({"error": {"code": code, "message": "no"}}))
    service.always("/rpc", 200, result({"result": {}}))
    body = trans(gid, service, "/rpc?method=transIn", protocol="json-rpc", retry_interval=1)
    assert rpc(peer, "submit", body)["error"] is None
    wait_until(lambda: len(service.calls("/rpc")) == 4)
    assert until(peer, gid, "succeed") == ["succeed"]
    (first, *_) = service.calls("/rpc")
    assert first.json["method"] == "transIn"
    assert {"gid": gid, "branch_id": "01", "op": "action", "trans_type": "msg", "amount": 30}.items() <= first.json[
        "params"
    ].items()


def test_json_rpc_abnormal(peer: PeerProcess, service: Service, gid: str) -> None:
    answer = peer.ask("POST", "/api/json-rpc", b"{")
    assert (answer.status, answer.json["error"]["code"], answer.json["id"]) == (200, -32700, "")
    assert rpc(peer, "newGid", id="")["error"]["code"] == -32600
    assert rpc(peer, "newGid", jsonrpc="1.0")["error"]["code"] == -32600
    assert rpc(peer, "newGid", id=1)["error"]["code"] == -32700
    assert rpc(peer, "nothing")["error"] == {"code": -32601, "message": "Method not found: nothing"}
    assert rpc(peer, "submit", trans(gid, service, "topic://nowhere"))["error"] == {
        "code": -32603,
        "message": "topic not found",
    }
    assert rpc(peer, "registerBranch", {"trans_type": "msg"})["error"]["code"] == -32603
    assert rpc(peer, "submit", [])["error"]["code"] == -32603

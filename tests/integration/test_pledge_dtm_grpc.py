"""dtm's gRPC service `dtmgimp.Dtm`, asked by a real gRPC client with messages that the protobuf library made."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from concurrent import futures
from hashlib import sha256
from pathlib import Path
from typing import Any

import grpc
import pytest
import trustme
from tests.integration.dtm_messages import message, parsed
from tests.integration.http_peer import PeerProcess, free_ports, serving, wait_until
from tests.integration.pledge_services import FAILURE, ONGOING, Service


class GrpcPeer:
    def __init__(self, peer: PeerProcess, channel: grpc.Channel) -> None:
        self.peer, self.channel = peer, channel

    def call(self, method: str, request: Any = None, *, token: str = "") -> bytes:
        metadata = [("authorization", f"Bearer {token}")] if token else []
        data = b"" if request is None else request.SerializeToString()
        answer: bytes = self.channel.unary_unary(f"/dtmgimp.Dtm/{method}")(data, timeout=20, metadata=metadata)
        return answer

    def fails(self, method: str, request: Any, **more: Any) -> tuple[grpc.StatusCode, str]:
        with pytest.raises(grpc.RpcError) as failure:
            self.call(method, request, **more)
        return failure.value.code(), failure.value.details()

    def status(self, gid: str) -> tuple[str, list[str]]:
        reply = self.peer.ask("GET", f"/api/dtmsvr/query?gid={gid}").json
        return reply["transaction"]["status"], [branch["status"] for branch in reply["branches"]]

    def until(self, gid: str, wanted: str) -> list[str]:
        wait_until(lambda: self.status(gid)[0] == wanted)
        return self.status(gid)[1]


@pytest.fixture(scope="module")
def dtm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GrpcPeer]:
    (port,) = free_ports(1)
    folder = tmp_path_factory.mktemp("peer")
    with serving(folder, grpc_listen=f"127.0.0.1:{port}", pledge_retry_s=0.2) as peer:
        wait_until(lambda: peer.ask("GET", "/readyz").status == 200)
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield GrpcPeer(peer, channel)


class Business(grpc.GenericRpcHandler):
    """A gRPC service with branches and a checkback; `script` has the status of each next call, None for OK."""

    def __init__(self) -> None:
        self.script: dict[str, list[tuple[grpc.StatusCode, str] | None]] = {}
        self.heard: list[tuple[str, bytes, dict[str, str]]] = []

    def service(self, details: Any) -> Any:
        return grpc.unary_unary_rpc_method_handler(lambda request, context: self._serve(details, request, context))

    def _serve(self, details: Any, request: bytes, context: Any) -> bytes:
        name = details.method.rpartition("/")[2]
        metadata = {key: value for key, value in details.invocation_metadata if key.startswith("dtm-")}
        self.heard.append((name, request, metadata))
        script = self.script.get(name)
        reply = script.pop(0) if script else None
        if reply is not None:
            context.abort(*reply)
        return b""


@pytest.fixture
def business() -> Iterator[tuple[Business, str]]:
    handler = Business()
    server = grpc.server(futures.ThreadPoolExecutor(4))
    server.add_generic_rpc_handlers((handler,))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield handler, f"127.0.0.1:{port}/busi.Busi/"
    server.stop(0).wait(5)


@pytest.fixture
def gid(request: pytest.FixtureRequest) -> str:
    return re.sub(r"\W+", "-", request.node.name)[-100:]


def request_of(gid: str, base: str, *methods: str, **options: Any) -> Any:
    more: dict[str, Any] = {name: options.pop(name) for name in ("CustomedData", "TransType") if name in options}
    return message(
        "DtmRequest",
        **{
            "Gid": gid,
            "TransType": "msg",
            "QueryPrepared": f"{base}QueryPrepared",
            "Steps": json.dumps([{"action": base + method} for method in methods]),
            "BinPayloads": [b"\x08" + method.encode() for method in methods],
            "TransOptions": message("DtmTransOptions", **options),
            **more,
        },
    )


def test_a_gid_is_issued(dtm: GrpcPeer) -> None:
    assert re.fullmatch(r"[2-9A-HJ-NP-Za-km-z]{22}", parsed("DtmGidReply", dtm.call("NewGid")).Gid)


def test_normal(dtm: GrpcPeer, business: tuple[Business, str], gid: str) -> None:
    handler, base = business
    asked = request_of(gid, base, "TransOut", "TransIn", BranchHeaders={"test_header": "value"})
    assert dtm.call("Prepare", asked) == b""
    assert dtm.status(gid) == ("prepared", ["prepared", "prepared"])
    assert dtm.call("Submit", asked) == b""
    assert dtm.until(gid, "succeed") == ["succeed", "succeed"]
    assert [(name, payload) for name, payload, _ in handler.heard] == [
        ("TransOut", b"\x08TransOut"),
        ("TransIn", b"\x08TransIn"),
    ]
    names = handler.heard[0][2]
    assert (names["dtm-gid"], names["dtm-branch_id"], names["dtm-op"]) == (gid, "01", "action")
    assert names["dtm-trans_type"] == "msg"
    reply = dtm.peer.ask("GET", f"/api/dtmsvr/query?gid={gid}").json["transaction"]
    assert (reply["protocol"], reply["branch_headers"]) == ("grpc", {"test_header": "value"})


def test_timeout_success(dtm: GrpcPeer, business: tuple[Business, str], gid: str) -> None:
    handler, base = business
    ongoing = (grpc.StatusCode.FAILED_PRECONDITION, "ONGOING")
    handler.script = {"QueryPrepared": [ongoing, None], "TransIn": [ongoing, None]}
    dtm.call("Prepare", request_of(gid, base, "TransIn", TimeoutToFail=1, RetryInterval=1))
    assert dtm.until(gid, "succeed") == ["succeed"]
    assert [name for name, _, _ in handler.heard] == ["QueryPrepared", "QueryPrepared", "TransIn", "TransIn"]


def test_timeout_failed(dtm: GrpcPeer, business: tuple[Business, str], gid: str) -> None:
    handler, base = business
    handler.script = {
        "QueryPrepared": [
            (grpc.StatusCode.UNAVAILABLE, "FAILURE"),
            (grpc.StatusCode.ABORTED, "ONGOING"),
            (grpc.StatusCode.ABORTED, "FAILURE"),
        ]
    }
    dtm.call("Prepare", request_of(gid, base, "TransIn", TimeoutToFail=1, RetryInterval=1))
    assert dtm.until(gid, "failed") == ["prepared"]
    assert [name for name, _, _ in handler.heard] == ["QueryPrepared"] * 3


def test_branches_over_http_are_pledged_over_grpc_too(dtm: GrpcPeer, gid: str) -> None:
    with Service() as service:
        service.says("/check", *ONGOING)
        service.says("/check", *FAILURE)
        asked = message(
            "DtmRequest",
            Gid=gid,
            TransType="msg",
            QueryPrepared=service.url("/check"),
            Steps=json.dumps([{"action": service.url("/in")}]),
            BinPayloads=[b"{}"],
            CustomedData='{"delay":1}',
            TransOptions=message("DtmTransOptions", WaitResult=True),
        )
        code, text = dtm.fails("Submit", asked)
        assert code == grpc.StatusCode.FAILED_PRECONDITION
        assert "delayed" in text
        assert dtm.until(gid, "succeed") == ["succeed"]


def test_refusals_have_dtms_codes_and_texts(dtm: GrpcPeer, business: tuple[Business, str], gid: str) -> None:
    handler, base = business
    asked = request_of(gid, base, "TransIn", WaitResult=True)
    dtm.call("Submit", asked)
    assert dtm.fails("Prepare", asked) == (
        grpc.StatusCode.ABORTED,
        "current status 'succeed', cannot prepare. FAILURE",
    )
    assert dtm.fails("Submit", asked)[0] == grpc.StatusCode.ABORTED
    assert dtm.fails("Abort", asked)[0] == grpc.StatusCode.ABORTED
    assert dtm.fails("Abort", message("DtmRequest", Gid="unheard-of", TransType="msg")) == (
        grpc.StatusCode.UNKNOWN,
        "no TransGlobal with gid: unheard-of found",
    )
    assert dtm.fails("Submit", request_of(gid, base, "TransIn", TransType="saga"))[0] == grpc.StatusCode.ABORTED
    assert dtm.fails("Submit", message("DtmRequest", TransType="msg")) == (
        grpc.StatusCode.UNKNOWN,
        "no gid specified",
    )
    assert dtm.fails("RegisterBranch", message("DtmBranchRequest", Gid=gid, TransType="tcc"))[0] == (
        grpc.StatusCode.ABORTED
    )
    assert dtm.fails("RegisterBranch", message("DtmBranchRequest", Gid=gid, TransType="msg"))[1] == (
        "unknow trans type: msg"
    )
    assert dtm.fails("PrepareWorkflow", asked)[0] == grpc.StatusCode.ABORTED
    assert dtm.fails("Query", asked)[0] == grpc.StatusCode.UNIMPLEMENTED
    assert len([name for name, _, _ in handler.heard if name == "TransIn"]) == 1


def test_abort_asks_the_checkback(dtm: GrpcPeer, business: tuple[Business, str], gid: str) -> None:
    handler, base = business
    handler.script = {"QueryPrepared": [(grpc.StatusCode.ABORTED, "FAILURE")]}
    asked = request_of(gid, base, "TransIn")
    dtm.call("Prepare", asked)
    assert dtm.call("Abort", asked) == b""
    assert dtm.status(gid) == ("failed", ["prepared"])


def test_topics(dtm: GrpcPeer, gid: str) -> None:
    asked = message("DtmTopicRequest", Topic=gid, URL="127.0.0.1:1/busi.Busi/TransIn", Remark="r")
    assert dtm.call("Subscribe", asked) == b""
    assert dtm.fails("Subscribe", asked) == (grpc.StatusCode.UNKNOWN, "this url exists")
    (row,) = dtm.peer.ask("GET", f"/api/dtmsvr/queryKV?cat=topics&key={gid}").json["kv"]
    assert json.loads(row["v"]) == [{"url": "127.0.0.1:1/busi.Busi/TransIn", "remark": "r"}]
    assert dtm.call("Unsubscribe", asked) == b""
    assert dtm.fails("Unsubscribe", asked) == (grpc.StatusCode.UNKNOWN, "no such a topic")
    dtm.call("Subscribe", asked)
    assert dtm.call("DeleteTopic", message("DtmTopicRequest", Topic=gid)) == b""
    assert dtm.fails("DeleteTopic", message("DtmTopicRequest", Topic=gid))[0] == grpc.StatusCode.UNKNOWN


def test_bytes_that_are_not_a_message_are_refused(dtm: GrpcPeer) -> None:
    with pytest.raises(grpc.RpcError) as failure:
        dtm.channel.unary_unary("/dtmgimp.Dtm/Submit")(b"\xff\xff\xff", timeout=20)
    assert failure.value.code() == grpc.StatusCode.INVALID_ARGUMENT


def test_calls_are_counted(dtm: GrpcPeer) -> None:
    dtm.call("NewGid")
    text = dtm.peer.ask("GET", "/api/metrics").body.decode()
    assert 'dtm_server_process_total{api="newgid",status="ok",type="grpc"}' in text


def test_tokens_and_tls_apply_to_grpc_too(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.toml"
    rights = {"writer": '{ "avow.pledges" = ["write"] }', "other": '{ "orders" = ["write"] }'}
    tokens.write_text(
        "".join(
            f'[[token]]\nname = "{name}"\nsha256 = "{sha256(name.encode()).hexdigest()}"\nrights = {given}\n'
            for name, given in rights.items()
        )
    )
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1", "localhost")
    issued.private_key_pem.write_to_path(str(tmp_path / "key.pem"))
    issued.cert_chain_pems[0].write_to_path(str(tmp_path / "cert.pem"))
    (port,) = free_ports(1)
    files = {"tls_cert": tmp_path / "cert.pem", "tls_key": tmp_path / "key.pem", "tokens": tokens}
    with serving(tmp_path / "peer", grpc_listen=f"127.0.0.1:{port}", **files) as peer:
        trust = grpc.ssl_channel_credentials(authority.cert_pem.bytes())
        with grpc.secure_channel(f"127.0.0.1:{port}", trust) as channel:
            dtm = GrpcPeer(peer, channel)
            assert dtm.fails("NewGid", None)[0] == grpc.StatusCode.UNAUTHENTICATED
            assert dtm.fails("NewGid", None, token="other")[0] == grpc.StatusCode.PERMISSION_DENIED
            assert dtm.call("NewGid", token="writer")

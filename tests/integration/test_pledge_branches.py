"""Branches called for real: HTTP with its corners, JSON-RPC, gRPC, queues."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import grpc
import msgspec
import pytest
import trustme
import uvloop
from tests.integration.branch_services import FAILURE, SILENT, SUCCESS, Request, Service, services, until

from avow.errors import Offline, Unknown, UnknownQueue
from avow.pledge.branches import connection_pool as connections_module
from avow.pledge.branches.calls import Call
from avow.pledge.branches.queue import write_id_of
from avow.pledge.branches.schemes import Branches
from avow.pledge.verdicts import Verdict

Runner = Callable[[Any], Any]


@pytest.fixture(params=[asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def runner(request: pytest.FixtureRequest) -> Runner:
    found: Runner = request.param
    return found


def with_service(work: Callable[[Service, Branches], Awaitable[None]], runner: Runner = uvloop.run) -> None:
    async def go() -> None:
        async with services() as (service,):
            branches = Branches()
            try:
                async with asyncio.timeout(30):
                    await work(service, branches)
            finally:
                await branches.close()

    runner(go())


def call_of(url: str, payload: bytes = b'{"amount":30}', **given: Any) -> Call:
    fields: dict[str, Any] = {"url": url, "gid": "g-1", "branch_id": "01", "timeout_s": 60.0, "payload": payload}
    return Call(**fields | given)


def checkback_of(url: str, **given: Any) -> Call:
    return call_of(url, b"", branch_id="00", checkback=True, **given)


# ------------------------------------------------------------------------------------------------- HTTP


def test_a_branch_is_called_as_dtm_calls_it(runner: Runner) -> None:
    async def work(service: Service, branches: Branches) -> None:
        call = call_of(f"{service.url}/in?shop=7", headers={"tenant": "blue"})
        assert (await branches(call)).result == "SUCCESS"
        (seen,) = service.requests
        assert (seen.method, seen.path, seen.body) == ("POST", "/in", b'{"amount":30}')
        assert seen.query == [
            ("shop", "7"),
            ("gid", "g-1"),
            ("trans_type", "msg"),
            ("branch_id", "01"),
            ("op", "action"),
        ]
        assert (seen.header("content-type"), seen.header("tenant")) == ("application/json", "blue")
        assert f"http://{seen.header('host')}" == service.url

    with_service(work, runner)


def test_a_checkback_and_a_branch_without_payload_are_a_get() -> None:
    async def work(service: Service, branches: Branches) -> None:
        assert (await branches(checkback_of(f"{service.url}/checkback"))).result == "SUCCESS"
        assert (await branches(call_of(f"{service.url}/in", b""))).result == "SUCCESS"
        assert [seen.method for seen in service.requests] == ["GET", "GET"]
        assert dict(service.requests[0].query) == {"gid": "g-1", "trans_type": "msg", "branch_id": "00", "op": "msg"}

    with_service(work)


def test_gids_and_urls_with_any_characters_arrive_unchanged() -> None:
    async def work(service: Service, branches: Branches) -> None:
        gid = "Größe &=?#/%+ ;"
        await branches(call_of(f"{service.url}/käse/a b?q=ü&plus=a%2Bb#fragment", gid=gid))
        await branches(call_of(service.url.replace("http://", "http://user:w%40rd@"), gid=gid))
        first, second = service.requests
        assert first.gid == gid
        assert dict(first.query)["q"] == "ü"
        assert dict(first.query)["plus"] == "a+b"
        assert first.path == "/k%C3%A4se/a%20b"
        assert second.header("authorization") == "Basic dXNlcjp3QHJk"
        assert second.path == "/"

    with_service(work)


def test_a_branch_header_may_replace_the_content_type() -> None:
    async def work(service: Service, branches: Branches) -> None:
        await branches(call_of(f"{service.url}/in", b"<a/>", headers={"Content-Type": "text/xml"}))
        assert [value for name, value in service.requests[0].headers if name == "content-type"] == ["text/xml"]

    with_service(work)


def test_connections_are_reused_and_never_by_two_calls_at_once() -> None:
    async def work(service: Service, branches: Branches) -> None:
        for _ in range(20):
            await branches(call_of(f"{service.url}/in"))
        assert len({seen.connection for seen in service.requests}) == 1

        async def together(_: Request) -> tuple[int, bytes]:
            await until(lambda: len(service.requests) == 10)
            return SUCCESS

        service.requests.clear()
        service.answer("/in", together)
        await asyncio.gather(*(branches(call_of(f"{service.url}/in")) for _ in range(10)))
        assert len({seen.connection for seen in service.requests}) == 10

    with_service(work)


@pytest.mark.parametrize(
    "raw",
    [
        b'HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\n{"dtm\r\n13\r\n_result":"SUCCESS"}\r\n0\r\n\r\n',
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 24\r\n\r\n" + SUCCESS[1],
        b"HTTP/1.1 204 No Content\r\nDtm-Result: SUCCESS\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nAvow-Result: SUCCESS\r\n\r\n",
        b"HTTP/1.0 200 OK\r\ncontent-length: 24\r\n\r\n" + SUCCESS[1],
        b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 24\r\n\r\n" + SUCCESS[1],
    ],
    ids=["chunked", "continue", "header", "avow header", "http 1.0", "close"],
)
def test_services_may_answer_in_any_form_of_http(raw: bytes, runner: Runner) -> None:
    async def work(service: Service, branches: Branches) -> None:
        service.answer("/checkback", raw)
        for _ in range(3):
            assert (await branches(checkback_of(f"{service.url}/checkback"))).result == "SUCCESS"

    with_service(work, runner)


def test_a_body_may_end_with_its_connection_and_a_cut_one_is_lost(runner: Runner) -> None:
    async def work(service: Service, branches: Branches) -> None:
        def then_close(raw: bytes) -> Callable[[Request], Awaitable[bytes]]:
            async def answer(_: Request) -> bytes:
                asyncio.get_running_loop().call_later(0.05, service.connections[-1].transport.close)
                return raw

            return answer

        service.answer("/checkback", then_close(b"HTTP/1.1 200 OK\r\n\r\n" + SUCCESS[1]))
        assert (await branches(checkback_of(f"{service.url}/checkback"))).result == "SUCCESS"
        service.answer("/checkback", then_close(b"HTTP/1.1 200 OK\r\ncontent-length: 50\r\n\r\n" + SUCCESS[1]))
        lost = await branches(checkback_of(f"{service.url}/checkback"))
        assert (lost.result, lost.reached) == ("ERROR", False)

    with_service(work, runner)


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"SSH-2.0-OpenSSH_9.2\r\n", "not HTTP"),
        (b"HTTP/1.1 200 OK\r\nx: " + b"y" * 100_000, "too long"),
        (b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n", ""),
    ],
    ids=["another protocol", "an endless head", "an upgrade"],
)
def test_an_invalid_answer_is_an_error_and_its_connection_is_closed(raw: bytes, text: str) -> None:
    async def work(service: Service, branches: Branches) -> None:
        service.answer("/in", raw, SUCCESS)
        verdict = await branches(call_of(f"{service.url}/in", timeout_s=60.0 if text else 1.0))
        assert verdict.result == "ERROR"
        assert text in verdict.text
        assert (await branches(call_of(f"{service.url}/in"))).result == "SUCCESS"

    with_service(work)


def test_an_answer_that_is_too_long_is_not_evaluated() -> None:
    async def work(service: Service, branches: Branches) -> None:
        service.answer("/in", (200, b" " * (2 << 20) + b'{"dtm_result":"FAILURE"}'))
        assert (await branches(call_of(f"{service.url}/in"))).result == "SUCCESS"
        service.answer("/in", (500, b"x" * (2 << 20)))
        assert (await branches(call_of(f"{service.url}/in"))).result == "ERROR"
        service.answer("/checkback", (200, b" " * (2 << 20) + SUCCESS[1]))
        assert (await branches(checkback_of(f"{service.url}/checkback"))).result == "ERROR"

    with_service(work)


def test_redirects_are_not_followed() -> None:
    async def work(service: Service, branches: Branches) -> None:
        service.answer("/in", b"HTTP/1.1 307 X\r\nlocation: /other\r\ncontent-length: 0\r\n\r\n")
        assert (await branches(call_of(f"{service.url}/in"))).result == "ERROR"
        assert len(service.requests) == 1

    with_service(work)


def test_a_silent_refusing_or_missing_service_counts_as_not_reached(runner: Runner) -> None:
    async def work(service: Service, branches: Branches) -> None:
        service.answer("/in", SILENT)
        loop = asyncio.get_running_loop()
        began = loop.time()
        silent = await branches(call_of(f"{service.url}/in", timeout_s=0.3))
        assert 0.25 < loop.time() - began < 60  # which is what it would be without the option
        await service.stop()
        refused = await branches(call_of(f"{service.url}/in"))
        nowhere = await branches(call_of("http://no-such-host.invalid/in"))
        for verdict in (silent, refused, nowhere):
            assert (verdict.result, verdict.reached) == ("ERROR", False)
        assert "in time" in silent.text

    with_service(work, runner)


def test_a_connection_closed_while_idle_costs_a_retry_but_no_error(runner: Runner) -> None:
    async def work(service: Service, branches: Branches) -> None:
        assert (await branches(call_of(f"{service.url}/in"))).result == "SUCCESS"

        async def hang_up(_: Request) -> bytes:
            service.hang_up()
            return b""

        service.answer("/in", hang_up, SUCCESS)  # closes as the request arrives, before a byte of an answer
        assert (await branches(call_of(f"{service.url}/in"))).result == "SUCCESS"
        assert branches.statistics()["http_calls_repeated"] == 1
        await service.stop()
        await service.start()
        assert (await branches(call_of(f"{service.url}/in"))).result == "SUCCESS"

    with_service(work, runner)


def test_a_new_connection_closed_without_an_answer_is_not_retried() -> None:
    async def work(service: Service, branches: Branches) -> None:
        async def hang_up(_: Request) -> bytes:
            service.hang_up()
            return b""

        service.answer("/in", hang_up)
        assert not (await branches(call_of(f"{service.url}/in"))).reached
        assert len(service.requests) == 1

    with_service(work)


def test_a_cancelled_call_closes_its_connection() -> None:
    async def work(service: Service, branches: Branches) -> None:
        service.answer("/in", SILENT)
        task = asyncio.create_task(branches(call_of(f"{service.url}/in")))
        await until(lambda: service.requests)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: not service.connections)

    with_service(work)


def test_idle_connections_are_closed_after_a_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections_module, "IDLE_S", 0.1)

    async def work(service: Service, branches: Branches) -> None:
        await branches(call_of(f"{service.url}/in"))
        assert branches.statistics()["http_connections"] == 1
        await until(lambda: branches.statistics()["http_connections"] == 0)

    with_service(work)


def test_https_is_verified(runner: Runner) -> None:
    async def go() -> None:
        authority = trustme.CA()
        serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert("127.0.0.1").configure_cert(serving)
        trusting = ssl.create_default_context()
        authority.configure_trust(trusting)
        async with services(tls=serving) as (service,):
            good, strict = Branches(tls=trusting), Branches()
            assert (await good(call_of(f"{service.url}/in"))).result == "SUCCESS"
            refused = await strict(call_of(f"{service.url}/in"))
            assert (refused.result, refused.reached) == ("ERROR", False)
            assert len(service.requests) == 1
            await good.close()
            await strict.close()

    runner(go())


def test_a_webhook_is_called_with_a_plain_post() -> None:
    async def work(service: Service, branches: Branches) -> None:
        assert await branches.post_alert(f"{service.url}/alerts?a=b", b'{"gid":"g"}', timeout_s=10) == ""
        (seen,) = service.requests
        assert (seen.method, seen.url, seen.body) == ("POST", b"/alerts?a=b", b'{"gid":"g"}')
        service.answer("/alerts", (500, b""))
        assert await branches.post_alert(f"{service.url}/alerts", b"{}", timeout_s=10) == "HTTP 500"
        await service.stop()
        assert "connection" in await branches.post_alert(f"{service.url}/alerts", b"{}", timeout_s=10)

    with_service(work)


# --------------------------------------------------------------------------------------------- JSON-RPC


def test_a_json_rpc_branch_calls_the_method_with_the_payload_as_parameters() -> None:
    async def work(service: Service, branches: Branches) -> None:
        async def rpc(request: Request) -> tuple[int, bytes]:
            asked = msgspec.json.decode(request.body)
            return 200, msgspec.json.encode({"jsonrpc": "2.0", "id": asked["id"], "result": {}})

        service.answer("/rpc", rpc)
        call = call_of(f"{service.url}/rpc?method=TransIn", protocol="json-rpc")
        assert (await branches(call)).result == "SUCCESS"
        asked = msgspec.json.decode(service.requests[0].body)
        assert (asked["method"], asked["jsonrpc"]) == ("TransIn", "2.0")
        assert asked["params"] == {
            "amount": 30,
            "gid": "g-1",
            "trans_type": "msg",
            "branch_id": "01",
            "op": "action",
        }
        assert (await branches(checkback_of(call.url, protocol="json-rpc"))).result == "SUCCESS"
        assert (await branches(call_of(call.url, b"no json", protocol="json-rpc"))).result == "ERROR"
        service.answer("/rpc", SUCCESS)  # no JSON-RPC answer, although it says SUCCESS
        assert (await branches(call)).result == "ERROR"
        service.answer("/plain", SUCCESS)  # without a method it is a plain call
        assert (await branches(call_of(f"{service.url}/plain", protocol="json-rpc"))).result == "SUCCESS"

    with_service(work)


# ------------------------------------------------------------------------------------------------- gRPC


class Busi(grpc.GenericRpcHandler):
    def __init__(self) -> None:
        self.seen: list[tuple[str, bytes, dict[str, str]]] = []
        self.status: tuple[Any, str] | None = None

    def service(self, details: Any) -> Any:
        async def handle(request: bytes, context: Any) -> bytes:
            metadata = dict(context.invocation_metadata() or ())
            self.seen.append((details.method, request, metadata))
            if self.status is not None:
                await context.abort(*self.status)
            return b"whatever"

        return grpc.unary_unary_rpc_method_handler(handle)


def test_a_grpc_branch_gets_the_payload_unchanged_and_the_ids_as_metadata(runner: Runner) -> None:
    async def go() -> None:
        busi = Busi()
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((busi,))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        branches = Branches()
        payload = b"\x08\x1e\x12\x00"
        for scheme in ("grpc://", ""):
            url = f"{scheme}127.0.0.1:{port}/busi.Busi/TransIn"
            call = call_of(url, payload, headers={"Tenant": "blue"}, protocol="grpc")
            assert (await branches(call)).result == "SUCCESS"
        method, request, metadata = busi.seen[0]
        assert (method, request) == ("/busi.Busi/TransIn", payload)
        wanted = {"dtm-gid": "g-1", "dtm-trans_type": "msg", "dtm-branch_id": "01", "dtm-op": "action"}
        assert wanted.items() <= metadata.items()
        assert metadata["tenant"] == "blue"
        codes = grpc.StatusCode
        for status, result, reached in (
            ((codes.ABORTED, "FAILURE"), "FAILURE", True),
            ((codes.ABORTED, "ONGOING"), "ONGOING", True),
            ((codes.FAILED_PRECONDITION, "wait"), "ONGOING", True),
            ((codes.INTERNAL, "FAILURE"), "ERROR", True),
            ((codes.UNAVAILABLE, ""), "ERROR", False),
        ):
            busi.status = status
            verdict = await branches(checkback_of(f"grpc://127.0.0.1:{port}/busi.Busi/Query"))
            assert (verdict.result, verdict.reached) == (result, reached)
        assert busi.seen[-1][2]["dtm-op"] == "msg"
        await server.stop(0)
        gone = await branches(call_of(f"grpc://127.0.0.1:{port}/busi.Busi/TransIn", payload, timeout_s=1.0))
        assert (gone.result, gone.reached) == ("ERROR", False)
        await branches.close()

    runner(go())


# ----------------------------------------------------------------------------------------------- queues


class Queue:
    """As a peer's queue treats write ids: a repeated one is answered and not stored again."""

    def __init__(self) -> None:
        self.messages: dict[bytes, tuple[str, bytes, bytes, dict[str, str]]] = {}
        self.error: Exception | None = None

    async def __call__(
        self, *, queue: str, value: bytes, key: bytes, headers: Mapping[str, str], write_id: bytes, since_ms: int
    ) -> None:
        assert since_ms == 77
        self.messages.setdefault(write_id, (queue, value, key, dict(headers)))
        if self.error is not None:
            raise self.error


def test_a_queue_branch_is_enqueued_once_under_the_pledges_write_id() -> None:
    async def go() -> None:
        queue = Queue()
        branches = Branches(enqueue=queue)
        call = call_of("queue://orders?key=user%207", headers={"tenant": "blue"}, since_ms=77)
        queue.error = Unknown("no answer came")
        lost = await branches(call)
        assert (lost.result, lost.reached) == ("ERROR", False)
        queue.error = None
        assert (await branches(call)).result == "SUCCESS"
        assert queue.messages == {
            write_id_of("g-1", "01"): (
                "orders",
                b'{"amount":30}',
                b"user 7",
                {"tenant": "blue", "avow-gid": "g-1", "avow-branch-id": "01"},
            )
        }
        assert len(write_id_of("g-1", "01")) == 16
        assert write_id_of("g-1", "02") != write_id_of("g-1", "01") != write_id_of("g-10", "1")
        for error, reached in ((UnknownQueue("no such queue"), True), (Offline("no quorum"), False)):
            queue.error = error
            verdict: Verdict = await branches(call)
            assert (verdict.result, verdict.reached) == ("ERROR", reached)
        await branches.close()

    uvloop.run(go())


def test_a_queue_that_does_not_answer_times_out() -> None:
    async def never(**_: Any) -> None:
        await asyncio.Event().wait()

    async def go() -> None:
        branches = Branches(enqueue=never)
        verdict = await branches(call_of("queue://orders", timeout_s=0.05))
        assert (verdict.result, verdict.reached) == ("ERROR", False)

    uvloop.run(go())


def test_the_test_services_answer_as_dtm_clients_do() -> None:
    async def work(service: Service, branches: Branches) -> None:
        service.answer("/checkback", SUCCESS, FAILURE)
        results = [(await branches(checkback_of(f"{service.url}/checkback"))).result for _ in range(2)]
        assert results == ["SUCCESS", "FAILURE"]

    with_service(work)

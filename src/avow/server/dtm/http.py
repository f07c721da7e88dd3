"""dtm's API over HTTP and JSON-RPC, under /api/, with dtm's paths, bodies and statuses.

    success, no result   200 {"dtm_result":"SUCCESS"}
    FAILURE              409 {"dtm_result":"FAILURE","message":...}
    ONGOING              425 {"dtm_result":"ONGOING","message":...}
    any other error      500 {"message":...}

JSON-RPC always answers 200, with the error inside. If the peer requires tokens, queries need the right to read
`avow.pledges` and all other calls the right to write it; the token is in the Authorization header.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Awaitable, Callable, Coroutine
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias
from urllib.parse import parse_qs, unquote

import msgspec
from msgspec import Struct

from avow.errors import AvowError
from avow.pledge import state
from avow.pledge.record import NEVER_MS, Branch, BranchProgress, Options, Pledge, Status
from avow.pledge.store import Filter, Topic
from avow.pledge.stores.lane.store import QUEUE
from avow.server.access import ANYBODY
from avow.server.channels.pages import check_origin
from avow.server.dtm.metrics import metrics_text
from avow.server.dtm.requests import STATUSES, VERSION, Dtm, DtmError, Trans, new_gid
from avow.server.http.error_reply import JSON, Reply

if TYPE_CHECKING:
    from avow.server.access import Right, Token
    from avow.server.http.api import Api
    from avow.server.http.request import HttpRequest
    from avow.server.pledges.service import Pledges

METRICS: Final = b"text/plain; version=0.0.4; charset=utf-8"
SUCCESS: Final = {"dtm_result": "SUCCESS"}
TIMEOUT_S: Final = 60.0
RESET_LONGER_THAN: Final = 3  # times `pledge_timeout_s`
PARSE_ERROR: Final = -32700
BAD_REQUEST: Final = -32600
NO_METHOD: Final = -32601
INTERNAL_ERROR: Final = -32603
FAILED: Final = -32901
_STATUS: Final = {"FAILURE": 409, "ONGOING": 425, "": 500}
_encode: Final = msgspec.json.Encoder().encode
_decode_trans: Final = msgspec.json.Decoder(Trans, strict=False).decode

Query: TypeAlias = dict[str, str]


class Asked(NamedTuple):
    token: Token
    query: Query
    body: bytes
    tail: str  # the last part of the path of /topic/NAME


class Row(NamedTuple):
    method: str  # empty: any
    right: Right | str | None  # empty: any token; None: no token needed
    work: Callable[[DtmHttp, Asked], Awaitable[Any]]


class Rpc(Struct):
    method: str = ""
    jsonrpc: str = ""
    params: msgspec.Raw = msgspec.Raw(b"null")
    id: str = ""


class DtmHttp:
    def __init__(self, api: Api, pledges: Pledges) -> None:
        self._api, self._pledges = api, pledges
        self.dtm = Dtm(pledges)

    def handle(self, request: HttpRequest) -> None:
        """Raises AvowError if the client has no right to call it; all other errors are answered in dtm's format."""
        self._api.listener.check_room()
        path, _, query = request.target.partition("?")
        row, tail = _find(request.method.decode("latin-1"), path)
        if row is None:
            request.answer(404, b"404 page not found", content_type=b"text/plain")
            return
        check_origin(self._api, request)
        token = ANYBODY
        if row.right is not None:
            token = self._api.token(request)
            if row.right:
                token.check(row.right, QUEUE)  # type: ignore[arg-type]
        given = {name: values[0] for name, values in parse_qs(query, keep_blank_values=True).items()} if query else {}
        asked = Asked(token, given, bytes(request.body), tail)
        work = self._answer(request, row, path, asked)
        self._pledges.serve(request, work, deadline=self._api.listener.now() + TIMEOUT_S)

    async def _answer(self, request: HttpRequest, row: Row, path: str, asked: Asked) -> None:
        began = self._api.listener.now()
        reply = await self._reply(row, asked)
        took_s = self._api.listener.now() - began
        name = path.rpartition("/")[2].lower() if not asked.tail else "topic"
        self._pledges.counters.requested("http", name, ok=reply.status < 400, took_s=took_s)
        request.reply(reply)

    async def _reply(self, row: Row, asked: Asked) -> Reply:
        try:
            result = await row.work(self, asked)
        except DtmError as error:
            body: dict[str, str] = {"dtm_result": error.result} if error.result else {}
            return Reply(_STATUS[error.result], _encode({**body, "message": str(error)}))
        except msgspec.MsgspecError as error:
            return Reply(500, _encode({"message": f"the body is not valid for this call: {error}"}))
        except (AvowError, ValueError) as error:
            return Reply(500, _encode({"message": str(error)}))
        if isinstance(result, bytes):
            return Reply(200, result, content_type=METRICS)
        return Reply(200, _encode(SUCCESS if result is None else result), content_type=JSON)

    # ------------------------------------------------------------------ calls

    async def ping(self, _: Asked) -> Any:
        return {"msg": "pong"}

    async def version(self, _: Asked) -> Any:
        return {"version": VERSION}

    async def new_gid(self, _: Asked) -> Any:
        return {"gid": new_gid(), **SUCCESS}

    async def prepare(self, asked: Asked) -> Any:
        await self.dtm.prepare(_decode_trans(asked.body), asked.token)

    async def submit(self, asked: Asked) -> Any:
        await self.dtm.submit(_decode_trans(asked.body), asked.token)

    async def abort(self, asked: Asked) -> Any:
        await self.dtm.abort(_decode_trans(asked.body))

    async def force_stop(self, asked: Asked) -> Any:
        await self.dtm.force_stop(_decode_trans(asked.body))

    async def reset_next_cron_time(self, asked: Asked) -> Any:
        await self.dtm.reset_next_cron_time(_decode_trans(asked.body))

    async def reset_cron_time(self, asked: Asked) -> Any:
        timeout_s = RESET_LONGER_THAN * self._api.peer.settings.pledge_timeout_s
        longer_than_s = float(asked.query.get("timeout") or timeout_s)
        many = await self.dtm.reset_cron_time(longer_than_s=longer_than_s, limit=_limit(asked.query))
        return {"has_remaining": many.more, "succeed_count": many.changed_count}

    async def register_branch(self, asked: Asked) -> Any:
        fields = msgspec.json.decode(asked.body, type=dict[str, Any])
        self.dtm.register_branch(str(fields.get("trans_type") or ""))

    async def prepare_workflow(self, _: Asked) -> Any:
        self.dtm.register_branch("workflow")

    async def query(self, asked: Asked) -> Any:
        gid = asked.query.get("gid", "")
        if not gid:
            raise DtmError("no gid specified")
        pledge = await self.dtm.query(gid)
        if pledge is None:
            return {"transaction": None, "branches": []}
        retry_s = self._api.peer.settings.pledge_retry_s
        return {
            "transaction": _transaction_fields(pledge, retry_interval_s=retry_s),
            "branches": _branch_list(pledge),
        }

    async def all(self, asked: Asked) -> Any:
        query = asked.query
        wanted = _filter(query)
        if wanted is None:
            return {"transactions": [], "next_position": ""}
        page = await self.dtm.find(wanted, position=query.get("position", ""), limit=_limit(query))
        retry_s = self._api.peer.settings.pledge_retry_s
        found = [_transaction_fields(pledge, retry_interval_s=retry_s) for pledge in page.pledges]
        return {"transactions": found, "next_position": page.next_position}

    async def subscribe(self, asked: Asked) -> Any:
        query = asked.query
        topic, url, remark = (query.get(name, "") for name in ("topic", "url", "remark"))
        await self.dtm.subscribe(topic, url, remark, asked.token)

    async def unsubscribe(self, asked: Asked) -> Any:
        await self.dtm.unsubscribe(asked.query.get("topic", ""), asked.query.get("url", ""))

    async def delete_topic(self, asked: Asked) -> Any:
        await self.dtm.delete_topic(asked.tail)

    async def scan_kv(self, asked: Asked) -> Any:
        if asked.query.get("cat") != "topics":
            return {"kv": [], "next_position": ""}
        position = asked.query.get("position", "")
        topics, position = await self.dtm.topics(position=position, limit=_limit(asked.query))
        return {"kv": [_topic_fields(topic) for topic in topics], "next_position": position}

    async def query_kv(self, asked: Asked) -> Any:
        known = asked.query.get("cat") == "topics"
        topic = await self.dtm.topic(asked.query.get("key", "")) if known else None
        return {"kv": [] if topic is None else [_topic_fields(topic)]}

    async def metrics(self, _: Asked) -> Any:
        return metrics_text(self._pledges.counters)

    # ------------------------------------------------------------------ JSON-RPC

    async def json_rpc(self, asked: Asked) -> Any:
        try:
            call = msgspec.json.decode(asked.body, type=Rpc)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            return _rpc_answer("", error=(PARSE_ERROR, f"Parse json error: {error}"))
        if not call.id or call.jsonrpc != "2.0":
            shown = msgspec.json.encode({"method": call.method, "jsonrpc": call.jsonrpc, "id": call.id}).decode()
            return _rpc_answer(call.id, error=(BAD_REQUEST, f"Bad json request: {shown}"))
        method = _RPC_METHODS.get(call.method)
        if method is None:
            return _rpc_answer(call.id, error=(NO_METHOD, f"Method not found: {call.method}"))
        try:
            return _rpc_answer(call.id, await method(self, asked._replace(body=bytes(call.params))))
        except DtmError as error:
            code = FAILED if error.result == "FAILURE" else INTERNAL_ERROR
            return _rpc_answer(call.id, error=(code, str(error)))
        except (AvowError, msgspec.MsgspecError) as error:
            return _rpc_answer(call.id, error=(INTERNAL_ERROR, str(error)))

    async def _rpc_new_gid(self, _: Asked) -> Any:
        return {"gid": new_gid()}


def _rpc_answer(asked_id: str, result: Any = None, *, error: tuple[int, str] | None = None) -> dict[str, Any]:
    problem = None if error is None else {"code": error[0], "message": error[1]}
    return {"jsonrpc": "2.0", "id": asked_id, "error": problem, "result": result}


def _limit(query: Query) -> int:
    return max(1, int(query.get("limit") or 100))


def _filter(query: Query) -> Filter | None:
    """None: no pledge can match."""
    status, kind = query.get("status", ""), query.get("transType", "")
    statuses: tuple[Status, ...] = tuple(ours for ours, theirs in STATUSES.items() if theirs == status)
    if (status and not statuses) or (kind and kind != "msg"):
        return None
    return Filter(query.get("gid", ""), statuses, _moment(query, "createTimeStart"), _moment(query, "createTimeEnd"))


def _moment(query: Query, name: str) -> int | None:
    text = query.get(name, "")
    return int(text) if text else None


_RPC_METHODS: Final[dict[str, Callable[[DtmHttp, Asked], Coroutine[Any, Any, Any]]]] = {
    "newGid": DtmHttp._rpc_new_gid,
    "prepare": DtmHttp.prepare,
    "submit": DtmHttp.submit,
    "abort": DtmHttp.abort,
    "registerBranch": DtmHttp.register_branch,
}

_BASE: Final = "/api/dtmsvr/"
_TOPIC: Final = f"{_BASE}topic/"
_ROWS: Final[dict[str, Row]] = {
    "/api/ping": Row("", None, DtmHttp.ping),
    "/api/metrics": Row("GET", "read", DtmHttp.metrics),
    "/api/json-rpc": Row("POST", "write", DtmHttp.json_rpc),
    f"{_BASE}version": Row("GET", "", DtmHttp.version),
    f"{_BASE}newGid": Row("GET", "", DtmHttp.new_gid),
    f"{_BASE}prepare": Row("POST", "write", DtmHttp.prepare),
    f"{_BASE}submit": Row("POST", "write", DtmHttp.submit),
    f"{_BASE}abort": Row("POST", "write", DtmHttp.abort),
    f"{_BASE}forceStop": Row("POST", "write", DtmHttp.force_stop),
    f"{_BASE}resetNextCronTime": Row("POST", "write", DtmHttp.reset_next_cron_time),
    f"{_BASE}resetCronTime": Row("GET", "write", DtmHttp.reset_cron_time),
    f"{_BASE}registerBranch": Row("POST", "write", DtmHttp.register_branch),
    f"{_BASE}registerXaBranch": Row("POST", "write", DtmHttp.register_branch),
    f"{_BASE}registerTccBranch": Row("POST", "write", DtmHttp.register_branch),
    f"{_BASE}prepareWorkflow": Row("POST", "write", DtmHttp.prepare_workflow),
    f"{_BASE}query": Row("GET", "read", DtmHttp.query),
    f"{_BASE}all": Row("GET", "read", DtmHttp.all),
    f"{_BASE}subscribe": Row("GET", "write", DtmHttp.subscribe),
    f"{_BASE}unsubscribe": Row("GET", "write", DtmHttp.unsubscribe),
    f"{_BASE}scanKV": Row("GET", "read", DtmHttp.scan_kv),
    f"{_BASE}queryKV": Row("GET", "read", DtmHttp.query_kv),
}
_DELETE_TOPIC: Final = Row("DELETE", "write", DtmHttp.delete_topic)


def _find(method: str, path: str) -> tuple[Row | None, str]:
    row, tail = _ROWS.get(path), ""
    if path.startswith(_TOPIC) and "/" not in path[len(_TOPIC) :]:
        row, tail = _DELETE_TOPIC, unquote(path[len(_TOPIC) :])
    if (
        row is None
        or row.method not in ("", "GET" if method == "HEAD" else method)
        or (row is _DELETE_TOPIC and not tail)
    ):
        return None, ""
    return row, tail


# ---------------------------------------------------------------------- JSON objects
#
# Pledges as the JSON objects of dtm's `query`, `all` and `scanKV`, with dtm's field names, statuses and times. Empty
# fields are left out, except those that dtm never leaves out. There are no row numbers here, so `id` is 0.


def _transaction_fields(pledge: Pledge, *, retry_interval_s: float) -> dict[str, Any]:
    content, progress = pledge.content, pledge.progress
    options = state.options_of(content, progress)
    option_fields = _option_fields(options)
    found: dict[str, Any] = {
        "id": 0,
        "create_time": _time_text(progress.created_ms),
        "update_time": _time_text(progress.updated_ms),
        "gid": content.gid,
        "trans_type": "msg",
        "status": STATUSES[progress.status],
        "query_prepared": content.checkback,
        "protocol": content.protocol or "http",
        "finish_time": _time_text(progress.finished_ms) if progress.status == "succeeded" else None,
        "rollback_time": _time_text(progress.rollback_ms),
        "rollback_reason": progress.reason,
        "options": msgspec.json.encode(option_fields).decode(),
        "custom_data": content.custom_data,
        "next_cron_interval": round(progress.interval_s or options.retry_interval_s or retry_interval_s),
        "next_cron_time": _time_text(progress.next_at_ms) if progress.next_at_ms < NEVER_MS else None,
    }
    always = ("id", "create_time", "update_time")
    present = {name: value for name, value in found.items() if value or name in always}
    return {**present, **option_fields}


def _option_fields(options: Options) -> dict[str, Any]:
    given = {
        "wait_result": options.wait_result,
        "timeout_to_fail": round(options.timeout_to_fail_s or 0),
        "request_timeout": round(options.request_timeout_s or 0),
        "retry_interval": round(options.retry_interval_s or 0),
        "branch_headers": options.branch_headers,
        "retry_limit": options.retry_limit,
    }
    return {**{name: value for name, value in given.items() if value}, "concurrent": options.concurrent}


def _branch_list(pledge: Pledge) -> list[dict[str, Any]]:
    pairs = zip(pledge.content.branches, pledge.progress.branches, strict=True)
    return [_branch_fields(pledge, branch, done) for branch, done in pairs]


def _branch_fields(pledge: Pledge, branch: Branch, done: BranchProgress) -> dict[str, Any]:
    found: dict[str, Any] = {
        "gid": pledge.gid,
        "url": branch.url,
        "bin_data": b64encode(branch.payload).decode(),
        "branch_id": branch.branch_id,
        "op": "action",
        "status": "succeed" if done.status == "succeeded" else done.status,
        "finish_time": _time_text(done.finished_ms),
    }
    times = {
        "create_time": _time_text(pledge.progress.created_ms),
        "update_time": _time_text(pledge.progress.updated_ms),
    }
    return {"id": 0, **times, **{name: value for name, value in found.items() if value}}


def _topic_fields(topic: Topic) -> dict[str, Any]:
    subscribers = [{"url": url, "remark": remark} for url, remark in topic.subscribers]
    return {
        "id": 0,
        "create_time": _time_text(topic.created_ms),
        "update_time": _time_text(topic.updated_ms),
        "cat": "topics",
        "k": topic.name,
        "v": msgspec.json.encode(subscribers).decode(),
        "version": topic.version,
    }


def _time_text(at_ms: int) -> str | None:
    """A time in Go's format; None for 0."""
    if not at_ms:
        return None
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")

"""Branches and checkbacks over HTTP, with exactly the requests that dtm sends.

POST with the payload, or GET without one; `gid`, `trans_type`, `branch_id` and `op` are appended to the query;
Content-Type is JSON unless a branch header sets another. A checkback is a GET and also has `prepared_ms`, which Avow's
barrier needs after rows were cleaned up, and others ignore.

With protocol "json-rpc" and a URL with a method, the payload's members and the same four parameters are the parameters
of a JSON-RPC call.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final
from urllib.parse import parse_qs, quote, unquote, urlsplit

import msgspec
from msgspec import Struct

from avow.errors import InvalidRequest
from avow.pledge.branches.calls import TRANS_TYPE, Call
from avow.pledge.branches.connection_pool import Connections
from avow.pledge.verdicts import VERDICT_HEADERS, Verdict, of_http, of_jsonrpc, unreached
from avow.wire.http import Address, Answer, Lost

_PLAIN: Final = re.compile(r"[A-Za-z0-9._~-]*")
_SAFE: Final = "/%:@!$&'()*+,;=~-._?"
_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE: Final = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
_JSON: Final = "content-type: application/json\r\n"
_OURS: Final = frozenset({"host", "content-length", "transfer-encoding", "connection"})


class Target(Struct, frozen=True):
    """A parsed URL. `path` ends so that a query parameter can be appended."""

    address: Address
    path: str
    head: bytes  # the constant part of every request's head
    plain: bytes  # the same for requests without branch headers
    method: str = ""  # for JSON-RPC


@lru_cache(maxsize=4096)
def target_of(url: str) -> Target:
    """Raises InvalidRequest."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as cause:
        raise InvalidRequest(f"{url!r} is not a valid URL: {cause}; nothing was changed") from cause
    if parts.scheme not in ("http", "https") or not host:
        raise InvalidRequest(f"{url!r} is not an HTTP URL with a host; nothing was changed")
    tls = parts.scheme == "https"
    address = Address(host, port or (443 if tls else 80), tls)
    named = f"[{host}]" if ":" in host else quote(host, safe="-._~")
    head = f" HTTP/1.1\r\nHost: {named}{f':{port}' if port else ''}\r\n"
    if parts.username is not None:
        secret = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        head += f"Authorization: Basic {b64encode(secret.encode()).decode()}\r\n"
    query = quote(parts.query, safe=_SAFE)
    path = f"{quote(parts.path or '/', safe=_SAFE)}?{query + '&' if query else ''}"
    method = parse_qs(parts.query).get("method", [""])[0]
    return Target(address, path, head.encode("ascii"), f"{head}{_JSON}".encode("ascii"), method)


def check_headers(headers: dict[str, str]) -> None:
    """Raises InvalidRequest for headers that would break the request's syntax, or that belong to the connection."""
    for name, value in headers.items():
        if not _TOKEN.fullmatch(name) or not _VALUE.fullmatch(value) or name.lower() in _OURS:
            raise InvalidRequest(
                f"branch header {name!r} is reserved, or is not valid in an HTTP request; nothing was changed"
            )


class HttpCaller:
    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    async def __call__(self, call: Call) -> Verdict:
        target = target_of(call.url)
        if call.protocol == "json-rpc" and target.method:
            return await self._call_jsonrpc(call, target)
        query = f"gid={_quoted(call.gid)}&trans_type={TRANS_TYPE}&branch_id={call.branch_id}&op={call.op}"
        if call.prepared_ms:
            query += f"&prepared_ms={call.prepared_ms}"
        method = b"POST" if call.payload else b"GET"
        request = _request(method, target, query=query, call=call, body=call.payload)
        answer = await self._connections.request(target.address, request, timeout_s=call.timeout_s)
        if isinstance(answer, Lost):
            return unreached(answer.reason)
        return of_http(answer.status, headers=_verdicts(answer), body=bytes(answer.body), checkback=call.checkback)

    async def _call_jsonrpc(self, call: Call, target: Target) -> Verdict:
        params = _params(call.payload)
        if params is None:
            return Verdict("ERROR", "not sent: the payload of a JSON-RPC branch must be a JSON object")
        params |= {"gid": call.gid, "trans_type": TRANS_TYPE, "branch_id": call.branch_id, "op": call.op}
        asked_id = f"{call.gid}-{call.branch_id}"
        body = msgspec.json.encode({"jsonrpc": "2.0", "id": asked_id, "method": target.method, "params": params})
        request = _request(b"POST", target, query="", call=call, body=body)
        answer = await self._connections.request(target.address, request, timeout_s=call.timeout_s)
        if isinstance(answer, Lost):
            return unreached(answer.reason)
        return of_jsonrpc(answer.status, body=bytes(answer.body), asked_id=asked_id)


async def post_json(connections: Connections, url: str, body: bytes, *, timeout_s: float) -> str:
    """POST a JSON document whose answer has no meaning. Returns an error text, empty on success."""
    target = target_of(url)
    call = Call(url=url, gid="", branch_id="", timeout_s=timeout_s)
    answer = await connections.request(
        target.address, _request(b"POST", target, query="", call=call, body=body), timeout_s=timeout_s
    )
    if isinstance(answer, Lost):
        return answer.reason
    return "" if 200 <= answer.status < 300 else f"HTTP {answer.status}"


def _request(method: bytes, target: Target, *, query: str, call: Call, body: bytes) -> bytes:
    path = (target.path + query).rstrip("?&").encode("ascii")
    head = target.head + _lines(call.headers) if call.headers else target.plain
    if not body:
        return b"%b %b%b\r\n" % (method, path, head)
    return b"%b %b%bcontent-length: %d\r\n\r\n%b" % (method, path, head, len(body), body)


def _verdicts(answer: Answer) -> tuple[bytes, ...]:
    """The values of the verdict headers in the answer."""
    if b"-result:" not in answer.head:  # most answers have none
        return ()
    return tuple(value for name in VERDICT_HEADERS for value in answer.sent_values(name))


def _lines(given: Mapping[str, str]) -> bytes:
    headers = {"content-type": "application/json"} | {name.lower(): value for name, value in given.items()}
    return "".join(f"{name}: {value}\r\n" for name, value in headers.items()).encode("latin-1")


def _quoted(text: str) -> str:
    return text if _PLAIN.fullmatch(text) else quote(text, safe="")


def _params(payload: bytes) -> dict[str, Any] | None:
    if not payload:
        return {}
    try:
        value = msgspec.json.decode(payload)
    except msgspec.DecodeError:
        return None
    return value if isinstance(value, dict) else None

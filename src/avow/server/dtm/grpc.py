"""dtm's API over gRPC, for existing dtm clients: service `dtmgimp.Dtm`, on its own port.

As in dtm, FAILURE is answered as ABORTED, ONGOING as FAILED_PRECONDITION, all else as UNKNOWN or INVALID_ARGUMENT.
Tokens, if the peer requires them, are in the metadata as `authorization: Bearer <token>`. If the peer has a certificate
the port uses TLS with it. grpcio is needed only if this API is served.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

from avow.errors import AvowError, Forbidden, InvalidRequest, Malformed, NotAuthenticated, NotInstalled
from avow.pledge.stores.lane.store import QUEUE
from avow.server.dtm.requests import Dtm, DtmError, Trans, new_gid
from avow.server.settings import address, address_text

if TYPE_CHECKING:
    from avow.server.access import Token, Tokens
    from avow.server.pledges.metrics import PledgeCounters
    from avow.server.settings import Settings

Value: TypeAlias = int | bytes  # of a field

SERVICE: Final = "dtmgimp.Dtm"
STOP_S: Final = 1.0
MESSAGE_SIZE_BYTES_MAX: Final = 8 * 1024 * 1024
_EMPTY: Final = b""  # the reply of a call without result
_VARINT: Final = 0
_FIXED64: Final = 1
_BYTES: Final = 2
_FIXED32: Final = 5
_SKIPPED: Final = {_FIXED64: 8, _FIXED32: 4}

log: Final = logging.getLogger("avow.pledge")


class DtmGrpc:
    """The constructor raises NotInstalled without grpcio."""

    def __init__(self, dtm: Dtm, tokens: Tokens, counters: PledgeCounters) -> None:
        try:
            import grpc
            import grpc.aio
        except ImportError as cause:
            raise NotInstalled("dtm's API over gRPC", extra="grpc") from cause
        self._grpc: Any = grpc
        self._dtm, self._tokens, self._counters = dtm, tokens, counters
        self._server: Any = None

    async def start(self, settings: Settings) -> int:
        """Returns the port it listens on. Raises InvalidRequest if the address cannot be bound."""
        grpc = self._grpc
        self._server = grpc.aio.server(
            options=(
                ("grpc.max_receive_message_length", MESSAGE_SIZE_BYTES_MAX),
                ("grpc.so_reuseport", 0),
            )
        )
        handlers = {
            name: grpc.unary_unary_rpc_method_handler(self._serving(name, work)) for name, work in CALLS.items()
        }
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        where = address_text(*address(settings.grpc_listen, name="grpc_listen"))
        try:
            port = self._bind(where, settings)
        except RuntimeError as cause:
            raise InvalidRequest(f"cannot listen on grpc_listen {where}: {cause}; the peer was not started") from cause
        await self._server.start()
        return port

    def _bind(self, where: str, settings: Settings) -> int:
        if not settings.tls_cert:
            return int(self._server.add_insecure_port(where))
        pair = (Path(settings.tls_key or settings.tls_cert).read_bytes(), Path(settings.tls_cert).read_bytes())
        return int(self._server.add_secure_port(where, self._grpc.ssl_server_credentials([pair])))

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(STOP_S)

    def _serving(self, name: str, work: Work) -> Callable[[bytes, Any], Awaitable[bytes]]:
        async def serve(request: bytes, context: Any) -> bytes:
            began = time.monotonic()
            ok = False
            try:
                token = self._bearer(context)
                # It continues if the client disconnects: a stored pledge must be delivered.
                reply = await asyncio.shield(asyncio.ensure_future(work(self._dtm, request, token)))
                ok = True
                return reply
            except (DtmError, AvowError) as error:
                await context.abort(self._code(error), str(error))
                raise AssertionError("abort raises") from error
            finally:
                self._counters.requested("grpc", name.lower(), ok=ok, took_s=time.monotonic() - began)

        return serve

    def _bearer(self, context: Any) -> Token:
        """Raises NotAuthenticated, Forbidden."""
        found = dict(context.invocation_metadata() or ()).get("authorization")
        text = found.decode("latin-1") if isinstance(found, bytes) else found
        token = self._tokens.bearer(None if text is None else text.encode("latin-1", "replace"))
        token.check("write", QUEUE)
        return token

    def _code(self, error: Exception) -> Any:
        codes = self._grpc.StatusCode
        if isinstance(error, DtmError):
            known = {"FAILURE": codes.ABORTED, "ONGOING": codes.FAILED_PRECONDITION}
            return known.get(error.result, codes.UNKNOWN)
        if isinstance(error, NotAuthenticated):
            return codes.UNAUTHENTICATED
        if isinstance(error, Forbidden):
            return codes.PERMISSION_DENIED
        return codes.INVALID_ARGUMENT if isinstance(error, Malformed | InvalidRequest) else codes.UNKNOWN


# ---------------------------------------------------------------------- calls

Work: TypeAlias = Callable[[Dtm, bytes, "Token"], Awaitable[bytes]]


async def _new_gid(dtm: Dtm, request: bytes, token: Token) -> bytes:  # noqa: ARG001
    return gid_reply(new_gid())


async def _prepare(dtm: Dtm, request: bytes, token: Token) -> bytes:
    await dtm.prepare(read_request(request), token)
    return _EMPTY


async def _submit(dtm: Dtm, request: bytes, token: Token) -> bytes:
    await dtm.submit(read_request(request), token)
    return _EMPTY


async def _abort(dtm: Dtm, request: bytes, token: Token) -> bytes:  # noqa: ARG001
    await dtm.abort(read_request(request))
    return _EMPTY


async def _register_branch(dtm: Dtm, request: bytes, token: Token) -> bytes:  # noqa: ARG001
    dtm.register_branch(read_branch_kind(request))
    return _EMPTY


async def _prepare_workflow(dtm: Dtm, request: bytes, token: Token) -> bytes:  # noqa: ARG001
    dtm.register_branch("workflow")
    return _EMPTY


async def _subscribe(dtm: Dtm, request: bytes, token: Token) -> bytes:
    topic, url, remark = read_topic(request)
    await dtm.subscribe(topic, url, remark, token)
    return _EMPTY


async def _unsubscribe(dtm: Dtm, request: bytes, token: Token) -> bytes:  # noqa: ARG001
    topic, url, _ = read_topic(request)
    await dtm.unsubscribe(topic, url)
    return _EMPTY


async def _delete_topic(dtm: Dtm, request: bytes, token: Token) -> bytes:  # noqa: ARG001
    await dtm.delete_topic(read_topic(request)[0])
    return _EMPTY


CALLS: Final[dict[str, Work]] = {
    "NewGid": _new_gid,
    "Submit": _submit,
    "Prepare": _prepare,
    "Abort": _abort,
    "RegisterBranch": _register_branch,
    "PrepareWorkflow": _prepare_workflow,
    "Subscribe": _subscribe,
    "Unsubscribe": _unsubscribe,
    "DeleteTopic": _delete_topic,
}


# ---------------------------------------------------------------------- messages


def read_request(data: bytes) -> Trans:
    """DtmRequest. Raises Malformed."""
    trans = Trans(protocol="grpc", bin_payloads=[])
    assert trans.bin_payloads is not None
    for number, value in fields(data):
        if number == 1:
            trans.gid = _text(value)
        elif number == 2:
            trans.trans_type = _text(value)
        elif number == 3:
            _read_options(_bytes(value), trans)
        elif number == 4:
            trans.custom_data = _text(value)
        elif number == 5:
            trans.bin_payloads.append(_bytes(value))
        elif number == 6:
            trans.query_prepared = _text(value)
        elif number == 7:
            trans.steps = _steps(_bytes(value))
        elif number == 9:
            trans.rollback_reason = _text(value)
    return trans


def _read_options(data: bytes, trans: Trans) -> None:
    """DtmTransOptions."""
    headers: dict[str, str] = {}
    for number, value in fields(data):
        if number == 1:
            trans.wait_result = bool(_number(value))
        elif number == 2:
            trans.timeout_to_fail = float(_number(value))
        elif number == 3:
            trans.retry_interval = float(_number(value))
        elif number == 5:
            entry = dict(fields(_bytes(value)))
            headers[_text(entry.get(1, b""))] = _text(entry.get(2, b""))
        elif number == 6:
            trans.request_timeout = float(_number(value))
        elif number == 7:
            trans.retry_limit = _number(value)
    trans.branch_headers = headers


def _steps(data: bytes) -> list[dict[str, str | None]]:
    try:
        return msgspec.json.decode(data, type=list[dict[str, str | None]]) if data else []
    except msgspec.MsgspecError as error:
        raise Malformed("steps", expected="JSON, a list of objects", found=str(error)) from error


def read_topic(data: bytes) -> tuple[str, str, str]:
    """DtmTopicRequest: topic, url, remark. Raises Malformed."""
    found = dict(fields(data))
    topic, url, remark = (_text(found.get(number, b"")) for number in (1, 2, 3))
    return topic, url, remark


def read_branch_kind(data: bytes) -> str:
    """The transaction kind of a DtmBranchRequest."""
    return _text(dict(fields(data)).get(2, b""))


def gid_reply(gid: str) -> bytes:
    """DtmGidReply."""
    return write_bytes(1, gid.encode())


# ---------------------------------------------------------------------- protocol buffers
#
#     field       tag = number << 3 | type, as a varint
#     type 0      varint: bool, int64 (a negative one as its 64 bits)
#     type 2      a length, then that many bytes: string, bytes, a message, an entry of a map
#     type 1, 5   8 and 4 bytes: not used by these messages; skipped
#
# Unknown fields are skipped, so newer clients work. A repeated field occurs once per value; an entry of a map is a
# message with key 1 and value 2. A missing field is empty, 0 or false.


def fields(data: bytes) -> Iterator[tuple[int, Value]]:
    """(number, value) in their order. Raises Malformed."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        number, kind = tag >> 3, tag & 7
        if kind == _VARINT:
            value, at = _varint(data, at)
            yield number, value
        elif kind == _BYTES:
            size, at = _varint(data, at)
            if at + size > len(data):
                raise Malformed(f"field {number}", expected=f"{size} bytes", found=len(data) - at, at=at)
            yield number, data[at : at + size]
            at += size
        elif kind in _SKIPPED:
            at += _SKIPPED[kind]
        else:
            raise Malformed(f"field {number}", expected="a protocol buffers type", found=kind, at=at)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise Malformed("a number", expected="at most ten bytes, the last below 128", found=len(data) - at, at=at)
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def _number(value: Value) -> int:
    if isinstance(value, bytes):
        raise Malformed("a field", expected="a number", found=f"{len(value)} bytes")
    return value - (1 << 64) if value >= 1 << 63 else value


def _bytes(value: Value) -> bytes:
    if isinstance(value, int):
        raise Malformed("a field", expected="bytes", found=value)
    return value


def _text(value: Value) -> str:
    try:
        return _bytes(value).decode()
    except UnicodeDecodeError as error:
        raise Malformed("a text", expected="UTF-8", found=error.reason) from error


def write_number(number: int, value: int) -> bytes:
    return _written(number << 3 | _VARINT) + _written(value & (1 << 64) - 1)


def write_bytes(number: int, value: bytes) -> bytes:
    return _written(number << 3 | _BYTES) + _written(len(value)) + value


def _written(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)

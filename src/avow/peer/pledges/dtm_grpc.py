"""dtm's API over gRPC: service `dtmgimp.Dtm`, on a port of its own, for clients made for that.

FAILURE is answered as ABORTED, ONGOING as FAILED_PRECONDITION, anything else as UNKNOWN or INVALID_ARGUMENT, as dtm
does. Tokens, where they are asked for, come in the metadata as `authorization: Bearer <token>`. With a certificate the
port speaks TLS, with the same one as HTTPS. grpcio is needed only where this is served.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from avow.errors import AvowError, Forbidden, InvalidRequest, Malformed, NotAuthenticated, NotInstalled
from avow.peer.pledges import dtm_wire as wire
from avow.peer.pledges.dtm import Dtm, DtmError, new_gid
from avow.peer.pledges.lane_store import QUEUE
from avow.peer.settings import address, address_text

if TYPE_CHECKING:
    from avow.peer.access import Token, Tokens
    from avow.peer.pledges.figures import Figures
    from avow.peer.settings import Settings

SERVICE: Final = "dtmgimp.Dtm"
STOP_S: Final = 1.0
MESSAGE_SIZE_BYTES_MAX: Final = 8 * 1024 * 1024

log: Final = logging.getLogger("avow.pledge")


class DtmGrpc:
    """Raises NotInstalled when it is made without grpcio."""

    def __init__(self, dtm: Dtm, tokens: Tokens, figures: Figures) -> None:
        try:
            import grpc
            import grpc.aio
        except ImportError as cause:
            raise NotInstalled("dtm's API over gRPC", extra="grpc") from cause
        self._grpc: Any = grpc
        self._dtm, self._tokens, self._figures = dtm, tokens, figures
        self._server: Any = None

    async def start(self, settings: Settings) -> int:
        """The port it listens on. Raises InvalidRequest when that cannot be had."""
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
            port = self._bound(where, settings)
        except RuntimeError as cause:
            raise InvalidRequest(f"grpc_listen {where} cannot be had: {cause}; nothing was started") from cause
        await self._server.start()
        return port

    def _bound(self, where: str, settings: Settings) -> int:
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
                # It goes on when its client does not wait: what is stored must be carried on.
                reply = await asyncio.shield(asyncio.ensure_future(work(self._dtm, request, token)))
                ok = True
                return reply
            except (DtmError, AvowError) as error:
                await context.abort(self._code(error), str(error))
                raise AssertionError("abort raises") from error
            finally:
                self._figures.requested("grpc", name.lower(), ok=ok, took_s=time.monotonic() - began)

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

Work = Callable[[Dtm, bytes, "Token"], Awaitable[bytes]]


async def _new_gid(dtm: Dtm, request: bytes, token: Token) -> bytes:  # noqa: ARG001
    return wire.gid_reply(new_gid())


async def _prepare(dtm: Dtm, request: bytes, token: Token) -> bytes:
    await dtm.prepare(wire.read_request(request), token)
    return wire.EMPTY


async def _submit(dtm: Dtm, request: bytes, token: Token) -> bytes:
    await dtm.submit(wire.read_request(request), token)
    return wire.EMPTY


async def _abort(dtm: Dtm, request: bytes, token: Token) -> bytes:  # noqa: ARG001
    await dtm.abort(wire.read_request(request))
    return wire.EMPTY


async def _register_branch(dtm: Dtm, request: bytes, token: Token) -> bytes:  # noqa: ARG001
    dtm.register_branch(wire.read_branch_kind(request))
    return wire.EMPTY


async def _prepare_workflow(dtm: Dtm, request: bytes, token: Token) -> bytes:  # noqa: ARG001
    dtm.register_branch("workflow")
    return wire.EMPTY


async def _subscribe(dtm: Dtm, request: bytes, token: Token) -> bytes:
    topic, url, remark = wire.read_topic(request)
    await dtm.subscribe(topic, url, remark, token)
    return wire.EMPTY


async def _unsubscribe(dtm: Dtm, request: bytes, token: Token) -> bytes:  # noqa: ARG001
    topic, url, _ = wire.read_topic(request)
    await dtm.unsubscribe(topic, url)
    return wire.EMPTY


async def _delete_topic(dtm: Dtm, request: bytes, token: Token) -> bytes:  # noqa: ARG001
    await dtm.delete_topic(wire.read_topic(request)[0])
    return wire.EMPTY


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

"""Calls a branch with the protocol that its URL selects.

    http://, https://                      HTTP, or JSON-RPC over HTTP if that is the pledge's protocol
    grpc://, host:port/service/method      gRPC
    queue://                               a message to a queue
    (empty)                                no call: delivered at once, as in dtm

A pledge with a URL that cannot be called is refused (`check`).
"""

from __future__ import annotations

import ssl
from collections.abc import Coroutine
from typing import Any

from avow.errors import InvalidRequest
from avow.limits import PLEDGE_URL_CHARS_MAX
from avow.pledge.branches.calls import Call
from avow.pledge.branches.connection_pool import Connections
from avow.pledge.branches.grpc import GrpcCaller, check_installed, method_of
from avow.pledge.branches.http import HttpCaller, post_json, target_of
from avow.pledge.branches.queue import Enqueue, QueueCaller, queue_of
from avow.pledge.verdicts import SUCCESS, Verdict


class Branches:
    """`enqueue` writes the messages of queue:// branches; without it they are refused."""

    def __init__(self, *, enqueue: Enqueue | None = None, tls: ssl.SSLContext | None = None) -> None:
        self._connections = Connections(tls=tls)
        self._http = HttpCaller(self._connections)
        self._grpc = GrpcCaller()
        self._queues = None if enqueue is None else QueueCaller(enqueue)

    def check(self, url: str, *, protocol: str, checkback: bool = False) -> None:
        """Raises InvalidRequest or NotInstalled if the URL cannot be called."""
        if len(url) > PLEDGE_URL_CHARS_MAX:
            raise InvalidRequest(
                f"the URL {url[:80]}... has {len(url)} characters, at most {PLEDGE_URL_CHARS_MAX} are allowed; "
                "nothing was changed"
            )
        if url.startswith(("http://", "https://")):
            target_of(url)
        elif url.startswith("queue://") and not checkback:
            queue_of(url)
            if self._queues is None:
                raise InvalidRequest(
                    f"{url!r} cannot be called, because this coordinator has no queues; nothing was changed"
                )
        elif url.startswith("grpc://") or ("://" not in url and url and protocol != "http"):
            method_of(url)
            check_installed()
        elif url or checkback:
            raise InvalidRequest(
                f"{url!r} cannot be called: its scheme must be http, https, grpc or queue; nothing was changed"
            )

    def __call__(self, call: Call) -> Coroutine[Any, Any, Verdict]:
        url = call.url
        if url.startswith(("http://", "https://")):
            return self._http(call)
        if not url:
            return _at_once(SUCCESS)
        if url.startswith("queue://"):
            if self._queues is None:
                return _at_once(Verdict("ERROR", "this coordinator has no queues"))
            return self._queues(call)
        return self._grpc(call)

    async def post_alert(self, url: str, body: bytes, *, timeout_s: float) -> str:
        """POST an alert. Returns an error text, empty on success."""
        return await post_json(self._connections, url, body, timeout_s=timeout_s)

    async def close(self) -> None:
        await self._connections.close()
        await self._grpc.close()

    def statistics(self) -> dict[str, int]:
        return self._connections.statistics()


async def _at_once(verdict: Verdict) -> Verdict:
    return verdict

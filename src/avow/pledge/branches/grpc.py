"""Branches and checkbacks over gRPC: `grpc://host:port/package.Service/Method`, or the same without scheme, as in dtm.

The payload is the encoded request message, of any type. Only the status of the answer counts. The service gets gid,
trans_type, branch_id and op in the metadata.

grpcio is an optional dependency (avow[grpc]); without it a pledge with such a branch is refused.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, Final

from avow.errors import InvalidRequest, NotInstalled
from avow.pledge.branches.calls import TRANS_TYPE, Call
from avow.pledge.verdicts import SUCCESS, Verdict, of_grpc

CHANNELS_MAX: Final = 1_024
_CLOSE_GRACE_S: Final = 0.2
_METHOD: Final = re.compile(r"(?:grpc://)?((?:\[[0-9A-Fa-f:]+\]|[^/:\s]+):\d{1,5})(/[\w.]+/\w+)")


@lru_cache(maxsize=4096)
def method_of(url: str) -> tuple[str, str]:
    """Target and full method name. Raises InvalidRequest."""
    found = _METHOD.fullmatch(url)
    if found is None:
        raise InvalidRequest(
            f"{url!r} is not the URL of a gRPC method, such as grpc://host:port/package.Service/Method; "
            "nothing was changed"
        )
    return found[1], found[2]


def check_installed() -> None:
    try:
        import grpc  # noqa: F401
    except ImportError as cause:
        raise NotInstalled("a gRPC branch", extra="grpc") from cause


class GrpcCaller:
    """One channel per target, opened at the first call."""

    def __init__(self) -> None:
        self._channels: dict[str, Any] = {}

    async def __call__(self, call: Call) -> Verdict:
        import grpc

        target, method = method_of(call.url)
        invoke = (await self._channel(target)).unary_unary(method)
        metadata = [
            ("dtm-gid", call.gid),
            ("dtm-trans_type", TRANS_TYPE),
            ("dtm-branch_id", call.branch_id),
            ("dtm-op", call.op),
            ("dtm-dtm", ""),
            *((name.lower(), value) for name, value in call.headers.items()),
        ]
        try:
            await invoke(call.payload, timeout=call.timeout_s, metadata=metadata)
        except grpc.aio.AioRpcError as cause:
            code: int = cause.code().value[0]
            return of_grpc(code, cause.details() or "")
        except grpc.aio.UsageError as cause:
            return Verdict("ERROR", f"not sent: {cause}")
        return SUCCESS

    async def _channel(self, target: str) -> Any:
        import grpc

        channel = self._channels.pop(target, None)
        if channel is None:
            channel = grpc.aio.insecure_channel(target)
        self._channels[target] = channel  # now the most recently used
        if len(self._channels) > CHANNELS_MAX:
            oldest = next(iter(self._channels))
            await self._channels.pop(oldest).close(_CLOSE_GRACE_S)
        return channel

    async def close(self) -> None:
        channels, self._channels = self._channels, {}
        for channel in channels.values():
            await channel.close()

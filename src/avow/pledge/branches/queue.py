"""Branches that write a message to a queue: `queue://name`, or `queue://name?key=...` for a message with a key.

The write id is made from the gid and the branch, so the queue recognizes a repeated write: exactly once, without a
barrier. The message is written by a callable that the coordinator's owner supplies.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from hashlib import blake2b
from typing import Protocol
from urllib.parse import parse_qs, unquote_to_bytes, urlsplit

from avow.errors import AvowError, InvalidRequest, Refused
from avow.limits import QUEUE_NAME_CHARS_MAX, WRITE_ID_SIZE_BYTES
from avow.pledge.branches.calls import Call
from avow.pledge.verdicts import SUCCESS, Verdict, shorten, unreached


class Enqueue(Protocol):
    """Returns when the message is committed. Raises AvowError; Refused: it was not written.

    `since_ms`: the write id was not used before this time. A queue remembers ids for a while only, and must not treat
    an id that it may have forgotten as new.
    """

    async def __call__(
        self, *, queue: str, value: bytes, key: bytes, headers: Mapping[str, str], write_id: bytes, since_ms: int
    ) -> None: ...


def queue_of(url: str) -> tuple[str, bytes]:
    """Name and key. Raises InvalidRequest."""
    parts = urlsplit(url)
    name = parts.netloc
    if not name or len(name) > QUEUE_NAME_CHARS_MAX or parts.path or set(parse_qs(parts.query)) - {"key"}:
        raise InvalidRequest(
            f"{url!r} is not the URL of a queue, such as queue://name or queue://name?key=...; nothing was changed"
        )
    key = parts.query.partition("key=")[2]
    return name, unquote_to_bytes(key.replace("+", " "))


def write_id_of(gid: str, branch_id: str) -> bytes:
    return blake2b(f"{gid}\0{branch_id}".encode(), digest_size=WRITE_ID_SIZE_BYTES).digest()


class QueueCaller:
    def __init__(self, enqueue: Enqueue) -> None:
        self._enqueue = enqueue

    async def __call__(self, call: Call) -> Verdict:
        queue, key = queue_of(call.url)
        headers = {**call.headers, "avow-gid": call.gid, "avow-branch-id": call.branch_id}
        try:
            async with asyncio.timeout(call.timeout_s):
                await self._enqueue(
                    queue=queue,
                    value=call.payload,
                    key=call.key or key,
                    headers=headers,
                    write_id=write_id_of(call.gid, call.branch_id),
                    since_ms=call.since_ms,
                )
        except TimeoutError:
            return unreached(f"queue {queue}: no answer in time")
        except Refused as cause:
            return Verdict("ERROR", shorten(f"queue {queue}: {cause}"), reached=not cause.retriable)
        except AvowError as cause:
            return unreached(f"queue {queue}: {cause}")
        return SUCCESS

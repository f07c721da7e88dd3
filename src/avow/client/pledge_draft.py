"""A pledge while it is built: branches, options, and the request body made of them.

The methods of a draft add branches and return the draft, until it is sent for the first time. From then on its gid
stands for exactly this content, and a coordinator refuses any other.

*Ids.* The gid is generated here, before anything is sent, so that every request can be repeated: 128 random bits as 22
letters and digits, without easily confused ones.

*Headers* are sent with every branch of a pledge, as in dtm. So `call(headers=...)` is refused if branches have
different hosts: a header for one of them, perhaps a password, must not reach the others. Use `branch_headers` if all
may see it.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from os import urandom
from typing import Any, Final, Self, TypedDict
from urllib.parse import quote, urlsplit

import msgspec
from msgspec import Struct

from avow.errors import InvalidRequest

GID_CHARS: Final = 22
_ALPHABET: Final = "23456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"


def new_gid() -> str:
    number, digits = int.from_bytes(urandom(16)), []
    for _ in range(GID_CHARS):
        number, digit = divmod(number, len(_ALPHABET))
        digits.append(_ALPHABET[digit])
    return "".join(digits)


class Branch(Struct, frozen=True, omit_defaults=True):
    url: str
    payload: str = ""
    payload_base64: str = ""


class Options(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """None: the coordinator's setting. `delay_s` counts from prepare; `not_before` must have a time zone."""

    wait_result: bool = False
    concurrent: bool = False
    timeout_to_fail_s: float | None = None
    request_timeout_s: float | None = None
    retry_interval_s: float | None = None
    retry_limit: int | None = None
    branch_headers: Mapping[str, str] = {}
    delay_s: float = 0.0
    not_before: datetime | None = None


class PledgeOptions(TypedDict, total=False):
    """`Options` as keyword arguments of `client.pledge`."""

    wait_result: bool
    concurrent: bool
    timeout_to_fail_s: float | None
    request_timeout_s: float | None
    retry_interval_s: float | None
    retry_limit: int | None
    branch_headers: Mapping[str, str]
    delay_s: float
    not_before: datetime | None


class Draft:
    def __init__(self, gid: str | None, options: Options) -> None:
        self.gid: str = gid or new_gid()
        self._options = options
        self._branches: list[Branch] = []
        self._headers: dict[str, str] = {}
        self._sealed = False

    def call(self, url: str, payload: Any = None, *, headers: Mapping[str, str] | None = None) -> Self:
        """Add a branch: a POST of the payload to http(s)://, or a call of grpc://host:port/service/method.

        Bytes and text are sent unchanged, anything else as JSON; without a payload it is a GET. It is called until it
        answers 2xx.
        """
        for name, value in (headers or {}).items():
            if self._headers.setdefault(name, value) != value:
                raise InvalidRequest(
                    f"header {name!r} has two different values; nothing was sent. Headers are sent with every branch"
                )
        return self._add(url, payload)

    def publish(self, queue: str, payload: Any, *, key: bytes | str | None = None) -> Self:
        """Add a branch: a message to a queue of this cluster, written exactly once."""
        named = quote(queue, safe="")
        return self._add(f"queue://{named}?key={quote(key, safe='')}" if key else f"queue://{named}", payload)

    def topic(self, name: str, payload: Any = None) -> Self:
        """Add one branch per URL that is subscribed to this topic when the coordinator first sees the pledge."""
        return self._add(f"topic://{name}", payload)

    def _add(self, url: str, payload: Any) -> Self:
        if self._sealed:
            raise InvalidRequest(
                f"pledge {self.gid} was already sent and its content is fixed; nothing was changed. Begin another"
            )
        self._branches.append(_branch(url, payload))
        return self

    def request(self, *, checkback: str = "") -> bytes:
        """The body of prepare and submit; identical each time."""
        self._sealed = True
        options = self._options
        if options.not_before is not None and options.not_before.tzinfo is None:
            raise InvalidRequest("not_before has no time zone; nothing was sent. Use for example datetime.now(UTC)")
        given = msgspec.to_builtins(options)
        given.pop("not_before", None)
        if options.not_before is not None:
            given["not_before_ms"] = round(1000 * options.not_before.timestamp())
        headers = {**options.branch_headers, **self._own_headers()}
        if headers:
            given["branch_headers"] = headers
        return msgspec.json.encode({"branches": self._branches, "checkback": checkback, **given})

    def _own_headers(self) -> dict[str, str]:
        if self._headers and len({urlsplit(branch.url)[:2] for branch in self._branches}) > 1:
            raise InvalidRequest(
                "headers are sent with every branch of a pledge, but these branches have different hosts; nothing was "
                "sent. If all hosts may see them, pass them as branch_headers of the pledge"
            )
        return self._headers


def _branch(url: str, payload: Any) -> Branch:
    if payload is None:
        return Branch(url)
    if isinstance(payload, str):
        return Branch(url, payload)
    if not isinstance(payload, bytes | bytearray | memoryview):
        return Branch(url, msgspec.json.encode(payload).decode())
    try:
        return Branch(url, bytes(payload).decode())
    except UnicodeDecodeError:
        return Branch(url, payload_base64=msgspec.to_builtins(bytes(payload)))

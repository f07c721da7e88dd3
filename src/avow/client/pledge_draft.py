"""What is pledged, while it is put together: branches, options, and the request they make.

A draft is changed by its own methods, each of which returns it, until it was sent for the first time; from then on its
gid stands for exactly this content, and a coordinator refuses another.

*Ids.* The gid is drawn here, before anything is sent, so that every request can be repeated: 128 random bits in 22
letters and digits, without those that people mistake for each other.

*Headers* go with every branch of a pledge, as in dtm. So `call(headers=...)` is refused where branches have different
hosts: what one of them is meant to hear, perhaps a password, is no business of the others. Then say `branch_headers`.
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
    """None: as the coordinator is set. `delay_s` counts from prepare; `not_before` has a time zone."""

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
    """The same as keywords of `client.pledge`."""

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
        self.gid = gid or new_gid()
        self._options = options
        self._branches: list[Branch] = []
        self._headers: dict[str, str] = {}
        self._sealed = False

    def call(self, url: str, payload: Any = None, *, headers: Mapping[str, str] | None = None) -> Self:
        """A branch: POST of the payload to http(s)://, or a call of grpc://host:port/service/method.

        Bytes and text go as they are, anything else as JSON; no payload is a GET. Called until it answers 2xx.
        """
        for name, value in (headers or {}).items():
            if self._headers.setdefault(name, value) != value:
                raise InvalidRequest(f"header {name!r} has two values; nothing was sent. Headers go with every branch")
        return self._add(url, payload)

    def publish(self, queue: str, payload: Any, *, key: bytes | str | None = None) -> Self:
        """A message of a queue of this cluster, exactly once."""
        named = quote(queue, safe="")
        return self._add(f"queue://{named}?key={quote(key, safe='')}" if key else f"queue://{named}", payload)

    def topic(self, name: str, payload: Any = None) -> Self:
        """One branch for each URL that subscribes to this topic when the pledge is first seen."""
        return self._add(f"topic://{name}", payload)

    def _add(self, url: str, payload: Any) -> Self:
        if self._sealed:
            raise InvalidRequest(
                f"pledge {self.gid} was sent, its content is fixed; nothing was changed. Begin another"
            )
        self._branches.append(_branch(url, payload))
        return self

    def request(self, *, checkback: str = "") -> bytes:
        """The body of prepare and submit; the same each time."""
        self._sealed = True
        options = self._options
        if options.not_before is not None and options.not_before.tzinfo is None:
            raise InvalidRequest("not_before needs a time zone, as datetime.now(UTC) has; nothing was sent")
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
                "headers go with every branch of a pledge, and these branches have different hosts; nothing was sent. "
                "Give them as branch_headers of the pledge if all may see them"
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

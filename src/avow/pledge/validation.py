"""Checks a request and turns it into the content of a pledge, with topics expanded. All errors are reported here.

Branch ids are dtm's: "01", "02", ... by step, and "01-01", "01-02", ... for the subscribers of a topic with more than
one. Barriers in services use them as keys, so they depend only on the request and the topic.
"""

from __future__ import annotations

from math import isfinite
from typing import Final

from msgspec.structs import replace

from avow.errors import InvalidRequest, TooLarge
from avow.limits import (
    PLEDGE_BRANCHES_MAX,
    PLEDGE_ID_BYTES_MAX,
    PLEDGE_SIZE_BYTES_MAX,
    PLEDGE_STEPS_MAX,
)
from avow.pledge.branches.http import check_headers
from avow.pledge.branches.schemes import Branches
from avow.pledge.record import NEVER_MS, Branch, Content, Options
from avow.pledge.topics import SCHEME, Topics

REQUEST_TIMEOUT_S_MAX: Final = 3600.0
WAIT_S_MAX: Final = 10 * 365 * 24 * 3600.0
PROTOCOLS: Final = ("", "http", "grpc", "json-rpc")


def check(request: Content, branches: Branches, *, prepare: bool) -> None:
    """Raises InvalidRequest, TooLarge, NotInstalled. `request` has steps and no branches."""
    check_gid(request.gid)
    if prepare and not request.checkback:
        raise InvalidRequest(
            "prepare needs a checkback, which is called to find out whether the transaction committed; nothing was "
            "changed. Submit a message that does not depend on a transaction without prepare"
        )
    if request.protocol not in PROTOCOLS:
        raise InvalidRequest(f"protocol must be http, grpc or json-rpc, not {request.protocol!r}; nothing was changed")
    if len(request.steps) > PLEDGE_STEPS_MAX:
        raise TooLarge(
            f"a pledge can have at most {PLEDGE_STEPS_MAX} steps, not {len(request.steps)}; nothing was changed"
        )
    if request.checkback:
        branches.check(request.checkback, protocol=request.protocol, checkback=True)
    size_bytes = 0
    for url, payload in request.steps:
        size_bytes += len(payload)
        if not url.startswith(SCHEME):
            branches.check(url, protocol=request.protocol)
    _check_size(size_bytes)
    if request.options != _PLAIN:
        _check_options(request.options)


def check_gid(gid: str) -> None:
    """Counts bytes, as the stores do, so that no store refuses a gid that passed here."""
    size_bytes = len(gid.encode("utf-8", "replace"))
    if not 0 < size_bytes <= PLEDGE_ID_BYTES_MAX:
        raise InvalidRequest(
            f"a gid must have 1 to {PLEDGE_ID_BYTES_MAX} bytes of UTF-8, but {gid[:40]!r} has {size_bytes}; "
            "nothing was changed"
        )
    if not gid.isprintable():
        raise InvalidRequest(f"a gid must have only printable characters, not {gid[:40]!r}; nothing was changed")


def _check_size(size_bytes: int) -> None:
    if size_bytes > PLEDGE_SIZE_BYTES_MAX:
        raise TooLarge(
            f"the payloads for all subscribers have {size_bytes} bytes, at most {PLEDGE_SIZE_BYTES_MAX} are allowed; "
            "nothing was changed. Send less data, or let the branches fetch it"
        )


def _check_options(options: Options) -> None:
    check_headers(options.branch_headers)
    waits = (options.timeout_to_fail_s, options.retry_interval_s, options.delay_s)
    if any(value is not None and not (isfinite(value) and 0 <= value <= WAIT_S_MAX) for value in waits):
        raise InvalidRequest(
            "timeout_to_fail, retry_interval and delay must be seconds and not negative; nothing was changed"
        )
    if not 0 <= (options.request_timeout_s or 0) <= REQUEST_TIMEOUT_S_MAX:
        raise InvalidRequest(f"request_timeout must be at most {REQUEST_TIMEOUT_S_MAX:g} s; nothing was changed")
    if (options.retry_limit or 0) < 0 or not 0 <= options.not_before_ms < NEVER_MS:
        raise InvalidRequest("retry_limit and not_before must not be negative; nothing was changed")


def names_topic(request: Content) -> bool:
    for url, _ in request.steps:  # noqa: SIM110 - runs for each request, and a generator is slower
        if url.startswith(SCHEME):
            return True
    return False


def branched(request: Content) -> Content:
    """The content to store, for a request without topics."""
    made = [Branch(f"{place:02d}", url, payload) for place, (url, payload) in enumerate(request.steps, 1)]
    return replace(request, branches=tuple(made), steps=())


async def expand(request: Content, topics: Topics) -> Content:
    """The content to store, for any request. Raises UnknownTopic, TooLarge."""
    if not names_topic(request):
        return branched(request)
    branches: list[Branch] = []
    for place, (url, payload) in enumerate(request.steps, 1):
        if url.startswith(SCHEME):
            topic = await topics.load(url.removeprefix(SCHEME))
            branches += _fan_out(f"{place:02d}", [subscriber for subscriber, _ in topic.subscribers], payload)
        else:
            branches.append(Branch(f"{place:02d}", url, payload))
    if len(branches) > PLEDGE_BRANCHES_MAX:
        raise TooLarge(
            f"the pledge has {len(branches)} branches, at most {PLEDGE_BRANCHES_MAX} are allowed; nothing was changed"
        )
    _check_size(sum(len(branch.payload) for branch in branches))
    return replace(request, branches=tuple(branches))


def _fan_out(branch_id: str, urls: list[str], payload: bytes) -> list[Branch]:
    if len(urls) == 1:
        return [Branch(branch_id, urls[0], payload)]
    return [Branch(f"{branch_id}-{place:02d}", url, payload) for place, url in enumerate(urls, 1)]


_PLAIN: Final = Options()

"""A request becomes the content of a pledge: checked, bounded, topics expanded. What is wrong is said now, not later.

Branch ids are dtm's: "01", "02", ... by step, and "01-01", "01-02", ... for the subscribers of a topic when it has more
than one. A barrier in a service goes by them, so they depend on nothing but the request and the topic.
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
from avow.pledge.branches.branches import Branches
from avow.pledge.branches.http import check_headers
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
            "prepare needs a checkback: without one nobody could be asked whether the transaction committed; "
            "nothing was changed. A message that depends on no transaction is submitted without prepare"
        )
    if request.protocol not in PROTOCOLS:
        raise InvalidRequest(f"protocol is http, grpc or json-rpc, not {request.protocol!r}; nothing was changed")
    if len(request.steps) > PLEDGE_STEPS_MAX:
        raise TooLarge(f"a pledge has at most {PLEDGE_STEPS_MAX} steps, not {len(request.steps)}; nothing was changed")
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
    """Bytes are counted, as stores do: an id that is shorter in characters is refused here and not by one of them."""
    size_bytes = len(gid.encode("utf-8", "replace"))
    if not 0 < size_bytes <= PLEDGE_ID_BYTES_MAX:
        raise InvalidRequest(
            f"a gid has 1 to {PLEDGE_ID_BYTES_MAX} bytes of UTF-8, not {size_bytes}: {gid[:40]!r}; nothing was changed"
        )
    if not gid.isprintable():
        raise InvalidRequest(f"a gid has printable characters only, unlike {gid[:40]!r}; nothing was changed")


def _check_size(size_bytes: int) -> None:
    if size_bytes > PLEDGE_SIZE_BYTES_MAX:
        raise TooLarge(
            f"payloads of {size_bytes} bytes, for all subscribers, are more than {PLEDGE_SIZE_BYTES_MAX}; "
            "nothing was changed. Send less, or have branches fetch it"
        )


def _check_options(options: Options) -> None:
    check_headers(options.branch_headers)
    waits = (options.timeout_to_fail_s, options.retry_interval_s, options.delay_s)
    if any(value is not None and not (isfinite(value) and 0 <= value <= WAIT_S_MAX) for value in waits):
        raise InvalidRequest("timeout_to_fail, retry_interval and delay are seconds, not negative; nothing was changed")
    if not 0 <= (options.request_timeout_s or 0) <= REQUEST_TIMEOUT_S_MAX:
        raise InvalidRequest(f"request_timeout is at most {REQUEST_TIMEOUT_S_MAX:g} s; nothing was changed")
    if (options.retry_limit or 0) < 0 or not 0 <= options.not_before_ms < NEVER_MS:
        raise InvalidRequest("retry_limit and not_before are not negative; nothing was changed")


def names_topic(request: Content) -> bool:
    for url, _ in request.steps:  # noqa: SIM110 - each request comes here, and a generator costs more than this
        if url.startswith(SCHEME):
            return True
    return False


def branched(request: Content) -> Content:
    """The content as it is stored, of a request that names no topic."""
    made = [Branch(f"{place:02d}", url, payload) for place, (url, payload) in enumerate(request.steps, 1)]
    return replace(request, branches=tuple(made), steps=())


async def expand(request: Content, topics: Topics) -> Content:
    """The same of any request. Raises UnknownTopic, TooLarge."""
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
        raise TooLarge(f"{len(branches)} branches are more than {PLEDGE_BRANCHES_MAX}; nothing was changed")
    _check_size(sum(len(branch.payload) for branch in branches))
    return replace(request, branches=tuple(branches))


def _fan_out(branch_id: str, urls: list[str], payload: bytes) -> list[Branch]:
    if len(urls) == 1:
        return [Branch(branch_id, urls[0], payload)]
    return [Branch(f"{branch_id}-{place:02d}", url, payload) for place, url in enumerate(urls, 1)]


_PLAIN: Final = Options()

"""The operations of a store as values: checked and encoded by the caller's task, performed by the store's threads.

Databases get bytes and integers only. Ids are bytes, so that they are compared byte for byte, whatever the collation;
content and progress are msgpack. A few more columns are used by the database itself:

    due_ms       when `claim` may return it: next_at_ms, or the end of the lease if that is later; NEVER_MS if finished
    created_ms   the order of `find`; also distinguishes pledges with the same gid, if one was removed
    finished_ms  for `forget`

Everything that a database could refuse about an operation is refused here, before it joins others in a transaction.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from avow import limits
from avow.errors import InvalidRequest, TooLarge
from avow.pledge.record import NEVER_MS, UNFINISHED, Pledge, Progress, Status, decode_content, decode_progress, encode
from avow.pledge.store import Filter, Page, Topic

STATUSES: Final[tuple[Status, ...]] = ("prepared", "submitted", "succeeded", "failed", "dead")
FORGETTABLE: Final[tuple[Status, ...]] = ("succeeded", "failed")

_decode_subscribers: Final = msgspec.msgpack.Decoder(tuple[tuple[str, str], ...]).decode


class Row(NamedTuple):
    """A stored pledge, in the order of COLUMNS."""

    gid: bytes
    content: bytes
    progress: bytes
    status: Status
    revision: int
    fence: int
    owner: bytes
    lease_until_ms: int
    next_at_ms: int
    due_ms: int
    created_ms: int
    finished_ms: int


COLUMNS: Final = Row._fields
READ_COLUMNS: Final = ("content", "progress", "revision", "fence", "owner", "lease_until_ms")  # of `pledge_of`


class Insert(NamedTuple):
    row: Row


class Swap(NamedTuple):
    """`row`: the new row, whose revision is one more than the present one; `after`: the same as a pledge."""

    row: Row
    after: Pledge
    status_before: Status


class Claim(NamedTuple):
    owner: bytes
    now_ms: int
    lease_until_ms: int
    limit: int


class ClaimOne(NamedTuple):
    gid: bytes
    owner: bytes
    now_ms: int
    lease_until_ms: int


class Forget(NamedTuple):
    finished_before_ms: int
    limit: int


class SwapTopic(NamedTuple):
    """`version_before` 0: it must not exist. `version` 0: remove it."""

    name: bytes
    version_before: int
    before: bytes
    version: int
    subscribers: bytes
    now_ms: int


class Load(NamedTuple):
    gid: bytes


class NextDue(NamedTuple):
    pass


class Find(NamedTuple):
    wanted: Filter
    gid: bytes
    position: tuple[int, bytes] | None
    limit: int


class LoadTopic(NamedTuple):
    name: bytes


class ListTopics(NamedTuple):
    after: bytes
    limit: int


Writing: TypeAlias = Insert | Swap | Claim | ClaimOne | Forget | SwapTopic
Reading: TypeAlias = Load | NextDue | Find | LoadTopic | ListTopics
Operation: TypeAlias = Writing | Reading


class Topics(NamedTuple):
    """A page of topics; `more`: others follow."""

    topics: list[Topic]
    more: bool


def id_bytes(gid: str) -> bytes:
    return _bounded(gid, what="a pledge's id", bytes_max=limits.PLEDGE_ID_BYTES_MAX)


def owner_bytes(owner: str) -> bytes:
    return _bounded(owner, what="an owner", bytes_max=limits.PLEDGE_OWNER_BYTES_MAX)


def name_bytes(name: str) -> bytes:
    return _bounded(name, what="a topic's name", bytes_max=limits.TOPIC_NAME_BYTES_MAX)


def _bounded(text: str, *, what: str, bytes_max: int) -> bytes:
    try:
        data = text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest(f"{what} cannot be encoded as UTF-8 ({error.reason}); nothing was changed") from error
    if not 0 < len(data) <= bytes_max:
        raise InvalidRequest(f"{what} must have 1 to {bytes_max} bytes, not {len(data)}; nothing was changed")
    return data


def inserting(pledge: Pledge) -> Insert:
    gid = id_bytes(pledge.content.gid)
    owner = owner_bytes(pledge.owner) if pledge.owner else b""
    return Insert(_row(pledge, gid, content=_encoded(pledge.content), owner=owner))


def swapping(before: Pledge, progress: Progress, *, release: bool) -> Swap:
    if progress.created_ms != before.progress.created_ms:
        raise InvalidRequest("the creation time of a pledge cannot be changed; nothing was changed")
    owner, lease_until_ms = ("", 0) if release else (before.owner, before.lease_until_ms)
    after = Pledge(before.content, progress, before.revision + 1, before.fence, owner, lease_until_ms)
    return Swap(_row(after, id_bytes(before.content.gid), content=b"", owner=owner.encode()), after, before.status)


def _row(pledge: Pledge, gid: bytes, *, content: bytes, owner: bytes) -> Row:
    progress, lease_until_ms = pledge.progress, pledge.lease_until_ms
    status, next_at_ms = progress.status, progress.next_at_ms
    encoded = _encoded(progress)
    if len(content) + len(encoded) > limits.PLEDGE_STORED_SIZE_BYTES_MAX:
        raise TooLarge(
            f"the pledge has {len(content) + len(encoded)} bytes, at most {limits.PLEDGE_STORED_SIZE_BYTES_MAX} can be "
            "stored; nothing was changed. Send less data, or let the branches fetch it"
        )
    due_ms = NEVER_MS
    if status in UNFINISHED:
        due_ms = next_at_ms if next_at_ms > lease_until_ms else lease_until_ms
    counts = (pledge.revision, pledge.fence)
    times = (lease_until_ms, next_at_ms, due_ms, progress.created_ms, progress.finished_ms)
    check_times(*counts, *times)
    return tuple.__new__(Row, (gid, content, encoded, status, *counts, owner, *times))  # twice as fast as Row(...)


def _encoded(value: object) -> bytes:
    try:
        return encode(value)
    except UnicodeEncodeError as error:
        raise InvalidRequest(
            f"the pledge contains text that cannot be encoded as UTF-8 ({error.reason}); nothing was changed"
        ) from error


def check_times(*numbers: int) -> None:
    """Every store has integers up to 2**53 - 1, the limit of exact Redis scores."""
    if min(numbers) < 0 or max(numbers) > NEVER_MS:
        raise InvalidRequest(f"times and counts must be between 0 and {NEVER_MS}, not {numbers}; nothing was changed")


def pledge_of(stored: Sequence[Any]) -> Pledge:
    """From the values of READ_COLUMNS."""
    content, progress, revision, fence, owner, lease_until_ms = stored
    return Pledge(
        decode_content(content), decode_progress(progress), revision, fence, bytes(owner).decode(), lease_until_ms
    )


def swapping_topic(
    before: Topic | None, subscribers: Sequence[tuple[str, str]], *, name: str, now_ms: int
) -> SwapTopic:
    """Compares version and subscribers: a topic that was removed and created again may have the same version."""
    check_times(now_ms)
    after = _encoded(tuple(subscribers))
    if len(after) > limits.TOPIC_SIZE_BYTES_MAX:
        raise TooLarge(
            f"the topic's subscribers have {len(after)} bytes, at most {limits.TOPIC_SIZE_BYTES_MAX} are allowed; "
            "nothing was changed"
        )
    version_before = 0 if before is None else before.version
    return SwapTopic(
        name_bytes(name),
        version_before,
        b"" if before is None else _encoded(before.subscribers),
        version_before + 1 if subscribers else 0,
        after,
        now_ms,
    )


def topic_of(stored: Sequence[Any]) -> Topic:
    """From name, subscribers, version, created_ms, updated_ms."""
    name, subscribers, version, created_ms, updated_ms = stored
    return Topic(bytes(name).decode(), _decode_subscribers(subscribers), version, created_ms, updated_ms)


def page_of(found: Sequence[Sequence[Any]], *, limit: int) -> Page:
    """From rows of gid, created_ms and READ_COLUMNS. One row more than `limit` means that others follow."""
    pledges = tuple(pledge_of(row[2:]) for row in found[:limit])
    if len(found) <= limit:
        return Page(pledges)
    gid, created_ms = found[limit - 1][:2]
    return Page(pledges, f"{created_ms}-{bytes(gid).decode()}")


def topics_of(found: Sequence[Sequence[Any]], *, limit: int) -> Topics:
    return Topics([topic_of(row) for row in found[:limit]], len(found) > limit)


def position_of(text: str) -> tuple[int, bytes] | None:
    """Parses a position, (created_ms, gid), after which a page begins, newest first. Raises InvalidRequest."""
    if not text:
        return None
    created, _, gid = text.partition("-")
    if not (created.isascii() and created.isdecimal() and gid) or int(created) > NEVER_MS:
        raise InvalidRequest(f"{text[:40]!r} is not a valid position; use next_position of the page before, or none")
    return int(created), id_bytes(gid)

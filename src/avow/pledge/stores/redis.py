"""Pledges in Redis, shared by any number of coordinators.

Each operation is one Lua script. A group is sent as one pipeline and executed as one transaction: one round trip and,
with `appendfsync always`, one sync.

Durability depends on the server's settings:

    appendonly yes, appendfsync always   answered changes survive kill -9 and a power cut. `server_syncs` is 1
    anything less                        a crash of the server may lose answered changes. `server_syncs` is 0, or -1 if
                                         the server does not show its settings
    replicas                             a fail-over loses what was not replicated. With `wait_replicas` a change is
                                         answered when so many replicas have it; if they do not answer it is Unknown
    maxmemory-policy noeviction          with any other policy Redis may evict unfinished pledges

All keys have the same hash tag, so they are on one node of a Redis Cluster; this store connects to that node only.

A command without an answer may have been executed, so it is not retried and its outcome is Unknown. redis-py's client
would retry it, and a repeated swap would be refused because of its own first execution.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeAlias
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from avow.errors import AvowError, InvalidRequest, Offline, Unknown
from avow.pledge.record import NEVER_MS, Pledge
from avow.pledge.store import Page, Topic
from avow.pledge.stores import operations as ops
from avow.pledge.stores import redis_scripts as scripts
from avow.pledge.stores.grouped import GroupedStore
from avow.pledge.stores.redis_connection import (
    LOST,
    Command,
    Connecting,
    Discarded,
    ReadOnly,
    Refusal,
    error_text,
    refusal,
)
from avow.pledge.stores.redis_scripts import Script
from avow.pledge.stores.sql import SCHEMA_VERSION, check_version

Part: TypeAlias = bytes | int | str

_READ_FIELDS: Final = (b"c", b"p", b"r", b"f", b"o", b"l")
_WAIT_MS: Final = 5_000


class RedisStore(GroupedStore):
    """`url`: redis://, rediss:// or unix:// of redis-py, optionally with ?prefix= and ?wait_replicas=

    Stores with different prefixes are separate.
    """

    def __init__(self, url: str, *, prefix: str = "avow", wait_replicas: int = 0) -> None:
        address, own = _split(url)
        prefix, replicas = own.get("prefix", prefix), own.get("wait_replicas", str(wait_replicas))
        if not prefix or set(prefix) & set("{}"):
            raise InvalidRequest(f"prefix must be non-empty and without braces, not {prefix!r}")
        if not (replicas.isascii() and replicas.isdecimal()):
            raise InvalidRequest(f"wait_replicas must be a number of replicas, not {replicas!r}")
        keys = _Keys(prefix)
        writing = _Writing(address, keys, int(replicas))
        super().__init__(writing, _Reading(address, keys), _Reading(address, keys), name="redis")


def _split(url: str) -> tuple[str, dict[str, str]]:
    """The URL without this store's own parameters, and these."""
    parts = urlsplit(url)
    pairs = parse_qsl(parts.query, keep_blank_values=True)
    own = {name: value for name, value in pairs if name in ("prefix", "wait_replicas")}
    others = urlencode([(name, value) for name, value in pairs if name not in own])
    return urlunsplit(parts._replace(query=others)), own


class _Keys:
    def __init__(self, prefix: str) -> None:
        start = b"{%s}:" % prefix.encode()
        self.pledge, self.status, self.topic = start + b"g:", start + b"s:", start + b"t:"
        self.due, self.done, self.names, self.meta = start + b"due", start + b"done", start + b"names", start + b"meta"

    def of_status(self, status: str) -> bytes:
        return self.status + status.encode()


def _call(script: Script, keys: Sequence[bytes], *values: Part) -> Command:
    return (b"EVALSHA", script.sha, len(keys), *keys, *values)


class _Writing:
    def __init__(self, url: str, keys: _Keys, wait_replicas: int) -> None:
        self._connecting, self._keys, self._wait_replicas = Connecting(url), keys, wait_replicas
        self._syncs = -1

    def prepare(self) -> None:
        self._connecting.connect()
        try:
            made, version, settings = self._connecting.send(
                [
                    (b"HSETNX", self._keys.meta, b"version", SCHEMA_VERSION),
                    (b"HGET", self._keys.meta, b"version"),
                    (b"CONFIG", b"GET", b"append*"),
                ]
            )
            for answer in (made, version):
                if isinstance(answer, Refusal):
                    raise refusal(answer)
            check_version(int(version), where="Redis")
        except LOST as error:
            self._connecting.drop()
            raise Offline(f"the connection to Redis was lost while it was opened ({error_text(error)})") from error
        except AvowError:
            self._connecting.drop()
            raise
        if not isinstance(settings, Refusal):  # hosted servers may refuse CONFIG
            known = dict(zip(settings[::2], settings[1::2], strict=True))
            self._syncs = int(known.get(b"appendonly") == b"yes" and known.get(b"appendfsync") == b"always")

    def perform(self, operations: Sequence[ops.Writing]) -> Sequence[Any]:
        self._connecting.connect()
        commands = [self._command(operation) for operation in operations]
        wait: Command | None = (b"WAIT", self._wait_replicas, _WAIT_MS) if self._wait_replicas else None
        try:
            answers = self._connecting.send_together(commands, wait=wait)
        except Discarded as error:
            raise refusal(error.refusal) from error
        except LOST as error:
            self._connecting.drop()
            raise Unknown(
                f"the connection to Redis was lost before it answered ({error_text(error)}); the change may or may not "
                "be stored. Load the pledge to find out"
            ) from error
        if any(isinstance(answer, ReadOnly) for answer in answers):
            self._connecting.drop()  # it is a replica now: its name may resolve to another server
        if self._wait_replicas and answers.pop() != self._wait_replicas:
            raise Unknown(
                f"Redis stored the change, but {self._wait_replicas} replicas did not confirm it within "
                f"{_WAIT_MS / 1000:g} s; a fail-over may lose it. Check the replicas"
            )
        return [_outcome(operation, answer) for operation, answer in zip(operations, answers, strict=True)]

    def _command(self, operation: ops.Writing) -> Command:
        keys = self._keys
        match operation:
            case ops.Insert(row):
                stored = (row.gid, row.content, row.progress, row.status, row.revision, row.fence, row.owner)
                times = (row.lease_until_ms, row.next_at_ms, row.created_ms, _due(row), _finished(row))
                names = (keys.pledge + row.gid, keys.due, keys.of_status(row.status), keys.done)
                return _call(scripts.INSERT, names, *stored, *times)
            case ops.Swap(row, _, status_before):
                statuses = (keys.of_status(status_before), keys.of_status(row.status))
                expected = (row.gid, row.revision - 1, row.fence, row.created_ms)
                after = (row.progress, row.status, row.revision, row.owner, row.lease_until_ms, row.next_at_ms)
                changed = (keys.pledge + row.gid, keys.due, *statuses, keys.done)
                return _call(scripts.SWAP, changed, *expected, *after, _due(row), _finished(row))
            case ops.ClaimOne(gid, owner, now_ms, until_ms):
                return _call(scripts.CLAIM_ONE, (keys.pledge + gid, keys.due), gid, owner, now_ms, until_ms)
            case ops.Claim(owner, now_ms, until_ms, limit):
                return _call(scripts.CLAIM, (keys.due,), keys.pledge, owner, now_ms, until_ms, limit)
            case ops.Forget(before_ms, limit):
                return _call(scripts.FORGET, (keys.done, keys.due), keys.pledge, keys.status, before_ms, limit)
            case ops.SwapTopic(name, version_before, before, version, subscribers, now_ms):
                values = (version_before or b"", before, version or b"", subscribers, now_ms)
                return _call(scripts.SWAP_TOPIC, (keys.topic + name, keys.names), name, *values)

    def close(self) -> None:
        self._connecting.drop()

    def statistics(self) -> dict[str, int]:
        return {"server_syncs": self._syncs, "connects": self._connecting.connects}


def _due(row: ops.Row) -> Part:
    return row.due_ms if row.due_ms < NEVER_MS else b""


def _finished(row: ops.Row) -> Part:
    return row.finished_ms if row.status in ops.FORGETTABLE else b""


def _outcome(operation: ops.Writing, answer: Any) -> Any:
    if isinstance(answer, Refusal):
        return refusal(answer)
    match operation:
        case ops.Insert():
            return None if answer == 1 else _pledge(answer)
        case ops.Swap():
            return operation.after if answer == 1 else None
        case ops.ClaimOne():
            return None if answer is None else _pledge(answer)
        case ops.Claim():
            return [_pledge(found) for found in answer]
        case ops.Forget():
            return answer
        case ops.SwapTopic():
            return answer == 1


def _pledge(stored: Sequence[Any]) -> Pledge:
    return ops.pledge_of(_numbered(stored))


def _numbered(stored: Sequence[Any]) -> tuple[Any, ...]:
    content, progress, revision, fence, owner, lease_until_ms = stored
    return content, progress, int(revision), int(fence), owner, int(lease_until_ms)


class _Reading:
    def __init__(self, url: str, keys: _Keys) -> None:
        self._connecting, self._keys = Connecting(url), keys

    def prepare(self) -> None:
        self._connecting.connect()

    def perform(self, operations: Sequence[ops.Reading]) -> Sequence[Any]:
        self._connecting.connect()
        try:
            answers = self._connecting.send([self._command(operation) for operation in operations])
            found = zip(operations, answers, strict=True)
            return [self._outcome(operation, answer) for operation, answer in found]
        except LOST as error:
            self._connecting.drop()
            raise Offline(f"the connection to Redis was lost ({error_text(error)}); nothing was changed") from error

    def _command(self, operation: ops.Reading) -> Command:
        keys = self._keys
        match operation:
            case ops.Load(gid):
                return (b"HMGET", keys.pledge + gid, *_READ_FIELDS)
            case ops.NextDue():
                return (b"ZRANGE", keys.due, 0, 0, b"WITHSCORES")
            case ops.Find(wanted, gid, position, limit):
                if gid:
                    return (b"HMGET", keys.pledge + gid, *_READ_FIELDS)
                statuses = [keys.of_status(status) for status in wanted.statuses or ops.STATUSES]
                newest, oldest = _bounds(operation)
                after = position or (b"", b"")
                return _call(scripts.FIND, statuses, keys.pledge, newest, oldest, limit + 1, *after)
            case ops.LoadTopic(name):
                return (b"HMGET", keys.topic + name, b"s", b"v", b"c", b"u")
            case ops.ListTopics(after, limit):
                start = b"(" + after if after else b"-"
                return _call(scripts.LIST_TOPICS, (keys.names,), keys.topic, start, limit + 1)

    def _outcome(self, operation: ops.Reading, answer: Any) -> Any:
        if isinstance(answer, Refusal):
            return refusal(answer)
        match operation:
            case ops.Load():
                return None if answer[0] is None else _pledge(answer)
            case ops.NextDue():
                return int(float(answer[1])) if answer else NEVER_MS
            case ops.Find():
                return _page(operation, answer)
            case ops.LoadTopic(name):
                return None if answer[0] is None else _topic(name, answer)
            case ops.ListTopics(_, limit):
                topics = [_topic(name, stored) for name, stored in zip(answer[::2], answer[1::2], strict=True)]
                return ops.Topics(topics[:limit], len(topics) > limit)

    def close(self) -> None:
        self._connecting.drop()

    def statistics(self) -> dict[str, int]:
        return {}


def _bounds(find: ops.Find) -> tuple[Part, Part]:
    wanted, newest = find.wanted, find.wanted.created_to_ms
    if find.position is not None:
        newest = find.position[0] if newest is None else min(newest, find.position[0])
    oldest = wanted.created_from_ms
    return (b"+inf" if newest is None else newest), (b"-inf" if oldest is None else oldest)


def _page(find: ops.Find, answer: Any) -> Page:
    if not find.gid:
        rows = [(gid, int(created_ms), *_numbered(stored)) for gid, created_ms, *stored in answer]
        return ops.page_of(rows, limit=find.limit)
    if answer[0] is None:
        return Page(())
    pledge, wanted = _pledge(answer), find.wanted
    created_ms = pledge.progress.created_ms
    later = wanted.created_to_ms is not None and created_ms > wanted.created_to_ms
    earlier = wanted.created_from_ms is not None and created_ms < wanted.created_from_ms
    seen = find.position is not None and (created_ms, find.gid) >= find.position
    other = bool(wanted.statuses) and pledge.status not in wanted.statuses
    return Page(() if later or earlier or seen or other else (pledge,))


def _topic(name: bytes, stored: Sequence[Any]) -> Topic:
    subscribers, version, created_ms, updated_ms = stored
    return ops.topic_of((name, subscribers, int(version), int(created_ms), int(updated_ms)))

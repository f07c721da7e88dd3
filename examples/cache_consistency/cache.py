"""A cache in Redis that ends up equal to the database despite slow readers: entries are tagged, not deleted.

An entry is a hash {value, lock_until, lock_owner}. A reader that finds no value, or a tagged one, locks the entry and
loads the value from the database. It stores the value only if it is still the owner. A tag takes the ownership away, so
a reader that loaded before a change and stores after it stores nothing.

    fetch     get: value and no lock -> it;  locked for me -> load, set;  locked for another -> wait
    tag       lock_until = 0, no owner: the next reader loads; the entry goes after a while

The last value that is stored was loaded by an owner, after the last tag, and every change of the database is followed
by a tag: that a tag follows, whatever dies in between, is what the pledge is for.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import redis

LOCK_S = 3.0  # a reader that takes longer, or dies, loses its lock
TAGGED_S = 10
KEPT_S = 3600
PAUSE_S = 0.02
_NOW = "local time = redis.call('TIME') local now = time[1] * 1000 + math.floor(time[2] / 1000) "

GET = (
    _NOW
    + """
local value = redis.call('HGET', KEYS[1], 'value')
local lock = redis.call('HGET', KEYS[1], 'lock_until')
if (lock and tonumber(lock) < now) or (not lock and not value) then
  redis.call('HSET', KEYS[1], 'lock_until', now + ARGV[2], 'lock_owner', ARGV[1])
  return {value, 'mine'}
end
return {value, lock}
"""
)
SET = """
if redis.call('HGET', KEYS[1], 'lock_owner') ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[1], 'value', ARGV[2])
redis.call('HDEL', KEYS[1], 'lock_until', 'lock_owner')
redis.call('EXPIRE', KEYS[1], ARGV[3])
return 1
"""
TAG = """
redis.call('HSET', KEYS[1], 'lock_until', 0)
redis.call('HDEL', KEYS[1], 'lock_owner')
redis.call('EXPIRE', KEYS[1], ARGV[1])
"""


class Cache:
    def __init__(self, client: redis.Redis) -> None:
        self._get, self._set, self._tag = (client.register_script(script) for script in (GET, SET, TAG))
        self._client = client

    def fetch(self, key: str, load: Callable[[], str], *, timeout_s: float = 10.0) -> str:
        """Never a value that was replaced before this was called and tagged."""
        owner, deadline = uuid4().hex, time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            value, lock = self._answer(key, owner)
            if lock == b"mine":
                loaded = load()
                self._set(keys=[key], args=[owner, loaded, KEPT_S])
                return loaded
            if lock is None and value is not None:
                return value.decode()
            time.sleep(PAUSE_S)
        return load()

    def _answer(self, key: str, owner: str) -> tuple[bytes | None, bytes | None]:
        found: Any = self._get(keys=[key], args=[owner, round(1000 * LOCK_S)])
        value, lock = [*found, None, None][:2]
        return value, lock

    def tag(self, key: str) -> None:
        """As deleted. May be repeated."""
        self._tag(keys=[key], args=[TAGGED_S])

    def peek(self, key: str) -> str | None:
        """What a reader would be given without loading; None if it would load."""
        value, lock = self._client.hmget(key, ["value", "lock_until"])  # type: ignore[misc]
        return value.decode() if value is not None and lock is None else None

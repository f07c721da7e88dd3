"""The Lua scripts of the barrier on Redis, and the meaning of their replies. It does not import a client.

A script runs atomically, so no transaction can be open and a checkback is never ONGOING. The key is dtm's,
`gid-branch_id-op-barrier_id`. In a cluster it must be in the same slot as the keys it protects, so the gid has their
hash tag (`{stock-7}-...`). Its value:

    rollback            a checkback was first, as in dtm
    msg:12, action:12   done; 12 is the length of the gid, because `a-01` · `01` and `a` · `01-01` give the same key
    broken:2            the commands before the second took effect, the second failed: not retried, an operator decides
    anything else       done, written by a dtm client

The key is read first, before any condition on the data: a repeated call must be answered as done, and not as short
because the first call took the last piece. It is set last, after the commands that may fail: Redis has no rollback.

By default keys do not expire. With `expire_s` (at least seven days) a missing key proves something only if the pledge
is younger than that, according to `prepared_ms`; otherwise there is no verdict. Redis must not evict keys
(`maxmemory-policy noeviction`, or volatile-* with keys that do not expire). If a crash loses the latest writes, work
and key are lost together, but a verdict may have been given before: `appendfsync` decides how likely that is.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any, Final

from avow.barrier.key import HORIZON_MIN_S, MARGIN_S, ROLLED_BACK, Key, Verdict, now_ms
from avow.errors import AlreadyDecided, InvalidRequest, Malformed, Trimmed

AMOUNT_MAX: Final = 1 << 52  # Lua counts in doubles
WORDS_MAX: Final = 4000  # of a command; Lua's stack holds about twice that

_KEEP: Final = """
local function keep(key, value, expire)
  if expire == '' then redis.call('SET', key, value) else redis.call('SET', key, value, 'EX', expire) end
end
"""
CHECK_ADJUST: Final = (
    _KEEP
    + """
local done = redis.call('GET', KEYS[1])
if done then return done end
local stock = redis.call('GET', KEYS[2])
if not stock or stock + ARGV[3] < 0 then return 'short' end
redis.call('INCRBY', KEYS[2], ARGV[3])
keep(KEYS[1], ARGV[1], ARGV[2])
return ''
"""
)
RUN: Final = (
    _KEEP
    + """
local done = redis.call('GET', KEYS[1])
if done then return done end
local at = 3
for number = 1, tonumber(ARGV[3]) do
  local size = tonumber(ARGV[at + 1])
  local reply = redis.pcall(unpack(ARGV, at + 2, at + 1 + size))
  if type(reply) == 'table' and reply.err then
    if number == 1 then return redis.error_reply(reply.err) end
    keep(KEYS[1], 'broken:' .. number, '')
    return 'broken:' .. number
  end
  at = at + 1 + size
end
keep(KEYS[1], ARGV[1], ARGV[2])
return ''
"""
)
CHECK_BACK: Final = (
    _KEEP
    + """
local done = redis.call('GET', KEYS[1])
if done then return done end
if ARGV[1] ~= 'proven' then return '' end
keep(KEYS[1], 'rollback', ARGV[2])
return 'rollback'
"""
)


class Adjusted(StrEnum):
    DONE = "DONE"
    DUPLICATE = "DUPLICATE"  # an earlier call has done it
    SHORT = "SHORT"  # there is no value, or it would become negative; nothing was changed


def name_of(key: Key) -> str:
    return "-".join(key.exact())


def value_of(key: Key) -> str:
    return f"{key.op}:{len(key.gid)}"


def expire_argument(expire_s: int | None) -> str:
    if expire_s is None:
        return ""
    if expire_s < HORIZON_MIN_S:
        raise InvalidRequest(
            f"expire_s is {expire_s}, but a barrier key must be kept for at least {HORIZON_MIN_S} s; nothing was "
            "written"
        )
    return str(int(expire_s))


def adjust_arguments(key: Key, *, amount: int, expire_s: int | None) -> list[str]:
    if isinstance(amount, bool) or not isinstance(amount, int) or abs(amount) > AMOUNT_MAX:
        raise InvalidRequest(f"the amount must be an integer of at most 2^52, not {amount!r}; nothing was written")
    return [value_of(key), expire_argument(expire_s), str(amount)]


def run_arguments(key: Key, commands: Sequence[Sequence[Any]], *, expire_s: int | None) -> list[Any]:
    """value, expire, number of commands; then for each command its length and its words."""
    if not commands or not all(commands):
        raise InvalidRequest("there must be at least one command and no empty one; nothing was written")
    if max(map(len, commands)) > WORDS_MAX:
        raise InvalidRequest(f"a command has more than {WORDS_MAX} words; nothing was written. Split it")
    flat: list[Any] = [value_of(key), expire_argument(expire_s), len(commands)]
    for command in commands:
        flat += [len(command), *command]
    return flat


def check_back_arguments(*, prepared_ms: int | None, expire_s: int | None) -> list[str]:
    return ["proven" if _is_proven(prepared_ms, expire_s) else "", expire_argument(expire_s)]


def _is_proven(prepared_ms: int | None, expire_s: int | None) -> bool:
    """Whether a missing key proves that it never existed."""
    if expire_s is None:
        return True
    return prepared_ms is not None and now_ms() - prepared_ms < (expire_s - MARGIN_S) * 1000


def read_adjusted(key: Key, reply: object) -> Adjusted:
    found = _text(reply)
    if found == "short":
        return Adjusted.SHORT
    return Adjusted.DUPLICATE if was_done(key, found) else Adjusted.DONE


def was_done(key: Key, reply: object) -> bool:
    """Whether it was done before. Raises AlreadyDecided after a rollback, Malformed if it was partly done."""
    found = _text(reply)
    if not found:
        return False
    if found == ROLLED_BACK:
        raise AlreadyDecided(
            f"a checkback has declared pledge {key.gid} rolled back; nothing was changed. Prepare a new pledge"
        )
    if found.startswith("broken:"):
        raise Malformed(
            f"command {found[7:]} of pledge {key.gid}, branch {key.branch_id}, failed after the earlier ones took "
            "effect, and it is not retried. Repair the data, then set or delete the key; it",
            expected="done or not begun",
            found=f"{found} at {name_of(key)}",
        )
    kind, _, length = found.partition(":")
    if length and (kind, length) != (key.op, str(len(key.gid))):
        raise Malformed(f"key {name_of(key)} belongs to another gid; it", expected=value_of(key), found=found)
    return True


def read_verdict(key: Key, reply: object) -> Verdict:
    found = _text(reply)
    if not found:
        raise Trimmed(
            f"pledge {key.gid} has no key, but the key may have expired, so it is unknown whether the work was done; "
            "nothing was changed. Decide by hand, from the data"
        )
    return Verdict.FAILURE if found == ROLLED_BACK else Verdict.SUCCESS


def _text(reply: object) -> str:
    if isinstance(reply, bytes):
        return reply.decode()
    return str(reply)

"""The barrier in Redis: what the Lua scripts do, and what their answers mean. No client in here.

A script runs alone, so there is no transaction that could be open: a checkback is never ONGOING. The key is dtm's,
`gid-branch_id-op-barrier_id`, and lies beside the keys that it guards: in a cluster they must share a slot, so the gid
carries their hash tag (`{stock-7}-...`). Its value:

    rollback         a checkback was first, as in dtm
    msg:12, action:12   done; 12 is the length of the gid, because `a-01` · `01` and `a` · `01-01` make the same key
    broken:2         commands before the second took effect, the second failed: nothing is repeated, a person must look
    anything else    done, written by a client of dtm

The key is looked at first, before any condition of the business: a repeated call must hear that it is done, not that
stock is short because it took the last piece itself. It is set last, after what may fail: Redis takes nothing back.

A key kept without expiry is a proof for ever; that is the default. With `expire_s` (seven days at least) a key that is
missing proves something only while the pledge is younger than that, by `prepared_ms`. Otherwise there is no verdict.
Redis must not evict (`maxmemory-policy noeviction`, or volatile-* with keys that do not expire). If it loses the last
writes in a crash, it loses work and key together, unless the verdict was given before: that is up to `appendfsync`.
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
    DUPLICATE = "DUPLICATE"  # a call before this one has done it
    SHORT = "SHORT"  # there is no value, or it would fall below zero; nothing was changed


def name_of(key: Key) -> str:
    return "-".join(key.exact())


def value_of(key: Key) -> str:
    return f"{key.op}:{len(key.gid)}"


def expire_argument(expire_s: int | None) -> str:
    if expire_s is None:
        return ""
    if expire_s < HORIZON_MIN_S:
        raise InvalidRequest(
            f"a barrier key is a proof and must be kept for {HORIZON_MIN_S} s or longer, not {expire_s} s; nothing was "
            "written"
        )
    return str(int(expire_s))


def adjust_arguments(key: Key, *, amount: int, expire_s: int | None) -> list[str]:
    if isinstance(amount, bool) or not isinstance(amount, int) or abs(amount) > AMOUNT_MAX:
        raise InvalidRequest(f"the amount must be a whole number of at most 2^52, not {amount!r}; nothing was written")
    return [value_of(key), expire_argument(expire_s), str(amount)]


def run_arguments(key: Key, commands: Sequence[Sequence[Any]], *, expire_s: int | None) -> list[Any]:
    """value, expire, number of commands; then of each its length and its words."""
    if not commands or not all(commands):
        raise InvalidRequest("there is no command to run, or an empty one; nothing was written")
    if max(map(len, commands)) > WORDS_MAX:
        raise InvalidRequest(f"a command has more than {WORDS_MAX} words; nothing was written. Split it")
    flat: list[Any] = [value_of(key), expire_argument(expire_s), len(commands)]
    for command in commands:
        flat += [len(command), *command]
    return flat


def check_back_arguments(*, prepared_ms: int | None, expire_s: int | None) -> list[str]:
    return ["proven" if _is_proven(prepared_ms, expire_s) else "", expire_argument(expire_s)]


def _is_proven(prepared_ms: int | None, expire_s: int | None) -> bool:
    """Whether a missing key was never there."""
    if expire_s is None:
        return True
    return prepared_ms is not None and now_ms() - prepared_ms < (expire_s - MARGIN_S) * 1000


def read_adjusted(key: Key, reply: object) -> Adjusted:
    found = _text(reply)
    if found == "short":
        return Adjusted.SHORT
    return Adjusted.DUPLICATE if was_done(key, found) else Adjusted.DONE


def was_done(key: Key, reply: object) -> bool:
    """Before this call. Refused where it cannot be done any more, or was left half done."""
    found = _text(reply)
    if not found:
        return False
    if found == ROLLED_BACK:
        raise AlreadyDecided(
            f"a checkback has declared {key.gid} rolled back before this; nothing was changed. Prepare a new pledge"
        )
    if found.startswith("broken:"):
        raise Malformed(
            f"the work of {key.gid}, branch {key.branch_id}: commands before number {found[7:]} took effect, that one "
            "failed, and none is repeated. Mend the data, then set or delete the key; it",
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
            f"no key of {key.gid} is left, and it may have expired: whether its work was done is unknown here; nothing "
            "was changed. Decide by hand, from the data"
        )
    return Verdict.FAILURE if found == ROLLED_BACK else Verdict.SUCCESS


def _text(reply: object) -> str:
    if isinstance(reply, bytes):
        return reply.decode()
    return str(reply)

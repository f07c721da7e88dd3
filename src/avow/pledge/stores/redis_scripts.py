"""The Lua scripts of the Redis store. Each is one operation, which the server executes atomically.

A script first reads and decides, and then writes, because Redis does not roll back a script that fails. Times and
counts are passed as text, because Lua prints large numbers as 1.7e+12. Ids with the same score are compared byte by
byte where it matters, because Lua's `<` depends on the server's locale.

    PREFIX:g:<gid>      hash: c content, p progress, s status, r revision, f fence, o owner, l lease_until_ms,
                        n next_at_ms, t created_ms
    PREFIX:due          gid by due_ms, of unfinished pledges
    PREFIX:s:<status>   gid by created_ms
    PREFIX:done         gid by finished_ms, of pledges that `forget` may remove
    PREFIX:t:<name>     hash of a topic: s subscribers, v version, c created_ms, u updated_ms
    PREFIX:names        names of topics, in order
"""

from __future__ import annotations

from hashlib import sha1
from typing import Final


class Script:
    def __init__(self, text: str) -> None:
        self.text = text.strip().encode()
        self.sha = sha1(self.text).hexdigest().encode()  # how Redis names scripts


_READ: Final = "redis.call('HMGET', key, 'c', 'p', 'r', 'f', 'o', 'l')"

# KEYS: pledge, due, status, done. ARGV: gid c p s r f o l n t due finished; due and finished "": none
INSERT: Final = Script(f"""
local key = KEYS[1]
if redis.call('EXISTS', key) == 1 then return {_READ} end
redis.call('HSET', key, 'c', ARGV[2], 'p', ARGV[3], 's', ARGV[4], 'r', ARGV[5], 'f', ARGV[6], 'o', ARGV[7],
  'l', ARGV[8], 'n', ARGV[9], 't', ARGV[10])
redis.call('ZADD', KEYS[3], ARGV[10], ARGV[1])
if ARGV[11] ~= '' then redis.call('ZADD', KEYS[2], ARGV[11], ARGV[1]) end
if ARGV[12] ~= '' then redis.call('ZADD', KEYS[4], ARGV[12], ARGV[1]) end
return 1
""")

# KEYS: pledge, due, status before, status after, done. ARGV: gid, expected r f t, new p s r o l n, due, finished
SWAP: Final = Script("""
local key = KEYS[1]
local now = redis.call('HMGET', key, 'r', 'f', 't')
if now[1] ~= ARGV[2] or now[2] ~= ARGV[3] or now[3] ~= ARGV[4] then return 0 end
redis.call('HSET', key, 'p', ARGV[5], 's', ARGV[6], 'r', ARGV[7], 'o', ARGV[8], 'l', ARGV[9], 'n', ARGV[10])
if KEYS[3] ~= KEYS[4] then
  redis.call('ZREM', KEYS[3], ARGV[1])
  redis.call('ZADD', KEYS[4], ARGV[4], ARGV[1])
end
if ARGV[11] ~= '' then redis.call('ZADD', KEYS[2], ARGV[11], ARGV[1]) else redis.call('ZREM', KEYS[2], ARGV[1]) end
if ARGV[12] ~= '' then redis.call('ZADD', KEYS[5], ARGV[12], ARGV[1]) else redis.call('ZREM', KEYS[5], ARGV[1]) end
return 1
""")

_LEASE: Final = f"""
local function lease(key, gid, owner, until_ms, due_key)
  local found = {_READ}
  found[4] = redis.call('HINCRBY', key, 'f', 1)
  found[5], found[6] = owner, until_ms
  redis.call('HSET', key, 'o', owner, 'l', until_ms)
  local due = redis.call('HGET', key, 'n')
  if tonumber(due) < tonumber(until_ms) then due = until_ms end
  redis.call('ZADD', due_key, due, gid)
  return found
end
"""

# KEYS: pledge, due. ARGV: gid, owner, now, until
CLAIM_ONE: Final = Script(f"""
{_LEASE}
local now = redis.call('HMGET', KEYS[1], 's', 'l', 'o')
if now[1] ~= 'prepared' and now[1] ~= 'submitted' then return false end
if tonumber(now[2]) > tonumber(ARGV[3]) and now[3] ~= ARGV[2] then return false end
return lease(KEYS[1], ARGV[1], ARGV[2], ARGV[4], KEYS[2])
""")

# KEYS: due. ARGV: start of a pledge's key, owner, now, until, limit. An id without a pledge was evicted: see redis.py
CLAIM: Final = Script(f"""
{_LEASE}
local claimed = {{}}
for _, gid in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', ARGV[3], 'LIMIT', 0, ARGV[5])) do
  local key = ARGV[1] .. gid
  if redis.call('EXISTS', key) == 1 then
    claimed[#claimed + 1] = lease(key, gid, ARGV[2], ARGV[4], KEYS[1])
  else
    redis.call('ZREM', KEYS[1], gid)
  end
end
return claimed
""")

# KEYS: done, due. ARGV: start of a pledge's key, start of a status's key, finished before, limit
FORGET: Final = Script("""
local gone = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', '(' .. ARGV[3], 'LIMIT', 0, ARGV[4])
for _, gid in ipairs(gone) do
  local status = redis.call('HGET', ARGV[1] .. gid, 's')
  if status then redis.call('ZREM', ARGV[2] .. status, gid) end
  redis.call('ZREM', KEYS[1], gid)
  redis.call('ZREM', KEYS[2], gid)
  redis.call('DEL', ARGV[1] .. gid)
end
return #gone
""")

# KEYS: one per status. ARGV: start of a pledge's key, newest, oldest, count, and of the position created_ms and
# gid, or "" twice. Newest first: {{gid, created_ms, c, p, r, f, o, l}, ...}
FIND: Final = Script(f"""
local function before(a, b)
  for i = 1, math.min(#a, #b) do
    local x, y = a:byte(i), b:byte(i)
    if x ~= y then return x < y end
  end
  return #a < #b
end
local count, found = tonumber(ARGV[4]), {{}}
for _, name in ipairs(KEYS) do
  local offset, taken = 0, 0
  while taken < count do
    local page = redis.call('ZREVRANGEBYSCORE', name, ARGV[2], ARGV[3], 'WITHSCORES', 'LIMIT', offset, count)
    for i = 1, #page, 2 do
      if taken < count and (page[i + 1] ~= ARGV[5] or before(page[i], ARGV[6])) then
        found[#found + 1] = {{page[i], page[i + 1]}}
        taken = taken + 1
      end
    end
    if #page < 2 * count then break end
    offset = offset + count
  end
end
table.sort(found, function(a, b)
  if a[2] ~= b[2] then return tonumber(a[2]) > tonumber(b[2]) end
  return before(b[1], a[1])
end)
local rows = {{}}
for i = 1, math.min(count, #found) do
  local key, row = ARGV[1] .. found[i][1], found[i]
  for _, value in ipairs({_READ}) do row[#row + 1] = value end
  rows[i] = row
end
return rows
""")

# KEYS: topic, names. ARGV: name, version before or "", subscribers before, version or "" to remove, subscribers, now
SWAP_TOPIC: Final = Script("""
local now = redis.call('HMGET', KEYS[1], 'v', 's')
if (now[1] or '') ~= ARGV[2] or (now[2] or '') ~= ARGV[3] then return 0 end
if ARGV[4] == '' then
  redis.call('DEL', KEYS[1])
  redis.call('ZREM', KEYS[2], ARGV[1])
else
  redis.call('HSET', KEYS[1], 'v', ARGV[4], 's', ARGV[5], 'u', ARGV[6])
  redis.call('HSETNX', KEYS[1], 'c', ARGV[6])
  redis.call('ZADD', KEYS[2], 0, ARGV[1])
end
return 1
""")

# KEYS: names. ARGV: start of a topic's key, after, count. {name, {s, v, c, u}, ...}
LIST_TOPICS: Final = Script("""
local found = {}
for _, name in ipairs(redis.call('ZRANGEBYLEX', KEYS[1], ARGV[2], '+', 'LIMIT', 0, ARGV[3])) do
  found[#found + 1] = name
  found[#found + 1] = redis.call('HMGET', ARGV[1] .. name, 's', 'v', 'c', 'u')
end
return found
""")

ALL: Final = (INSERT, SWAP, CLAIM_ONE, CLAIM, FORGET, FIND, SWAP_TOPIC, LIST_TOPICS)

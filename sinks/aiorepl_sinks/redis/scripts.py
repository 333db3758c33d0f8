"""The Lua scripts that the sink ``redis`` runs. Each does all of its work or nothing.

Redis does not roll back a script that fails, so each script checks everything before its first write. IDs are compared as
strings because Lua's numbers cannot hold 64 bits.
"""

from __future__ import annotations

from typing import Final

_FUNCTIONS: Final = """
local function parts(id) return string.match(id, '^%d+'), string.match(id, '%d+$') end
local function greater(a, b)
  if #a ~= #b then return #a > #b end
  return a > b
end
local function last_id(key)
  local kind = redis.call('TYPE', key).ok
  if kind == 'none' then return '0-0' end
  if kind ~= 'stream' then return nil end
  local info = redis.call('XINFO', 'STREAM', key)
  for index = 1, #info, 2 do
    if info[index] == 'last-generated-id' then return info[index + 1] end
  end
end
local function trim(streams, maxlen)
  if maxlen == '' then return end
  for stream in pairs(streams) do redis.call('XTRIM', KEYS[stream + 1], 'MAXLEN', '~', maxlen) end
end
"""

# KEYS: the hash, then the streams.
# ARGV: the ID of the last change that the hash should hold; the ID that it holds afterwards; the position, or '' if it does
# not move; the length to trim to, or ''; then for each entry the index of its stream, its ID, the count of its fields' names
# and values, and these.
# Replies: done; moved (the hash holds another ID, which follows); foreign (a stream has entries beyond the position); not a
# stream.
APPEND: Final = f"""{_FUNCTIONS}
local state, expected, last, position, maxlen = KEYS[1], ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local found = redis.call('HGET', state, 'last') or ''
if found ~= expected then return {{'moved', found}} end
local checked, at = {{}}, 5
while at <= #ARGV do
  local stream = ARGV[at]
  if not checked[stream] then
    checked[stream] = true
    local newest = last_id(KEYS[stream + 1])
    if newest == nil then return {{'not a stream', KEYS[stream + 1]}} end
    local m, n = parts(ARGV[at + 1])
    local p, q = parts(newest)
    if not (greater(m, p) or (m == p and greater(n, q))) then return {{'foreign', KEYS[stream + 1]}} end
  end
  at = at + 3 + ARGV[at + 2]
end
at = 5
while at <= #ARGV do
  local count = tonumber(ARGV[at + 2])
  redis.call('XADD', KEYS[ARGV[at] + 1], ARGV[at + 1], unpack(ARGV, at + 3, at + 2 + count))
  at = at + 3 + count
end
trim(checked, maxlen)
redis.call('HSET', state, 'last', last)
if position ~= '' then redis.call('HSET', state, 'position', position) end
return {{'done'}}
"""

# KEYS: the hash, which does not change, then the streams.
# ARGV: the first number of the new IDs; the length to trim to, or ''; then for each entry the index of its stream, the count
# of its fields' names and values, and these.
# Replies: done; ahead (a stream has entries beyond the position); not a stream.
REPLAY: Final = f"""{_FUNCTIONS}
local base, maxlen = ARGV[1], ARGV[2]
local next_number, at = {{}}, 3
while at <= #ARGV do
  local stream = ARGV[at]
  if not next_number[stream] then
    local newest = last_id(KEYS[stream + 1])
    if newest == nil then return {{'not a stream', KEYS[stream + 1]}} end
    local p, q = parts(newest)
    if greater(p, base) then return {{'ahead', KEYS[stream + 1]}} end
    next_number[stream] = p == base and tonumber(q) + 1 or 1
  end
  at = at + 2 + ARGV[at + 1]
end
at = 3
while at <= #ARGV do
  local stream, count = ARGV[at], tonumber(ARGV[at + 1])
  local id = base .. '-' .. string.format('%.0f', next_number[stream])
  redis.call('XADD', KEYS[stream + 1], id, unpack(ARGV, at + 2, at + 1 + count))
  next_number[stream] = next_number[stream] + 1
  at = at + 2 + count
end
trim(next_number, maxlen)
return {{'done'}}
"""

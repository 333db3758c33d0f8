"""The scripts that the sink ``redis`` has Redis run, each of which does all of its work or nothing.

They check first and write afterwards, because Redis does not roll back a script that fails. IDs are compared as strings,
since Lua's numbers cannot hold 64 bits.
"""

from __future__ import annotations

from typing import Final

_LOOK: Final = """
local function parts(id) return string.match(id, '^%d+'), string.match(id, '%d+$') end
local function greater(a, b)
  if #a ~= #b then return #a > #b end
  return a > b
end
local function last_of(key)
  local kind = redis.call('TYPE', key).ok
  if kind == 'none' then return '0-0' end
  if kind ~= 'stream' then return nil end
  local info = redis.call('XINFO', 'STREAM', key)
  for place = 1, #info, 2 do
    if info[place] == 'last-generated-id' then return info[place + 1] end
  end
end
local function trim(streams, maxlen)
  if maxlen == '' then return end
  for stream in pairs(streams) do redis.call('XTRIM', KEYS[stream + 1], 'MAXLEN', '~', maxlen) end
end
"""

# KEYS: the hash, the streams. ARGV: the ID of the last change that the hash is expected to hold, and the one that it is
# to hold; the position, if it moves; the length to trim to; then for each entry its stream's number, its ID, the number
# of its fields' names and values, and these.
APPEND: Final = f"""{_LOOK}
local state, expected, last, position, maxlen = KEYS[1], ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local found = redis.call('HGET', state, 'last') or ''
if found ~= expected then return {{'elsewhere', found}} end
local seen, at = {{}}, 5
while at <= #ARGV do
  local stream = ARGV[at]
  if not seen[stream] then
    seen[stream] = true
    local behind = last_of(KEYS[stream + 1])
    if behind == nil then return {{'no stream', KEYS[stream + 1]}} end
    local m, n = parts(ARGV[at + 1])
    local p, q = parts(behind)
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
trim(seen, maxlen)
redis.call('HSET', state, 'last', last)
if position ~= '' then redis.call('HSET', state, 'position', position) end
return {{'done'}}
"""

# KEYS: the hash, which stays as it is; the streams. ARGV: the first number of the IDs; the length to trim to; then for
# each entry its stream's number, the number of its fields' names and values, and these.
REPLAY: Final = f"""{_LOOK}
local base, maxlen = ARGV[1], ARGV[2]
local next_of, at = {{}}, 3
while at <= #ARGV do
  local stream = ARGV[at]
  if not next_of[stream] then
    local behind = last_of(KEYS[stream + 1])
    if behind == nil then return {{'no stream', KEYS[stream + 1]}} end
    local p, q = parts(behind)
    if greater(p, base) then return {{'ahead', KEYS[stream + 1]}} end
    next_of[stream] = p == base and tonumber(q) + 1 or 1
  end
  at = at + 2 + ARGV[at + 1]
end
at = 3
while at <= #ARGV do
  local stream, count = ARGV[at], tonumber(ARGV[at + 1])
  local id = base .. '-' .. string.format('%.0f', next_of[stream])
  redis.call('XADD', KEYS[stream + 1], id, unpack(ARGV, at + 2, at + 1 + count))
  next_of[stream] = next_of[stream] + 1
  at = at + 2 + count
end
trim(next_of, maxlen)
return {{'done'}}
"""

-- What every script begins with: the keys of the batch, the time, and the fence of a fresh claim.
-- stores/redis/scripts.py puts this text in front of each script. Only what every call needs stands here, because a call
-- makes each of its functions anew.
--
-- Every script takes two arguments before its own:
--   ARGV[1]  floor_us, the latest time that the client has seen from any server of its store, in microseconds: 7
--            bytes, as a fence
--   ARGV[2]  limit, the bytes that a record may have; a larger value is never read into a script
--
-- On a Cluster one call takes keys of many slots of a node. Then KEYS is empty, and behind all other arguments stand
-- the keys and their number. A key that this node does not hold is ELSEWHERE, for that key alone: the caller sends it
-- again in a call of its own, with KEYS, and learns where it is. A key that the ACL keeps from the login is REFUSED, for
-- that key alone: nothing was done with it.
--
-- A fresh fence is the server's time, or floor_us + 1 if that is later. So the fence of a key that expired or
-- was forgotten still rises, also after the server's clock was set back, for every client that has seen the key's
-- last time. A client that has not seen that time may get a lower fence until the clock has caught up.
-- Leases and expiry follow the server's clock alone.

local VERSION = '\1'
local byte, char, floor = string.byte, string.char, math.floor

-- The key of operation i is keys[before + i]. Not copied into a table of their own: that costs 6 % of a fresh claim.
local keys, before, count = KEYS, 0, #KEYS
if count == 0 then
  keys, count = ARGV, tonumber(ARGV[#ARGV])
  before = #ARGV - 1 - count
end

-- A batch reads TIME once. A lease starts at the end of this millisecond and is compared with the millisecond's
-- beginning, so that a lease never ends before its full length.
local time = redis.call('TIME')
local now_us = tonumber(time[1]) * 1000000 + tonumber(time[2])
local now_ms = floor(now_us / 1000)
local from_ms = now_us % 1000 == 0 and now_ms or now_ms + 1
-- The clock's microseconds stay below 2^53, Lua's last exact number, until the year 2255.
local f1, f2, f3, f4, f5, f6, f7 = byte(ARGV[1], 1, 7)
local fresh_fence = (((((f1 * 256 + f2) * 256 + f3) * 256 + f4) * 256 + f5) * 256 + f6) * 256 + f7 + 1
if fresh_fence < now_us then fresh_fence = now_us end

-- Returns the number as 2, 6 or 7 bytes, big-endian. By arithmetic, because some servers have no `struct` and no
-- `bit`. Without a loop, because a loop over a table costs several microseconds a call.
local function pack(number, width)
  local low, rest = number % 65536, floor(number / 65536)
  local b1, b2 = low % 256, floor(low / 256)
  if width == 2 then return char(b2, b1) end
  local middle, high = rest % 65536, floor(rest / 65536)
  local b3, b4, b5, b6 = middle % 256, floor(middle / 256), high % 256, floor(high / 256) % 256
  if width == 6 then return char(b6, b5, b4, b3, b2, b1) end
  return char(floor(high / 65536), b6, b5, b4, b3, b2, b1)
end

local reply = { now_us } -- behind the time stand the answers; see the header of each script

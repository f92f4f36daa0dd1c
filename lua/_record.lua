-- Shared by every script: stores/redis/scripts.py puts this text in front of each of them.
--
-- A record is one string. Bytes, counted from 1 as Lua does:
--   1      format version                  10-15  deadline, ms since 1970: the lease's end while
--   2      state: I P W S F R                     PROCESSING, else when the record expires
--   3-9    fence                           16-17  attempt, how often the key was acquired
--   18     shape: 128 has a fingerprint, 64 is a token, the rest is the owner's length
--          (0 stands for ten random bytes, the owner that the library draws itself)
--   19-    owner, then the fingerprint (16 bytes, if any), then the payload
-- W is PROCESSING with somebody waiting: only such a record costs a PUBLISH when it is settled.
-- 44 bytes without payload at the most, Redis's limit for an embedded string.

local VERSION = '\1'
local CHANNEL = 'fastdedup:settled'
local CLAIMS = 'IPWSFR'
local OK, REENTERED, TAKEN, IN_PROGRESS, SUCCEEDED, FAILED, MISMATCH = 0, 1, 2, 3, 4, 5, 6
local UNKNOWN, LOST, FOREIGN, ALREADY, ILLEGAL, STALE, ABSENT = 7, 8, 9, 10, 11, 12, 13
local OUTRANKED, OVERRULED, UNCONFIRMED, UNSURE = 14, 15, 16, 17

local byte, char, sub, floor = string.byte, string.char, string.sub, math.floor

-- TIME once a batch: the fence of a fresh claim is this number of microseconds. It exceeds every
-- fence given earlier, also of records long gone, and stays below 2^53 until the year 2255.
local time = redis.call('TIME')
local now_us = tonumber(time[1]) * 1000000 + tonumber(time[2])
local now_ms = floor(now_us / 1000)

-- Big-endian, by arithmetic: `struct` and `bit` are not everywhere that fastdedup runs. 2, 6 or 7
-- bytes; written out, as a loop over a table costs several microseconds a call.
local function pack(number, width)
  local low, rest = number % 65536, floor(number / 65536)
  local b1, b2 = low % 256, floor(low / 256)
  if width == 2 then return char(b2, b1) end
  local middle, high = rest % 65536, floor(rest / 65536)
  local b3, b4, b5, b6 = middle % 256, floor(middle / 256), high % 256, floor(high / 256) % 256
  if width == 6 then return char(b6, b5, b4, b3, b2, b1) end
  return char(floor(high / 65536), b6, b5, b4, b3, b2, b1)
end

local function unpack_number(text, first, last)
  local number = 0
  for place = first, last do
    number = number * 256 + byte(text, place)
  end
  return number
end

-- Returns: index of the owner's last byte, has a fingerprint, is a token, owner's length code.
local function shape(record)
  local code = byte(record, 18)
  local printed = code >= 128
  if printed then code = code - 128 end
  local token = code >= 64
  if token then code = code - 64 end
  return 18 + (code == 0 and 10 or code), printed, token, code
end

-- Refused (an ACL, no memory, a stale replica) says nothing of the value. A list or a hash is foreign.
local function refused(answer)
  return type(answer) == 'table' and not string.find(tostring(answer.err), 'WRONGTYPE', 1, true)
end

-- Returns what a key holds, nil where that is no record of ours.
-- `states`: the states that the caller can deal with.
local function checked(record, states)
  if type(record) ~= 'string' or #record < 19 or byte(record) ~= 1 then return nil end
  local state = sub(record, 2, 2)
  if not string.find(states, state, 1, true) then return nil end
  if state ~= 'M' then
    local last, printed = shape(record)
    if #record < last + (printed and 16 or 0) then return nil end
  end
  return record
end

-- Returns the record, false where there is none, nil as `checked`.
local function read(key, states)
  local record = redis.pcall('GET', key)
  if record == false then return false end
  if refused(record) then redis.call('GET', key) end -- raises it
  return checked(record, states)
end

-- `proof` is 7 bytes of fence (zeros: any), then the owner with its length code.
local function held_by(record, proof)
  local last, _, _, code = shape(record)
  local fence = sub(proof, 1, 7)
  return (fence == sub(record, 3, 9) or fence == '\0\0\0\0\0\0\0')
    and byte(proof, 8) == code and sub(proof, 9) == sub(record, 19, last)
end

-- Waiters poll nothing: whoever frees or settles a watched record tells them. A refused PUBLISH
-- (an ACL without the channel) must not undo the settling, so it is a pcall.
local function wake(record, key)
  if sub(record, 2, 2) == 'W' then redis.pcall('PUBLISH', CHANNEL, key) end
end

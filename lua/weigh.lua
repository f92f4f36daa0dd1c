-- Count what the buckets of ledgers hold. Nothing is changed.
--
-- KEYS[i]  a bucket's key
-- ARGV     after floor_us and limit, two per key: slot_us, width
-- returns  {now_us, code, entries, living, bytes, ...}: for each key all entries, those that are not over, and its memory;
--          code: OK, ABSENT, FOREIGN, TOO_LARGE, ELSEWHERE, REFUSED

-- Here stands _dense.lua.

local function weigh(key, slot, width)
  if width == DENSE_WIDTH then return dense(slot).weigh(key) end
  local bucket, tags, old = fetch_bucket(key, width)
  if not bucket then return bucket == false and ABSENT or tags, 0, 0, 0 end
  local entries, living = 0, 0
  local function add(from, to, step)
    for at = from, to, step do
      local then_slot = byte(bucket, at)
      if then_slot ~= 0 then
        entries = entries + 1
        if lives(then_slot, slot) then living = living + 1 end
      end
    end
  end
  add(HEAD + 1, tags - 1, width + 1 + NONCE)
  add(tags + TAG * old, #bucket, width + 1 - TAG)
  return OK, entries, living, #bucket
end

local a = 3
for i = 1, count do
  local key = keys[before + i]
  local code, entries, living, size = weigh(key, slot_of(tonumber(ARGV[a])), tonumber(ARGV[a + 1]))
  local usage, n = code == OK and redis.pcall('MEMORY', 'USAGE', key), #reply
  reply[n + 1], reply[n + 2], reply[n + 3], reply[n + 4] = code, entries, living, type(usage) == 'number' and usage or size
  a = a + 2
end
return reply

-- Look whether ledgers remember ids. Nothing is changed.
--
-- KEYS[i]  the key of the bucket that an id belongs to
-- ARGV     after floor_us and limit, runs, each for a stretch of ids of one ledger: count, slot_us, width, until_ms; then a
--          digest per key.
-- returns  {now_us, code, ...}: a code for each key: ALREADY, ABSENT, STALE, FOREIGN, TOO_LARGE, ELSEWHERE, REFUSED

local reply = { now_us }

-- Here stands _dense.lua.

local function look(key, digest, slot)
  if #digest == DENSE_WIDTH then return dense(slot).look(key, digest, '') end
  local bucket, tags, old = fetch_bucket(key, #digest)
  if bucket == nil then return tags end
  return bucket and place_of(bucket, tags, old, digest, slot) and ALREADY or ABSENT
end

local a, i = 3, 1
while i <= count do
  local last = i + tonumber(ARGV[a]) - 1
  local slot, stale = slot_of(tonumber(ARGV[a + 1])), now_ms > tonumber(ARGV[a + 3])
  a = a + 4
  for k = i, last do
    reply[k + 1] = stale and STALE or look(keys[before + k], ARGV[a], slot)
    a = a + 1
  end
  i = last + 1
end
return reply

-- How seen.lua and forget_id.lua walk through their runs, and look for an id: stores/redis/scripts.py puts this text into both.

-- Here stands _dense.lua.

-- Returns OK if the call of this nonce has remembered the id, ALREADY if another call has, or without a nonce; else a code.
-- For an id that is remembered also its bucket as `fetch_bucket`, and its place as `place_of`; of a dense ledger, whose
-- functions are `bits`, as `look` there.
local function look(key, digest, nonce, slot, bits)
  if bits then return bits.look(key, digest, nonce) end
  local bucket, tags, old = fetch_bucket(key, #digest)
  if not bucket then return tags or ABSENT end
  local place, tag = place_of(bucket, tags, old, digest, slot)
  if not place then return ABSENT end
  local from = place + #digest + 1
  local same = nonce ~= '' and not tag and same_call(sub(bucket, from, from + NONCE - 1), nonce)
  return same and OK or ALREADY, bucket, tags, old, place, tag
end

-- Answers each id with what `execute` returns, unless what is known of its ledger is too old. A run has `heads` arguments
-- for all of its ids.
local function each_id(heads, execute)
  local a, i = 3, 1
  while i <= count and ARGV[a] do
    local last = i + tonumber(ARGV[a]) - 1
    local slot, width = slot_of(tonumber(ARGV[a + 1])), tonumber(ARGV[a + 2])
    local stale = now_ms > tonumber(ARGV[a + 3]) or heads == 4 and now_ms < tonumber(ARGV[a + 4])
    local bits = width == DENSE_WIDTH and dense(slot)
    a = a + heads + 1
    for k = i, last do
      local digest, nonce = sub(ARGV[a], 1, width), sub(ARGV[a], width + 1)
      reply[k + 1] = stale and STALE or execute(keys[before + k], digest, nonce, slot, bits)
      a = a + 1
    end
    i = last + 1
  end
end

-- How seen.lua and forget_id.lua look for an id: stores/redis/scripts.py puts this text into both.

-- Here stands _dense.lua.

-- Here stands _runs.lua.

-- What the ids of a run share, which begins at `a` with slot_us, width and until_ms. `from`: the place of from_ms, if there is
-- one. `bits`: the functions for a dense ledger.
local function run_of(a, from)
  local slot, width = slot_of(tonumber(ARGV[a])), tonumber(ARGV[a + 1])
  local stale = now_ms > tonumber(ARGV[a + 2]) or from and now_ms < tonumber(ARGV[from])
  return { slot = slot, width = width, stale = stale, bits = width == DENSE_WIDTH and dense(slot) }
end

-- Returns OK if the call of this nonce has remembered the id, ALREADY if another call has, or without a nonce; else a code.
-- For an id that is remembered also its bucket as `fetch_bucket`, and its place as `place_of`; of a dense ledger as `look`
-- there.
local function look(key, entry, run)
  if run.stale then return STALE end
  local digest, nonce = sub(entry, 1, run.width), sub(entry, run.width + 1)
  if run.bits then return run.bits.look(key, digest, nonce) end
  local bucket, tags, old = fetch_bucket(key, run.width)
  if not bucket then return tags or ABSENT end
  local place, tag = place_of(bucket, tags, old, digest, run.slot)
  if not place then return ABSENT end
  local from = place + #digest + 1
  local same = nonce ~= '' and not tag and same_call(sub(bucket, from, from + NONCE - 1), nonce)
  return same and OK or ALREADY, bucket, tags, old, place, tag
end

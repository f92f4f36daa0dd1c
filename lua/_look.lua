-- How seen.lua and forget_id.lua look for an id: stores/redis/scripts.py puts this text into both.

-- Here stands _dense.lua.

-- Returns OK if the call of this nonce has remembered the id, ALREADY if another call has, or without a nonce; else a code.
-- For an id that is remembered also its bucket as `fetch_bucket`, and its place as `place_of`.
local function look(key, digest, nonce, slot)
  local bucket, tags, old = fetch_bucket(key, #digest)
  if not bucket then return tags or ABSENT end
  local place, tag = place_of(bucket, tags, old, digest, slot)
  if not place then return ABSENT end
  local from = place + #digest + 1
  local same = nonce ~= '' and not tag and same_call(sub(bucket, from, from + NONCE - 1), nonce)
  return same and OK or ALREADY, bucket, tags, old, place, tag
end

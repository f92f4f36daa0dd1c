-- Look whether ledgers remember ids. Nothing is changed.
--
-- KEYS[i]  the key of the bucket that an id belongs to; behind these those of the nonces of dense ledgers, see _dense.lua
-- ARGV     after floor_us and limit, runs, each for a stretch of ids of one ledger: count, slot_us, width, until_ms,
--          from_ms; then an entry per key: the digest, and the nonce of a call, or nothing.
--          from_ms: the server's time from which nobody remembers ids there any more, as another form took its place
-- returns  {now_us, code, ...}: a code for each key: ALREADY, OK (the call of this nonce has remembered the id), ABSENT, STALE
--          (what is known of the ledger is too old, or from_ms is to come), FOREIGN, TOO_LARGE, ELSEWHERE, REFUSED

-- Here stands _dense.lua.

local function look(key, entry, slot, width)
  local digest, nonce = sub(entry, 1, width), sub(entry, width + 1)
  if width == DENSE_WIDTH then return dense(slot).look(key, digest, nonce) end
  local bucket, tags, old = fetch_bucket(key, width)
  if bucket == nil then return tags end
  local place, tag
  if bucket then place, tag = place_of(bucket, tags, old, digest, slot) end
  if not place then return ABSENT end
  local same = nonce ~= '' and not tag and same_call(sub(bucket, place + width + 1, place + width + NONCE), nonce)
  return same and OK or ALREADY
end

local a, i = 3, 1
while i <= count and ARGV[a] do
  local last = i + tonumber(ARGV[a]) - 1
  local slot, width = slot_of(tonumber(ARGV[a + 1])), tonumber(ARGV[a + 2])
  local stale = now_ms > tonumber(ARGV[a + 3]) or now_ms < tonumber(ARGV[a + 4])
  a = a + 5
  for k = i, last do
    reply[k + 1] = stale and STALE or look(keys[before + k], ARGV[a], slot, width)
    a = a + 1
  end
  i = last + 1
end
return reply

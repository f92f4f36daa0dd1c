-- Look whether ledgers remember ids. Nothing is changed.
--
-- KEYS[i]  the key of the bucket that an id belongs to; behind these those of the nonces of dense ledgers, see _dense.lua
-- ARGV     after floor_us and limit, runs, each for a stretch of ids of one ledger: count, slot_us, width, until_ms,
--          from_ms; then an entry per key: the digest, and the nonce of a call, or nothing.
--          from_ms: the server's time from which nobody remembers ids there any more, as another form took its place
-- returns  {now_us, code, ...}: a code for each key: ALREADY, OK (the call of this nonce has remembered the id), ABSENT, STALE
--          (what is known of the ledger is too old, or from_ms is to come), FOREIGN, TOO_LARGE, ELSEWHERE, REFUSED

-- Here stands _look.lua.

local a, i = 3, 1
while i <= count and ARGV[a] do
  local last = i + tonumber(ARGV[a]) - 1
  local slot, width = slot_of(tonumber(ARGV[a + 1])), tonumber(ARGV[a + 2])
  local stale, bits = now_ms > tonumber(ARGV[a + 3]) or now_ms < tonumber(ARGV[a + 4]), width == DENSE_WIDTH and dense(slot)
  a = a + 5
  for k = i, last do
    local digest, nonce = sub(ARGV[a], 1, width), sub(ARGV[a], width + 1)
    reply[k + 1] = stale and STALE or (bits and bits.look or look)(keys[before + k], digest, nonce, slot)
    a = a + 1
  end
  i = last + 1
end
return reply

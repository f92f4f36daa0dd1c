-- Claim each key: the first claimant becomes its owner, every other claimant learns the key's state.
--
-- KEYS[i]  a record's key; in a run whose mode is unless, behind it the key of the bucket that its id belongs to: both are
--          in one slot
-- ARGV     after floor_us and limit, runs, each for a stretch of keys with equal terms: count, lease_ms,
--          keep_ms, mode, watch; then a tail per key: shape, owner and fingerprint as they stand in the record.
--          mode: claim | redeem (only what was issued) | consume (redeem and succeed in one step) | unless (claim what a
--          ledger does not know; such a run also has slot_us, width and until_ms, as for seen.lua, behind watch, and an
--          id's digest behind each tail)
--          keep_ms: how long the record lives, the lease included
-- returns  {now_us, i, code, record, ...}: a triple for each key that was not freshly acquired. AGAIN for a key with a
--          large result, if this call has brought enough of those: nothing was done, ask again in another call.
--          Behind the record of a key that was TAKEN over stand the former fence (7 bytes), and the former owner with
--          its length code. With unless: UNKNOWN (the ledger knows the id and the key has no record, or one that is free
--          to claim: it is done; any other record says more than the ledger), STALE (what is known of the ledger is too
--          old: nothing was done)

local fence, first = pack(fresh_fence, 7), '\0\1'

-- Here stands _claims.lua.

-- Write first, read only on conflict: a fresh key costs one command and one string. After a conflict, read first:
-- duplicates come in crowds. Not SET with NX and GET, which Redis 7 has: it copies the present value, whatever its
-- size; 300 MB take 2.5 s.
-- Not by redis.call: a key of another node, or one that the login may not use, must not fail its neighbours.
local ARGV, pcall = ARGV, redis.pcall
local meet, claim_unless, met

local a, i = 3, 1
while i <= count do
  local last = i + tonumber(ARGV[a]) - 1
  local lease, keep, mode, watch = tonumber(ARGV[a + 1]), ARGV[a + 2], ARGV[a + 3], ARGV[a + 4] == '1'
  a = a + 5
  local state = mode == 'consume' and 'S' or 'P'
  local ends = from_ms + (mode == 'consume' and tonumber(keep) or lease)
  local deadline = pack(ends, 6)
  local head = VERSION .. state .. fence .. deadline .. first
  local fresh_only, terms = mode == 'claim', nil
  if mode == 'unless' then
    if not meet then meet, claim_unless = conflicts() end
    last = 2 * last - i + 1
    a = claim_unless(i, last, a, {
      keep = keep, mode = 'claim', watch = watch, state = state, ends = ends, deadline = deadline, head = head,
    })
    i = last + 1
  end
  for k = i, last do
    local set = fresh_only and not met and pcall('SET', keys[before + k], head .. ARGV[a], 'NX', 'PX', keep)
    if not set or set.err then
      if not meet then meet, claim_unless = conflicts() end
      terms = terms or {
        keep = keep, mode = mode, watch = watch, state = state, ends = ends, deadline = deadline, head = head,
      }
      met = meet(k, keys[before + k], ARGV[a], terms, set)
    end
    a = a + 1
  end
  i = last + 1
end
return reply

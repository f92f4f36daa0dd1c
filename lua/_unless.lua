-- Claims with a ledger: stores/redis/scripts.py puts this text into claim.lua if a call has such claims.

-- Claims the keys of a run whose mode is unless: from the i-th to the `last`, with a bucket's key behind each. What the
-- run says of its ledger begins at `a`; returns the place at which the next run begins.
claim_unless = function(i, last, a, terms)
  -- Here stands _ledger.lua.

  -- Returns whether the ledger knows the id; nil and a code if the bucket cannot be read.
  local function is_known(key, digest, slot, width)
    local bucket, tags, old = fetch_bucket(key, width)
    if bucket == nil then return nil, tags end
    return bucket and place_of(bucket, tags, old, digest, slot) ~= nil
  end

  local slot, width, stale = slot_of(tonumber(ARGV[a])), tonumber(ARGV[a + 1]), now_ms > tonumber(ARGV[a + 2])
  local met
  a = a + 3
  for k = i, last, 2 do
    local key, known, fault = keys[before + k], nil, STALE
    if not stale then known, fault = is_known(keys[before + k + 1], ARGV[a + 1], slot, width) end
    if known == nil then
      answer(k, fault, '')
    else
      terms.known = known
      local set = not known and not met and redis.pcall('SET', key, terms.head .. ARGV[a], 'NX', 'PX', terms.keep)
      if not set or set.err then met = meet(k, key, ARGV[a], terms, set) end
    end
    a = a + 2
  end
  return a
end

-- Claim each key whose success a ledger remembers: as claim.lua, but nobody acquires a key whose id the ledger knows. It
-- is done where it has no record, or one that is free to claim: released, or its lease is over. Any other record says
-- more than the ledger: that its owner is at work, who gets the claim back, or what came of it.
--
-- KEYS[i]  KEYS[2i-1] a record's key, KEYS[2i] the key of the bucket that its id belongs to: both are in one slot
-- ARGV     after floor_us and limit, runs, each for a stretch of keys with equal terms: count, lease_ms,
--          keep_ms, mode, watch, slot_us, width, until_ms; then a pair per key: a tail as for claim.lua, and the digest.
--          mode: claim, always
--          slot_us, width, until_ms: as for seen.lua
-- returns  {now_us, i, code, record, ...}: as claim.lua, and UNKNOWN (the ledger knows the id, and nobody holds the
--          key: it is done), STALE (what is known of the ledger is too old: nothing was done)

local reply = { now_us }
local fence, first = pack(fresh_fence, 7), '\0\1'
-- Here stands _record.lua.

-- Here stands _ledger.lua.

-- Here stands _claims.lua.

local pcall = redis.pcall
local meet, met

local function answer(i, code)
  local n = #reply
  reply[n + 1], reply[n + 2], reply[n + 3] = i, code, ''
end

-- Returns whether the ledger knows the id; nil and a code where the bucket cannot be read.
local function is_known(key, digest, ledger)
  local bucket, tags, old = fetch_bucket(key, ledger.width)
  if bucket == nil then return nil, tags end
  return bucket and place_of(bucket, tags, old, digest, ledger.slot) ~= nil
end

local function claim(i, key, tail, known, terms)
  local set = not known and not met and pcall('SET', key, terms.head .. tail, 'NX', 'PX', terms.keep)
  if set and not set.err then return end
  meet = meet or conflicts()
  terms.known = known
  met = meet(i, key, tail, terms, set)
end

local a, i, ops = 3, 1, count / 2
while i <= ops do
  local last = i + tonumber(ARGV[a]) - 1
  local lease, keep, watch = tonumber(ARGV[a + 1]), ARGV[a + 2], ARGV[a + 4] == '1'
  local ledger = { slot = slot_of(tonumber(ARGV[a + 5])), width = tonumber(ARGV[a + 6]) }
  local stale = now_ms > tonumber(ARGV[a + 7])
  a = a + 8
  local ends = from_ms + lease
  local deadline = pack(ends, 6)
  local terms = {
    keep = keep, mode = 'claim', watch = watch, state = 'P', ends = ends, deadline = deadline,
    head = VERSION .. 'P' .. fence .. deadline .. first,
  }
  for k = i, last do
    local key, known, fault = keys[before + 2 * k - 1], nil, STALE
    if not stale then known, fault = is_known(keys[before + 2 * k], ARGV[a + 1], ledger) end
    if known == nil then
      answer(k, fault)
    else
      claim(k, key, ARGV[a], known, terms)
    end
    a = a + 2
  end
  i = last + 1
end
return reply

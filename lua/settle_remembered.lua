-- Complete each key whose success a ledger remembers, for its present owner only: the ledger remembers its id, and the
-- record stays for a moment as the echo of the success, both in one step. A repeated completion gets the answer of the first.
--
-- KEYS[i]  KEYS[2i-1] a record's key, KEYS[2i] the key of the bucket that its id belongs to: both are in one slot
-- ARGV     after floor_us and limit, runs: count, slot_us, keep_ms, width, young, named, most, until_ms, echo_ms; then
--          per key: proof (fence and owner), payload, entry.
--          slot_us to until_ms, and entry: as for first.lua; echo_ms: how long the record stays
-- returns  {now_us, 0, entries, i, code, ...}: as for first.lua; a pair for each key that was not settled: LOST, STALE, FULL
--          (as for first.lua: nothing was done), FOREIGN, TOO_LARGE, ELSEWHERE, REFUSED

local reply = { now_us, 0, 0 }
-- Here stands _record.lua.

-- Here stands _ledger.lua.

-- Here stands _remember.lua.

-- Here stands _settle.lua.

local a, i, ops = 3, 1, count / 2
while i <= ops do
  local last = i + tonumber(ARGV[a]) - 1
  local ledger, stale, keep = ledger_of(a), now_ms > tonumber(ARGV[a + 7]), ARGV[a + 8]
  local deadline = pack(from_ms + tonumber(keep), 6)
  a = a + 9
  for k = i, last do
    local bucket, entry = keys[before + 2 * k], ARGV[a + 2]
    local function note()
      if stale then return STALE end
      local code = remember(bucket, entry, ledger)
      -- ALREADY: a call of `first`, which does not see claims, has put the id meanwhile. The work is done and the id is
      -- known all the same, so the owner is not told of an error that it could not mend.
      return code ~= ALREADY and code or nil
    end
    local code = settle(keys[before + 2 * k - 1], 'S', deadline, keep, ARGV[a], ARGV[a + 1], note)
    if code ~= OK then
      reply[#reply + 1] = k
      reply[#reply + 1] = code
    end
    a = a + 3
  end
  i = last + 1
end
reply[3] = entries
return reply

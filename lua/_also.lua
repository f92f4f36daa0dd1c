-- Completions with a ledger: stores/redis/scripts.py puts this text into settle.lua if a call has such completions.

-- Makes the functions for ledgers. Returns `noting`, which makes the `note` of a run, and `filled`. Called at the first run
-- that has a ledger, because most calls have none.
ledgers = function()
  -- Here stands _ledger.lua.

  -- Here stands _remember.lua.

  -- What the run says of its ledger begins at `a`.
  local function noting(a)
    local ledger, stale = ledger_of(a), now_ms > tonumber(ARGV[a + 6])
    return function(bucket, entry)
      if stale then return STALE end
      local code = remember(bucket, entry, ledger)
      -- ALREADY: a call of `first`, which does not see claims, has put the id meanwhile. The work is done and the id is
      -- known all the same, so the owner is not told of an error that it could not mend.
      return code ~= ALREADY and code or nil
    end
  end

  -- Returns how many entries the buckets of this call have.
  local function filled() return entries end

  return noting, filled
end

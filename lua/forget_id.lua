-- Remove ids from ledgers: for good, or only what one call has remembered.
--
-- KEYS[i]  the key of the bucket that an id belongs to; behind these those of the nonces of dense ledgers, see _dense.lua
-- ARGV     after floor_us and limit, runs, each for a stretch of ids of one ledger: count, slot_us, width, until_ms; then an
--          entry per key: the digest, and the nonce of the call whose entry is to go, or nothing for any entry.
-- returns  {now_us, code, ...}: a code for each key: OK, ABSENT, STALE, FOREIGN, TOO_LARGE, ELSEWHERE, REFUSED

-- Here stands _look.lua.

-- Returns the bucket without the entry at `place`; `tag` is nil for a young entry.
local function without(bucket, tags, old, place, tag, width)
  if tag then
    local left, size = old - 1, width + 1 - TAG
    return sub(bucket, 1, HEAD - 2) .. char(floor(left / 256), left % 256) .. sub(bucket, HEAD + 1, tag - 1)
      .. sub(bucket, tag + TAG, place - 1) .. sub(bucket, place + size)
  end
  local step = width + 1 + NONCE
  return sub(bucket, 1, place - 1) .. sub(bucket, place + step, tags - 1) .. string.rep('\0', step) .. sub(bucket, tags)
end

local function remove(key, entry, run)
  local code, bucket, tags, old, place, tag = look(key, entry, run)
  if code == ALREADY and #entry > run.width then return ABSENT end
  if code ~= OK and code ~= ALREADY then return code end
  if run.bits then return run.bits.remove(bucket, tags, sub(entry, 1, run.width)) or OK end -- `tags`: the place
  return put('SET', key, without(bucket, tags, old, place, tag, run.width), 'KEEPTTL') or OK
end

each_run(3, remove, run_of, true)
return reply

-- Let each key's record live for at least a while from now, for its present owner only. The lease does not change.
--
-- KEYS[i]  a record's key
-- ARGV     after floor_us and limit, runs: count, keep_ms; then a proof (fence and owner) per key
-- returns  {now_us, i, code, ...}: a pair for each key that was not touched: LOST, FOREIGN, TOO_LARGE, ELSEWHERE, REFUSED

-- Here stands _runs.lua.

local function touch(key, proof, keep)
  local record, fault = owned(key, proof)
  if not record then return fault end
  local state = sub(record, 2, 2)
  if state ~= 'P' and state ~= 'W' then return LOST end
  -- Not PEXPIRE with GT, which Redis 7 has.
  if tonumber(keep) > redis.call('PTTL', key) then return put('PEXPIRE', key, keep) or OK end
  return write_again(key) or OK
end

each_run(1, touch, function(a) return ARGV[a] end)
return reply

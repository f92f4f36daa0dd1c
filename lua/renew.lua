-- Give each key's present owner a lease that runs from now. The record never lives for less time than before.
--
-- KEYS[i]  a record's key
-- ARGV     after floor_us and limit, runs: count, lease_ms, keep_ms; then a proof (fence and owner) per key
-- returns  {now_us, i, code, ...}: a pair for each key that was not renewed: LOST, FOREIGN, TOO_LARGE, ELSEWHERE, REFUSED

-- Here stands _runs.lua.

local function renew(key, proof, deadline, keep)
  local record, fault = owned(key, proof)
  if not record then return fault end
  local state = sub(record, 2, 2)
  -- Where the lease ran out and no other owner took the key over, the claim is still its owner's.
  if state ~= 'P' and state ~= 'W' then return LOST end
  local refusal = put('SETRANGE', key, 9, deadline)
  if not refusal and tonumber(keep) > redis.call('PTTL', key) then refusal = put('PEXPIRE', key, keep) end
  if refusal then return refusal end
  -- Those who wait know when the former lease ends, and would sleep beyond the end of this one.
  if unpack_number(record, 10, 15) > unpack_number(deadline, 1, 6) then wake(record, key) end
  return OK
end

each_run(2, renew, function(a) return pack(from_ms + tonumber(ARGV[a]), 6), ARGV[a + 1] end)
return reply

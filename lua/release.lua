-- Release each key, for its present owner only: the key is free to claim again, attempt and fence keep counting.
--
-- KEYS[i]  a record's key
-- ARGV     after floor_us and limit, runs: count, consumed (1 or 0); then a proof (fence and owner) per key.
--          consumed: if 1, a token that its owner consumed in one step is also issued again
-- returns  {now_us, i, code, ...}: a pair for each key that was not released: LOST, FOREIGN, TOO_LARGE, ELSEWHERE, REFUSED

-- Here stands _runs.lua.

-- Returns the record as it stands after the release. The owner did nothing under this key, so the next request may
-- differ: the fingerprint goes. A token is issued again and keeps its subject.
local function freed(record)
  local last, _, token, code = shape(record)
  if token then return VERSION .. 'I' .. sub(record, 3, 9) .. pack(0, 6) .. sub(record, 16) end
  return VERSION .. 'R' .. sub(record, 3, 9) .. pack(0, 6) .. sub(record, 16, 17) .. char(code) .. sub(record, 19, last)
end

local function release(key, proof, consumed)
  local record, fault = owned(key, proof)
  if not record then return fault end
  local state = sub(record, 2, 2)
  if state == 'R' or state == 'I' then -- the reply to the first try was lost
    return write_again(key) or OK
  end
  if state ~= 'P' and state ~= 'W' then
    local _, head, token = shape(record)
    -- A token with a payload was redeemed and completed.
    if not (consumed and state == 'S' and token and #record == head) then return LOST end
  end
  local refusal = put('SET', key, freed(record), 'KEEPTTL')
  if refusal then return refusal end
  wake(record, key)
  return OK
end

each_run(1, release, function(a) return ARGV[a] == '1' end)
return reply

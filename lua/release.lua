-- Release each key, for its present owner only: free to claim again, attempt and fence keep counting.
--
-- KEYS[i]  a record's key
-- ARGV[i]  proof (fence and owner)
-- returns  {now_us, i, code, ...}: a pair for each key that was not released: LOST, FOREIGN

local reply = { now_us }

local function release(key, proof)
  local record = read(key, CLAIMS)
  if record == nil then return FOREIGN end
  if not record or not held_by(record, proof) then return LOST end
  local state = sub(record, 2, 2)
  if state == 'R' or state == 'I' then return OK end -- the reply to the first try was lost
  if state ~= 'P' and state ~= 'W' then return LOST end
  local last, printed, token, code = shape(record)
  local freed
  if token then -- issued again, and still bound to its subject
    freed = VERSION .. 'I' .. sub(record, 3, 9) .. pack(0, 6) .. sub(record, 16)
  else -- nothing happened under this key, so the next request may be another one: no fingerprint
    freed = VERSION .. 'R' .. sub(record, 3, 9) .. pack(0, 6) .. sub(record, 16, 17)
      .. char(code) .. sub(record, 19, last)
  end
  redis.call('SET', key, freed, 'KEEPTTL')
  wake(record, key)
  return OK
end

for i, key in ipairs(KEYS) do
  local code = release(key, ARGV[i])
  if code ~= OK then
    reply[#reply + 1] = i
    reply[#reply + 1] = code
  end
end
return reply

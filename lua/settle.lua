-- Complete or fail each key, for its present owner only. A repeated settling gets the answer of the first; but
-- one with a payload gets LOST if the record has none.
--
-- KEYS[i]  a record's key; in a run whose state is also, behind it the key of the bucket that its id belongs to: both are in
--          one slot
-- ARGV     after floor_us and limit, runs: count, state, keep_ms; then per key: proof (fence and owner), payload.
--          state: S | F | also (complete, and let a ledger remember the id in the same step; such a run also has slot_us,
--          keep_ms, width, young, named, most and until_ms, as for first.lua, behind its own keep_ms, and an entry behind
--          each payload)
-- returns  {now_us, i, code, ...}: a pair for each key that was not settled: LOST, FOREIGN, TOO_LARGE, ELSEWHERE, REFUSED;
--          with also STALE, FULL (as for first.lua: nothing was done), and at last 0 and how many entries the buckets have

-- `note`: called with `bucket` and `entry` once the record is known to be this owner's and still open; a code that it
-- returns is the answer, and then the record stays as it is.
local function settle(key, state, deadline, keep, proof, payload, note, bucket, entry)
  local record, fault = owned(key, proof)
  if not record then return fault end
  local present = sub(record, 2, 2)
  local _, head = shape(record)
  if present == state and (payload == '' or #record > head) then -- the reply to the first try was lost
    return write_again(key) or OK
  end
  if present ~= 'P' and present ~= 'W' then return LOST end
  fault = note and note(bucket, entry)
  if fault then return fault end
  local settled = sub(record, 16, head) .. payload
  local refusal = put('SET', key, VERSION .. state .. sub(record, 3, 9) .. deadline .. settled, 'PX', keep)
  if refusal then return refusal end
  wake(record, key)
  return OK
end

local ledgers
-- Here stands _also.lua.

local noting, filled
local a, i = 3, 1
while i <= count do
  local state, keep, each, note = ARGV[a + 1], ARGV[a + 2], 1, nil
  local deadline, size = pack(from_ms + tonumber(keep), 6), tonumber(ARGV[a])
  a = a + 3
  if state == 'also' then
    if not noting then noting, filled = ledgers() end
    state, each, note = 'S', 2, noting(a)
    a = a + 7
  end
  local last = i + each * size - 1
  for k = i, last, each do
    local code = settle(keys[before + k], state, deadline, keep, ARGV[a], ARGV[a + 1], note, keys[before + k + 1], ARGV[a + 2])
    if code ~= OK then
      reply[#reply + 1] = k
      reply[#reply + 1] = code
    end
    a = a + 1 + each
  end
  i = last + 1
end
if filled then
  reply[#reply + 1] = 0
  reply[#reply + 1] = filled()
end
return reply

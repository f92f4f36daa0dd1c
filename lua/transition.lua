-- Move each state machine to a state, if its present state allows that.
--
-- KEYS[i]  a machine's key
-- ARGV     after floor_us and limit, seven per key: keep_ms, change (10 bytes naming this call), version ('' for any), to,
--          initial, sources (the states that may move to `to`, each between line feeds),
--          again ('1' if this call was sent before and got no reply, else '')
-- returns  {now_us, code, version, state, ...}: a triple for each key:
--          OK (changed), ALREADY, ILLEGAL, STALE, FOREIGN, TOO_LARGE, ELSEWHERE, REFUSED, UNSURE (sent again, and the record
--          does not tell whether this call moved the machine before: nothing was changed)

local function transition(key, keep, change, expected, to, initial, sources, again)
  local record, fault = read(key, 'M')
  if record == nil then return fault, 0, '' end
  local state, version, last = initial, 0, ''
  if record then
    state, version, last = sub(record, 20), unpack_number(record, 3, 9), sub(record, 10, 19)
  end
  if last == change then -- the reply to the first try was lost
    return write_again(key) or OK, version, state
  end
  expected = tonumber(expected)
  -- The record names only its last change, so a later change may hide ours. Ours would have made version 1, or the
  -- version after the expected one; at that version the record still names it.
  if again == '1' and version > (expected or 0) + 1 then return UNSURE, version, state end
  local behind = expected and version - expected or 0
  -- One version later and in the wanted state: the same message was delivered again.
  if state == to and (behind == 0 or behind == 1) then
    return record and write_again(key) or ALREADY, version, state -- so that the replicas are asked for the former change
  end
  if behind ~= 0 then return STALE, version, state end
  if not string.find(sources, '\n' .. state .. '\n', 1, true) then return ILLEGAL, version, state end
  version = version + 1
  if put('SET', key, VERSION .. 'M' .. pack(version, 7) .. change .. to, 'PX', keep) then return REFUSED, 0, '' end
  return OK, version, to
end

for i = 1, count do
  local key = keys[before + i]
  local a = 7 * (i - 1) + 2
  reply[3 * i - 1], reply[3 * i], reply[3 * i + 1] =
    transition(key, ARGV[a + 1], ARGV[a + 2], ARGV[a + 3], ARGV[a + 4], ARGV[a + 5], ARGV[a + 6], ARGV[a + 7])
end
return reply

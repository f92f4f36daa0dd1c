-- Remove each record, without asking for its owner: administration, not part of a claim's life.
--
-- KEYS[i]  a record's key
-- ARGV     after floor_us and limit, nothing
-- returns  {now_us, code, ...}: a code for each key: OK, ABSENT, FOREIGN, TOO_LARGE, ELSEWHERE, REFUSED

for i = 1, count do
  local key = keys[before + i]
  local record, fault = read(key, CLAIMS .. 'M')
  if record then fault = put('DEL', key) end
  if record and not fault then wake(record, key) end
  reply[i + 1] = fault or record and OK or ABSENT
end
return reply

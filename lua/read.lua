-- Read each record. Nothing is changed.
--
-- KEYS[i]  a record's key
-- ARGV     after floor_us and limit, nothing
-- returns  {now_us, code, record, ttl_ms, ...}: a triple for each key: OK, ABSENT, FOREIGN, TOO_LARGE, ELSEWHERE, REFUSED

for i = 1, count do
  local key = keys[before + i]
  local record, fault = read(key, CLAIMS .. 'M')
  local code = record == nil and fault or record == false and ABSENT or OK
  local n = #reply
  reply[n + 1], reply[n + 2], reply[n + 3] = code, record or '', record and redis.call('PTTL', key) or 0
end
return reply

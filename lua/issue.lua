-- Issue each token: a record that must exist before it can be redeemed.
--
-- KEYS[i]  a token's record key, made of its hash
-- ARGV     after floor_us and limit, runs: count, ttl_ms; then a tail per key: shape, issuer and subject
-- returns  {now_us, i, code, ...}: a pair for each key that was not issued: FOREIGN, TOO_LARGE, ELSEWHERE, REFUSED

-- Here stands _runs.lua.

local fence, attempt = pack(fresh_fence, 7), pack(0, 2)

local function issue(key, tail, head, ttl)
  local set = redis.pcall('SET', key, head .. tail, 'NX', 'PX', ttl)
  if set then return set.err and set_refused(key, head .. tail, ttl) end
  local record, fault = read(key, CLAIMS)
  -- The same issuer issues again because its reply was lost. Any other value under 128 random bits is foreign.
  if not record or sub(record, 18) ~= tail then return fault or FOREIGN end
  return write_again(key)
end

each_run(1, issue, function(a)
  return VERSION .. 'I' .. fence .. pack(from_ms + tonumber(ARGV[a]), 6) .. attempt, ARGV[a]
end)
return reply

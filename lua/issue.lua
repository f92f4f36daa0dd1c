-- Issue each token: a record that must exist before it can be redeemed.
--
-- KEYS[i]  a token's record key, made of its hash
-- ARGV     after floor_us and limit, runs: count, ttl_ms; then a tail per key: shape, issuer and subject
-- returns  {now_us, i, code, ...}: a pair for each key that was not issued: FOREIGN, TOO_LARGE, ELSEWHERE, REFUSED

local fence, attempt = pack(fresh_fence, 7), pack(0, 2)

local a, i = 3, 1
while i <= count do
  local last = i + tonumber(ARGV[a]) - 1
  local ttl = ARGV[a + 1]
  local head = VERSION .. 'I' .. fence .. pack(from_ms + tonumber(ttl), 6) .. attempt
  a = a + 2
  for k = i, last do
    local key = keys[before + k]
    local set = redis.pcall('SET', key, head .. ARGV[a], 'NX', 'PX', ttl)
    local code = set and set.err and set_refused(key, head .. ARGV[a], ttl)
    if not set then
      local record, fault = read(key, CLAIMS)
      -- The same issuer issues again because its reply was lost. Any other value under 128 random bits is foreign.
      if not record or sub(record, 18) ~= ARGV[a] then
        code = fault or FOREIGN
      else
        code = write_again(key)
      end
    end
    if code then
      reply[#reply + 1] = k
      reply[#reply + 1] = code
    end
    a = a + 1
  end
  i = last + 1
end
return reply

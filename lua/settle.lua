-- Complete or fail each key, for its present owner only. A repeated settling gets the answer of the first.
--
-- KEYS[i]  a record's key
-- ARGV     after floor_us and limit, runs: count, state (S or F), keep_ms; then per key: proof (fence and owner), payload
-- returns  {now_us, i, code, ...}: a pair for each key that was not settled: LOST, FOREIGN, TOO_LARGE, ELSEWHERE, REFUSED

local reply = { now_us }

-- Here stands _settle.lua.

local a, i = 3, 1
while i <= count do
  local last = i + tonumber(ARGV[a]) - 1
  local state, keep = ARGV[a + 1], ARGV[a + 2]
  local deadline = pack(from_ms + tonumber(keep), 6)
  a = a + 3
  for k = i, last do
    local code = settle(keys[before + k], state, deadline, keep, ARGV[a], ARGV[a + 1])
    if code ~= OK then
      reply[#reply + 1] = k
      reply[#reply + 1] = code
    end
    a = a + 2
  end
  i = last + 1
end
return reply

-- Found a ledger, or read what it was founded with; a founded ledger is changed only by who names its present form.
-- Without a form to store it is only read: a form has a secret, which a client that watches the server's commands must not see.
--
-- KEYS[i]  a ledger's key
-- ARGV     after floor_us and limit, four per key: ttl_ms, for how long it lives at least after this call, 0 to leave
--          that; the form that is replaced, empty to replace none; the form to store, empty to store none; until_ms, the
--          server's time after which no form is stored
-- returns  {now_us, code, form, ...}: a pair for each key: OK and the form that the ledger has now, or ABSENT, STALE
--          (it is later than until_ms), FOREIGN, TOO_LARGE, ELSEWHERE, REFUSED and nothing

local MARK = VERSION .. 'N'

local function found(key, ttl, former, form, until_ms)
  local stored, fault = fetch(key)
  if stored == nil then return fault, '' end
  if stored and sub(stored, 1, 2) ~= MARK then return FOREIGN, '' end
  local present = stored and sub(stored, 3)
  if not present and form == '' then return ABSENT, '' end
  if present and (form == '' or present ~= former) then
    -- Never for less time than before: a client with a shorter window, which is refused, must not cut the ledger's life.
    local longer = ttl ~= '0' and tonumber(ttl) > redis.call('PTTL', key)
    return longer and put('PEXPIRE', key, ttl) or OK, present
  end
  if now_ms > until_ms then return STALE, '' end
  local code = put('SET', key, MARK .. form, 'PX', ttl)
  return code or OK, code and '' or form
end

local a = 3
for i = 1, count do
  local key = keys[before + i]
  reply[2 * i], reply[2 * i + 1] = found(key, ARGV[a], ARGV[a + 1], ARGV[a + 2], tonumber(ARGV[a + 3]))
  a = a + 4
end
return reply

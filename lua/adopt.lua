-- Adopt each record that was made elsewhere, while this store was out of reach, unless one that
-- outranks it stands there by now. A success outranks all but another success; else what stands does.
--
-- KEYS[i]  a record's key
-- ARGV     four per key: keep_ms, left_ms (until the record's deadline), base (the owner field, of a
--          machine the change, that this store last held as far as known; '' for none), record
-- returns  {now_us, code, former, ...}: a pair for each key, `former` the record that stood there or '':
--          OK (adopted, nobody lost), OUTRANKED (ours is lost), OVERRULED (the former is), FOREIGN

local reply = { now_us }

local function owner_of(record)
  if sub(record, 2, 2) == 'M' then return sub(record, 10, 19) end
  local last, _, _, code = shape(record)
  return char(code) .. sub(record, 19, last)
end

-- A number: Lua compares strings by the server's locale.
local function fence_of(record)
  return unpack_number(record, 3, 9)
end

local function is_settled(record)
  local state = sub(record, 2, 2)
  return state == 'S' or state == 'F'
end

-- `ends`: ms since 1970.
local function is_live(record, ends)
  local state = sub(record, 2, 2)
  return (state == 'P' or state == 'W') and ends > now_ms
end

-- Returns the code, and whether to write.
local function judge(ours, ends, base, former)
  local owner = owner_of(former)
  local same = owner == owner_of(ours)
  if sub(former, 2, 2) == 'M' or sub(ours, 2, 2) == 'M' then
    if same or owner == base then return OK, true end
    return OUTRANKED, false
  end
  local success = sub(ours, 2, 2) == 'S'
  if is_settled(former) then
    if same then return OK, false end -- it was told the store as well, and the reply was lost
    if success and sub(former, 2, 2) == 'F' then return OVERRULED, true end
    return OUTRANKED, false
  end
  if same or owner == base then return OK, true end
  local matters = is_settled(ours) or is_live(ours, ends)
  if is_live(former, unpack_number(former, 10, 15)) then
    if success then return OVERRULED, true end
    return matters and OUTRANKED or OK, false
  end
  if is_settled(ours) then return OK, true end
  -- Nobody is at work here: the later owner stands, and the fence goes on rising.
  if fence_of(ours) > fence_of(former) then return OK, true end
  return matters and OUTRANKED or OK, false
end

local function write(key, keep, ends, ours, former)
  local fence = sub(ours, 3, 9)
  -- Of a live claim its owner knows the fence; of any other it must not fall.
  if former and not is_live(ours, ends) and fence_of(former) > fence_of(ours) then fence = sub(former, 3, 9) end
  local rest = sub(ours, 2, 2) == 'M' and sub(ours, 10) or pack(ends, 6) .. sub(ours, 16)
  redis.call('SET', key, sub(ours, 1, 2) .. fence .. rest, 'PX', keep)
  if former then wake(former, key) end
end

local function adopt(key, keep, left, base, ours)
  local former = read(key, CLAIMS .. 'M')
  if former == nil then return FOREIGN, '' end
  local ends = math.max(now_ms + tonumber(left), 0)
  local code, writes = OK, true
  if former then code, writes = judge(ours, ends, base, former) end
  if writes then write(key, keep, ends, ours, former) end
  return code, former or ''
end

for i, key in ipairs(KEYS) do
  local a = 4 * (i - 1)
  local code, former = adopt(key, ARGV[a + 1], ARGV[a + 2], ARGV[a + 3], ARGV[a + 4])
  reply[#reply + 1] = code
  reply[#reply + 1] = former
end
return reply

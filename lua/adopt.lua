-- Adopt each record that was made elsewhere while this store was out of reach, unless the key now holds a record
-- that outranks the new one. A success outranks everything but another success; otherwise the present record
-- outranks the new one. An owner and a fence together name one acquisition. The full table is in
-- fastdedup/fallback/adoption.py.
--
-- KEYS[i]  a record's key
-- ARGV     after floor_us and limit, four per key: keep_ms, left_ms (until the record's deadline), base (7 bytes
--          of fence and the owner field that this store is last known to have held; of a machine its version and
--          its change; '' if nothing is known), record
-- returns  {now_us, code, former, ...}: a pair for each key, `former` the key's record before (128 bytes at most), or '':
--          OK (adopted, no claim is lost), THEIRS_STANDS (the new record is lost), OURS_STANDS (the former record is
--          lost), TOO_LARGE, ELSEWHERE, REFUSED, FOREIGN (also for a new record that fastdedup cannot have made)

local DAY = 86400000000 -- us by which another host's clock may be ahead

local function owner_of(record)
  if sub(record, 2, 2) == 'M' then return sub(record, 10, 19) end
  local last, _, _, code = shape(record)
  return char(code) .. sub(record, 19, last)
end

-- Returns seven bytes of fence and the owner, in the form of `base`.
local function holding(record)
  return sub(record, 3, 9) .. owner_of(record)
end

-- Returns a number, because Lua compares strings by the server's locale.
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

-- True for a token that was consumed in one step by an owner that the library drew. No other caller has that owner,
-- so a use under another fence is the same use, whose reply was lost.
local function is_consumed(record)
  local _, head, token, code = shape(record)
  return token and code == 0 and sub(record, 2, 2) == 'S' and #record == head
end

-- True if both records are of one acquisition, as far as they show.
local function is_same(ours, base, former)
  if holding(former) == holding(ours) then return true end
  if owner_of(former) ~= owner_of(ours) then return false end
  if is_settled(former) then return is_consumed(former) and is_consumed(ours) end
  -- The former record is not settled and has another fence: it is its owner's own claim, whose reply was lost.
  -- But where this store itself had given our holding, it has given the key away once more since.
  return base ~= holding(ours)
end

-- True if a settled record has our outcome, and a result if ours has one.
local function says(former, ours)
  local _, head = shape(former)
  local _, our_head = shape(ours)
  return sub(former, 2, 2) == sub(ours, 2, 2) and (#former > head or #ours == our_head)
end

-- Returns the code, and whether to write.
local function judge(ours, ends, base, former)
  if sub(former, 2, 2) == 'M' or sub(ours, 2, 2) == 'M' then
    local change = owner_of(former)
    if change == owner_of(ours) or change == sub(base, 8) then return OK, true end
    return THEIRS_STANDS, false
  end
  local success, same = sub(ours, 2, 2) == 'S', is_same(ours, base, former)
  if is_settled(former) then
    -- The store was told of the settling as well, and its reply was lost.
    if same and (not is_settled(ours) or says(former, ours)) then return OK, false end
    if success and sub(former, 2, 2) == 'F' then return OURS_STANDS, true end
    return THEIRS_STANDS, false
  end
  if same or holding(former) == base then return OK, true end
  local matters = is_settled(ours) or is_live(ours, ends)
  if is_live(former, unpack_number(former, 10, 15)) then
    if success then return OURS_STANDS, true end
    return matters and THEIRS_STANDS or OK, false
  end
  if is_settled(ours) then return OK, true end
  -- No live owner holds the key: the later owner stands, and the fence goes on rising.
  if fence_of(ours) > fence_of(former) then return OK, true end
  return matters and THEIRS_STANDS or OK, false
end

-- Returns as `put`.
local function write(key, keep, ends, ours, former)
  local fence, machine = sub(ours, 3, 9), sub(ours, 2, 2) == 'M'
  -- Our claim may have taken the record over without a fingerprint, and so never have heard of the record's own.
  if former and find('PWSF', sub(ours, 2, 2), 1, true) and owner_of(former) == owner_of(ours) then
    local last, head = shape(ours)
    local print = head == last and sub(former, last + 1, select(2, shape(former))) or ''
    if print ~= '' then
      ours = sub(ours, 1, 17) .. char(byte(ours, 18) + 128) .. sub(ours, 19, last) .. print .. sub(ours, head + 1)
    end
  end
  -- The fence names the record's acquisition, so it stays. But the fence of a key that is free to claim must not fall.
  local free = not (machine or is_settled(ours) or is_live(ours, ends))
  if former and free and fence_of(former) > fence_of(ours) then fence = sub(former, 3, 9) end
  local rest = machine and sub(ours, 10) or pack(ends, 6) .. sub(ours, 16)
  local refusal = put('SET', key, sub(ours, 1, 2) .. fence .. rest, 'PX', keep)
  if former and not refusal then wake(former, key) end
  return refusal
end

local function adopt(key, keep, left, base, ours)
  if not checked(ours, CLAIMS .. 'M') then return FOREIGN, '' end
  if sub(ours, 2, 2) ~= 'M' and fence_of(ours) > fresh_fence + DAY then return FOREIGN, '' end
  local former, fault = read(key, CLAIMS .. 'M')
  if former == nil then return fault, '' end
  left = tonumber(left)
  local ends = math.max((left > 0 and from_ms or now_ms) + left, 0)
  local code, writes = OK, true
  if former then code, writes = judge(ours, ends, base, former) end
  local refusal
  if writes then
    refusal = write(key, keep, ends, ours, former)
  elseif code == OK then
    refusal = write_again(key)
  end
  if refusal then return refusal, '' end
  return code, sub(former or '', 1, 128) -- a record's head has at most 97 bytes, a machine's record 83
end

for i = 1, count do
  local key = keys[before + i]
  local a = 4 * (i - 1) + 2
  reply[2 * i], reply[2 * i + 1] = adopt(key, ARGV[a + 1], ARGV[a + 2], ARGV[a + 3], ARGV[a + 4])
end
return reply

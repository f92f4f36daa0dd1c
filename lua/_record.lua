-- The functions for records: stores/redis/scripts.py puts this text behind `_batch.lua`, in front of a script's own text.
-- claim.lua names another place.
--
-- A record is one string. Bytes, counted from 1 as Lua does:
--   1      format version                  10-15  deadline, ms since 1970: the lease's end while
--   2      state: I P W S F R                     PROCESSING, else when the record expires
--   3-9    fence                           16-17  attempt, how often the key was acquired
--   18     shape: 128 has a fingerprint, 64 is a token, the rest is the owner's length
--          (0 stands for ten random bytes, the owner that the library draws itself)
--   19-    owner, then the fingerprint (16 bytes, if any), then the payload
-- The states: Issued, in Process, in process and Watched, Succeeded, Failed, Released. W means that another
-- claimant waits for the key: only such a record costs a PUBLISH when it is settled or released.
-- Without payload a record has at most 44 bytes, Redis's limit for an embedded string.
-- A machine's record: format version, M, 7 bytes of version, 10 bytes naming the last change, the state's name.

local CHANNEL = 'fastdedup:settled'
local CLAIMS = 'IPWSFR'
local OK, REENTERED, TAKEN, IN_PROGRESS, SUCCEEDED, FAILED, MISMATCH = 0, 1, 2, 3, 4, 5, 6
local UNKNOWN, LOST, FOREIGN, ALREADY, ILLEGAL, STALE, ABSENT = 7, 8, 9, 10, 11, 12, 13
local THEIRS_STANDS, OURS_STANDS, UNCONFIRMED, UNSURE, TOO_LARGE, ELSEWHERE, REFUSED, AGAIN = 14, 15, 16, 17, 18, 19, 20, 21
local FULL, PENDING = 22, 23
local MAX_STATE = 64 -- bytes of a machine's state

local sub, find = string.sub, string.find

local function unpack_number(text, first, last)
  local number = 0
  for place = first, last do
    number = number * 256 + byte(text, place)
  end
  return number
end

-- Returns four values: the last byte of the owner, that of the head (before the payload), is a token, the owner's length code.
local function shape(record)
  local bits = byte(record, 18)
  local code = bits % 64
  local last = 18 + (code == 0 and 10 or code)
  return last, bits >= 128 and last + 16 or last, bits % 128 >= 64, code
end

-- True if the ACL keeps just this key from the login. Redis up to 7.0 says the first, later servers say the second.
-- Where the ACL forbids the command, that concerns every key.
local function forbidden(refusal)
  local text = tostring(refusal.err)
  return find(text, 'access at least one of the keys', 1, true) or find(text, 'permissions to access a key', 1, true)
end

-- Returns the code for a key that could not be read: FOREIGN for a list or a hash, ELSEWHERE if this node of a Cluster
-- does not serve the key, or, since Redis 8 and Valkey 8 in other words, no node does, REFUSED as `forbidden`. A refusal that
-- concerns more than the key (an ACL, no memory, a stale replica) is raised.
local function fault_of(key, refusal)
  local text = tostring(refusal.err) -- the words around these differ between the versions
  if find(text, 'WRONGTYPE', 1, true) then return FOREIGN end
  if find(text, 'non local key', 1, true) or find(text, 'slot not served', 1, true) then return ELSEWHERE end
  if forbidden(refusal) then return REFUSED end
  redis.call('GETRANGE', key, '0', '0') -- raises the refusal
end

-- Runs a write of one key. Returns REFUSED if the ACL keeps just this key from the login, which may be allowed to
-- read it; else nil. A refusal that concerns more than the key is raised.
local function put(...)
  local answer = redis.pcall(...)
  if type(answer) ~= 'table' or not answer.err then return nil end
  if forbidden(answer) then return REFUSED end
  redis.call(...) -- raises the refusal
end

-- Returns the code for a key whose fresh record was refused; a refusal that concerns more than the key is raised. The key is
-- read first, because a replica refuses any write before it looks at the slot.
local function set_refused(key, record, keep)
  local value = redis.pcall('GETRANGE', key, '0', '0')
  return type(value) == 'table' and fault_of(key, value) or put('SET', key, record, 'NX', 'PX', keep)
end

-- True for UTF-8. Each whole character is replaced by '.', not removed: the bytes around it must not join into
-- another character.
local function is_text(name)
  if not find(name, '[\128-\255]') then return true end
  for _, character in ipairs({
    '[\194-\223][\128-\191]', '\224[\160-\191][\128-\191]', '[\225-\236\238\239][\128-\191][\128-\191]',
    '\237[\128-\159][\128-\191]', '\240[\144-\191][\128-\191][\128-\191]',
    '[\241-\243][\128-\191][\128-\191][\128-\191]', '\244[\128-\143][\128-\191][\128-\191]',
  }) do
    name = string.gsub(name, character, '.')
  end
  return not find(name, '[\128-\255]')
end

-- Returns the record; nil and FOREIGN if the value is not a record of fastdedup. Every number in a record that
-- passes is small enough to be raised by 1 and written again.
-- `states`: the states that the caller can handle.
local function checked(record, states)
  if type(record) ~= 'string' or #record < 19 then return nil, FOREIGN end
  local version, state, fence, _, _, _, _, _, _, deadline, _, _, _, _, _, high, low = byte(record, 1, 17)
  -- The first byte of a fence is 31 in the year 2246, that of a deadline 8 in the year 2248.
  if version ~= 1 or fence >= 31 or not find(states, char(state), 1, true) then return nil, FOREIGN end
  if state == 77 then -- M
    if #record > 19 and #record <= 19 + MAX_STATE and is_text(sub(record, 20)) then return record end
    return nil, FOREIGN
  end
  if deadline >= 8 or (high + low == 0 and state ~= 73) then return nil, FOREIGN end -- only I was never acquired
  local _, head = shape(record)
  if #record < head then return nil, FOREIGN end
  return record
end

-- Returns the value; false if the key is absent; nil and FOREIGN, TOO_LARGE, ELSEWHERE or REFUSED.
-- Each script touches a key by this first, so whatever follows is not refused for the key's slot. A write may still be
-- refused for the key: see `put`.
local function fetch(key)
  local value = redis.pcall('GETRANGE', key, '0', ARGV[2]) -- one byte more than the limit, of a larger value
  if value == '' then
    if redis.call('PTTL', key) == -2 then return false end
    return nil, FOREIGN
  end
  if type(value) == 'string' then
    if #value > tonumber(ARGV[2]) then return nil, TOO_LARGE end
    return value
  end
  return nil, fault_of(key, value)
end

-- Returns the record; false if the key is absent; nil and FOREIGN as `checked`; nil and a code as `fetch`.
local function read(key, states)
  local record, fault = fetch(key)
  if not record then return record, fault end
  return checked(record, states)
end

-- Returns the record of a key whose owner `proof` names; nil and LOST, or nil and a code as `read`. `proof`: 7 bytes of
-- fence (zeros match any fence), then the owner's length code and the owner.
local function owned(key, proof)
  local record, fault = read(key, CLAIMS)
  if not record then return nil, fault or LOST end
  local last, _, _, code = shape(record)
  local fence = sub(proof, 1, 7)
  if (fence == sub(record, 3, 9) or fence == '\0\0\0\0\0\0\0')
    and byte(proof, 8) == code and sub(proof, 9) == sub(record, 19, last) then return record end
  return nil, LOST
end

-- Writes a byte of the record again, and returns as `put`. Each answer that says "done" and writes nothing else must call this: it repeats
-- an operation whose first reply was lost, and `replicas=` sends WAIT behind it. WAIT waits for the last write of its own
-- connection; since Redis 8 and Valkey 8 it answers at once if that connection has written nothing, even if no
-- replica has the first write. This write follows the first one to the replicas, so a replica that confirms this one
-- has both.
local function write_again(key)
  return put('SETRANGE', key, 0, VERSION)
end

-- Tells the waiters of a watched record that it was freed or settled, so that they need not poll. A refused PUBLISH
-- (an ACL without the channel) must not undo the settling, so this is a pcall.
local function wake(record, key)
  if sub(record, 2, 2) == 'W' then redis.pcall('PUBLISH', CHANNEL, key) end
end

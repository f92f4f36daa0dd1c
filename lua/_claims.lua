-- The functions of a claim for keys that are not fresh: stores/redis/scripts.py puts this text into claim.lua.
-- `terms.known`: a ledger knows that the key is done, so no owner acquires it, even if it is free.

-- Makes the functions for keys that are not fresh, and returns `meet` and `claim_unless`. Called at the first such key,
-- because these functions cost as much as three fresh claims, and most calls do not need them.
local function conflicts()
  -- Here stands _record.lua.

  local LARGE = 4096 -- bytes of a record from which it counts as large
  local room = 4194304 -- bytes of results that this call may still bring; the last one may go beyond

  local function answer(i, code, record)
    local n = #reply
    reply[n + 1], reply[n + 2], reply[n + 3] = i, code, record
  end

  -- Returns the claimant's tail, with the fingerprint and the token mark that the record already had.
  local function adopt(tail, record)
    local last, head, token = shape(record)
    local code = byte(tail, 1)
    local size = code % 64
    local owner = sub(tail, 2, 1 + (size == 0 and 10 or size))
    local print = code >= 128 and sub(tail, 2 + #owner) or sub(record, last + 1, head)
    return char(size + (token and 64 or 0) + (print ~= '' and 128 or 0)) .. owner .. print
  end

  local function same_owner(tail, record)
    local last, _, _, code = shape(record)
    return byte(tail, 1) % 64 == code and sub(tail, 2, last - 17) == sub(record, 19, last)
  end

  local function differs(tail, record)
    local last, head = shape(record)
    return head > last and byte(tail, 1) >= 128 and sub(tail, -16) ~= sub(record, last + 1, head)
  end

  local function take(i, key, tail, record, terms)
    local fence = math.max(fresh_fence, unpack_number(record, 3, 9) + 1)
    local attempt = math.min(unpack_number(record, 16, 17) + 1, 65535)
    local last, _, _, code = shape(record)
    local former = sub(record, 3, 9) .. char(code) .. sub(record, 19, last) -- the claimant may have to ask what became of it
    record = VERSION .. terms.state .. pack(fence, 7) .. terms.deadline .. pack(attempt, 2) .. adopt(tail, record)
    if put('SET', key, record, 'PX', terms.keep) then return answer(i, REFUSED, '') end
    answer(i, TAKEN, record .. former)
  end

  -- Gives the owner's own claim back. The lease starts anew, but never ends sooner than before.
  local function reenter(i, key, record, terms)
    local refusal
    if terms.ends > unpack_number(record, 10, 15) then
      record = sub(record, 1, 9) .. terms.deadline .. sub(record, 16)
      refusal = put('SETRANGE', key, 9, terms.deadline)
    else
      refusal = write_again(key)
    end
    if not refusal and tonumber(terms.keep) > redis.call('PTTL', key) then refusal = put('PEXPIRE', key, terms.keep) end
    answer(i, refusal or REENTERED, refusal and '' or record)
  end

  -- Consumes a token that the same owner redeemed or consumed before: one use, so the fence and the attempt stay. A
  -- use that has a result was completed, so it is over.
  local function consume_own(i, key, record, state, terms)
    local _, head = shape(record)
    if #record > head then return answer(i, SUCCEEDED, record) end
    local refusal
    if state == 'S' then
      refusal = write_again(key)
    else
      local consumed = VERSION .. 'S' .. sub(record, 3, 9) .. terms.deadline .. sub(record, 16)
      refusal = put('SET', key, consumed, 'PX', terms.keep)
      if not refusal then wake(record, key) end
      record = consumed
    end
    answer(i, refusal or REENTERED, refusal and '' or record)
  end

  local function judge(i, key, tail, record, terms)
    -- Checked first: else a token whose first holder died would open to another subject.
    if differs(tail, record) then return answer(i, MISMATCH, sub(record, 1, shape(record) + 16)) end
    local state = sub(record, 2, 2)
    local live = (state == 'P' or state == 'W') and unpack_number(record, 10, 15) > now_ms
    if terms.mode == 'consume' and (live or state == 'S') and same_owner(tail, record) then
      return consume_own(i, key, record, state, terms)
    end
    if state == 'S' or state == 'F' then
      room = room - #record
      return answer(i, state == 'S' and SUCCEEDED or FAILED, record)
    end
    if not live then
      if terms.known then return answer(i, UNKNOWN, '') end
      return take(i, key, tail, record, terms)
    end
    if same_owner(tail, record) then return reenter(i, key, record, terms) end
    if terms.watch and state == 'P' and put('SETRANGE', key, 1, 'W') then return answer(i, REFUSED, '') end
    answer(i, IN_PROGRESS, record)
  end

  -- Answers for a key that may be held. Returns true if the key holds a value.
  local function contend(i, key, tail, terms)
    if room <= 0 then
      local size = redis.pcall('STRLEN', key)
      if type(size) == 'number' and size > LARGE then
        answer(i, AGAIN, '')
        return true
      end
    end
    local record, fault = read(key, CLAIMS)
    if record then
      judge(i, key, tail, record, terms)
    elseif record == nil then
      answer(i, fault, '')
    elseif terms.mode == 'claim' and not terms.known then
      if put('SET', key, terms.head .. tail, 'PX', terms.keep) then answer(i, REFUSED, '') end
    else
      answer(i, UNKNOWN, '')
    end
    return record ~= false
  end

  -- Answers for a key that the caller's own SET has not set. `set`: the refusal of that SET; false if the key holds a
  -- value, or was not tried. Returns as `contend`.
  local function meet(i, key, tail, terms, set)
    local code = set and set_refused(key, terms.head .. tail, terms.keep)
    if not code then return contend(i, key, tail, terms) end
    answer(i, code, '')
    return false
  end

  local claim_unless
  -- Here stands _unless.lua.

  return meet, claim_unless
end

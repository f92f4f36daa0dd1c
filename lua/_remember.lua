-- How a ledger remembers an id: stores/redis/scripts.py puts this text into first.lua and settle.lua.

local rep, gsub = string.rep, string.gsub
local entries = 0 -- how many entries the buckets of this call have

-- Writes the bucket anew, with a further entry. `part`: the bucket up to its old entries, which are in `others`. What ages is
-- cut by whole columns and not one entry after the other, at a quarter of the instructions.
local function rewrite(key, part, tags, old, others, entry, ledger)
  local slot, step, size = ledger.slot, ledger.step, ledger.width + 1 - TAG
  local cut = 0
  while cut < old and not lives(byte(others, cut * size + 1), slot) do cut = cut + 1 end
  local upto = tags -- what is free or over is cut out in runs of places, mostly one of each
  for at = tags - step, HEAD + 1 - step, -step do
    local then_slot = at > HEAD and byte(part, at)
    if not then_slot or then_slot ~= 0 and lives(then_slot, slot) then
      local from = at + step
      if from < upto then part, tags = sub(part, 1, from - 1) .. sub(part, upto), tags - upto + from end
      upto = at
    end
  end
  local kept = (tags - HEAD - 1) / step
  local ageing = kept < ledger.named and 0 or kept + 1 - ledger.named -- the new entry never ages: `named` is 1 at least
  local left, young_from = old - cut + ageing, HEAD + 1 + ageing * step
  if left > ledger.most then return FULL end
  local aged = sub(part, HEAD + 1, young_from - 1)
  local value = ledger.head .. char(floor(left / 256), left % 256) .. sub(part, young_from, tags - 1) .. ledger.stamp
    .. entry .. rep(ledger.zeros, ledger.young - 1 - kept + ageing)
    .. sub(part, tags + TAG * cut, tags + TAG * old - 1) .. gsub(aged, '.(..)' .. rep('.', step - 1 - TAG), '%1')
    .. sub(others, cut * size + 1) .. gsub(aged, '(.)..(' .. rep('.', size - 1) .. ')' .. rep('.', NONCE), '%1%2')
  return put('SET', key, value, 'PX', ledger.keep)
end

-- Returns nil if the id is remembered for this call, else a code. The last byte of `entry` is the call's patience, see
-- `answer_known`; what is stored has the tick there.
local function remember(key, entry, ledger)
  local width, slot, step = ledger.width, ledger.slot, ledger.step
  local bucket, tags, old, since = fetch_bucket(key, width)
  if bucket == nil then return tags end
  if not bucket then
    return put('SET', key, ledger.fresh .. sub(entry, 1, -2) .. ledger.ticked .. ledger.rest, 'PX', ledger.keep)
  end
  local place, tag = place_of(bucket, tags, old, sub(entry, 1, width), slot)
  if place then
    if tag then return ALREADY end
    local n1, n2, n3, n4, then_tick = byte(bucket, place + width + 1, place + step - 1)
    local e1, e2, e3, e4, patience = byte(entry, width + 1, width + NONCE)
    if n1 == e1 and n2 == e2 and n3 == e3 and n4 == e4 then return write_again(key) end
    return answer_known(ledger, patience, byte(bucket, place), n1, n2, n3, n4, then_tick)
  end
  local free = find(bucket, ledger.zeros, HEAD + 1, true)
  -- The nonce before a free place may end in zeros.
  free = free and HEAD + 1 + math.ceil((free - HEAD - 1) / step) * step
  entries = entries + old + (math.min(free or tags, tags) - HEAD - 1) / step
  if not free or free >= tags or (slot - since) % 255 > EXPIRY_SERVES then
    local others = sub(bucket, tags + TAG * old)
    return rewrite(key, bucket, tags, old, others, sub(entry, 1, -2) .. ledger.ticked, ledger)
  end
  return put('SETRANGE', key, free - 1, ledger.stamp .. sub(entry, 1, -2) .. ledger.ticked)
end

-- What the ids of a run share, which begins at `a` with slot_us.
local function ledger_of(a)
  local slot_us, width, young = tonumber(ARGV[a]), tonumber(ARGV[a + 2]), tonumber(ARGV[a + 3])
  local slot, tick = slot_of(slot_us), floor(now_us / TICK_US) % 256
  local head, step = VERSION .. 'L' .. char(width, slot, young), width + 1 + NONCE
  local zeros, at_once = string.rep('\0', step), tags_at_once(width)
  return {
    slot = slot, keep = ARGV[a + 1], width = width, young = young, named = tonumber(ARGV[a + 4]),
    most = tonumber(ARGV[a + 5]), head = head, step = step, zeros = zeros, stamp = char(slot),
    fresh = head .. '\0\0' .. char(slot), rest = string.rep(zeros, young - 1),
    tags = HEAD + 1 + young * step, at_once = at_once, reach = tostring(HEAD + young * step + TAG * at_once - 1),
    offsets = {}, slot_us = slot_us, tick = tick, ticked = char(tick),
  }
end

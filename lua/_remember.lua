-- How a ledger remembers an id: stores/redis/scripts.py puts this text into first.lua and settle.lua.

local entries = 0 -- how many entries the buckets of this call have

-- Writes the bucket anew, with a further entry.
local function rewrite(key, bucket, tags, old, entry, ledger)
  local width, slot, step = ledger.width, ledger.slot, ledger.step
  local entries_from, size, cut, kept = tags + TAG * old, width + 1 - TAG, 0, {}
  while cut < old and not lives(byte(bucket, entries_from + cut * size), slot) do cut = cut + 1 end
  for at = HEAD + 1, tags - 1, step do
    local then_slot = byte(bucket, at)
    if then_slot ~= 0 and lives(then_slot, slot) then kept[#kept + 1] = sub(bucket, at, at + step - 1) end
  end
  kept[#kept + 1] = ledger.stamp .. entry
  local ageing = math.max(#kept - ledger.named, 0)
  local left = old - cut + ageing
  if left > ledger.most then return FULL end
  local aged_tags, aged = {}, {}
  for i = 1, ageing do
    local item = kept[i]
    aged_tags[i] = sub(item, 2, 1 + TAG)
    aged[i] = sub(item, 1, 1) .. sub(item, 2 + TAG, width + 1)
  end
  return put('SET', key, table.concat({
    ledger.head, char(floor(left / 256), left % 256),
    table.concat(kept, '', ageing + 1), string.rep(ledger.zeros, ledger.young - #kept + ageing),
    sub(bucket, tags + TAG * cut, entries_from - 1), table.concat(aged_tags),
    sub(bucket, entries_from + cut * size), table.concat(aged),
  }), 'PX', ledger.keep)
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
    return rewrite(key, bucket, tags, old, sub(entry, 1, -2) .. ledger.ticked, ledger)
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

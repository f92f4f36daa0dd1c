-- Remember ids in ledgers: the first call that names an id within the window is told OK, every other call ALREADY.
--
-- KEYS[i]  the key of the bucket that an id belongs to
-- ARGV     after floor_us and limit, runs, each for a stretch of ids of one ledger: count, slot_us, keep_ms, width, young,
--          named, most, until_ms; then an entry per key: the digest, and the nonce of this call.
--          width: 9 for a dense ledger; then young is how many cells a bucket has, and most how many strays it may have
--          keep_ms: how long a bucket lives once its expiry is set; young: places for the youngest entries
--          named: how many entries keep their nonces when the bucket is written anew
--          most: entries that a bucket may have
--          until_ms: the server's time until which the client may rely on what it knows of the ledger
--          nonce: 4 bytes that name the call, and how many ticks of half a second it waits for another call that may be
--          taken back
-- returns  {now_us, 0, entries, i, code, ...}: how many entries (of a dense ledger: strays) the buckets of this call have, to
--          learn how full the ledger is; a pair for each key that was not OK: ALREADY, PENDING (remembered for a call that may
--          still be taken back), STALE (what is known of the ledger is too old: nothing was
--          done), FULL (the bucket has no room: nothing was done), FOREIGN, TOO_LARGE, ELSEWHERE, REFUSED

reply[2], reply[3] = 0, 0
local pcall, rep, gsub = redis.pcall, string.rep, string.gsub

local function answer(i, code)
  local n = #reply
  reply[n + 1], reply[n + 2] = i, code
end

-- Here stands _remember.lua.

-- Here stands _dense.lua.

-- Writes a bucket anew whose young places are all taken, with a further entry: as `rewrite`, at a quarter of its
-- instructions, because it cuts whole columns and not one entry after the other. `part`: the bucket up to its tags.
-- Returns true where it was done; else nothing was done: where a young entry is over, too.
local function turn_over(key, part, old, entry, ledger)
  local width, slot, step, tags = ledger.width, ledger.slot, ledger.step, ledger.tags
  local size, old_from = width + 1 - TAG, tags + TAG * old
  local others = pcall('GETRANGE', key, old_from - 1, old_from - 1 + size * old) -- one byte more than there may be
  if type(others) ~= 'string' or #others ~= size * old then return false end
  for at = HEAD + 1, tags - 1, step do
    if not lives(byte(part, at), slot) then return false end
  end
  local cut, ageing = 0, ledger.young + 1 - ledger.named
  while cut < old and not lives(byte(others, cut * size + 1), slot) do cut = cut + 1 end
  local left, young_from = old - cut + ageing, HEAD + 1 + ageing * step
  if left > 255 or left > ledger.most then return false end
  local aged = sub(part, HEAD + 1, young_from - 1)
  local value = ledger.head .. char(0, left) .. sub(part, young_from, tags - 1) .. ledger.stamp .. entry
    .. rep(ledger.zeros, ledger.young - ledger.named)
    .. sub(part, tags + TAG * cut, old_from - 1) .. gsub(aged, '.(..)' .. rep('.', step - 1 - TAG), '%1')
    .. sub(others, cut * size + 1) .. gsub(aged, '(.)..(' .. rep('.', width - TAG) .. ')' .. rep('.', NONCE), '%1%2')
  entries = entries + old + ledger.young
  return pcall('SET', key, value, 'PX', ledger.keep).ok ~= nil
end

-- The way of nearly every id, which saves a sixth of the instructions: it is new, and its bucket has a free place. The
-- same as `remember`, but that it reads no more than the tags. Returns true where the id was remembered; else nothing was done.
local function fill(key, entry, ledger)
  local part, tags = pcall('GETRANGE', key, '0', ledger.reach), ledger.tags
  if #part < tags - 1 then return false end -- absent, or an error
  local version, kind, stored, since, young, high, low = byte(part, 1, HEAD)
  if stored ~= ledger.width or young ~= ledger.young or kind ~= 76 or version ~= 1 or high > 0 or low > ledger.at_once
    or (ledger.slot - since) % 255 > EXPIRY_SERVES then return false end
  -- The tag alone, also of the young entries: nearly every new id has one of its own.
  local at = find(part, sub(entry, 1, TAG), HEAD + 2, true)
  if at and at < tags + TAG * low then return false end
  local free, step = find(part, ledger.zeros, HEAD + 1, true), ledger.step
  if not free then return turn_over(key, part, low, sub(entry, 1, -2) .. ledger.ticked, ledger) end
  local beyond = (free - HEAD - 1) % step
  if beyond > 0 then free = free + step - beyond end -- the nonce before ends in zeros
  if free >= tags then return turn_over(key, part, low, sub(entry, 1, -2) .. ledger.ticked, ledger) end
  local offset = ledger.offsets[free]
  if not offset then
    offset = tostring(free - 1)
    ledger.offsets[free] = offset
  end
  entries = entries + low + (free - HEAD - 1) / step
  return type(pcall('SETRANGE', key, offset, ledger.stamp .. sub(entry, 1, -2) .. ledger.ticked)) == 'number'
end

local a, i = 3, 1
while i <= count do
  local last = i + tonumber(ARGV[a]) - 1
  local ledger, stale = ledger_of(a + 1), now_ms > tonumber(ARGV[a + 7])
  a = a + 8
  local bits = ledger.width == DENSE_WIDTH and dense(ledger.slot)
  for k = i, last do
    if stale then
      answer(k, STALE)
    elseif bits then
      entries = entries + bits.first(k, keys[before + k], ARGV[a], ledger, answer)
    elseif not fill(keys[before + k], ARGV[a], ledger) then
      local code = remember(keys[before + k], ARGV[a], ledger)
      if code then answer(k, code) end
    end
    a = a + 1
  end
  if bits then bits.write(ledger, answer) end
  i = last + 1
end
reply[3] = entries
return reply

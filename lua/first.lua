-- Remember ids in ledgers: the first call that names an id within the window is told OK, every other call ALREADY.
--
-- KEYS[i]  the key of the bucket that an id belongs to; behind these those of the nonces of dense ledgers, see _dense.lua
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
local ARGV, pcall = ARGV, redis.pcall

local function answer(i, code)
  local n = #reply
  reply[n + 1], reply[n + 2] = i, code
end

-- Here stands _remember.lua.

-- Here stands _dense.lua.

-- The way of nearly every id, which saves a sixth of the instructions: it is new. The same as `remember`, but that it reads
-- no more than the tags, and the old entries only if no place is free. Any other id is left to `remember`.
local function fill(key, entry, ledger)
  local part, tags = pcall('GETRANGE', key, '0', ledger.reach), ledger.tags
  if #part < tags - 1 then return remember(key, entry, ledger) end -- absent, or an error
  local version, kind, stored, since, young, high, low = byte(part, 1, HEAD)
  if stored ~= ledger.width or young ~= ledger.young or kind ~= 76 or version ~= 1 or high > 0 or low > ledger.at_once
    or (ledger.slot - since) % 255 > EXPIRY_SERVES then return remember(key, entry, ledger) end
  -- The tag alone, also of the young entries: nearly every new id has one of its own.
  local at = find(part, sub(entry, 1, TAG), HEAD + 2, true)
  if at and at < tags + TAG * low then return remember(key, entry, ledger) end
  local free, step = find(part, ledger.zeros, HEAD + 1, true) or tags, ledger.step
  local beyond = (free - HEAD - 1) % step
  if beyond > 0 then free = free + step - beyond end -- the nonce before ends in zeros
  if free >= tags then
    local old_from, size = tags + TAG * low, (ledger.width + 1 - TAG) * low
    local old = pcall('GETRANGE', key, old_from - 1, old_from - 1 + size) -- one byte more than there may be
    if type(old) ~= 'string' or #old ~= size then return remember(key, entry, ledger) end
    entries = entries + low + ledger.young
    return rewrite(key, part, tags, low, old, sub(entry, 1, -2) .. ledger.ticked, ledger)
  end
  local offset = ledger.offsets[free]
  if not offset then
    offset = tostring(free - 1)
    ledger.offsets[free] = offset
  end
  entries = entries + low + (free - HEAD - 1) / step
  local written = pcall('SETRANGE', key, offset, ledger.stamp .. sub(entry, 1, -2) .. ledger.ticked)
  return type(written) ~= 'number' and remember(key, entry, ledger) or nil
end

local a, i = 3, 1
while i <= count and ARGV[a] do
  local last = i + tonumber(ARGV[a]) - 1
  local ledger, stale = ledger_of(a + 1), now_ms > tonumber(ARGV[a + 7])
  a = a + 8
  local bits = ledger.width == DENSE_WIDTH and dense(ledger.slot)
  for k = i, last do
    if stale then
      answer(k, STALE)
    elseif bits then
      entries = entries + bits.first(k, keys[before + k], ARGV[a], ledger, answer)
    else
      local code = fill(keys[before + k], ARGV[a], ledger)
      if code then answer(k, code) end
    end
    a = a + 1
  end
  if bits then bits.write(ledger, answer) end
  i = last + 1
end
reply[3] = entries
return reply

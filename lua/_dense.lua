-- Dense ledgers, whose ids are integers that nearly follow each other: stores/redis/scripts.py puts this text into first.lua,
-- seen.lua, forget_id.lua and weigh.lua, which call `dense` once they meet such a ledger.
--
-- An id's digest is the id itself: the number of its chunk (7 bytes), and its place in the chunk (2 bytes). The ledger has
-- 64 ids in a cell, up to 128 cells in a chunk, and so many buckets that chunks take turns. A bucket is one string:
--   1      format version                  5-11   the chunk that the cells belong to
--   2      D                               12-    the cells, 9 bytes each: a slot byte, and a bit for each of its ids
--   3      the slot in which its           then   the strays, 15 bytes each: a digest, a slot byte and a nonce, for an id
--          expiry was set                         that was remembered in another slot than the others of its cell, or is of
--   4      how many cells it has                  another chunk
-- A bucket has cells from when one chunk has some 100 ids there: ids that are far apart cost no more than strays.
-- Slots and the expiry are as _ledger.lua says.
--
-- The nonces of the youngest ids in cells lie beside the buckets: one string for all chunks with the same number modulo 16,
-- which are in one slot of a Cluster. Its key is a bucket's without the last 4 bytes:
--   1  format version    2  Y    3  how many cells a chunk has    4-  for each place in a chunk the nonce of the call that has
--   remembered the latest id of this place
-- So the nonces of 16 chunks are known. They are written before the ids: an id without its nonce would be a duplicate for
-- the call that has remembered it.

local DENSE_WIDTH = 9
local D_HEAD, CELL, STRAY, Y_HEAD = 11, 9, 15, 3
local MANY_STRAYS = 128 -- after so many more the bucket is put in order
local ENOUGH = 100 -- strays of a chunk for which the cells become its own

-- Returns the functions for a ledger in its present slot.
local function dense(slot)
  local EMPTY = string.rep('\0', CELL)

  local function is_set(cell, place)
    return floor(byte(cell, 2 + floor(place % 64 / 8)) / 2 ^ (place % 8)) % 2 == 1
  end

  -- Returns the cell with the bit of `place` set, or cleared for a negative `sign`.
  local function changed(cell, place, sign)
    local at = 2 + floor(place % 64 / 8)
    return sub(cell, 1, at - 1) .. char(byte(cell, at) + sign * 2 ^ (place % 8)) .. sub(cell, at + 1)
  end

  local function split(digest)
    local high, low = byte(digest, 8, 9)
    return sub(digest, 1, 7), high * 256 + low
  end

  -- Returns a bucket; nil and a code. `fresh`: the text of a bucket that is absent; without it such a bucket is ABSENT.
  local function fetch_cells(key, fresh)
    local stored, fault = fetch(key)
    local text = stored or stored == false and fresh
    if not text then return nil, fault or ABSENT end
    local version, kind, since, cells = byte(text, 1, 4)
    local strays_from = D_HEAD + (cells or 0) * CELL + 1
    if version ~= 1 or kind ~= 68 or not cells or #text < strays_from - 1
      or (#text - strays_from + 1) % STRAY ~= 0 then return nil, FOREIGN end
    return {
      key = key, text = text, since = since, size = cells, chunk = sub(text, 5, D_HEAD), strays_from = strays_from,
      strays = (#text - strays_from + 1) / STRAY, whole = not stored,
      cells = {}, added = {}, fresh = {}, taken = {}, nonces = {}, -- cells: those that are changed; all of a whole bucket
    }
  end

  local function cell_of(bucket, number)
    local at = D_HEAD + number * CELL
    return bucket.cells[number] or sub(bucket.text, at + 1, at + CELL)
  end

  local function living(cell)
    local then_slot = byte(cell, 1)
    return then_slot ~= 0 and lives(then_slot, slot)
  end

  -- Returns where a remembered id lies: 0 for its cell, else the index of its stray; nil if it is not remembered.
  local function whereabouts(bucket, digest)
    local chunk, place = split(digest)
    if chunk == bucket.chunk and place < bucket.size * 64 then
      local cell = cell_of(bucket, floor(place / 64))
      if living(cell) and is_set(cell, place) then return 0 end
    end
    local at = find(bucket.text, digest, bucket.strays_from, true)
    while at do
      if (at - bucket.strays_from) % STRAY == 0 and lives(byte(bucket.text, at + DENSE_WIDTH), slot) then return at end
      at = find(bucket.text, digest, at + 1, true)
    end
    return nil
  end

  -- Returns the nonces' key, and whether it has to be made; nil and a code.
  local function nonces_of(key, size)
    local beside = sub(key, 1, -5)
    local head = redis.pcall('GETRANGE', beside, '0', '2')
    if head == '' then return beside, true end
    if head == VERSION .. 'Y' .. char(size) then return beside, false end
    return nil, type(head) == 'table' and fault_of(beside, head) or FOREIGN
  end

  -- Returns the nonce of the call that has remembered the id, which lies at `at`; nil and a code. In a cell it may be that of
  -- another chunk's id.
  local function nonce_at(bucket, at, digest)
    if at > 0 then return sub(bucket.text, at + STRAY - NONCE, at + STRAY - 1) end
    local beside, fault = nonces_of(bucket.key, bucket.size)
    if not beside then return nil, fault end
    local _, place = split(digest)
    local from = Y_HEAD + place * NONCE
    return redis.call('GETRANGE', beside, from, from + NONCE - 1)
  end

  -- Returns the answer to a call for an id that lies at `at`: nil if the call itself has remembered it.
  local function answer_at(bucket, at, digest, nonce, patience, ledger)
    local stored, fault = nonce_at(bucket, at, digest)
    if not stored then return fault end
    if same_call(stored, nonce) then return write_again(bucket.key) end
    if #stored < NONCE then return ALREADY end
    local _, place = split(digest)
    local then_slot = at > 0 and byte(bucket.text, at + DENSE_WIDTH) or byte(cell_of(bucket, floor(place / 64)), 1)
    return answer_known(ledger, patience, then_slot, byte(stored, 1, NONCE))
  end

  local function write_nonces(bucket, keep)
    if bucket.size == 0 or not (bucket.whole or #bucket.nonces > 0) then return nil end
    local beside, missing = nonces_of(bucket.key, bucket.size)
    if not beside then return missing end
    local code
    if missing then
      local zeros = string.rep('\0', bucket.size * 64 * NONCE)
      code = put('SET', beside, VERSION .. 'Y' .. char(bucket.size) .. zeros, 'PX', keep)
    elseif bucket.whole then
      code = put('PEXPIRE', beside, keep)
    end
    local from, parts = nil, {}
    for at, one in ipairs(bucket.nonces) do
      if code then return code end
      from = from or one.place
      parts[#parts + 1] = one.nonce
      local after = bucket.nonces[at + 1]
      if not after or after.place ~= one.place + 1 then
        code = put('SETRANGE', beside, Y_HEAD + from * NONCE, table.concat(parts))
        from, parts = nil, {}
      end
    end
    return code
  end

  -- Writes the nonces of the ids that came so far: what is read after this are those of the cells. A fault is told by `write`.
  local function save_nonces(bucket, ledger)
    bucket.fault = bucket.fault or write_nonces(bucket, ledger.keep)
    bucket.nonces = {}
  end

  local function each_stray(bucket, visit)
    for at = bucket.strays_from, #bucket.text, STRAY do visit(sub(bucket.text, at, at + STRAY - 1)) end
    for _, stray in ipairs(bucket.added) do visit(stray) end
  end

  -- Calls visit(place) for each id of a cell.
  local function each_id(bucket, number, visit)
    local cell = cell_of(bucket, number)
    for at = 2, CELL do
      local bits = byte(cell, at)
      for k = 0, 7 do
        if bits % 2 == 1 then visit(number * 64 + (at - 2) * 8 + k) end
        bits = floor(bits / 2)
      end
    end
  end

  -- Lets the ids of the cells be strays, and the cells be another chunk's.
  local function give_cells(bucket, chunk, strays)
    local nonces = bucket.size > 0 and redis.pcall('GETRANGE', sub(bucket.key, 1, -5), Y_HEAD, -1)
    if type(nonces) ~= 'string' then nonces = '' end
    for number = 0, bucket.size - 1 do
      local then_slot = sub(bucket.cells[number], 1, 1)
      each_id(bucket, number, function(place)
        local nonce = sub(nonces, place * NONCE + 1, place * NONCE + NONCE)
        if #nonce < NONCE then nonce = string.rep('\0', NONCE) end
        strays[#strays + 1] = bucket.chunk .. char(floor(place / 256), place % 256) .. then_slot .. nonce
      end)
    end
    bucket.chunk = chunk
  end

  -- Drops what is over, lets the cells be those of the chunk with most ids, and puts what fits into them.
  local function put_in_order(bucket, ledger)
    local strays, counts, inside = {}, {}, 0
    save_nonces(bucket, ledger)
    each_stray(bucket, function(stray)
      if lives(byte(stray, DENSE_WIDTH + 1), slot) then
        strays[#strays + 1] = stray
        counts[sub(stray, 1, 7)] = (counts[sub(stray, 1, 7)] or 0) + 1
      end
    end)
    for number = 0, bucket.size - 1 do
      local cell = cell_of(bucket, number)
      if living(cell) then
        bucket.cells[number] = cell
        each_id(bucket, number, function() inside = inside + 1 end)
      else
        bucket.cells[number] = EMPTY
      end
    end
    local best, count = bucket.chunk, inside + (counts[bucket.chunk] or 0)
    for chunk, ids in pairs(counts) do
      if ids > count and ids >= ENOUGH and #strays + inside <= ledger.most then best, count = chunk, ids end
    end
    if best ~= bucket.chunk or (bucket.size == 0 and count >= ENOUGH) then
      give_cells(bucket, best, strays)
      bucket.size = ledger.young
      for number = 0, bucket.size - 1 do bucket.cells[number] = EMPTY end
    elseif count == 0 then
      bucket.size = 0
    end
    local left = {}
    for _, stray in ipairs(strays) do
      local whose, place = split(stray)
      local number, then_slot = floor(place / 64), sub(stray, DENSE_WIDTH + 1, DENSE_WIDTH + 1)
      local cell = bucket.cells[number]
      if whose ~= best or number >= bucket.size or (cell ~= EMPTY and sub(cell, 1, 1) ~= then_slot) then
        left[#left + 1] = stray
      else
        bucket.cells[number] = changed(then_slot .. sub(cell, 2), place, 1)
        bucket.nonces[#bucket.nonces + 1] = { place = place, nonce = sub(stray, -NONCE) }
      end
    end
    bucket.since, bucket.whole, bucket.added, bucket.strays = slot, true, {}, #left
    bucket.text, bucket.strays_from = table.concat(left), 1
    save_nonces(bucket, ledger)
  end

  -- Remembers an id that is not remembered. Returns nil, or a code.
  local function remember_in(bucket, digest, nonce, ledger)
    local chunk, place = split(digest)
    local full = bucket.strays % MANY_STRAYS == MANY_STRAYS - 1 and (chunk ~= bucket.chunk or bucket.size == 0)
    if (slot - bucket.since) % 255 > EXPIRY_SERVES or full then put_in_order(bucket, ledger) end
    if chunk == bucket.chunk and bucket.size > 0 then
      local number = floor(place / 64)
      local cell = cell_of(bucket, number)
      local fits = byte(cell, 1) == slot
      if fits or not living(cell) then
        bucket.cells[number] = changed(fits and cell or char(slot) .. sub(EMPTY, 2), place, 1)
        bucket.nonces[#bucket.nonces + 1] = { place = place, nonce = nonce }
        return nil
      end
    end
    if bucket.strays >= ledger.most then return FULL end
    bucket.strays = bucket.strays + 1
    bucket.added[#bucket.added + 1] = digest .. char(slot) .. nonce
    return nil
  end

  local function write_cells(bucket, keep)
    if not bucket.whole and #bucket.added == 0 then
      local code
      for number, cell in pairs(bucket.cells) do
        code = put('SETRANGE', bucket.key, D_HEAD + number * CELL, cell) or code
      end
      return code
    end
    local cells = {}
    for number = 0, bucket.size - 1 do cells[number + 1] = cell_of(bucket, number) end
    local text = VERSION .. 'D' .. char(bucket.since, bucket.size) .. bucket.chunk .. table.concat(cells)
      .. sub(bucket.text, bucket.strays_from) .. table.concat(bucket.added)
    if bucket.whole then return put('SET', bucket.key, text, 'PX', keep) end
    return put('SET', bucket.key, text, 'KEEPTTL')
  end

  local present -- the bucket that the ids before belonged to

  -- Writes what was remembered; `answer` is told of each id that could not be written.
  local function write(ledger, answer)
    local bucket = present
    present = nil
    if not bucket or #bucket.taken == 0 then return end
    save_nonces(bucket, ledger)
    local code = bucket.fault or write_cells(bucket, ledger.keep)
    if not code then return end
    for _, i in ipairs(bucket.taken) do answer(i, code) end
  end

  -- Remembers the i-th id; returns how many strays its bucket has.
  local function first(i, key, entry, ledger, answer)
    local digest, nonce = sub(entry, 1, DENSE_WIDTH), sub(entry, DENSE_WIDTH + 1, -2) .. ledger.ticked
    local chunk, place = split(digest)
    if place >= ledger.young * 64 then
      answer(i, FOREIGN)
      return 0
    end
    if not present or present.key ~= key then
      write(ledger, answer)
      local bucket, fault = fetch_cells(key, VERSION .. 'D' .. char(slot, 0) .. chunk)
      if not bucket or bucket.size > 0 and bucket.size ~= ledger.young then
        answer(i, fault or FOREIGN)
        return 0
      end
      present = bucket
    end
    local bucket, code = present, nil
    local patience, fresh = byte(entry, -1), bucket.fresh[digest]
    local at = not fresh and whereabouts(bucket, digest)
    if at then
      code = answer_at(bucket, at, digest, nonce, patience, ledger)
    elseif fresh then
      code = fresh ~= nonce and answer_known(ledger, patience, slot, byte(fresh, 1, NONCE)) or nil
    else
      code = remember_in(bucket, digest, nonce, ledger)
      if not code then bucket.fresh[digest] = nonce end
    end
    -- Also if another operation of this call has remembered it: no answer holds if the bucket cannot be written.
    if bucket.fresh[digest] then bucket.taken[#bucket.taken + 1] = i end
    if code then answer(i, code) end
    return bucket.strays
  end

  -- Returns OK if the call of this nonce has remembered the id, ALREADY if another call has; else a code. For an id that
  -- is remembered also its bucket, and its place as `whereabouts`.
  local function look(key, digest, nonce)
    local bucket, fault = fetch_cells(key)
    if not bucket then return fault end
    local at = whereabouts(bucket, digest)
    if not at then return ABSENT end
    if nonce == '' then return ALREADY, bucket, at end
    local stored
    stored, fault = nonce_at(bucket, at, digest)
    return fault or same_call(stored, nonce) and OK or ALREADY, bucket, at
  end

  -- Removes an id that lies at `at`; returns as `put`.
  local function remove(bucket, at, digest)
    if at > 0 then
      return put('SET', bucket.key, sub(bucket.text, 1, at - 1) .. sub(bucket.text, at + STRAY), 'KEEPTTL')
    end
    local _, place = split(digest)
    local number = floor(place / 64)
    return put('SETRANGE', bucket.key, D_HEAD + number * CELL, changed(cell_of(bucket, number), place, -1))
  end

  local function weigh(key)
    local bucket, fault = fetch_cells(key)
    if not bucket then return fault, 0, 0, 0 end
    local ids, alive = 0, 0
    for number = 0, bucket.size - 1 do
      local inside = 0
      each_id(bucket, number, function() inside = inside + 1 end)
      ids = ids + inside
      if living(cell_of(bucket, number)) then alive = alive + inside end
    end
    each_stray(bucket, function(stray)
      ids = ids + 1
      if lives(byte(stray, DENSE_WIDTH + 1), slot) then alive = alive + 1 end
    end)
    return OK, ids, alive, #bucket.text
  end

  return { first = first, write = write, look = look, remove = remove, weigh = weigh }
end

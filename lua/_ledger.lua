-- What the scripts of ledgers share; stores/redis/scripts.py puts this text between _record.lua and each of them.
--
-- A ledger remembers ids for its window. An id is known by a digest of `width` bytes, under a secret of the ledger; a
-- hash of the id chooses one of the ledger's buckets. A bucket is one string:
--   1      format version                  8-     `young` places for the youngest entries, in their order: a slot byte, the
--   2      L                                      digest, and the nonce of the call that remembered it (5 bytes); a place
--   3      width of a digest                      that is free holds zeros
--   4      the slot in which its           then   the tags of the old entries, the oldest first: two bytes of the digest
--          expiry was set                  then   the old entries, in the same order: a slot byte, and the other bytes of
--   5      young                                  the digest
--   6-7    how many old entries it has
-- Only the part up to the tags is read for an id: what a script reads becomes a Lua string, which the server hashes byte
-- by byte. Most inserts fill a free place, and write nothing else. Once no place is free, the bucket is written anew:
-- all but the youngest entries become old ones and lose their nonces, those that are over are cut, and the expiry is set
-- again.
--
-- A slot is a hundredth of the window; its byte is its number modulo 255, plus 1. An entry lives for 100 whole slots and
-- the rest of its own: for the window and up to 1 %. A bucket expires 125 slots after its expiry was set, and takes no
-- further entry 22 slots after that, so each entry lives out its time. Entries that are over are cut whenever the expiry
-- is set, so none gets older than 226 slots. An age of 228 and more stands for an entry that came before the server's
-- clock was set back, by up to a quarter of the window: it lives.
--
-- The first four bytes of a nonce name the call that remembered an id: the same call asked again, after a lost reply, is
-- answered as the first time. The fifth is the tick in which the id was remembered: half a second, modulo 256. By it another
-- call learns that the first one may still be taken back. Four zeros name no call: they stand for a completed claim.

local SLOTS, AHEAD = 100, 228
local EXPIRY_SERVES = 22 -- slots for which a bucket's expiry serves further entries
local HEAD = 7
local NONCE, NAME = 5, 4
local TAG = 2
local TICK_US = 500000

-- Tags that are read with the head: nearly every bucket has fewer. Those of exact ledgers are planned for fewer entries.
local function tags_at_once(width)
  return width == 7 and 136 or 192
end

-- By the server's clock alone: a fence may be ahead of it by a day, and with it the slot.
local function slot_of(slot_us)
  return floor(now_us / slot_us) % 255 + 1
end

-- True for an entry of this slot byte, in a slot now.
local function lives(then_slot, slot)
  local age = (slot - then_slot) % 255
  return age <= SLOTS or age >= AHEAD
end

-- True for the nonces of one call. `entry` may be a whole entry, which ends in its nonce.
local function same_call(nonce, entry)
  return sub(nonce, 1, NAME) == sub(entry, -NONCE, -NONCE + NAME - 1)
end

-- Returns what a call is told of an id that another call has remembered, in `then_slot` and with the nonce whose bytes are
-- n1 to tick: PENDING if that call may still be taken back, so that the id is no duplicate yet. `patience`: ticks for which
-- that may be so; an entry of the same tick in an earlier slot is older. An entry may be up to two ticks ahead: after a
-- failover, the clock may be behind that of the server before.
local function answer_known(ledger, patience, then_slot, n1, n2, n3, n4, tick)
  if (ledger.tick - tick + 2) % 256 > patience + 2 or patience == 0 or n1 + n2 + n3 + n4 == 0 then return ALREADY end
  local slots = (ledger.slot - then_slot - AHEAD) % 255 - 255 + AHEAD -- negative for an entry that is ahead
  return (math.abs(slots) - 1) * ledger.slot_us <= ((slots < 0 and 2 or patience) + 1) * TICK_US and PENDING or ALREADY
end

-- Returns the beginning of the bucket up to its tags, the index of the first tag, how many old entries it has, and the
-- slot of its expiry; false if it is absent; nil and a code.
local function fetch_bucket(key, width)
  local part, fault = fetch(key)
  if not part then return part, fault end
  local version, kind, stored, since, young, high, low = byte(part, 1, HEAD)
  if version ~= 1 or kind ~= 76 or stored ~= width or not low then return nil, FOREIGN end
  local tags, old = HEAD + 1 + young * (width + 1 + NONCE), high * 256 + low
  if #part ~= tags - 1 + old * (width + 1) then return nil, FOREIGN end
  return part, tags, old, since
end

-- Returns the indexes of the first byte of a digest's living entry, and of its tag; the tag's is nil for a young entry.
local function place_of(bucket, tags, old, digest, slot)
  local size = #digest + 1
  local at = find(bucket, digest, HEAD + 2, true)
  while at and at < tags do
    local place = at - 1
    local then_slot = byte(bucket, place)
    if (place - HEAD - 1) % (size + NONCE) == 0 and then_slot ~= 0 and lives(then_slot, slot) then return place, nil end
    at = find(bucket, digest, at + 1, true)
  end
  local tag, others, entries = sub(digest, 1, TAG), sub(digest, TAG + 1), tags + TAG * old
  at = find(bucket, tag, tags, true)
  while at and at < entries do
    local number = (at - tags) / TAG
    local place = entries + number * (size - TAG)
    if number % 1 == 0 and sub(bucket, place + 1, place + size - TAG - 1) == others and lives(byte(bucket, place), slot) then
      return place, at
    end
    at = find(bucket, tag, at + 1, true)
  end
  return nil, nil
end

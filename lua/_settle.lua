-- How a claim is settled: stores/redis/scripts.py puts this text into settle.lua and settle_remembered.lua.

-- `before_it`: called once the record is known to be this owner's and still open; a code that it returns is the answer,
-- and then the record stays as it is.
local function settle(key, state, deadline, keep, proof, payload, before_it)
  local record, fault = read(key, CLAIMS)
  if record == nil then return fault end
  if not record or not held_by(record, proof) then return LOST end
  local present = sub(record, 2, 2)
  if present == state then -- the reply to the first try was lost
    return write_again(key) or OK
  end
  if present ~= 'P' and present ~= 'W' then return LOST end
  if before_it then
    fault = before_it()
    if fault then return fault end
  end
  local last, printed = shape(record)
  local settled = sub(record, 16, last + (printed and 16 or 0)) .. payload
  local refusal = put('SET', key, VERSION .. state .. sub(record, 3, 9) .. deadline .. settled, 'PX', keep)
  if refusal then return refusal end
  wake(record, key)
  return OK
end

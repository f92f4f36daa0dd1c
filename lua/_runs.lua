-- How scripts walk through their runs: stores/redis/scripts.py puts this text into these.

-- Executes the operations of all runs. A run has `heads` arguments for all of its operations, then one for each. `share`:
-- called with the place of the run's first argument; returns up to two values for `execute`, which is called with a key, its
-- argument and these values, and returns nil or OK if it was done, else a code. `all`: the reply has the code of each
-- operation, which `execute` then never leaves out; else only of those that were not done, behind their numbers.
local function each_run(heads, execute, share, all)
  local a, i = 3, 1
  while i <= count and ARGV[a] do -- a key without an operation is that of nonces
    local last = i + tonumber(ARGV[a]) - 1
    local one, two = share(a + 1)
    a = a + heads + 1
    for k = i, last do
      local code = execute(keys[before + k], ARGV[a], one, two)
      if all then
        reply[k + 1] = code
      elseif code and code ~= OK then
        reply[#reply + 1] = k
        reply[#reply + 1] = code
      end
      a = a + 1
    end
    i = last + 1
  end
end

-- How the scripts of one key an operation walk through their runs: stores/redis/scripts.py puts this text into these.

-- Executes the operations of all runs, and answers those that were not done. A run has `heads` arguments for all of its
-- operations, then one for each. `share`: called with the place of the run's first argument; returns up to two values for
-- `execute`, which is called with a key, its argument and these values, and returns nil or OK if it was done, else a code.
local function each_run(heads, execute, share)
  local a, i = 3, 1
  while i <= count do
    local last = i + tonumber(ARGV[a]) - 1
    local one, two = share(a + 1)
    a = a + heads + 1
    for k = i, last do
      local code = execute(keys[before + k], ARGV[a], one, two)
      if code and code ~= OK then
        reply[#reply + 1] = k
        reply[#reply + 1] = code
      end
      a = a + 1
    end
    i = last + 1
  end
end

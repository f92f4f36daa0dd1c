-- Look whether ledgers remember ids. Nothing is changed.
--
-- KEYS[i]  the key of the bucket that an id belongs to; behind these those of the nonces of dense ledgers, see _dense.lua
-- ARGV     after floor_us and limit, runs, each for a stretch of ids of one ledger: count, slot_us, width, until_ms,
--          from_ms; then an entry per key: the digest, and the nonce of a call, or nothing.
--          from_ms: the server's time from which nobody remembers ids there any more, as another form took its place
-- returns  {now_us, code, ...}: a code for each key: ALREADY, OK (the call of this nonce has remembered the id), ABSENT, STALE
--          (what is known of the ledger is too old, or from_ms is to come), FOREIGN, TOO_LARGE, ELSEWHERE, REFUSED

-- Here stands _look.lua.

each_run(4, look, function(a) return run_of(a, a + 3) end, true)
return reply

"""Mutants of the scripts that a Redis server runs."""

from __future__ import annotations

from .mutant import Mutant

CLAIMS = {
    "lua/_claims.lua": [
        Mutant(
            "An owner that redeemed a token and consumes it is told so, and the token is not used up.",
            "if state == 'S' then\n      refusal = write_again(key)",
            "if true then\n      refusal = write_again(key)",
        ),
        Mutant(
            "A lease is over a millisecond early.",
            "unpack_number(record, 10, 15) > now_ms",
            "unpack_number(record, 10, 15) > from_ms",
        ),
        Mutant(
            "An owner that claims its key again, for less, shortens its lease.",
            "if terms.ends > unpack_number(record, 10, 15) then",
            "if true then",
        ),
        Mutant(
            "An owner that claims its key again does not let the record live longer.",
            "if not refusal and tonumber(terms.keep) > redis.call('PTTL', key) then",
            "if false then",
        ),
        Mutant(
            "The next owner of a key drops the fingerprint.",
            "or sub(record, last + 1, head)",
            "or ''",
        ),
        Mutant(
            "A token that is taken over is no token any more.",
            "char(size + (token and 64 or 0) +",
            "char(size +",
        ),
        Mutant(
            "The next owner's fence is the server's time, even if the last fence is later.",
            "math.max(fresh_fence, unpack_number(record, 3, 9) + 1)",
            "fresh_fence",
        ),
        Mutant(
            "The next owner's attempt is not counted.",
            "math.min(unpack_number(record, 16, 17) + 1, 65535)",
            "unpack_number(record, 16, 17)",
        ),
        Mutant(
            "A result is replayed to a claim with another fingerprint.",
            "if differs(tail, record) then return answer(i, MISMATCH",
            "if differs(tail, record) and sub(record, 2, 2) ~= 'S' then return answer(i, MISMATCH",
        ),
        Mutant(
            "The record does not say that another claimant waits.",
            "if terms.watch and state == 'P' and put(",
            "if false and put(",
        ),
        Mutant(
            "A key that its ledger remembers is given again once its record was released.",
            "if terms.known then return answer(i, UNKNOWN, '') end",
            "",
        ),
        Mutant(
            "A token that was never issued can be redeemed.",
            "elseif terms.mode == 'claim' and not terms.known then",
            "elseif not terms.known then",
        ),
        Mutant(
            "A recorded failure does not keep the next claimant out.",
            "if state == 'S' or state == 'F' then",
            "if state == 'S' then",
        ),
        Mutant(
            "Another owner gets a claim that is held.",
            "if same_owner(tail, record) then return reenter",
            "if true then return reenter",
        ),
    ],
    "lua/_unless.lua": [
        Mutant(
            "A claim does not look into its ledger.",
            "return bucket and place_of(bucket, tags, old, digest, slot) ~= nil",
            "return false",
        ),
    ],
    "lua/_also.lua": [
        Mutant(
            "A completion is not remembered by its ledger.",
            "local code = remember(bucket, entry, ledger)",
            "local code",
        ),
        Mutant(
            "A completion whose id was remembered meanwhile is refused.",
            "return code ~= ALREADY and code or nil",
            "return code",
        ),
    ],
    "lua/_record.lua": [
        Mutant(
            "A claim is settled by a fence that is over.",
            "if (fence == sub(record, 3, 9) or fence == '\\0\\0\\0\\0\\0\\0\\0')\n    and byte",
            "if byte",
        ),
        Mutant(
            "A claim is settled by another owner with a name of the same length.",
            " and sub(proof, 9) == sub(record, 19, last)",
            "",
        ),
    ],
    "lua/_batch.lua": [
        Mutant(
            "A lease starts at the beginning of its millisecond, so it is too short.",
            "local from_ms = now_us % 1000 == 0 and now_ms or now_ms + 1",
            "local from_ms = now_ms",
        ),
        Mutant(
            "A fresh fence is the server's time, although the client has seen a later time.",
            "if fresh_fence < now_us then fresh_fence = now_us end",
            "fresh_fence = now_us",
        ),
    ],
    "lua/settle.lua": [
        Mutant(
            "A success that is repeated replaces the first result.",
            "if present == state and (payload == '' or #record > head) then",
            "if present == state and state == 'F' and (payload == '' or #record > head) then",
        ),
        Mutant(
            "A failure replaces a success.",
            "if present ~= 'P' and present ~= 'W' then return LOST end",
            "if present ~= 'P' and present ~= 'W' and present ~= 'S' then return LOST end",
        ),
        Mutant("A settling wakes no waiter.", "  wake(record, key)\n", ""),
    ],
    "lua/release.lua": [
        Mutant(
            "A release keeps the fingerprint, so another request is a mismatch.",
            "char(code) .. sub(record, 19, last)",
            "sub(record, 18, last + 16)",
        ),
        Mutant(
            "A token that was redeemed and completed is issued again by the release of a use.",
            "token and #record == head)",
            "token)",
        ),
        Mutant(
            "The repetition of a release is told that the claim is lost.", "write_again(key) or OK", "LOST"
        ),
        Mutant("A release wakes no waiter.", "  wake(record, key)\n", ""),
    ],
    "lua/renew.lua": [
        Mutant(
            "Waiters are not told of a lease that was shortened.",
            "if unpack_number(record, 10, 15) > unpack_number(deadline, 1, 6) then wake(record, key) end",
            "",
        ),
        Mutant(
            "A renewed record expires when it would have expired before.",
            "refusal = put('PEXPIRE', key, keep) end",
            "refusal = nil end",
        ),
        Mutant(
            "A renewal undoes a touch.",
            "if not refusal and tonumber(keep) > redis.call('PTTL', key) then",
            "if not refusal then",
        ),
        Mutant(
            "What was settled or released is renewed.",
            "if state ~= 'P' and state ~= 'W' then return LOST end",
            "",
        ),
    ],
    "lua/touch.lua": [
        Mutant("A touch has no effect.", "return put('PEXPIRE', key, keep) or OK", "return OK"),
        Mutant(
            "A touch shortens the time of a record.",
            "if tonumber(keep) > redis.call('PTTL', key) then",
            "if true then",
        ),
        Mutant(
            "What was settled or released is touched.",
            "if state ~= 'P' and state ~= 'W' then return LOST end",
            "",
        ),
    ],
    "lua/forget.lua": [
        Mutant(
            "A forgotten claim wakes no waiter.", "if record and not fault then wake(record, key) end", ""
        ),
    ],
}
TOKENS_AND_MACHINES = {
    "lua/issue.lua": [
        Mutant(
            "The repetition of an issue is refused.",
            "if not record or sub(record, 18) ~= tail then return fault or FOREIGN end",
            "do return fault or FOREIGN end",
        ),
        Mutant(
            "A token that was issued can be issued for another subject.",
            "if not record or sub(record, 18) ~= tail then",
            "if not record then",
        ),
    ],
    "lua/transition.lua": [
        Mutant(
            "The repetition of a transition moves the machine again.",
            "if last == change then",
            "if false then",
        ),
        Mutant(
            "A repeated transition that a later one hides is told as if it was not made.",
            "if again == '1' and version",
            "if false and version",
        ),
        Mutant(
            "A message that is delivered again is told that its version is stale.",
            "(behind == 0 or behind == 1)",
            "behind == 0",
        ),
        Mutant(
            "A machine moves from any state.",
            "if not string.find(sources, '\\n' .. state .. '\\n', 1, true) then",
            "if false then",
        ),
    ],
}
ADOPTIONS = {
    "lua/adopt.lua": [
        Mutant(
            "A failure of an outage replaces another owner's failure.",
            "if success and sub(former, 2, 2) == 'F' then",
            "if sub(former, 2, 2) == 'F' then",
        ),
        Mutant(
            "A result of an outage counts as recorded if its claim was completed without a result.",
            "if same and (not is_settled(ours) or says(former, ours)) then",
            "if same then",
        ),
        Mutant(
            "The fence of a free key falls after an outage.",
            "if former and free and fence_of(former) > fence_of(ours) then",
            "if false then",
        ),
        Mutant(
            "A record with a fence of the far future is adopted.",
            "if sub(ours, 2, 2) ~= 'M' and fence_of(ours) > fresh_fence + DAY then",
            "if false then",
        ),
        Mutant(
            "An owner that gave way in an outage keeps the key in the store.",
            "if same or holding(former) == base then",
            "if same then",
        ),
        Mutant(
            "Waiters are not told of a record that was adopted.",
            "if former and not refusal then wake(former, key) end",
            "",
        ),
    ],
}
LEDGERS = {
    "lua/_remember.lua": [
        Mutant(
            "The repetition of a first call for an id is a duplicate of itself.",
            "if n1 == e1 and n2 == e2 and n3 == e3 and n4 == e4 then return write_again(key) end",
            "",
        ),
    ],
    "lua/_ledger.lua": [
        Mutant(
            "An id is a duplicate although its call may still be taken back.",
            "+ 1) * TICK_US and PENDING or ALREADY",
            "+ 1) * TICK_US and ALREADY or ALREADY",
        ),
        Mutant(
            "An id counts as just remembered when the number of its tick comes again.",
            "<= ((slots < 0 and 2 or patience) + 1) * TICK_US and PENDING or ALREADY",
            "and PENDING",
        ),
        Mutant(
            "What a claim's completion has remembered may still be taken back.",
            " or n1 + n2 + n3 + n4 == 0 then",
            " then",
        ),
        Mutant("Ids live too long.", "local SLOTS, AHEAD = 100, 228", "local SLOTS, AHEAD = 104, 228"),
    ],
    "lua/forget_id.lua": [
        Mutant(
            "What one call has remembered is removed for another call.",
            "if code == ALREADY and #entry > run.width then return ABSENT end",
            "",
        ),
    ],
    "lua/_dense.lua": [
        Mutant(
            "In a dense ledger the repetition of a first call is a duplicate of itself.",
            "if same_call(stored, nonce) then return write_again(bucket.key) end",
            "",
        ),
    ],
}
LUA = CLAIMS | TOKENS_AND_MACHINES | ADOPTIONS | LEDGERS

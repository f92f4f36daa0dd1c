"""Mutants of the Redis client, and of the fallback in an outage."""

from __future__ import annotations

from .mutant import Mutant

REDIS_CLIENT = {
    "fastdedup/stores/redis/server.py": [
        Mutant(
            "A call is not sent again when its connection breaks.",
            "if broken and verb not in UNREPEATED:",
            "if False:",
            "release_and_claim",
        ),
        Mutant(
            "A call that names no owner is sent again when its connection breaks.",
            "if broken and verb not in UNREPEATED:",
            "if broken:",
            "forget",
        ),
        Mutant(
            "A call that names no owner is sent on a connection that breaks, and then on the next one.",
            "if connection is None or verb in UNREPEATED:\n            return False\n        if self._wait:",
            "if connection is None:\n            return False\n        if self._wait:",
            "forget",
        ),
        Mutant(
            "The connection is kept although its replies are late.",
            "            if not guest:\n                connection.abort(_LATE)\n            raise",
            "            raise",
            "forget",
        ),
    ],
    "fastdedup/stores/redis/listener.py": [
        Mutant(
            "Waiters are not told that their subscription is lost.",
            '                self._tell(ConnectionError("the subscription to news of freed keys was lost"))\n'
            "                on_freed(None)\n",
            '                self._tell(ConnectionError("the subscription to news of freed keys was lost"))\n',
            "wait_unheard",
        ),
        Mutant(
            "Waiters are not told that their subscription is back.",
            "                if self._tell(None):\n                    on_freed(None)",
            "                self._tell(None)",
            "wait_resubscribed",
        ),
    ],
    "fastdedup/stores/redis/primary_watch.py": [
        Mutant(
            "The connection stays at a primary that the sentinels name no more.",
            "            self._leave_others(self._latest.known.address)",
            "            pass",
        ),
        Mutant(
            "What a sentinel announces is heard at the next question only.",
            "            self._woken.set()",
            "            pass",
        ),
    ],
    "fastdedup/stores/redis/latest_primary.py": [
        Mutant(
            "A sentinel that knows of a later failover than the others is not believed.",
            "if self.known is None or named.epoch > self.known.epoch:",
            "if self.known is None:",
        ),
    ],
    "fastdedup/stores/redis/cluster/node.py": [
        Mutant(
            "A node that a slot is still moving to is not told that the call was sent there (ASKING).",
            "return self._topology.node_at(to.address).asked if keys == 1 else self.singly",
            "return self._topology.node_at(to.address).singly",
        ),
        Mutant(
            "A key that its node does not hold any more goes to that node in another batch, not alone.",
            "return Redirect(self.singly if owner is None or owner is self else owner)",
            "return Redirect(self if owner is None else owner)",
        ),
        Mutant(
            "A batch that the node has stopped is not marked when it is sent again.",
            "            mark_resent(ops)  # also those that were answered\n",
            "            pass\n",
        ),
    ],
    "fastdedup/kernel/operations.py": [
        Mutant(
            "An operation that was sent without an answer is not marked as that.",
            "            cast(Any, op).resent = True\n",
            "            pass\n",
            "released_anew",
        ),
    ],
}
FALLBACK = {
    "fastdedup/fallback/reconcile.py": [
        Mutant(
            "The records of an outage never come into the store.",
            "if running is None or running.task.done():",
            "if False:",
            "local_lru",
        ),
        Mutant(
            "A conflict is not told.",
            "        event = self.policy.adopted(op, reply)\n        if event is not None:\n",
            "        event = self.policy.adopted(op, reply)\n        if False:\n",
            "local_lru",
        ),
    ],
    "fastdedup/fallback/adoption.py": [
        Mutant(
            "A conflict is not told if the record of the outage stands.",
            "if code in (Code.THEIRS_STANDS, Code.OURS_STANDS):",
            "if code is Code.THEIRS_STANDS:",
            "local_lru_overrules",
        ),
    ],
    "fastdedup/fallback/last_seen.py": [
        Mutant(
            "In an outage a claim that was completed in the store before counts as in progress.",
            "                return cls._settle if row.result else cls._release\n",
            "                return None if row.result else cls._release\n",
            "local_lru",
        ),
    ],
    "fastdedup/fallback/local.py": [
        Mutant(
            "The claim of a cancelled caller does not give way to one that was made here.",
            "            line.got_no_reply(owner)\n\n    def took_back",
            "            pass\n\n    def took_back",
            "local_lru_gives_way",
        ),
        Mutant(
            "A token that was used in an outage is forgotten while the store may still have it as issued.",
            "if present is not None and present.token and present.expires < former.expires:",
            "if False:",
            test="tests/model/test_closure.py::test_the_policy_does_in_an_outage_what_a_store_does",
        ),
        Mutant(
            "Once the store is back it is asked for a key before it has that key's record.",
            "        if self.records.holds(wire) or line.forgotten:\n            return True\n",
            "        if self.records.holds(wire) or line.forgotten:\n            return False\n",
            "local_lru_holds",
        ),
        Mutant(
            "A record that has changed while it was sent is not sent again.",
            "if line.forgotten or (entry is not None and (mark(entry), entry.expires) != line.sent):",
            "if False:",
            "local_lru_goes_on",
        ),
        Mutant(
            "A record whose sending got no answer is forgotten.",
            "        line.found = None\n        self._journal.again(op.wire, lane=lane)",
            "        line.found = None\n        self._journal.strike(op.wire)",
            "local_lru",
        ),
        Mutant(
            "In an outage nothing is known of what the store has said before.",
            "            self.last_seen.saw(op, reply)\n",
            "            pass\n",
            "local_lru",
        ),
        Mutant(
            "An answer of the fallback is not marked as degraded.",
            "            reply.degraded = True\n",
            "            pass\n",
            "local_lru",
        ),
    ],
}

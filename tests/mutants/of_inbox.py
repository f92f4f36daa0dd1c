"""Mutants of the inbox, and of what decides between it and the gate."""

from __future__ import annotations

from .mutant import Mutant

INBOX = {
    "fastdedup/core/settlement.py": [
        Mutant(
            "A delivery that has lost its claim fails, although its work is committed.",
            "        except (ClaimLostError, UnavailableError):\n            self.abandon()\n            return\n",
            "        except (ClaimLostError, UnavailableError):\n            raise\n",
        ),
    ],
    "fastdedup/sql/rules.py": [
        Mutant(
            "A message whose row is committed is told as the first.",
            "return _FIRST if kept is None else _duplicate(kept, mark)",
            "return _FIRST",
        ),
        Mutant("The result is not kept in the row.", "payload or None, anchor", "None, anchor"),
    ],
    "fastdedup/sql/dialects/sqlite.py": [
        Mutant(
            "A message whose row is committed replaces that row.",
            'f"INSERT INTO {self.table} (id, at) VALUES (?, {_NOW}) ON CONFLICT (id) DO NOTHING"',
            'f"INSERT OR REPLACE INTO {self.table} (id, at) VALUES (?, {_NOW})"',
        ),
        Mutant(
            "A duplicate gets no result from the row.",
            'Kept(bytes(result or b""), mark)',
            'Kept(b"", mark)',
        ),
    ],
    "fastdedup/sql/receipt.py": [
        Mutant(
            "The first delivery gets no result.",
            "self._kept = Found(Outcome.SUCCEEDED, payload)",
            'self._kept = Found(Outcome.SUCCEEDED, b"")',
        ),
    ],
    "fastdedup/sql/once.py": [
        Mutant(
            "The gate is told that the work is done before it is committed.",
            "            self._own = answer = await self._transactions.answer(key, wire)\n",
            "            if claim is not None:\n"
            "                await self._tell(claim, lambda held: held.mirror(None, within=MENDING))\n"
            "            self._own = answer = await self._transactions.answer(key, wire)\n",
        ),
        Mutant(
            "The gate is not told that the work is committed.",
            "                await self._tell(claim, lambda held: answer.mirror(held, MENDING))\n",
            "                pass\n",
        ),
        Mutant(
            "The gate is told that nothing was done, although the work is committed.",
            "                await self._tell(claim, lambda held: answer.mirror(held, MENDING))\n",
            "                await self._tell(claim, Settlement.free)\n",
        ),
        Mutant(
            "A delivery does not wait for another one that is at work.",
            "            if not claim.acquired:\n                claim.replay(self._transactions.typed)  # may raise",
            "            if False:\n                claim.replay(self._transactions.typed)  # may raise",
        ),
        Mutant(
            "The claim is given back while the transaction may still be committed.",
            "            claim = await gate.claim(name, ends, self._transactions.mark)\n",
            "            claim = await gate.claim(name, ends, self._transactions.mark)\n"
            "            await gate.tell(claim, Settlement.free)\n",
        ),
    ],
    "fastdedup/sql/open_transaction.py": [
        Mutant(
            "The row is committed before the work begins.",
            "                await receipt.begin_work()\n",
            "                for text in ('COMMIT', 'BEGIN IMMEDIATE'):\n"
            "                    ran = self.transaction.execute(text)\n"
            "                    ran = await ran if self._bridge.is_async else ran\n"
            "                await receipt.begin_work()\n",
        ),
    ],
    "fastdedup/sync/sql.py": [
        Mutant(
            "Synchronous code does not tell the gate that the work is committed.",
            "            claim.say(lambda held: asyncio.wait_for(settle(held.settlement), MENDING))\n",
            "            pass\n",
        ),
    ],
}

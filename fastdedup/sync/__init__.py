"""fastdedup for synchronous code (Django, Flask, Celery). Errors, outcomes and keys: import them from `fastdedup`.

Make a `fastdedup.sync.Dedup` at module level. It opens when first used, in each process that uses it, so a server may
fork its workers. All threads may share it, and all greenlets of gevent. Each process has one background thread with
the asyncio `Dedup`, so the calls of many threads share its batches.
"""

from .claim import Claim
from .gateway import Dedup
from .ledger import Ledger
from .lock import Lock, LockCall
from .machine import StateMachine
from .tokens import Tokens

__all__ = ["Claim", "Dedup", "Ledger", "Lock", "LockCall", "StateMachine", "Tokens"]

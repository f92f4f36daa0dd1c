"""The gate for synchronous code (Django, Flask, Celery): the same names, the same outcomes, the same errors.

`from fastdedup.sync import Dedup`, at module level: it opens when first used, in each process that uses it, so a
server that forks its workers is fine. All threads may share it. Behind it stands the asyncio gate, in one
background thread a process, so concurrent calls of many threads travel in the same batches.
"""

from .claim import Claim
from .gateway import Dedup
from .lock import Lock, LockCall
from .machine import StateMachine
from .tokens import Tokens

__all__ = ["Claim", "Dedup", "Lock", "LockCall", "StateMachine", "Tokens"]

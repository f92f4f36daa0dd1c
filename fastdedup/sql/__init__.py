"""The inbox: a row in the caller's own SQL transaction says whether a message was handled, and with which result.

    inbox = Inbox("billing", keep=timedelta(days=7))

    async with Session.begin() as session:
        receipt = await inbox.receive(session, message.id)
        if receipt.first:
            session.add(Invoice(...))

The row commits with the work, or not at all. For synchronous code: `from fastdedup.sync.sql import Inbox`.
"""

from ..errors import RetryTransaction
from .inbox import Inbox
from .receipt import Receipt

__all__ = ["Inbox", "Receipt", "RetryTransaction"]

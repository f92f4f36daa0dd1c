"""FastStream: a middleware that lets a handler do its work once for each message, on each of its brokers.

    guard = DedupMiddleware(dedup, key=message_id, attempts=5)
    broker = RabbitBroker(middlewares=[guard])
    app = FastStream(broker, lifespan=guard.lifespan(broker))

Main path: `Processing.consume_scope` → `Guarded.handle` → `Deliveries.handle` → the broker's own way to settle it.
"""

from typing import Annotated as _Annotated
from typing import Any as _Any

from ...extras import needs

with needs(__name__, "FastStream", "'fastdedup[faststream]'"):
    from faststream import Context as _Context

from ...messages import DeadLetterError
from .keys import body, header, message_id, offset
from .middleware import DedupMiddleware
from .settings import DISCARD, TRANSACTION

Transaction = _Annotated[_Any, _Context(TRANSACTION)]
"""The type of a handler's parameter that gets the inbox's transaction."""

__all__ = [
    "DISCARD",
    "DeadLetterError",
    "DedupMiddleware",
    "Transaction",
    "body",
    "header",
    "message_id",
    "offset",
]

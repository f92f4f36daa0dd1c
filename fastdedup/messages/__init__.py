"""The work of a consumer with a delivery, for every broker: its key, and the effect of each outcome on the message.

Main path: `Deliveries.handle` → `MessageRules.key_of` → a claim at the gate → the handler → a `Decision`, which the
integration carries out. No broker is known here.
"""

from .decisions import Action, Counts, Decision, Reason
from .ids import new_id, republished_id
from .keys import body_digest
from .rules import AbandonedError, DeadLetterError, ExhaustedError, MessageRules

__all__ = [
    "AbandonedError",
    "Action",
    "Counts",
    "DeadLetterError",
    "Decision",
    "ExhaustedError",
    "MessageRules",
    "Reason",
    "body_digest",
    "new_id",
    "republished_id",
]

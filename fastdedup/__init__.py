"""fastdedup: are you the first? Answered atomically, replayed to duplicates, honest when Redis is down."""

from .admin.takeover import Resolution, Takeover
from .arguments import by
from .claim import Claim
from .codec import Codec
from .errors import (
    ClaimLostError,
    ConfigError,
    DedupError,
    FailedError,
    ForeignRecordError,
    InProgressError,
    InvalidKeyError,
    LedgerFullError,
    MismatchError,
    ResultError,
    ResultTooLargeError,
    ResultWarning,
    ShortfallError,
    UnavailableError,
    UnknownTransitionError,
    UsageError,
)
from .fallback import FallbackPolicy, LocalLRU, Reject
from .gateway import Dedup
from .keys import Fingerprint, business_key, fingerprint
from .ledger.client import Ledger
from .lock import Lock
from .machine import StateMachine
from .model import (
    Batching,
    BreakerState,
    LedgerResize,
    LedgerStats,
    Listing,
    Outcome,
    Record,
    State,
    Transition,
    TransitionOutcome,
)

__version__ = "0.2.0"

__all__ = [
    # The gate, and its answers
    "Dedup",
    "Claim",
    "Lock",
    "Outcome",
    "Record",
    "Listing",
    "State",
    # Work that was abandoned
    "Takeover",
    "Resolution",
    # When the store is unavailable
    "Reject",
    "LocalLRU",
    "FallbackPolicy",
    "Batching",
    "BreakerState",
    # Ledgers
    "Ledger",
    "LedgerResize",
    "LedgerStats",
    # State machines
    "StateMachine",
    "Transition",
    "TransitionOutcome",
    # Keys and results
    "business_key",
    "by",
    "fingerprint",
    "Fingerprint",
    "Codec",
    # Errors
    "DedupError",
    "UnavailableError",
    "LedgerFullError",
    "ShortfallError",
    "UnknownTransitionError",
    "ClaimLostError",
    "InProgressError",
    "MismatchError",
    "FailedError",
    "InvalidKeyError",
    "ResultError",
    "ResultTooLargeError",
    "ResultWarning",
    "ForeignRecordError",
    "ConfigError",
    "UsageError",
    "__version__",
]

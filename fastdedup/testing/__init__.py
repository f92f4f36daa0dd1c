"""What tests of a program with a gate need: a store in memory, its clock, its outages, and what was claimed.

pytest's fixtures `dedup`, `dedup_sync`, `dedup_store`, `dedup_clock` and `dedup_outage` are in the module
`_fastdedup_pytest`, beside the package. Nothing here needs pytest. `docs/testing.md` is the guide.
"""

from .claims import Acquisition, ClaimsOfKey, assert_claimed_once, assert_not_claimed, claims_of
from .clock import Clock
from .inbox import inbox_database
from .outage import Kind, Outage
from .probe import Probe, probe
from .store import FakeStore
from .swap import fake_dedup, fake_sync_dedup, swapped

__all__ = [
    # The store, and what a test does to it
    "FakeStore",
    "Clock",
    "Outage",
    "Kind",
    # Gates on it
    "fake_dedup",
    "fake_sync_dedup",
    "swapped",
    # What was claimed
    "assert_claimed_once",
    "assert_not_claimed",
    "claims_of",
    "ClaimsOfKey",
    "Acquisition",
    # What a gate has still to do
    "probe",
    "Probe",
    # The inbox
    "inbox_database",
]

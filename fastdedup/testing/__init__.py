"""Tools for tests of a program with a gate: a store in memory, its clock, its outages, and a record of claims.

pytest's fixtures `dedup`, `dedup_sync`, `dedup_store`, `dedup_clock` and `dedup_outage` are in the module
`_fastdedup_pytest`, beside the package. Nothing here needs pytest. `docs/testing.md` is the guide.
"""

from .claims import Acquisition, ClaimsOfKey, assert_claimed_once, assert_not_claimed, claims_of
from .clock import Clock
from .guarantees import Conformance, Finding, conformance
from .inbox import inbox_database
from .outage import Kind, Outage
from .probe import Probe, probe
from .store import FakeStore
from .swap import fake_dedup, fake_sync_dedup, swapped

__all__ = [
    # The store, and the tools that a test changes it with
    "FakeStore",
    "Clock",
    "Outage",
    "Kind",
    # Gates on it
    "fake_dedup",
    "fake_sync_dedup",
    "swapped",
    # The record of claims
    "assert_claimed_once",
    "assert_not_claimed",
    "claims_of",
    "ClaimsOfKey",
    "Acquisition",
    # The open work of a gate
    "probe",
    "Probe",
    # The guarantees of a store
    "conformance",
    "Conformance",
    "Finding",
    # The inbox
    "inbox_database",
]

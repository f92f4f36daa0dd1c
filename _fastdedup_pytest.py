"""pytest's fixtures of `fastdedup.testing`; see `docs/testing.md`.

pytest imports this in every run of an environment in which fastdedup is installed. So it stands beside the package,
not in it: it imports neither that nor what that imports, until a test asks for a fixture.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

try:
    import pytest
except ImportError as error:
    raise ImportError("fastdedup's fixtures are pytest's, which is missing: pip install pytest") from error

if TYPE_CHECKING:
    from fastdedup import Dedup
    from fastdedup.sync import Dedup as SyncDedup
    from fastdedup.testing import Clock, FakeStore, Outage


@pytest.fixture
def dedup_store() -> Iterator[FakeStore]:
    """The test's own store, in memory: pass it to `swapped("app.payments.dedup", store=dedup_store)`."""
    from fastdedup.testing import FakeStore

    store = FakeStore()
    yield store
    store.outage.stop()


@pytest.fixture
def dedup(dedup_store: FakeStore) -> Dedup:
    """A gate on the test's own store. It opens by itself, in each event loop that uses it."""
    from fastdedup.testing import fake_dedup

    return fake_dedup(dedup_store)


@pytest.fixture
def dedup_sync(dedup_store: FakeStore) -> Iterator[SyncDedup]:
    """A gate for synchronous code, `fastdedup.sync.Dedup`, on the store and in the namespace of `dedup`."""
    from fastdedup.testing import fake_sync_dedup

    dedup = fake_sync_dedup(dedup_store)
    yield dedup
    dedup_store.outage.stop()  # or closing would wait for it
    dedup.close()


@pytest.fixture
def dedup_clock(dedup_store: FakeStore) -> Clock:
    """The clock of the test's own store: `dedup_clock.advance(31)` ends leases of 30 seconds."""
    return dedup_store.clock


@pytest.fixture
def dedup_outage(dedup_store: FakeStore) -> Outage:
    """The outages of the test's own store: by "refused", "frozen" or "lost_reply"; start and stop it."""
    return dedup_store.outage

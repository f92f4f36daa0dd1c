"""The store protocol: the guarantees of a backend. Its operations and their replies are in `kernel/operations.py`.

A store executes *batches of independent operations of one verb*. A store does not wait for keys, decode results or
know policies: that is the work of the gate above it. What the engine alone needs of a store stands in
`kernel/store.py`; it is offered here too, because a store is written against this module.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Literal, NamedTuple, Protocol, runtime_checkable

from ..events import Event
from ..kernel.keyspace import Kind
from ..kernel.operations import Op, Reply
from ..kernel.records import Stored
from ..kernel.store import BatchStore
from ..kernel.store import ClockedStore as ClockedStore
from ..kernel.store import DirectStore as DirectStore
from ..kernel.store import Done as Done
from ..kernel.store import ProbedStore as ProbedStore
from ..kernel.store import ShardedStore as ShardedStore
from ..kernel.store import TimedStore as TimedStore
from ..model import Batching


class Store(BatchStore, Protocol):
    """A place that remembers claims.

    Guarantees, each a test of the contract suite that every store runs:

    1.  Of any number of concurrent claims for a free key, exactly one is acquired.
    2.  The same owner claiming again gets its own claim back: same fence, same attempt.
    3.  Another owner finds IN_PROGRESS with the time that the lease has left.
    4.  When the lease has ended the next claimant acquires the key: attempt + 1, a higher fence.
    5.  Settling, releasing and renewing act for the present owner alone; a stale owner changes nothing.
    6.  Settling, releasing and issuing again, after a lost reply, get the same answer as the first time.
    7.  A settled record answers every claimant with the first payload until it expires.
    8.  A released key is free: attempt + 1, a higher fence, any fingerprint.
    9.  Two different fingerprints on one key are a MISMATCH in every state.
    10. A token is acquired once, only if it was issued, only by its subject. An owner is one use of it: the same
        owner gets that use back, with its fence and attempt, in the mode of its call:

        what the owner's record says    the owner redeems         the owner consumes
        ------------------------------  ------------------------  ---------------------------------------------
        PROCESSING, within its lease    ACQUIRED, a new lease     ACQUIRED, and the record becomes SUCCEEDED
        SUCCEEDED without a result      SUCCEEDED                 ACQUIRED
        SUCCEEDED with a result         SUCCEEDED                 SUCCEEDED
        FAILED                          FAILED                    FAILED
        any other                       acquired anew: attempt + 1, a higher fence

        Another owner gets IN_PROGRESS, SUCCEEDED, SUCCEEDED, FAILED, and acquires what is free, in either mode.
    11. A transition is one atomic step and moves only along the definition.
    12. Every record expires by itself.
    13. The operations of a batch are independent: a bad key fails alone.
    14. When a watched key is freed or settled, the listener is told.
    15. A record made elsewhere is adopted, unless the key holds a record that outranks it: then both are named.
    16. Of any number of calls that name an id of a ledger within its window, exactly one is the first.
    17. The same call naming its id again, after a lost reply, gets the same answer. Another call gets ALREADY; or
        PENDING, for as long as it says that the first call may still be taken back.
    18. An id is remembered for its ledger's window, and up to 1 % longer; then it is new again.
    19. What a call has remembered is taken back by its nonce alone, and by `forget` for everybody.
    20. A claim whose success a ledger remembers keeps all these promises while it is under way and for a while after;
        then the ledger alone knows that the key is done. Its completion and the ledger's entry are one step. A key
        whose id the ledger knows is acquired by nobody, also where it was released or its lease has ended.

    Where a store cannot answer it raises UnavailableError, and no other error.
    """

    async def open(self) -> None:
        """Check that the settings can work. A backend that is down at present is not an error.

        Raises:
            ConfigError: the backend answers but cannot be used, for example: too old, wrong password.
        """
        ...

    async def aclose(self) -> None:
        """Close all connections. May also be called on a store that was never opened.

        A store object that fastdedup has made, such as a `RedisStore`, is not opened again after that: give `Dedup` a
        URL, of which it makes a new store each time that it is opened.
        """
        ...

    async def listen(self, on_freed: Callable[[bytes | None], None]) -> None:
        """Call `on_freed(wire)` from now on for each watched key that is freed or settled. Each waiter calls this.

        `on_freed(None)` means that messages may have been lost, or will be: every waiter calls this and asks again.

        Raises:
            UnavailableError: `on_freed` is not called at present. The store goes on trying.
        """
        ...


@runtime_checkable
class ListeningStore(Protocol):
    """An optional ability of a store: to hear what the policy has answered in its place. Stores for tests have it."""

    def policy_answered(self, op: Op, reply: Reply) -> None:
        """The store did not answer this operation, and the policy gave this reply."""
        ...


Login = tuple[str | None, str]
"""The user's name and the password. None is the user in the URL, or else the server's default user."""


class CredentialProvider(Protocol):
    """A source of logins as redis-py has them: `redis.credentials.CredentialProvider`, or an object like it.

    Its `get_credentials_async` is asked instead where it has one.
    """

    def get_credentials(self) -> Any:
        """Return the user's name and the password, or the password alone, in a tuple."""
        ...


Credentials = Callable[[], Login | Awaitable[Login]] | CredentialProvider
"""What is asked for the login of each new connection. It must not block the event loop."""


@runtime_checkable
class BoundedStore(Protocol):
    """An optional ability of a store: to refuse to read a value that is larger than any record of its users.

    Such a key gets ForeignRecordError. `max_record`: bytes; a gate that stores larger results raises this limit.
    """

    max_record: int


@runtime_checkable
class DegradingStore(Protocol):
    """An optional ability of a store: to have a policy of its own, such as the sidecar's.

    Its answers may be `degraded`; their claims are still settled at this store.
    """

    degrades: Literal[True]


@runtime_checkable
class ReportingStore(Protocol):
    """An optional ability of a store: to report what it notices beside its answers, as events for the user."""

    on_report: Callable[[Event], None] | None = None
    """Set by the gate when it opens the store. Called in the gate's event loop; it does not raise."""


@runtime_checkable
class OpeningStore(Protocol):
    """An optional ability of a store: to say why it did not answer when it was opened, where that is an outage."""

    unreached: str
    """Why, from the last opening; empty where it answered."""


@runtime_checkable
class SlottedStore(Protocol):
    """An optional ability of a store: to have to divide batches by slot, as on some Clusters."""

    @property
    def batching(self) -> Batching:
        """How batches go to its nodes now."""
        ...


@runtime_checkable
class ClockComparingStore(Protocol):
    """An optional ability of a store: to compare the clocks of its servers, and to report a `ClockSkew`."""

    max_clock_skew: float
    """Seconds by which a clock may differ. Set by the gate when it opens the store: a tenth of its lease."""


class Query(NamedTuple):
    """Which records to list: of a namespace, of some kinds, whose readable keys begin with a prefix; and why."""

    namespace: str
    kinds: tuple[Kind, ...]
    prefix: str
    reason: str = ""


class Page(NamedTuple):
    """Some of a store's records, without their results.

    Attributes:
        found: each store key and its record.
        cursor: where to go on; empty at the end.
        seen: how many keys the store has looked at.
        now_us: the time by the store's clock, in microseconds since 1970.
    """

    found: Sequence[tuple[bytes, Stored]]
    cursor: str
    seen: int
    now_us: int


def without_result(record: Stored) -> Stored:
    """Return a claim's record without its result: a list shows none, and reads none."""
    record.payload = b""
    return record


@runtime_checkable
class ListedStore(Protocol):
    """An optional ability of a store: to list its records, some at a time, without stopping others for long.

    A record that is there from the first page to the last is in one of them, and may be in two.
    """

    async def page(self, query: Query, cursor: str, count: int) -> Page:
        """Look at about `count` keys from `cursor` on ("" is the start), and return the records that fit.

        Raises:
            UnavailableError: the store does not answer.
            ConfigError: the cursor is not one of this store.
        """
        ...


NO_EVICTION: Final = "noeviction"
"""The policy of a server that refuses writes when its memory is full, and forgets nothing."""


@runtime_checkable
class EvictingStore(Protocol):
    """An optional ability of a store: to tell whether it may evict keys."""

    async def eviction_policy(self) -> str | None:
        """Return what it does when its memory is full, by Redis's names; None where that is not known.

        Raises:
            UnavailableError: the store does not answer.
        """
        ...

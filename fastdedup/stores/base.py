"""The store protocol: the guarantees of a backend. Its operations and their replies are in `kernel/operations.py`.

A store executes *batches of independent operations of one verb*. A store does not wait for keys, decode results or
know policies: that is the work of the gate above it. `kernel/store.py` has the part of a store that the engine needs;
it can be imported from here too, because a store is written against this module.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, NamedTuple, Protocol, runtime_checkable

from ..events import Event
from ..kernel.keyspace import Kind
from ..kernel.records import Stored
from ..kernel.store import BatchStore
from ..kernel.store import ClockedStore as ClockedStore
from ..kernel.store import DirectStore as DirectStore
from ..kernel.store import Done as Done
from ..kernel.store import ProbedStore as ProbedStore
from ..kernel.store import ShardedStore as ShardedStore
from ..kernel.store import TimedStore as TimedStore


class Store(BatchStore, Protocol):
    """A place that remembers claims.

    Guarantees, each a test of the contract suite that every store runs:

    1.  Of any number of concurrent claims for a free key, exactly one is acquired.
    2.  The same owner claiming again gets its own claim back: same fence, same attempt.
    3.  Another owner finds IN_PROGRESS with the time that the lease has left.
    4.  When the lease has ended the next claimant acquires the key: attempt + 1, a higher fence.
    5.  Only the present owner can settle, release, renew and touch; a stale owner changes nothing. A record lives for
        at least as long as a touch says, unless it is settled or taken over: a renewal does not shorten that.
    6.  Settling, releasing and issuing again, after a lost reply, get the same answer as the first time. Settling
        again with a result gets LOST if the record has none: no duplicate would get that result.
    7.  A settled record answers every claimant with the first payload until it expires.
    8.  A released key is free: attempt + 1, a higher fence, any fingerprint.
    9.  Two different fingerprints on one key are a MISMATCH in every state.
    10. A token is acquired once, only if it was issued, and only by its subject. An owner is one use of it: the same
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
    14. When a watched key is freed or settled, the store calls the listener.
    15. A record made elsewhere is adopted, unless the key holds a record that outranks it: then the reply names both.
    16. Of any number of calls that name an id of a ledger within its window, exactly one is the first.
    17. The same call naming its id again, after a lost reply, gets the same answer. Another call gets ALREADY; or
        PENDING, for as long as that other call says that the first one may still be undone.
    18. An id is remembered for its ledger's window, and up to 1 % longer; then it is new again.
    19. Only a call's own nonce undoes what that call has remembered; `forget` removes the id for all calls.
    20. A claim whose success a ledger remembers keeps all these promises while it is under way and for a while after;
        then the ledger alone knows that the key is done. Its completion and the ledger's entry are one step. A key
        whose id the ledger knows cannot be acquired, even if it was released or its lease has ended.

    If a store cannot answer, it raises UnavailableError, and no other error.
    """

    async def open(self) -> str | None:
        """Check that the settings can work. A backend that is down at present is not an error.

        Returns:
            Why the backend did not answer, if that is an outage; "" or None if it answered.

        Raises:
            ConfigError: the backend answers but cannot be used, for example: too old, wrong password.
        """
        ...

    async def aclose(self) -> None:
        """Close all connections. May also be called on a store that was never opened.

        A store object that fastdedup has made, such as a `RedisStore`, is not opened again after that. Give `Dedup` a
        URL instead: it makes a new store each time that it is opened.
        """
        ...

    async def listen(self, on_freed: Callable[[bytes | None], None]) -> None:
        """Call `on_freed(wire)` from now on for each watched key that is freed or settled. Each waiter calls it.

        `on_freed(None)` means that messages may have been lost, or will be: every waiter calls it and asks again.

        Raises:
            UnavailableError: `on_freed` is not called at present. The store goes on trying.
        """
        ...


Login = tuple[str | None, str]
"""The user's name and the password. None is the user in the URL, or else the server's default user."""


class CredentialProvider(Protocol):
    """A source of logins for redis-py: `redis.credentials.CredentialProvider`, or an object like it.

    If it has `get_credentials_async`, that method is called instead.
    """

    def get_credentials(self) -> Any:
        """Return the user's name and the password, or the password alone, in a tuple."""
        ...


Credentials = Callable[[], Login | Awaitable[Login]] | CredentialProvider
"""A source of the login for each new connection. It must not block the event loop."""


@runtime_checkable
class ConfiguredStore(Protocol):
    """An optional ability of a store: to take what the gate sets when it opens the store."""

    max_record: int
    """Bytes of the largest value that the store reads; a larger one gets ForeignRecordError.

    A gate that stores larger results raises this limit."""
    max_clock_skew: float
    """Seconds by which the clocks of its servers may differ: a tenth of the gate's lease. Beyond, it reports a
    `ClockSkew`."""
    on_report: Callable[[Event], None] | None
    """Gets the events that the store notices by itself. Called in the gate's event loop; it does not raise."""


class Query(NamedTuple):
    """The records to list: those of a namespace, of some kinds, with a prefix of the readable key; and why."""

    namespace: str
    kinds: tuple[Kind, ...]
    prefix: str
    reason: str = ""


class Page(NamedTuple):
    """Some of a store's records, without their results.

    Attributes:
        found: each store key and its record.
        cursor: the place to go on from; empty at the end.
        seen: how many keys the store has looked at.
        now_us: the time by the store's clock, in microseconds since 1970.
    """

    found: Sequence[tuple[bytes, Stored]]
    cursor: str
    seen: int
    now_us: int


def without_result(record: Stored) -> Stored:
    """Return a claim's record without its result: a list neither shows nor reads results."""
    record.payload = b""
    return record


NO_EVICTION: Final = "noeviction"
"""The policy of a server that refuses writes when its memory is full, and forgets nothing."""


@runtime_checkable
class AdminStore(Protocol):
    """An optional ability of a store: to answer an operator, who asks for its records and its settings."""

    async def page(self, query: Query, cursor: str, count: int) -> Page:
        """Look at about `count` keys from `cursor` on ("" is the start), and return the records that fit.

        It does not stop others for long. A record that is there from the first page to the last is in one of them,
        and may be in two.

        Raises:
            UnavailableError: the store does not answer.
            ConfigError: the cursor is not one of this store.
        """
        ...

    async def eviction_policy(self) -> str | None:
        """Return the policy for a full memory, by Redis's names; None if it is not known.

        Raises:
            UnavailableError: the store does not answer.
        """
        ...

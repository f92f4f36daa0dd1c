"""Recent successes: a success that the store has just reported is cached for a moment.

In a storm nearly every claim is for a key that is settled already. The price: if *another*
process forgets a key, this one may still answer its old result for `age` seconds. All other
promises hold: an answer is never kept past the record's own expiry, only a success is kept, and
`forget` in this process takes effect at once. The answer is that of the moment of `dedup.claim(…)`,
also if its result is awaited later.
"""

from __future__ import annotations

import asyncio
from heapq import heappop, heappush
from itertools import count
from threading import Lock
from time import monotonic
from weakref import WeakValueDictionary, ref

from ..compiled import mypyc_attr

MAX_ENTRIES = 10_000
"""Successes that the whole process keeps, over all gates."""
MAX_BYTES = 16 * 1024 * 1024
"""Bytes of results that the whole process keeps, over all gates."""


class RecentSuccess:
    """A cached success, and its finished answer, which all callers share.

    Attributes:
        answer: the result of `Dedup.claim` for it.
        mark: the fingerprint of the claim that found it.
        codec: its gate's, which reads the answer's result; another scope of the namespace may have another one.
        until: when the store must be asked again, by time.monotonic().
        size: bytes of its result.
    """

    __slots__ = ("answer", "codec", "key", "mark", "size", "until")

    def __init__(
        self, key: str, answer: object, mark: bytes | None, codec: object, size: int, until: float
    ) -> None:
        self.key = key
        self.answer = answer
        self.mark = mark
        self.codec = codec
        self.size = size
        self.until = until


Table = dict[str, RecentSuccess]
"""The recent successes of one namespace, by the key's text: a hit costs neither a hash nor an object."""


@mypyc_attr(native_class=False)  # a native object cannot have a weak reference
class SharedTable:
    """The table that the gates of one namespace share; it is dropped with the last of them.

    A program may make a scope for each of its many tenants.
    """

    def __init__(self) -> None:
        self.table: Table = {}


@mypyc_attr(native_class=False)
class RecentSuccesses:
    """Successes learned in the last `age` seconds; bounded: those that expire next are dropped first.

    An age of 0 learns nothing.
    """

    def __init__(self, age: float) -> None:
        self.age = age
        """Seconds for which a success is cached; 0 turns that off."""
        # Mutable: one table a namespace; what was learned, a heap by expiry; how many bytes; the next sweep.
        self._tables: WeakValueDictionary[str, SharedTable] = WeakValueDictionary()
        self._lock = Lock()
        self._learned: list[tuple[float, int, Table, RecentSuccess]] = []
        self._number = count()
        self.bytes = 0
        self._sweep: asyncio.TimerHandle | None = None
        _ALL.add(ref(self, _ALL.discard))

    def __len__(self) -> int:
        return len(self._learned)

    def shared(self, namespace: str) -> SharedTable:
        """Return the table that all gates of a namespace share. Keep it as long as the gate."""
        with self._lock:  # threads may make scopes of one gate
            return self._tables.setdefault(namespace, SharedTable())

    def namespaces(self) -> list[str]:
        """Return the namespaces that have a gate."""
        with self._lock:
            return [*self._tables]

    def forget_all(self) -> None:
        """Forget every success, of all gates."""
        for shared in list(self._tables.values()):
            shared.table.clear()

    def age_for(self, table: Table, key: str, size: int, left: float) -> float:
        """Return the seconds for which to keep a success; 0 if it is not kept, or known already.

        `size`: bytes of its result; `left`: seconds that its record has left in the store.
        """
        age = min(self.age, left)
        if age <= 0 or size > MAX_BYTES // 16:
            return 0.0
        former = table.get(key)
        return 0.0 if former is not None and monotonic() < former.until else age

    def learn(
        self,
        table: Table,
        key: str,
        answer: object,
        mark: bytes | None,
        codec: object,
        size: int,
        age: float,
    ) -> None:
        """Keep a success of `size` bytes for the `age` seconds that `age_for` has returned."""
        now = monotonic()
        self._drop_expired(now)
        success = RecentSuccess(key, answer, mark, codec, size, now + age)
        table[key] = success
        heappush(self._learned, (success.until, next(self._number), table, success))
        self.bytes += size
        while self._learned and (entries_held() > MAX_ENTRIES or bytes_held() > MAX_BYTES):
            self._drop_first()
        if self._sweep is None:
            self._sweep = asyncio.get_running_loop().call_later(self.age, self._sweep_now)

    def clear(self) -> None:
        """Forget everything, because the gate is closed."""
        while self._learned:
            self._drop_first()
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None

    def _sweep_now(self) -> None:
        """Drop the successes that have expired, even if no caller asks for them."""
        self._sweep = None
        self._drop_expired(monotonic())
        if self._learned:
            self._sweep = asyncio.get_running_loop().call_later(self.age, self._sweep_now)

    def _drop_expired(self, now: float) -> None:
        while self._learned and self._learned[0][0] <= now:
            self._drop_first()

    def _drop_first(self) -> None:
        _, _, table, success = heappop(self._learned)
        self.bytes -= success.size
        if table.get(success.key) is success:
            del table[success.key]


_ALL: set[ref[RecentSuccesses]] = set()
"""A set of weak references. A WeakSet would be read step by step while another thread may make a gate."""


def entries_held() -> int:
    """Return how many successes the gates of this process hold."""
    return sum([len(each) for each in _living()])


def bytes_held() -> int:
    """Return how many bytes of results the gates of this process hold."""
    return sum([each.bytes for each in _living()])


def _living() -> list[RecentSuccesses]:
    return [each for found in _ALL.copy() if (each := found()) is not None]

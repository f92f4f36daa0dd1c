"""The rules of one socket: which namespaces and verbs its clients may use, and how much. Main path: `Access.admit`.

Both wires ask here and nowhere else: RESP before it runs a command, HTTP before it calls a handler. A socket without
rules is not asked about at all, so its claims cost nothing more.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from time import monotonic

from ..errors import ConfigError
from ..kernel.verbs import Verb
from . import wire_verbs
from .limits import LimitError

VERBS: tuple[str, ...] = tuple(dict.fromkeys(verb.rule for verb in wire_verbs.VERBS))
"""The verbs that clients may be allowed."""
READING = frozenset(verb.rule for verb in wire_verbs.VERBS if verb.shows)
"""The verbs that change nothing."""
_COUNTED = frozenset(
    {"redeem", "consume"}.union(
        [verb.rule for verb in wire_verbs.VERBS if verb.turns],
        [verb.value for verb in Verb if verb.row.creates],
    )
)
"""The verbs that count towards the claims of a second: claims, and reads that look at many keys."""
_SOON_MS = 100
"""The Retry-After, in ms, if operations under way must end first."""


class ForbiddenError(ConfigError):
    """The rules of the client's socket do not allow what it asks for. Repeating does not help."""


class QuotaError(LimitError):
    """The clients of a socket have used up its quota; `retry_after` says when to ask again."""


class TokenBucket:
    """Counts against a rate. It holds one second's worth, and needs no timer: each `take` fills it first.

    A batch is taken as a whole, even if it has more than is left. Then the bucket owes, and the next batch waits.
    """

    def __init__(self, rate: float, clock: Callable[[], float] = monotonic) -> None:
        self._rate = rate
        self._clock = clock
        # Mutable: what is left, or owed; and when that was counted.
        self._left = max(1.0, rate)
        self._at = clock()

    def take(self, count: int) -> float:
        """Take `count` and return 0.0. If less than one is left, return the seconds until there is one."""
        now = self._clock()
        self._left = min(max(1.0, self._rate), self._left + (now - self._at) * self._rate)
        self._at = now
        if self._left < 1.0:
            return (1.0 - self._left) / self._rate
        self._left -= count
        return 0.0

    def owe(self, count: int) -> None:
        """Take `count` more of what was taken just now."""
        self._left -= count


class Access:
    """The rules for the clients of one socket.

    Args:
        path: the socket's, for messages and metrics.
        namespaces: those that clients may name, the first one for requests without a namespace; empty for no rule.
        verbs: what clients may do, of `VERBS`.
        show_owners: show the owners of records. A client that knows an owner may settle its claim.
        claims_per_second: claims and tokens that clients may ask for in a second.
        pending: operations of all clients that may be under way.
    """

    def __init__(
        self,
        path: str = "",
        *,
        namespaces: Collection[str] = (),
        verbs: Collection[str] = VERBS,
        show_owners: bool = True,
        claims_per_second: float | None = None,
        pending: int | None = None,
    ) -> None:
        self.path = path
        self.namespaces = tuple(namespaces)
        self.show_owners = show_owners
        self._denied = frozenset(VERBS).difference(verbs)
        self._bucket = None if claims_per_second is None else TokenBucket(claims_per_second)
        self._rate = claims_per_second
        self._most = pending
        self.counts_pending = pending is not None
        # Mutable: the operations under way, if they are counted; how many requests were over the quota.
        self.pending = 0
        self.refused = 0

    @property
    def has_rules(self) -> bool:
        """True if some operations of a batch need `admit` first. A batch cannot have a list."""
        return bool(self._denied - {"list"}) or self._bucket is not None or self.counts_pending

    def judges(self, verb: str) -> bool:
        """True if each such operation needs `admit` first."""
        limited = self._bucket is not None and verb in _COUNTED
        return limited or self.counts_pending or verb in self._denied

    def check(self, verb: str) -> None:
        """Check that clients of this socket may do this at all.

        Raises:
            ForbiddenError: they may not.
        """
        if verb in self._denied:
            settings = "set 'show_keys'" if verb == "list" else "change 'verbs' or 'deny'"
            raise ForbiddenError(
                f"this socket does not allow '{verb}': use a socket that does, or {settings} of "
                f"the table [[sockets]] with the path {self.path}"
            )

    def admit_some(self, verb: str, count: int) -> tuple[int, QuotaError | None]:
        """Return how many of `count` operations clients may do now, and the answer to the others.

        Raises:
            ForbiddenError: they may not do this at all.
        """
        some = count if self._most is None else min(count, max(1, self._most - self.pending))
        over = None
        try:
            self.admit(verb, some)
        except QuotaError as fault:
            some, over = 0, fault
        if over is None and some < count:
            over = self._over_pending()
        if over is not None:
            self.refused += count - some - 1  # each of the others counts; the error has counted one
        return some, over

    def admit(self, verb: str, count: int = 1) -> None:
        """Check that clients may do this now, and count it towards the quota.

        Raises:
            ForbiddenError: they may not do this at all.
            QuotaError: they have done too much of it.
        """
        self.check(verb)
        if self._most is not None and self.pending >= self._most:
            raise self._over_pending()
        if self._bucket is not None and verb in _COUNTED:
            wait = self._bucket.take(count)
            if wait:
                raise self._over(
                    f"the clients of this socket may claim {self._rate:.15g} times a second (claims_per_second)",
                    max(1, round(wait * 1000)),
                )

    def charge(self, verb: str, count: int) -> None:
        """Count what an admitted operation does beyond its first claim or id."""
        if self._bucket is not None and verb in _COUNTED:
            self._bucket.owe(count)

    def _over_pending(self) -> QuotaError:
        return self._over(
            f"{self.pending} operations are under way on this socket, and {self._most} may be (pending)",
            _SOON_MS,
        )

    def _over(self, why: str, ms: int) -> QuotaError:
        self.refused += 1
        error = QuotaError(f"{why}: ask again after {ms} ms")
        error.retry_after = ms / 1000
        return error

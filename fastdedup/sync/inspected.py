"""The requests that people make by hand, for synchronous code: show a record, list records, remove a record."""

from __future__ import annotations

from typing import Any

from ..checks import Seconds, check_seconds
from ..gateway import Dedup as AsyncDedup
from ..model import Listing, Record, RecordKind, State
from .background import Bound


class Inspected:
    """Shows, lists and removes the records of a namespace. `Dedup` is one."""

    bound: Bound[AsyncDedup]

    def _records(self, *, within: Seconds, **options: Any) -> Listing:
        seconds = check_seconds(within, "within")
        return self.bound.run(lambda dedup: dedup.records(within=within, **options), wait=seconds)

    # The rest of the class is written by scripts/write_sync.py, which `make format` runs.

    def get(self, key: str, kind: RecordKind = "claim", *, digest: bool = False) -> Record | None:
        """Return the store's record of `key`, or None. This is for inspection; to decide, claim the key.

        Args:
            key: the key of a claim or lock; a token; a machine's name, "/" and the id.
            kind: "claim", "lock", "token" or "machine".
            digest: `key` is "#" and 32 hexadecimal digits, the form of a token or a long key in `records`.
        """
        return self.bound.run(lambda it: it.get(key, kind, digest=digest))

    def forget(
        self, key: str, kind: RecordKind = "claim", *, digest: bool = False, reason: str | None = None
    ) -> bool:
        """Remove the record of `key`, of any owner; False if there was none. The key is new again.

        A token that is forgotten is unknown for ever.

        It leaves a `KeyForgotten` event with the caller and the reason. Arguments: see `get`; `reason`: up to 256
        characters.
        """
        return self.bound.run(lambda it: it.forget(key, kind, digest=digest, reason=reason))

    def records(
        self,
        *,
        kind: RecordKind | None = None,
        prefix: str = "",
        state: State | None = None,
        older: Seconds = 0.0,
        limit: int = 1000,
        within: Seconds = 5.0,
        cursor: str | None = None,
        reason: str | None = None,
    ) -> Listing:
        """Return records of this namespace, to find stuck ones: `records(state=State.PROCESSING, older=60)`.

        The store looks at its keys some hundred at a time (SCAN), on a Cluster at those of each primary, and serves
        other clients in between. It stops at the end, or when `limit` or `within` is reached; pass the answer's
        `cursor` to go on. A record that exists all the time is found, perhaps twice; one that comes, goes or moves
        meanwhile may be missing. It leaves a `RecordsListed` event.

        Args:
            kind: "claim", "lock" or "token"; all of these by default.
            prefix: the beginning of the keys. It finds no key longer than `readable_keys`, because that is a digest
                in the store.
            state: only records in this state. PROCESSING: a claim that is held, or whose owner died (`lease` is 0 or
                less).
            older: the least seconds since the key was acquired.
            limit: the number of records at which to stop; the last step may add some more.
            within: seconds, after which it stops.
            cursor: the last answer's, to go on from there.
            reason: the reason, for the event.

        Raises:
            ConfigError: an argument is not valid, or the cursor is not of this store.
            UnavailableError: the store does not answer. The policy does not answer here.
        """
        return self._records(
            kind=kind,
            prefix=prefix,
            state=state,
            older=older,
            limit=limit,
            within=within,
            cursor=cursor,
            reason=reason,
        )

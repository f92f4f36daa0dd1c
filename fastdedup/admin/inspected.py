"""The methods of a gate for people: read a record, list records, remove a record. See `inspection.py`."""

from __future__ import annotations

from functools import partial
from typing import Self

from ..checks import Seconds
from ..compiled import mypyc_attr
from ..core.audit import check_reason, tell_forgotten, tell_listed
from ..core.gate import Gate
from ..model import Listing, Record, RecordKind, State
from . import inspection


@mypyc_attr(allow_interpreted_subclasses=True)
class Inspected:
    """Shows, lists and removes the records of a namespace. `Dedup` is one."""

    _gate: Gate

    @classmethod
    def _over(cls, gate: Gate) -> Self:
        """Return an object of this class over a gate that exists."""
        inspected = cls.__new__(cls)
        cls._hold(inspected, gate)
        return inspected

    def _hold(self, gate: Gate) -> None:
        self._gate = gate

    async def get(self, key: str, kind: RecordKind = "claim", *, digest: bool = False) -> Record | None:
        """Return the store's record of `key`, or None. This is for inspection; to decide, claim the key.

        Args:
            key: the key of a claim or lock; a token; a machine's name, "/" and the id.
            kind: "claim", "lock", "token" or "machine".
            digest: `key` is "#" and 32 hexadecimal digits, the form of a token or a long key in `records`.
        """
        return await inspection.read(self._gate, key, kind, digest=digest)

    async def forget(
        self, key: str, kind: RecordKind = "claim", *, digest: bool = False, reason: str | None = None
    ) -> bool:
        """Remove the record of `key`, of any owner; False if there was none. The key is new again.

        A token that is forgotten is unknown for ever.

        It leaves a `KeyForgotten` event with the caller and the reason. Arguments: see `get`; `reason`: up to 256
        characters.
        """
        why = check_reason(reason)
        heard = partial(tell_forgotten, self._gate, kind, reason=why)
        return await inspection.forget(self._gate, key, kind, digest=digest, reason=why, heard=heard)

    async def records(
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
        why = check_reason(reason)
        found = await inspection.listing(
            self._gate,
            kind=kind,
            prefix=prefix,
            state=None if state is None else inspection.state_of(state),
            older=older,
            limit=limit,
            within=within,
            cursor=cursor,
            reason=why,
        )
        tell_listed(self._gate, prefix, len(found.records), why)
        return found

"""What the checks of `guarantees` work with: a gate on the store, and names of records that are forgotten later."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from time import monotonic
from typing import Any, Final

from ..claim import Claim
from ..errors import DedupError
from ..gateway import Dedup
from ..ledger.client import Ledger
from ..model import RecordKind
from ..stores.base import Store

LEASE: Final = 0.05
"""Seconds: a lease, a ttl or a window that a check waits for."""
PATIENCE: Final = 4.0
"""Seconds that a check waits for a change which is due after `LEASE`."""
KEEP: Final = 60.0
"""Seconds after which a record of a check expires if the check could not forget it."""
WINDOW: Final = 1.0
"""Seconds for which a ledger of a check remembers an id. No call removes a ledger: it expires within a day or so."""


class BrokenError(Exception):
    """A guarantee is not kept; the text says how."""


def expect(kept: bool, wrong: str) -> None:
    """Raise BrokenError with the text `wrong` if a guarantee was not kept."""
    if not kept:
        raise BrokenError(wrong)


class Trial:
    """A gate on the store, and the names of the records that the checks make.

    Attributes:
        dedup: the gate.
        gates: gates with connections of their own, for races; only `dedup` if the store is an object.
        store: the store, if it is an object.
    """

    def __init__(self, gates: list[Dedup], store: Store | None) -> None:
        self.dedup = gates[0]
        self.gates = gates
        self.store = store
        # Mutable: the records to forget at the end, with their kinds; those beside a ledger.
        self.made: list[tuple[str, Any]] = []
        self._beside: list[tuple[Ledger, str]] = []

    def key(self, kind: str = "claim") -> str:
        """Return a new key, whose record is forgotten at the end."""
        self.made.append((f"key-{len(self.made)}", kind))
        return self.made[-1][0]

    async def token(self, subject: str) -> str:
        """Issue a token, whose record is forgotten at the end."""
        self.made.append((await self.dedup.tokens.issue(subject), "token"))
        return self.made[-1][0]

    def token_wire(self) -> bytes:
        """Return the store key of a new token that is not issued yet; its record is forgotten at the end."""
        return self.dedup.tokens.wire(self.key("token"))

    def ledger(self, window: float = WINDOW) -> Ledger:
        """Return a new ledger."""
        return self.dedup.ledger(f"ledger-{secrets.token_hex(4)}", window=window, capacity=1_000)

    def beside(self, ledger: Ledger) -> str:
        """Return a new key of a claim that a ledger remembers; its record is forgotten at the end."""
        self._beside.append((ledger, f"key-{len(self._beside)}"))
        return self._beside[-1][1]

    async def forget(self) -> None:
        """Forget each record of the checks. A record that cannot be forgotten expires by itself."""
        for key, kind in self.made:
            with suppress(DedupError, NotImplementedError):
                await self.dedup.forget(key, kind)
        for ledger, key in self._beside:
            with suppress(DedupError, NotImplementedError):
                await ledger.forget_record(key)

    async def until(self, condition: Callable[[], Awaitable[bool]], wrong: str) -> None:
        """Wait for a condition; raise BrokenError with the text `wrong` if it does not come about."""
        until = monotonic() + PATIENCE
        while not await condition():
            expect(monotonic() < until, f"after {PATIENCE:g} s {wrong}")
            await asyncio.sleep(LEASE / 5)

    async def lease_ended(self, key: str, kind: RecordKind = "claim") -> None:
        """Wait until the lease of a key's record has ended, without a claim for the key."""

        async def ended() -> bool:
            record = await self.dedup.get(key, kind)
            # Rounded down: at 0 the lease's last millisecond is under way.
            return record is None or record.lease is None or record.lease < 0

        await self.until(ended, f"a lease of {LEASE:g} s had not ended")

    async def end(
        self, claim: Claim, key: str, state: str, result: Any = None, kind: RecordKind = "claim"
    ) -> None:
        """Bring a claim to a state: succeeded, failed, released, ended (its lease); any other leaves it at work."""
        match state:
            case "succeeded":
                await claim.complete(result)
            case "failed":
                await claim.fail(result)
            case "released":
                await claim.release()
            case "ended":
                await self.lease_ended(key, kind)

    async def taken_over(self, key: str, lease: float | None = None) -> Claim:
        """Return the claim that acquires a key once the present lease or record has ended."""
        until = monotonic() + PATIENCE
        while not (claim := await self.dedup.claim(key, lease=lease)).acquired:
            expect(monotonic() < until, f"{PATIENCE:g} s after its end, a key was not acquired")
            await asyncio.sleep(LEASE / 5)
        return claim


Check = Callable[[Trial], Awaitable[None]]


class Checks(dict[int, Check]):
    """Checks, by the numbers of their guarantees."""

    def of(self, number: int) -> Callable[[Check], Check]:
        """Return a decorator that adds the check of a guarantee."""

        def add(check: Check) -> Check:
            self[number] = check
            return check

        return add


@asynccontextmanager
async def open_trial(store: str | Store, namespace: str, timeout: float) -> AsyncIterator[Trial]:
    """Open gates on a store, in a namespace with a random end; forget the records of the checks at the end."""
    several = isinstance(store, str) and not store.lower().startswith("memory:")
    own = f"{namespace}-{secrets.token_hex(6)}"
    gates = [
        Dedup(store, namespace=own, timeout=timeout, lease=30.0, ttl=KEEP, failure_ttl=KEEP)
        for _ in range(4 if several else 1)
    ]
    async with AsyncExitStack() as stack:
        for gate in gates:
            await stack.enter_async_context(gate)
        trial = Trial(gates, None if isinstance(store, str) else store)
        await trial.dedup.get("here?")  # an outage is an error now, before there is any finding
        try:
            yield trial
        finally:
            await trial.forget()

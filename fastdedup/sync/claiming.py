"""`Dedup.claim` and `claim_many` of synchronous code. Decorators and consumers make their options once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..admin.resolving import check_resolve
from ..claiming import claim_call, claim_list
from ..core.options import ClaimOptions
from ..gateway import Dedup as AsyncDedup
from .background import Bound
from .claim import Claim, answered, take_back
from .ledger import ledger_behind
from .resolving import resolved


def claim_now(bound: Bound[AsyncDedup], options: ClaimOptions, key: str, fingerprint: Any = None) -> Claim:
    """Claim a key, and block for the answer. Arguments and errors as for `Dedup.claim`."""
    resolve, renews = options.resolve, options.renew
    if resolve is not None:
        check_resolve(resolve, asynchronous=False, often=True)
    options = _in_background(options)
    claim = answered(bound, lambda dedup: claim_call(dedup.gate, options, key, fingerprint), renews)
    return claim if resolve is None else resolved(claim, resolve, renews=renews)


def claim_list_now(
    bound: Bound[AsyncDedup], options: ClaimOptions, keys: Sequence[str], fingerprints: Sequence[Any] | None
) -> list[Claim]:
    """Claim many keys, and block for the answers. Arguments and errors as for `Dedup.claim_many`."""
    background, dedup = bound.get()
    options = _in_background(options)

    async def made() -> list[Claim]:
        claims = await claim_list(dedup.gate, options, keys, fingerprints)
        return [Claim(background, each, renews=options.renew) for each in claims]

    def discard(claims: list[Claim]) -> None:
        for claim in claims:
            take_back(claim.asynchronous)

    count = len(keys) if hasattr(keys, "__len__") else 0  # `claim_list` refuses what has no length
    return background.run(made, bound.per_process.seconds_of(count) + options.seconds_to_wait, discard)


def _in_background(options: ClaimOptions) -> ClaimOptions:
    """Return what the background thread is asked for. The function of `resolve` runs in the caller's thread."""
    if options.remember is not None:
        options = options.but(remember=ledger_behind(options.remember))
    if options.resolve is not None:
        options = options.but(resolve=None, renew=True)  # while the function runs
    return options

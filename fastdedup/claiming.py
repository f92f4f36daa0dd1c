"""What `Dedup.claim` and `claim_many` do. Decorators, consumers and middlewares call it with options made once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .admin.resolving import Resolving, check_resolve
from .checks import shown
from .claim import Claim
from .core.calls import ClaimCall, KnownCall
from .core.gate import Gate
from .core.many import ClaimList
from .core.options import PLAIN, ClaimOptions
from .errors import ConfigError, InvalidKeyError
from .keys import Fingerprint, digest
from .ledger.remembered import claim_each, remembered_claim, remembered_claims


def claim_call(gate: Gate, options: ClaimOptions, key: str, fingerprint: Any = None) -> ClaimCall:
    """Return a claim to be awaited. Arguments and errors as for `Dedup.claim`."""
    mark = fingerprint if fingerprint is None or type(fingerprint) is Fingerprint else digest(fingerprint)
    then, seconds, renews = None, 0.0, False
    if options is not PLAIN:
        seconds, renews = options.seconds_to_wait, bool(options.renew)
        if options.resolve is not None:
            then = Resolving(check_resolve(options.resolve), renews=renews)
            renews = True  # while the check runs
        if options.remember is not None:
            return remembered_claim(gate, options, key, mark, seconds, renews).call(then)
    if gate.recent:  # empty but in a storm
        known: KnownCall | None = gate.known_success(options, key, mark)
        if known is not None:
            if (counters := gate.observers.counters) is not None:
                counters.observe(gate.settings.namespace, "claim", "succeeded", 0.0)
            return known
    op = gate.claim_op(options, key, gate.claims.wire(key), mark)
    return ClaimCall(gate, op, seconds, renews, then)


async def claim_list(
    gate: Gate, options: ClaimOptions, keys: Sequence[str], fingerprints: Sequence[Any] | None = None
) -> list[Claim]:
    """Claim many keys at once. Arguments and errors as for `Dedup.claim_many`."""
    if isinstance(keys, str | bytes):
        raise InvalidKeyError(
            "claim_many() takes a list of keys, not one text: its characters would be the keys"
        )
    if not hasattr(keys, "__len__"):
        raise ConfigError(f"claim_many() takes a list of keys, got {shown(keys)}")
    given = [None] * len(keys) if fingerprints is None else fingerprints
    if len(given) != len(keys):
        raise ConfigError(f"{len(given)} fingerprints for {len(keys)} keys: give one for each")
    gate.connection.running_engine()
    marks = [None if each is None else digest(each) for each in given]
    if options.remember is None:
        return await ClaimList(gate, options).claim(keys, marks)
    return await claim_each(
        gate, remembered_claims(gate, options, keys, marks), named=options.owner is not None
    )

"""The work of `Dedup.claim` and `claim_many`. Decorators, consumers and middlewares call it with prepared options."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from .admin.resolving import check_resolve, resolve
from .checks import shown
from .claim import Claim
from .core.calls import ClaimCall, key_call
from .core.gate import Gate
from .core.many import ClaimList
from .core.options import ClaimOptions
from .errors import ConfigError, InvalidKeyError
from .keys import fingerprint as digest
from .ledger.remembered import RememberedList, remembered_call


def claim_call(gate: Gate, options: ClaimOptions, key: str, fingerprint: Any = None) -> ClaimCall:
    """Return a claim to await. Arguments and errors: see `Dedup.claim`."""
    then = None
    if options.resolve is not None:
        check = check_resolve(options.resolve, often=True)
        then = partial(resolve, check=check, renews=bool(options.renew))
    if options.remember is None:
        return key_call(gate, options, key, fingerprint, then)
    mark = None if fingerprint is None else digest(fingerprint)
    return remembered_call(gate, options, key, mark, then)


async def claim_list(
    gate: Gate, options: ClaimOptions, keys: Sequence[str], fingerprints: Sequence[Any] | None = None
) -> list[Claim]:
    """Claim many keys at once. Arguments and errors: see `Dedup.claim_many`."""
    if isinstance(keys, str | bytes):
        raise InvalidKeyError(
            "claim_many() takes a list of keys, not one text: its characters would be the keys"
        )
    if not hasattr(keys, "__len__"):
        raise ConfigError(f"claim_many() takes a list of keys, got {shown(keys)}")
    if isinstance(fingerprints, str | bytes) or not (
        fingerprints is None or hasattr(fingerprints, "__len__")
    ):
        raise ConfigError(f"fingerprints must be a list with one for each key, got {shown(fingerprints)}")
    given = [None] * len(keys) if fingerprints is None else fingerprints
    if len(given) != len(keys):
        raise ConfigError(f"{len(given)} fingerprints for {len(keys)} keys: give one for each")
    gate.connection.running_engine()
    marks = [None if each is None else digest(each) for each in given]
    claims = ClaimList(gate, options) if options.remember is None else RememberedList(gate, options)
    return await claims.claim(keys, marks)

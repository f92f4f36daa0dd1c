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
from .keys import mark_of, marks_of
from .ledger.remembered import RememberedList, remembered_call


def claim_call(gate: Gate, options: ClaimOptions, key: str, fingerprint: Any = None) -> ClaimCall:
    """Return a claim to await. Arguments and errors: see `Dedup.claim`."""
    then = None
    if options.resolve is not None:
        check = check_resolve(options.resolve, often=True)
        then = partial(resolve, check=check, renews=bool(options.renew))
    if options.remember is None:
        return key_call(gate, options, key, fingerprint, then)
    mark = mark_of(fingerprint)
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
    marks = marks_of(fingerprints, keys)
    gate.connection.running_engine()
    claims = ClaimList(gate, options) if options.remember is None else RememberedList(gate, options)
    return await claims.claim(keys, marks)

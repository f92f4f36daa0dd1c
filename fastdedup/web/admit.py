"""Whether a request runs under a claim, runs without one, or is answered in its handler's place. No I/O.

Main path: `admit`. Each framework gives it a function that claims.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

from ..model import Outcome
from .answers import REFUSALS, AnsweredClaim, answer, refusal
from .header import parse
from .response import Response
from .rules import Rule

C = TypeVar("C", bound=AnsweredClaim)
_ACQUIRED: Final = Outcome.ACQUIRED  # naming an enum's member through its class costs 50 ns on Python 3.11


async def admit(
    fields: Sequence[bytes], claim: Callable[[str], Awaitable[C | None]], rule: Rule, docs: str | None
) -> C | Response | None:
    """Return the claim that a request has acquired, or the answer in its handler's place.

    None for a request without a key, and for a request that is claimed already.

    Args:
        fields: the value of each Idempotency-Key line of the request.
        claim: called with the key; reads the body, names the caller, and claims by `Rule.identify`. It returns None
            for a request that is claimed already.
        rule: the rule of the request's route.
        docs: the address of the documentation, which every error links to.

    Raises:
        Exception: any error of `claim` that is not one of `REFUSALS`.
    """
    try:
        key = parse(fields)
        rule.check_key(key)
        if key is None:
            return None
        found = await claim(key)
    except REFUSALS as error:
        return refusal(error, rule, docs)
    if found is None or found.outcome is _ACQUIRED:
        return found
    return answer(found, rule, docs)

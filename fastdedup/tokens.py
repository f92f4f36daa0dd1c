"""One-time tokens: for forms, links and confirmations that must act once."""

from __future__ import annotations

import secrets
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from .checks import milliseconds
from .claims.call import ClaimCall
from .errors import ForeignRecordError, InvalidKeyError
from .keys import fingerprint
from .model import Outcome
from .protocol.keyspace import Keyspace, Kind
from .protocol.operations import Code, IssueOp, Mode
from .protocol.owners import draw_owner

if TYPE_CHECKING:
    from .gate.namespace import Scope

_BYTES = 24
"""192 random bits: 32 characters."""
_MAX_TEXT = 256


class Tokens:
    """Issue, consume and redeem one-time tokens, as `dedup.tokens`. The store keeps only their hashes.

    A token is a record that must be issued before it can be claimed, and its subject is its
    fingerprint: so it has leases, takeover after a crash, and replay like any other claim.
    """

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._keyspace = Keyspace(scope.settings.namespace, Kind.TOKEN)

    async def issue(self, subject: Any = None, ttl: float | None = None) -> str:
        """Return a new token: URL-safe text of 192 random bits.

        Args:
            subject: whom or what it is for (text or any JSON-able value); redeeming it for another
                one is a MISMATCH.
            ttl: seconds in which it can be redeemed (`token_ttl` by default).
        """
        token = secrets.token_urlsafe(_BYTES)
        ttl_ms = milliseconds(self._scope.settings.token_ttl if ttl is None else ttl, "ttl")
        op = IssueOp(self._keyspace.wire_digest(token.encode()), draw_owner(), self._mark(subject), ttl_ms)
        if await self._scope.run(op) != Code.OK:
            raise ForeignRecordError(
                "the store holds a foreign value under a fresh token's key; issue another"
            )
        return token

    async def consume(self, token: str, subject: Any = None) -> Outcome:
        """Use a token up in one step: ACQUIRED once, then SUCCEEDED; MISMATCH for another subject; UNKNOWN.

        For an effect that may fail half-way, `redeem`: a consumed token is gone even if what follows is not done.
        """
        claim = await self._call(token, subject, Mode.CONSUME, None, None)
        return claim.outcome

    def wire(self, token: str) -> bytes:
        """Return the store key of a token."""
        return self._keyspace.wire_digest(token_bytes(token))

    def redeem(
        self,
        token: str,
        subject: Any = None,
        *,
        lease: float | None = None,
        ttl: float | None = None,
        wait: float = 0.0,
        renew: bool = False,
    ) -> ClaimCall:
        """Claim a token: do the work, then `complete(result)`, and a second click replays that result.

        Await it or enter it with `async with`; arguments as for `Dedup.claim`. A token that was redeemed
        and released, or whose redeemer crashed, can be redeemed again by its subject for `ttl` seconds
        more, whatever was left of its `token_ttl`: its form was sent in time.
        """
        call = self._call(token, subject, Mode.REDEEM, lease, ttl)
        call.set_patience(wait, renew)
        return call

    def _call(
        self, token: str, subject: Any, mode: Mode, lease: float | None, ttl: float | None
    ) -> ClaimCall:
        secret = token_bytes(token)
        return ClaimCall(
            self._scope,
            # A token is a secret: its claim is called by a digest, which may stand in logs.
            "token:" + blake2b(secret, digest_size=8).hexdigest(),
            self._keyspace.wire_digest(secret),
            self._scope.terms(mode, lease, ttl),
            draw_owner(),
            self._mark(subject),
        )

    def _mark(self, subject: Any) -> bytes | None:
        return None if subject is None else fingerprint(subject)


def token_bytes(token: str) -> bytes:
    """Return the bytes of what a client sent as its token; anything textual that is none is just unknown.

    Raises:
        InvalidKeyError: not text.
    """
    if not isinstance(token, str):
        raise InvalidKeyError(f"a token is text, not {type(token).__name__}")
    return token[:_MAX_TEXT].encode(errors="backslashreplace")

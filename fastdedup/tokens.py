"""One-time tokens: for forms, links and confirmations that must take effect only once."""

from __future__ import annotations

import secrets
from hashlib import blake2b
from typing import Any

from .checks import Seconds, milliseconds
from .core.calls import ClaimCall, claim_op
from .core.gate import Gate
from .core.options import ClaimOptions
from .errors import ForeignRecordError, InvalidKeyError
from .kernel.codes import Code
from .kernel.operations import ClaimOp, IssueOp
from .kernel.owners import draw_owner
from .kernel.terms import Mode
from .keys import fingerprint
from .model import Outcome

_BYTES = 24
"""192 random bits: 32 characters."""
_MAX_TEXT = 256
_NOBODY = blake2b(b"", digest_size=16, person=b"no subject").digest()
"""The fingerprint of a caller that names no subject. `fingerprint()` never returns it."""


class Tokens:
    """`dedup.tokens`: issue, consume and redeem one-time tokens. The store keeps only their hashes.

    A token is a record that must be issued before it can be claimed, and its subject is its fingerprint. So a token
    has leases, takeover after a crash, and replay like any other claim.
    """

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    async def issue(self, subject: Any = None, ttl: Seconds | None = None) -> str:
        """Return a new token: URL-safe text of 192 random bits.

        Args:
            subject: the user or thing that the token is for (text or any JSON-able value). Redeeming it for
                another subject, or for no subject, is a MISMATCH.
            ttl: seconds in which the token can be redeemed (`token_ttl` by default).

        Raises:
            UnavailableError: neither the store nor the policy answered.
        """
        token = draw_token()
        ttl_ms = milliseconds(self._gate.settings.token_ttl if ttl is None else ttl, "ttl")
        op = IssueOp(
            self._gate.tokens.wire_digest(token.encode()),
            draw_owner(),
            None if subject is None else fingerprint(subject),
            ttl_ms,
        )
        if await self._gate.run(op) != Code.OK:
            raise ForeignRecordError(
                "the store holds a foreign value under a new token's key: issue another token"
            )
        return token

    async def consume(self, token: str, subject: Any = None, *, owner: str | None = None) -> Outcome:
        """Use a token in one step. Returns ACQUIRED once, and SUCCEEDED afterwards.

        Returns MISMATCH for another subject, and UNKNOWN for a token that was never issued or has expired.
        For an effect that may fail half-way use `redeem`: a consumed token is gone even if the effect then fails.

        SUCCEEDED is never the answer for a use that is undone later: if another process used the token less than two
        timeouts ago, this waits until that use is older or gone, for at most four timeouts.

        Args:
            token: the text that `issue` returned and the client sent.
            subject: the subject that the token was issued for. A token that was issued for a subject is a MISMATCH
                for any other subject, and for a caller that names no subject.
            owner: your own name for this use, 1 to 63 bytes. The same name gets ACQUIRED again, for example after a
                lost reply.

        Raises:
            UnavailableError: neither the store nor the policy answered. A use that got no answer is undone
                before the error is raised, within one further `timeout`; or later, when the store answers again.
                With `owner=` it is kept, so that the same owner can ask again.
            ShortfallError: too few replicas confirmed the use (`replicas=`); it is undone in the same way.
        """
        claim = await self.use(token, subject, owner)
        return claim.outcome

    def use(self, token: str, subject: Any, owner: str | None, *, ttl: Seconds | None = None) -> ClaimCall:
        """Return the claim that uses a token: `consume`, for an integration that needs the claim itself.

        Await the call: the claim's outcome is the result of `consume`. Arguments and errors: see `consume`; `ttl`:
        seconds for which the use is remembered.
        """
        op = token_op(self._gate, ClaimOptions(owner, ttl=ttl), token, subject, Mode.CONSUME)
        return ClaimCall(self._gate, op, verb="consume")

    def wire(self, token: str) -> bytes:
        """Return the store key of a token."""
        return self._gate.tokens.wire_digest(token_bytes(token))

    def redeem(
        self,
        token: str,
        subject: Any = None,
        *,
        owner: str | None = None,
        lease: Seconds | None = None,
        ttl: Seconds | None = None,
        wait: Seconds | None = None,
        renew: bool | None = None,
    ) -> ClaimCall:
        """Claim a token: do the work, then call `complete(result)`; a second click gets that result.

        Await the call or enter it with `async with`; the arguments are those of `Dedup.claim`. A token that was
        redeemed and released, or whose redeemer crashed, can be redeemed again by its subject for another `ttl`
        seconds, also past its `token_ttl`: its form was sent in time.

        Like `consume`, it waits while the token is used without a result and another process may still undo that use.
        """
        return self.redeem_with(ClaimOptions(owner, lease, ttl, wait, renew), token, subject)

    def redeem_with(self, options: ClaimOptions, token: str, subject: Any = None) -> ClaimCall:
        """Do what `redeem` does, for an integration that makes its options once."""
        op = token_op(self._gate, options, token, subject, Mode.REDEEM)
        return ClaimCall(self._gate, op, options.seconds_to_wait, options.renews, verb="redeem")


def token_op(gate: Gate, options: ClaimOptions, token: str, subject: Any, mode: Mode) -> ClaimOp:
    """Return the operation that redeems or consumes a token."""
    secret = token_bytes(token)
    # A token is a secret: the claim's key is a digest, which may appear in logs.
    key = "token:" + blake2b(secret, digest_size=8).hexdigest()
    op = claim_op(gate, options, key, gate.tokens.wire_digest(secret), subject_mark(subject), mode)
    if mode is Mode.CONSUME and not op.named:
        op.draw_again(draw_owner())  # a token that is consumed in one step has no holder
    return op


def subject_mark(subject: Any) -> bytes:
    """Return the fingerprint for redeeming a token as this subject.

    "No subject" has a fingerprint of its own, so that a token that was issued for a subject answers MISMATCH.
    """
    return _NOBODY if subject is None else fingerprint(subject)


def draw_token() -> str:
    """Return the text of a new token. It does not begin with a dash, which a command line would read as an option."""
    while True:
        token = secrets.token_urlsafe(_BYTES)
        if token[0] != "-":
            return token


def token_bytes(token: str) -> bytes:
    """Return the bytes of a token that a client sent. A text that is not a token is then UNKNOWN.

    Raises:
        InvalidKeyError: the token is not text.
    """
    if not isinstance(token, str):
        raise InvalidKeyError(f"a token must be text, got {type(token).__name__}")
    return token[:_MAX_TEXT].encode(errors="backslashreplace")

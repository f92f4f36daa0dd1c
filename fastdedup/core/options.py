"""The caller's options of a claim, beside its key. Each public API makes one `ClaimOptions`, and passes it on."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from ..checks import check_flag, check_wait


# Not a frozen dataclass, because making one takes five times as many instructions.
class ClaimOptions(NamedTuple):
    """How to make claims. The key and its fingerprint are not in it, so an API with settings makes it once.

    The fields are the arguments of `Dedup.claim`, in their order. Their values are checked when a claim is made, and
    not before: `once()` reports a wrong value when the function is called.
    """

    # Any: the caller's values are not checked yet, and a compiled module checks every other type.
    owner: Any = None
    lease: Any = None
    ttl: Any = None
    wait: Any = None
    renew: Any = None
    remember: Any = None
    """The ledger that remembers a success."""
    returns: Any = None
    """The declared type of the result."""
    resolve: Any = None
    """The function that is asked about abandoned work."""

    def but(self, **changes: Any) -> ClaimOptions:
        """Return the same options with some changed."""
        return self._replace(**changes)

    @property
    def at_once(self) -> ClaimOptions:
        """The same options for a claim that does not wait."""
        return self.but(wait=None)

    @property
    def seconds_to_wait(self) -> float:
        """The `wait` in seconds.

        Raises:
            ConfigError: `wait` is not a length of time.
        """
        return check_wait(self.wait)

    @property
    def renews(self) -> bool | None:
        """The `renew`.

        Raises:
            ConfigError: it is not True, False or None.
        """
        return None if self.renew is None else check_flag(self.renew, "renew")


PLAIN: Final = ClaimOptions()
"""The options of a claim whose caller gives only its key, and perhaps a fingerprint."""

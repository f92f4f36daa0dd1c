"""What a caller says about a claim beside its key. Each face makes one `ClaimOptions`, and hands it down."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from ..checks import check_seconds


# No frozen dataclass: making one of these takes five times the instructions.
class ClaimOptions(NamedTuple):
    """How to make claims. The key and its fingerprint are not in it, so a face with settings makes it once.

    The fields are the arguments of `Dedup.claim`, in their order. Their values are checked when a claim is made, and
    not before: `once()` tells of a wrong one when the function is called.
    """

    # Any: what a caller passed is not checked yet, and a compiled module trusts no other type.
    owner: Any = None
    lease: Any = None
    ttl: Any = None
    wait: Any = 0.0
    renew: Any = False
    remember: Any = None
    """The ledger that remembers a success."""
    resolve: Any = None
    """The function that is asked about abandoned work."""

    def but(self, **changes: Any) -> ClaimOptions:
        """Return the same options with some changed."""
        return self._replace(**changes)

    @property
    def at_once(self) -> ClaimOptions:
        """The same options for a claim that does not wait."""
        return self.but(wait=0.0)

    @property
    def seconds_to_wait(self) -> float:
        """The `wait` in seconds.

        Raises:
            ConfigError: it is not a length of time.
        """
        wait = self.wait
        return 0.0 if type(wait) is float and wait == 0.0 else check_seconds(wait, "wait", least=0.0)


PLAIN: Final = ClaimOptions()
"""The options of a claim whose caller gives its key, and perhaps a fingerprint, and nothing else."""

"""The settings of one namespace, and of the connections that a gate has; checked once."""

from __future__ import annotations

from dataclasses import dataclass

from ..checks import check_count, check_seconds
from ..codec import Codec
from ..errors import ConfigError
from ..fallback.base import FallbackPolicy
from ..kernel.keyspace import MAX_KEY_BYTES
from ..kernel.queue import MIN_BATCH
from ..keys import check_namespace


@dataclass(frozen=True, slots=True)
class Settings:
    """Times in seconds, sizes in bytes. See `Dedup` for their meaning."""

    namespace: str
    lease: float
    ttl: float
    failure_ttl: float
    token_ttl: float
    max_result: int
    on_unavailable: FallbackPolicy
    codec: Codec
    readable_keys: int
    holder: str | None = None
    """The label with which records say who holds them, "" for no label; None where they do not say it."""

    def __post_init__(self) -> None:
        check_namespace(self.namespace)
        for name in ("lease", "ttl", "failure_ttl", "token_ttl"):
            object.__setattr__(self, name, check_seconds(getattr(self, name), name))
        check_count(self.max_result, "max_result")
        if check_count(self.readable_keys, "readable_keys", least=0) > MAX_KEY_BYTES:
            raise ConfigError(f"readable_keys={self.readable_keys}: a key has at most {MAX_KEY_BYTES} bytes")


@dataclass(slots=True)
class ConnectionSettings:
    """What all connections of a gate have in common.

    Attributes:
        name: the gate's name in the log: its namespace.
        timeout: seconds, the deadline of one operation.
        max_pending: operations waiting or under way at most.
        lease: seconds, the gate's own: a tenth of it is how far apart the clocks of two servers may be.
        policy: the gate's own, which most scopes share: its journal is shown under the gate's name.
        min_batch: claims in a batch, below which they are not spread over further batches. Set before opening.
        max_result: bytes of the largest result of all scopes: a key with a larger record is refused alone.
    """

    name: str
    timeout: float
    max_pending: int
    lease: float
    policy: FallbackPolicy
    min_batch: int = MIN_BATCH
    max_result: int = 0

    def __post_init__(self) -> None:
        check_count(self.max_pending, "max_pending")

"""The settings of one namespace, checked once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ..checks import check_count, check_seconds, named
from ..codec import Codec
from ..errors import ConfigError
from ..fallback.base import FallbackPolicy
from ..kernel.keyspace import MAX_KEY_BYTES
from ..kernel.records import MOST_RESULT
from ..keys import check_namespace


def check_codec(given: Any) -> Codec:
    """Return a codec, if it is an object with `dumps` and `loads`, and no class of such objects.

    Raises:
        ConfigError: it is not.
    """
    if isinstance(given, type) or not isinstance(given, Codec):
        raise ConfigError(f"codec must be an object with dumps() and loads(), got {named(given)}")
    return given


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
    """The label in the holder's name of records, "" for no label; None if records name no holder."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "namespace", check_namespace(self.namespace))
        check_codec(self.codec)
        for name in ("lease", "ttl", "failure_ttl", "token_ttl"):
            object.__setattr__(self, name, check_seconds(getattr(self, name), name))
        check_count(self.max_result, "max_result", most=MOST_RESULT)
        check_count(self.readable_keys, "readable_keys", least=0, most=MAX_KEY_BYTES)

    def within(self, name: str | None, **changes: Any) -> Settings:
        """Return the settings of the scope of that name, or of the same namespace without a name; see `but`."""
        scope = None if name is None else f"{self.namespace}:{check_namespace(name, 'the name of a scope')}"
        return self.but(namespace=scope, **changes)

    def but(self, **changes: Any) -> Settings:
        """Return the same settings with some changed. None changes nothing."""
        return replace(self, **{name: value for name, value in changes.items() if value is not None})

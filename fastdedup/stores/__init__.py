"""Stores by URL scheme: add one here and in the matrix of the contract suite (`tests/stores.py`)."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import parse_qsl

from ..checks import check_count
from ..errors import ConfigError
from .base import Store
from .memory import MemoryStore


def make_store(url: str, timeout: float) -> Store:
    """Return the store that a URL names; nothing is connected yet.

    Raises:
        ConfigError: the URL cannot be used; the message says how one looks.
    """
    scheme = url.partition("://")[0].lower() if "://" in url else ""
    make = _SCHEMES.get(scheme)
    if make is None:
        raise ConfigError(
            f"no store for a URL with the scheme {scheme!r}; use one of "
            + ", ".join(f"{known}://" for known in _SCHEMES)
        )
    return make(url, timeout)


def _memory(url: str, timeout: float) -> Store:
    path, _, query = url[len("memory://") :].partition("?")
    options = dict(parse_qsl(query, keep_blank_values=True))
    if path.strip("/") or path == "/" or options.keys() - {"maxsize", "max_bytes"}:
        raise ConfigError(f"write memory:// or memory://?maxsize=100000&max_bytes=67108864, not {url!r}")
    try:
        sizes = {name: check_count(int(value), name) for name, value in options.items()}
    except ValueError as error:
        raise ConfigError(f"{url}: maxsize and max_bytes are whole numbers: {error}") from None
    return MemoryStore(
        maxsize=sizes.get("maxsize", 1_000_000), max_bytes=sizes.get("max_bytes", 1024 * 1024 * 1024)
    )


def _redis(url: str, timeout: float) -> Store:
    from .redis import RedisStore

    return RedisStore(url, timeout=timeout)


_SCHEMES: dict[str, Callable[[str, float], Store]] = {
    "memory": _memory,
    "redis": _redis,
    "rediss": _redis,
    "unix": _redis,
}

"""Stores by URL scheme: add one here and in the matrix of the contract suite (`tests/stores.py`)."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import parse_qsl

from ..checks import check_count
from ..errors import ConfigError
from .base import Store
from .memory import MemoryStore


def make_store(url: str, timeout: float, replicas: int = 0) -> Store:
    """Return the store that a URL names; nothing is connected yet.

    Args:
        url: memory://, redis://, rediss://, unix://, redis+sentinel://, redis+cluster:// or sidecar://.
        timeout: seconds, the deadline of one operation.
        replicas: that shall confirm each write; what fewer confirm is marked.

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
    return make(url, timeout, check_count(replicas, "replicas", least=0))


def _memory(url: str, timeout: float, replicas: int) -> Store:
    path, _, query = url[len("memory://") :].partition("?")
    options = dict(parse_qsl(query, keep_blank_values=True))
    if path.strip("/") or path == "/" or options.keys() - {"maxsize", "max_bytes"}:
        raise ConfigError(f"write memory:// or memory://?maxsize=100000&max_bytes=67108864, not {url!r}")
    if replicas:
        raise ConfigError(
            f"replicas={replicas}: memory:// has none, it lives in this process alone; leave it 0"
        )
    try:
        sizes = {name: check_count(int(value), name) for name, value in options.items()}
    except ValueError as error:
        raise ConfigError(f"{url}: maxsize and max_bytes are whole numbers: {error}") from None
    return MemoryStore(
        maxsize=sizes.get("maxsize", 1_000_000), max_bytes=sizes.get("max_bytes", 1024 * 1024 * 1024)
    )


def _redis(url: str, timeout: float, replicas: int) -> Store:
    from .redis import RedisStore

    return RedisStore(url, timeout=timeout, replicas=replicas)


def _cluster(url: str, timeout: float, replicas: int) -> Store:
    from .redis import ClusterStore

    return ClusterStore(url, timeout=timeout, replicas=replicas)


def _sidecar(url: str, timeout: float, replicas: int) -> Store:
    from .sidecar import SidecarStore

    if replicas:
        raise ConfigError(
            f"replicas={replicas}: which replicas confirm is the sidecar's own setting; leave it 0"
        )
    return SidecarStore(url, timeout=timeout)


_SCHEMES: dict[str, Callable[[str, float, int], Store]] = {
    "memory": _memory,
    "redis": _redis,
    "rediss": _redis,
    "unix": _redis,
    "redis+sentinel": _redis,
    "rediss+sentinel": _redis,
    "redis+cluster": _cluster,
    "rediss+cluster": _cluster,
    "sidecar": _sidecar,
}

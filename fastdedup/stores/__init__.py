"""The stores by URL scheme. A new store is added here and in the matrix of the contract suite (`tests/stores.py`)."""

from __future__ import annotations

import re
from collections.abc import Callable
from difflib import get_close_matches
from typing import Any
from urllib.parse import parse_qsl

from ..checks import check_count, named
from ..errors import ConfigError
from .base import Credentials, Store
from .memory import MemoryStore
from .source import StoreSource


def stores_of(
    store: Any, timeout: float, replicas: int = 0, credentials: Credentials | None = None
) -> StoreSource:
    """Return the stores of a gate's connections: those that a URL names, or a store object of the user.

    Raises:
        ConfigError: see `make_store`; or options of a URL were given with an object.
    """
    if isinstance(store, str) or not hasattr(store, "execute"):
        try:
            first = make_store(store, timeout, replicas, credentials)
        except ConfigError as error:
            fault = error.with_traceback(None)
        else:
            if isinstance(first, MemoryStore):
                return StoreSource(lambda: first, forgets=True)
            # Not the URL itself, which holds a password: code that shows this object shows its attributes.
            return StoreSource(lambda: make_store(store, timeout, replicas, credentials), has_several=True)
        store, credentials = "", None  # see `make_store`
        raise fault
    if replicas:
        raise ConfigError(
            "replicas= goes with a URL; a store object of your own waits for its replicas itself"
        )
    if credentials is not None:
        raise ConfigError("credentials= goes with a URL; a store object of your own logs in itself")
    return StoreSource(lambda: store, forgets=isinstance(store, MemoryStore))


def make_store(url: str, timeout: float, replicas: int = 0, credentials: Credentials | None = None) -> Store:
    """Return the store that a URL names; nothing is connected yet.

    Args:
        url: memory://, redis://, rediss://, unix://, redis+sentinel://, redis+cluster:// or sidecar://.
        timeout: seconds, the deadline of one operation.
        replicas: how many replicas must confirm each write; a write with fewer confirmations is marked as short.
        credentials: asked for the login of each new connection to Redis; see `Dedup`.

    Raises:
        ConfigError: the URL cannot be used; the message says how to write one, and shows no secret of it.
    """
    try:
        return _make(url, timeout, replicas, credentials)
    except ConfigError as error:
        fault = error.with_traceback(None)
    # Raised without the frames that hold the URL: tools that log tracebacks may show local variables. A caller
    # that passes a user and a password instead of a function has put a password into `credentials`.
    url, credentials = "", None
    raise fault


def _make(url: Any, timeout: float, replicas: int, credentials: Any) -> Store:
    if not isinstance(url, str):
        raise ConfigError(
            f"the store's URL must be text such as {_FORMS['redis']}, got {type(url).__name__}: "
            "is the variable set, and decoded?"
        )
    scheme, slashes, _ = url.partition("://")
    make = _SCHEMES.get(scheme.lower()) if slashes else None
    if make is None:
        raise ConfigError(f"{_wrong_scheme(url)}; use one of " + ", ".join(f"{one}://" for one in _SCHEMES))
    if "redis" in scheme.lower() and url.encode(errors="ignore").decode() != url:
        raise ConfigError(
            "the store's URL has bytes that are no UTF-8: percent-encode its special characters"
        )
    check_count(replicas, "replicas", least=0)
    if credentials is not None:
        check_credentials(credentials)
    return make(url, timeout, replicas, credentials)


def check_credentials(credentials: Any) -> None:
    """Refuse `credentials` that cannot give a login.

    Raises:
        ConfigError: `credentials` is neither a function nor a provider; the message does not show it.
    """
    if isinstance(credentials, type) or not (
        callable(credentials) or hasattr(credentials, "get_credentials")
    ):
        raise ConfigError(
            "credentials must be a function that returns (user name, password), or a "
            f"redis.credentials.CredentialProvider, got {named(credentials)}"
        )


def _wrong_scheme(url: str) -> str:
    """Return an error text that shows how to write a URL. It never repeats a part that may be a password."""
    if not url.strip():
        return f"the store's URL is empty: write {_FORMS['redis']}"
    scheme, slashes, _ = url.partition("://")
    if slashes:
        near = get_close_matches(scheme.lower(), list(_SCHEMES), n=1) or ["redis"]
        return f"no store has URLs with the scheme {scheme[:20]!r}{_meant(_FORMS[near[0]])}"
    known = get_close_matches(re.split("[:/]", url.lower())[0], list(_SCHEMES), n=1)
    if known:
        return f"the URL has no :// behind its scheme{_meant(_FORMS[known[0]])}"
    if url.startswith(("/", "./", "~")):
        socket = url if re.fullmatch(r"/[\w/.-]+\.sock", url) else "/path/to/redis.sock"
        scheme = "sidecar" if "fastdedup" in socket else "unix"
        return f"the URL has no scheme{_meant(f'{scheme}://{socket}')}"
    local = re.fullmatch(r"(localhost|127\.0\.0\.1|\[::1\])(:\d{1,5})?(/\d{1,2})?", url)
    host = f"redis://{local[1]}{local[2] or ':6379'}{local[3] or '/0'}" if local else "redis://host:6379/0"
    return f"the URL has no scheme{_meant(host)}"


def _meant(form: str) -> str:
    return f"; did you mean {form} ?"


def _memory(url: str, timeout: float, replicas: int, credentials: Credentials | None) -> Store:
    path, _, query = url[len("memory://") :].partition("?")
    pairs = parse_qsl(query, keep_blank_values=True)
    options = dict(pairs)
    if len(options) < len(pairs):
        raise ConfigError("cannot use the memory:// URL: give each option once")
    if path.strip("/") or path == "/" or options.keys() - {"maxsize", "max_bytes"}:
        raise ConfigError(f"cannot use the memory:// URL: write memory:// or {_FORMS['memory']}")
    if replicas:
        raise ConfigError(
            f"replicas={replicas}: memory:// has no replicas, it lives in this process alone; leave it 0"
        )
    if credentials is not None:
        raise ConfigError("memory:// has no login, it lives in this process: leave credentials out")
    sizes = {name: _size(value, name) for name, value in options.items()}
    return MemoryStore(
        maxsize=sizes.get("maxsize", 1_000_000), max_bytes=sizes.get("max_bytes", 1024 * 1024 * 1024)
    )


def _size(value: str, name: str) -> int:
    if not re.fullmatch(r"-?[0-9]{1,15}", value):
        raise ConfigError(f"{name} in the memory:// URL must be a whole number: write {_FORMS['memory']}")
    return check_count(int(value), name)


def _redis(url: str, timeout: float, replicas: int, credentials: Credentials | None) -> Store:
    from .redis import RedisStore

    return RedisStore(url, timeout=timeout, replicas=replicas, credentials=credentials)


def _cluster(url: str, timeout: float, replicas: int, credentials: Credentials | None) -> Store:
    from .redis import ClusterStore

    return ClusterStore(url, timeout=timeout, replicas=replicas, credentials=credentials)


def _sidecar(url: str, timeout: float, replicas: int, credentials: Credentials | None) -> Store:
    from .sidecar import SidecarStore

    if replicas:
        raise ConfigError(
            f"replicas={replicas}: the sidecar's own setting says how many replicas confirm; leave it 0"
        )
    if credentials is not None:
        raise ConfigError(
            "the sidecar logs in to Redis itself: leave credentials out, and set its password_file"
        )
    return SidecarStore(url, timeout=timeout)


_SCHEMES: dict[str, Callable[[str, float, int, Credentials | None], Store]] = {
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
_FORMS = {
    "memory": "memory://?maxsize=100000&max_bytes=67108864",
    "redis": "redis://localhost:6379/0",
    "rediss": "rediss://localhost:6379/0",
    "unix": "unix:///path/to/redis.sock?db=0",
    "redis+sentinel": "redis+sentinel://host1:26379,host2:26379/service-name/0",
    "rediss+sentinel": "rediss+sentinel://host1:26379,host2:26379/service-name/0",
    "redis+cluster": "redis+cluster://host1:7000,host2:7001",
    "rediss+cluster": "rediss+cluster://host1:7000,host2:7001",
    "sidecar": "sidecar:///run/fastdedup/fd.sock",
}

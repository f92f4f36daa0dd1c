"""Texts about a sidecar's configuration, for people."""

from __future__ import annotations

from collections.abc import Iterator

from ..urls import without_secrets
from .config import Config
from .tables import SocketConfig

_UNITS = ((86_400.0, "d"), (3_600.0, "h"), (60.0, "min"), (1.0, "s"))


def greeting(config: Config, path: str) -> str:
    """Return the lines that `fastdedup serve` prints: socket, store, and two commands to paste."""
    kept = ", in this process: gone when it ends" if config.url.startswith("memory:") else ""
    return "\n".join(
        [
            f"fastdedup serves {without_secrets(config.url)}{kept}",
            f"  socket     {path}",
            f"  namespace  {config.namespace}: {_settings(config, config.namespace)}",
            "Ask it, twice:",
            f'  curl --unix-socket {path} http://localhost/v1/claims --json \'{{"key": "order:42"}}\'',
            f"  redis-cli -s {path} FD.CLAIM order:43",
        ]
    )


def summary(config: Config) -> Iterator[str]:
    """Yield lines that describe a configuration."""
    yield f"store      {without_secrets(config.url)}, timeout {_time(config.timeout)}"
    yield f"socket     {config.socket}"
    if config.metrics_address is not None:
        yield f"metrics    http://{config.metrics_address}/metrics, without a password"
    yield f"allowed    {_who(config)}"
    yield f"stores     {'sidecar:// stores may connect' if config.allow_stores else 'no sidecar:// stores'}"
    yield f"namespaces {'those below only' if config.configured_only else 'any that a client names'}"
    for each in config.sockets:
        yield f"socket     {each.path}: {_rules(each)}"
    for name in dict.fromkeys((config.namespace, *config.namespaces)):
        default = " (default)" if name == config.namespace else ""
        yield f"namespace  {name}{default}: {_settings(config, name)}"
    for name, ledger in config.ledgers.items():
        where = ledger.namespace or config.namespace
        yield f"ledger     {name}: {ledger.capacity} ids in {_time(ledger.window)}, in the namespace {where}"


def _who(config: Config | SocketConfig) -> str:
    who = [f"uid {uid}" for uid in config.allow_uids] + [f"gid {gid}" for gid in config.allow_gids]
    return ", ".join(who) or "every user that may open the socket"


def _rules(socket: SocketConfig) -> str:
    verbs = "reading only" if socket.verbs == "read" else "all verbs"
    quotas = (
        ("claims a second", socket.claims_per_second),
        ("pending", socket.pending),
        ("EPHEMERAL a connection", socket.ephemeral),
        ("EPHEMERAL in all", socket.ephemeral_in_all),
    )
    return " · ".join(
        [
            f"mode {socket.mode:04o}, for {_who(socket)}",
            f"namespaces {', '.join(socket.namespaces)}" if socket.namespaces else "all namespaces",
            verbs + (f" but {', '.join(socket.deny)}" if socket.deny else ""),
            *(["stores"] if socket.allow_stores else []),
            *(f"{most:.15g} {name}" for name, most in quotas if most is not None),
        ]
    )


def _settings(config: Config, name: str) -> str:
    values = config.default_options()
    if name != config.namespace:
        values |= config.namespaces[name].changes()
    times = [f"{each} {_time(values[each])}" for each in ("lease", "ttl", "failure_ttl", "token_ttl")]
    return " · ".join([*times, f"unavailable: {values['on_unavailable']!r}"])


def _time(seconds: float) -> str:
    for size, unit in _UNITS:
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.15g} s"

"""Texts about a sidecar's configuration, for people, and a file of every setting, made of their fields and texts."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from ..limits import Limits
from ..urls import without_secrets
from .config import Config
from .tables import LedgerConfig, NamespaceConfig, PolicyTable, SocketConfig

EXAMPLES: dict[str, Any] = {
    "password_file": Path("/run/secrets/redis"),
    "metrics_address": "127.0.0.1:9464",
    "allow_namespaces": "configured",
    "connections_per_uid": 256,
}
"""A value for each setting that has none by default."""
_WIDTH = 110
LEDGER: dict[str, Any] = {
    "window": 604_800.0,
    "capacity": 1_000_000,
    "width": 7,
    "namespace": "fastdedup",
}
"""A value for each setting of a ledger that has none by default."""
_TABLES = ("limits", "namespaces", "ledgers")
_NAME = "sms"
_LEDGER = "orders"
_HEAD = """\
# Settings of `fastdedup serve --config FILE`; `fastdedup check-config FILE` checks them. Flags and the environment
# (FASTDEDUP_LEASE=60) stand above this file.
# A line such as #lease = 30.0 shows a setting with its default, or with an example if it has no default:
# take the # away to change it.
"""


def example_file() -> str:
    """Return the file of `fastdedup check-config --example`.

    It is valid unchanged, and also with each # before a setting taken away.
    """
    texts = {**texts_of(Config), **{f"limits.{name}": text for name, text in texts_of(Limits).items()}}
    blocks = [_HEAD]
    blocks += [
        _setting(name, texts[name], default) for name, default in _defaults(Config) if name not in _TABLES
    ]
    blocks.append(_comment(texts["limits"]) + "[limits]\n")
    blocks += [_setting(each.name, texts[f"limits.{each.name}"], each.default) for each in fields(Limits)]
    blocks.append(_comment(texts["namespaces"]) + f"#[namespaces.{_NAME}]\n" + _own())
    blocks.append(_comment(texts["ledgers"]) + f"#[ledgers.{_LEDGER}]\n")
    blocks += [_of_ledger(name) for name in LedgerConfig.model_fields]
    return "\n".join(blocks)


def texts_of(kind: type) -> dict[str, str]:
    """Return the text under each field of a class."""
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(tree, ast.ClassDef)
    found = {}
    for field, text in zip(tree.body, tree.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
            assert isinstance(field.target, ast.Name)
            assert isinstance(text.value, ast.Constant)
            found[field.target.id] = " ".join(str(text.value.value).split())
    return found


def _defaults(model: type[BaseModel]) -> Iterator[tuple[str, Any]]:
    for name, field in model.model_fields.items():
        yield name, field.get_default(call_default_factory=True)


def _own() -> str:
    """Return the settings that a namespace may have of its own, with the defaults that they then have."""
    defaults = dict(_defaults(Config))
    return "".join(f"#{name} = {_toml(defaults[name])}\n" for name in NamespaceConfig.model_fields)


def _of_ledger(name: str) -> str:
    default = LEDGER.get(name, LedgerConfig.model_fields[name].default)
    return _comment(texts_of(LedgerConfig)[name]) + f"#{name} = {_toml(default)}\n"


def _setting(name: str, text: str, default: Any) -> str:
    return _comment(text) + f"#{name} = {_toml(EXAMPLES[name] if default is None else default)}\n"


def _comment(text: str) -> str:
    return "".join(f"# {line}\n" for line in textwrap.wrap(text, _WIDTH, break_on_hyphens=False))


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, PolicyTable):
        value = value.policy
    if isinstance(value, str | Path):
        return '"{}"'.format(str(value).replace("\\", "\\\\").replace('"', '\\"'))
    if isinstance(value, tuple):
        return f"[{', '.join(map(_toml, value))}]"
    return repr(value)


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

"""`fastdedup check-config --example`: a file with every setting, made from the settings' own fields and texts."""

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
from .config import Config
from .tables import LedgerConfig, NamespaceConfig, PolicyTable

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
    """Return the file's text. It is valid unchanged, and also with each # before a setting taken away."""
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

"""The sidecar's settings: flags, then `FASTDEDUP_*` of the environment, then a TOML file. Main path: `load`.

To add a setting: write a field below, with a type of `checked.py` and a sentence; a setting of a namespace or of a
socket stands in `tables.py`. All mistakes are reported together; `mistakes.py` finds the line, the variable or the
flag that each mistake comes from.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError, model_validator
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from ...errors import ConfigError, UnavailableError
from ...stores import make_store
from ...stores.base import Credentials, Login
from ..limits import Limits
from ..paths import default_socket
from .checked import (
    Count,
    CountOrZero,
    Gid,
    Name,
    ReadableFile,
    Seconds,
    SocketPath,
    StoreUrl,
    TcpAddress,
    Uid,
)
from .mistakes import Mistakes, Sources, describe, in_order, unknown_variables
from .tables import (
    AnyPolicy,
    LedgerConfig,
    LedgerName,
    LimitsTable,
    NamespaceConfig,
    PolicyTable,
    SocketConfig,
)

PREFIX = "FASTDEDUP_"
_NO_SETTINGS = {"FASTDEDUP_CONFIG", "FASTDEDUP_COMPILE", "FASTDEDUP_SHOP"}
"""Variables with the prefix that others read: the command line, the build, the demo."""
_OF_KUBERNETES = re.compile(r"FASTDEDUP_(SERVICE_(HOST|PORT(_\w+)?)|PORT(_\d+_(TCP|UDP|SCTP)(_\w+)?)?)")
"""Variables that Kubernetes sets in each pod beside a Service of the name fastdedup."""


class Config(BaseSettings):
    """All settings of `fastdedup serve`."""

    model_config = SettingsConfigDict(
        extra="forbid",
        frozen=True,
        env_prefix=PREFIX,
        env_nested_delimiter="__",
        env_ignore_empty=True,
        hide_input_in_errors=True,
    )

    url: StoreUrl = "memory://"
    """The store: memory:// (this process alone, gone when it ends), redis://, rediss://, unix://, redis+sentinel://
    or redis+cluster://; for example redis://localhost:6379/0. Prefer `password_file` to a password in it."""
    password_file: ReadableFile | None = None
    """A file with the password of the store's user; it is read anew for each connection. The URL then has none."""
    socket: SocketPath = Field(default_factory=default_socket)
    """The path of the socket. The socket is made with mode 0660: its user and group may connect."""
    namespace: Name = "fastdedup"
    """The namespace of requests that name no other one; a prefix of every key."""
    timeout: Seconds = 0.25
    """Seconds, the deadline of one operation at the store. After it the policy answers."""
    replicas: CountOrZero = 0
    """Replicas that must confirm each write (Redis's WAIT)."""
    on_shortfall: Literal["report", "raise"] = "report"
    """If fewer replicas confirm: "report" counts that and goes on, "raise" answers "unavailable"."""
    grace: Seconds = 10.0
    """Seconds that requests under way get to end when the sidecar stops."""
    metrics_address: TcpAddress | None = None
    """An IP address and a port that also answer /metrics, /healthz and /readyz, without a password: they show figures
    and namespaces, no keys. If Prometheus runs on this host, take the loopback address; a pod is asked by its own
    address: "0.0.0.0:9464"."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """The least that is logged: "debug", "info", "warning" or "error"."""
    log_format: Literal["text", "json"] = "text"
    """"text" for people, "json" for programs: one line for each event."""
    log_keys: bool = False
    """True for keys in clear in the log; otherwise a digest, which differs in every run. Tokens are never shown."""
    allow_uids: tuple[Uid, ...] = ()
    """Users that may connect, by number or name. Without both lists: every user that may open the socket."""
    allow_gids: tuple[Gid, ...] = ()
    """Groups whose members may connect, by number or name: primary and supplementary ones, of up to 256."""
    allow_stores: bool = False
    """True to serve `sidecar://` stores, which may write any record: for clients that are trusted with that."""
    allow_namespaces: Literal["any", "configured"] | None = None
    """Which namespaces clients may name. Left out: the configured ones if there is a table, else any."""
    limits: LimitsTable = Field(default_factory=LimitsTable)
    """The limits of clients: sizes in bytes, times in seconds."""
    namespaces: dict[Name, NamespaceConfig] = Field(default_factory=dict)
    """A table for each namespace with settings of its own; those that it leaves out are the ones above."""
    ledgers: dict[LedgerName, LedgerConfig] = Field(default_factory=dict)
    """A table for each ledger that clients of every language may use: FD.FIRST, /v1/ledgers/NAME/first."""
    sockets: tuple[SocketConfig, ...] = ()
    """Further sockets, each with rules of its own."""

    lease: Seconds = 30.0
    """Seconds that an owner has for its work, before another may take over."""
    ttl: Seconds = 86_400.0
    """Seconds that a success is remembered, and answered to duplicates."""
    failure_ttl: Seconds = 3_600.0
    """Seconds that a failure is remembered."""
    token_ttl: Seconds = 300.0
    """Seconds in which a one-time token can be used."""
    max_result: Count = 256 * 1024
    """The longest result, in bytes."""
    on_unavailable: AnyPolicy = PolicyTable()
    """While the store does not answer: "reject" refuses (503), "local" goes on in this process's memory, and puts
    that into the store later. With sizes: { policy = "local", maxsize = 100000, max_bytes = 67108864 }."""

    @model_validator(mode="after")
    def _store_fits(self) -> Config:
        make_store(self.url, self.timeout, self.replicas)
        if self.password_file is not None:
            try:
                make_store(self.url, self.timeout, self.replicas, self.credentials())
            except ConfigError as error:
                raise ConfigError(f"password_file: {error}") from None
        return self

    @model_validator(mode="after")
    def _sockets_differ(self) -> Config:
        paths = [self.socket, *(each.path for each in self.sockets)]
        if len(set(paths)) < len(paths):
            raise ConfigError("sockets: two sockets have the same path, give each its own")
        return self

    def credentials(self) -> Credentials | None:
        """Return a function that reads the password file for each connection; None if the URL has the login."""
        return None if self.password_file is None else partial(_login, self.password_file)

    def default_options(self) -> dict[str, Any]:
        """Return the settings of the default namespace, which are those of every namespace without a table."""
        options = {name: getattr(self, name) for name in NamespaceConfig.model_fields}
        options["on_unavailable"] = self.on_unavailable.make()
        own = self.namespaces.get(self.namespace)
        return options | (own.changes() if own else {})

    def other_namespaces(self) -> dict[str, dict[str, Any]]:
        """Return the settings that the tables of the other namespaces set."""
        others = {name: table for name, table in self.namespaces.items() if name != self.namespace}
        named = {name for each in self.sockets for name in each.namespaces}
        named |= {each.namespace for each in self.ledgers.values() if each.namespace is not None}
        named.discard(self.namespace)
        return {name: {} for name in sorted(named)} | {
            name: table.changes() for name, table in others.items()
        }

    def ledger_options(self) -> dict[str, dict[str, Any]]:
        """Return the settings of each ledger, and its namespace."""
        return {
            name: table.model_dump() | {"namespace": table.namespace or self.namespace}
            for name, table in self.ledgers.items()
        }

    @property
    def configured_only(self) -> bool:
        """True if clients may name the default namespace and those with a table, and no other namespace."""
        if self.allow_namespaces is None:
            return bool(self.namespaces)
        return self.allow_namespaces == "configured"

    def make_limits(self) -> Limits:
        """Return the limits of the connections."""
        return Limits(**self.limits.model_dump())


def _login(file: Path) -> Login:
    """Return the default or the URL's user, and the password that the file has now."""
    try:
        password = file.read_text(encoding="utf-8").rstrip("\r\n")
    except OSError as error:
        why = error.strerror or "it cannot be read"
    except UnicodeDecodeError:
        why = "it is not UTF-8 text"
    else:
        if password:
            return None, password
        why = "it is empty"
    # Outside of the except clauses: the error may hold the file's bytes.
    raise UnavailableError(f"password_file {file}: {why}")


# Reading


class Environment(EnvSettingsSource):
    """Reads `FASTDEDUP_ALLOW_UIDS=0,33` and `FASTDEDUP_ON_UNAVAILABLE=local` as well as JSON."""

    def decode_complex_value(self, field_name: str, field: Any, value: Any) -> Any:
        """Return a list, a table, or the short text for a table."""
        if field_name.startswith("allow_") and not value.lstrip().startswith("["):
            return [each.strip() for each in value.split(",")]
        try:
            return super().decode_complex_value(field_name, field, value)
        except (ValueError, RecursionError):
            return value


def load(
    file: Path | None = None, flags: Mapping[str, Any] | None = None, *, environment: bool = True
) -> Config:
    """Read the settings: flags over environment over file over defaults.

    Raises:
        Mistakes: all mistakes, each with the place that it comes from.
    """
    sources = Sources(file, dict(flags or {}), dict(os.environ) if environment else {}, PREFIX)
    table = _read(file, sources)
    lines = unknown_variables(sources.environment, PREFIX, Config, _is_ours)
    try:
        config = _layered(table, environment)(**sources.flags)
        if not lines:
            return config
    except ValidationError as error:
        lines = in_order([describe(each, sources, Config) for each in error.errors()]) + lines
    # Outside of the except clause, because pydantic's error holds the given values, also a URL with its password.
    raise Mistakes(lines)


def _is_ours(variable: str) -> bool:
    return variable not in _NO_SETTINGS and not _OF_KUBERNETES.fullmatch(variable)


def _read(file: Path | None, sources: Sources) -> dict[str, Any]:
    if file is None:
        return {}
    try:
        sources.text = file.read_text(encoding="utf-8")
        return tomllib.loads(sources.text)
    except OSError as error:
        raise Mistakes([f"{file}: {error.strerror}"]) from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise Mistakes([f"{file}: the file is not valid TOML: {error}"]) from None


def _layered(table: dict[str, Any], environment: bool) -> type[Config]:
    class Layered(Config):
        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: type[BaseSettings],
            init_settings: PydanticBaseSettingsSource,
            env_settings: PydanticBaseSettingsSource,
            dotenv_settings: PydanticBaseSettingsSource,
            file_secret_settings: PydanticBaseSettingsSource,
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            toml = InitSettingsSource(settings_cls, init_kwargs=table)
            return (init_settings, Environment(settings_cls), toml) if environment else (init_settings, toml)

    return Layered

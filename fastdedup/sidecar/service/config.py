"""The sidecar's settings: flags, then `FASTDEDUP_*` of the environment, then a TOML file. Main path: `load`.

To add a setting: write a field below, with the check of its type and a sentence. All mistakes are reported
together; `mistakes.py` finds the line, the variable or the flag that each mistake comes from.
"""

from __future__ import annotations

import grp
import os
import pwd
import re
import tomllib
from collections.abc import Mapping
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    create_model,
    model_validator,
)
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from ...checks import check_seconds, shown
from ...errors import ConfigError, UnavailableError
from ...fallback.base import FallbackPolicy
from ...fallback.local import LocalLRU
from ...fallback.reject import Reject
from ...keys import check_namespace
from ...stores import make_store
from ...stores.base import Credentials, Login
from ..access import READING, VERBS, Access, SocketVerb
from ..limits import Limits
from ..paths import default_socket
from .addresses import split_address
from .mistakes import Mistakes, Sources, describe, in_order, unknown_variables

PREFIX = "FASTDEDUP_"
_NO_SETTINGS = {"FASTDEDUP_CONFIG", "FASTDEDUP_COMPILE", "FASTDEDUP_SHOP"}
"""Variables with the prefix that others read: the command line, the build, the demo."""
_OF_KUBERNETES = re.compile(r"FASTDEDUP_(SERVICE_(HOST|PORT(_\w+)?)|PORT(_\d+_(TCP|UDP|SCTP)(_\w+)?)?)")
"""Variables that Kubernetes sets in each pod beside a Service of the name fastdedup."""


def _no_flag(value: Any) -> Any:
    """Refuse true and false, which Python would take for the numbers 1 and 0."""
    if isinstance(value, bool):
        raise ValueError("must be a number")
    return value


def _seconds(value: float) -> float:
    try:
        return check_seconds(value, "")
    except ConfigError:
        raise ValueError(f"must be a number of seconds from 0.001 to ten years, got {shown(value)}") from None


def _url(value: str) -> str:
    make_store(value, 1.0)
    return value


def _tcp(value: str) -> str:
    split_address(value)
    return value


def _absolute(value: Path) -> Path:
    return value.expanduser().absolute()


def _readable(value: Path) -> Path:
    path = _absolute(value)
    if not path.is_file():
        raise ValueError("there is no such file")  # its name is not shown: it may be the password itself
    return path


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


def _user(value: Any) -> Any:
    return _id_of(value, lambda name: pwd.getpwnam(name).pw_uid, "user")


def _group(value: Any) -> Any:
    return _id_of(value, lambda name: grp.getgrnam(name).gr_gid, "group")


def _id_of(value: Any, find: Any, kind: str) -> Any:
    if not isinstance(value, str) or value.isdigit():
        return _no_flag(value)
    try:
        return find(value)
    except KeyError:
        raise ValueError(
            f"this host has no such {kind}: write a name that the host knows, or a number"
        ) from None


Seconds = Annotated[float, BeforeValidator(_no_flag), AfterValidator(_seconds)]
Count = Annotated[int, BeforeValidator(_no_flag), Field(ge=1)]
Name = Annotated[str, AfterValidator(check_namespace)]
Uid = Annotated[int, BeforeValidator(_user), Field(ge=0)]
Gid = Annotated[int, BeforeValidator(_group), Field(ge=0)]


class ConfigTable(BaseModel):
    """A table of the file. An unknown key in it is a mistake."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class PolicyTable(ConfigTable):
    """A policy: `"reject"`, `"local"`, or `{ policy = "local", maxsize = 10000 }`."""

    policy: Literal["reject", "local"] = "reject"
    maxsize: Count | None = None
    max_bytes: Count | None = None

    @model_validator(mode="after")
    def _sizes_are_for_local(self) -> PolicyTable:
        if self.policy == "reject" and self.sizes():
            raise ValueError(
                f"{' and '.join(self.sizes())}: only the policy 'local' has sizes, leave them out"
            )
        return self

    def sizes(self) -> dict[str, int]:
        """Return the sizes that the table sets."""
        return {
            name: size
            for name, size in (("maxsize", self.maxsize), ("max_bytes", self.max_bytes))
            if size is not None
        }

    def make(self) -> FallbackPolicy:
        """Return a new policy, which shares its records with no other policy."""
        sizes: dict[str, Any] = self.sizes()
        return LocalLRU(**sizes) if self.policy == "local" else Reject()


def _spelled_out(value: Any) -> Any:
    return {"policy": value} if isinstance(value, str) else value


AnyPolicy = Annotated[PolicyTable, BeforeValidator(_spelled_out)]


class NamespaceConfig(ConfigTable):
    """The settings of one namespace. A setting that is left out is the default namespace's."""

    lease: Seconds | None = None
    ttl: Seconds | None = None
    failure_ttl: Seconds | None = None
    token_ttl: Seconds | None = None
    max_result: Count | None = None
    on_unavailable: AnyPolicy | None = None

    def changes(self) -> dict[str, Any]:
        """Return the settings that the table sets, with the policy itself for its table."""
        given = {name: getattr(self, name) for name in NamespaceConfig.model_fields}
        changes = {name: value for name, value in given.items() if value is not None}
        if self.on_unavailable is not None:
            changes["on_unavailable"] = self.on_unavailable.make()
        return changes


def _mode(value: Any) -> int:
    """Return a mode that is written as for chmod. A number would be read as decimal, so it is refused."""
    if isinstance(value, str) and re.fullmatch(r"0?[0-7]{3}", value):
        return int(value, 8)
    raise ValueError('must be text of octal digits such as "0660"')


class SocketConfig(ConfigTable):
    """A further socket, `[[sockets]]`: a boundary between its clients and those of all other sockets."""

    path: Annotated[Path, AfterValidator(_absolute)]
    mode: Annotated[int, BeforeValidator(_mode)] = 0o660
    owner: Uid | None = None
    """The user who owns the file, by number or name. Left out: the sidecar's own."""
    group: Gid | None = None
    allow_uids: tuple[Uid, ...] = ()
    allow_gids: tuple[Gid, ...] = ()
    allow_stores: bool = False
    """As the setting of the same name. Stores may do anything in the socket's namespaces, and see owners."""
    namespaces: tuple[Name, ...] = ()
    """Namespaces that clients may name; the first one is for requests without one. Empty: those of `socket`."""
    verbs: Literal["all", "read"] = "all"
    """"read": clients may look at records, and change nothing."""
    deny: tuple[SocketVerb, ...] = ()
    """What clients may not do, of `verbs`."""
    show_owners: bool = False
    """True to show the owners of records: whoever knows an owner may settle its claim."""
    claims_per_second: (
        Annotated[float, BeforeValidator(_no_flag), Field(gt=0, allow_inf_nan=False)] | None
    ) = None
    """Claims and tokens that all clients of the socket may ask for in a second."""
    pending: Count | None = None
    """Operations of all clients of the socket that may be under way."""
    ephemeral: Count | None = None
    """EPHEMERAL claims that one connection holds. Left out: `limits.ephemeral`."""
    ephemeral_in_all: Count | None = None
    """EPHEMERAL claims that all connections of the socket hold. Left out: `limits.ephemeral_in_all`."""

    @model_validator(mode="after")
    def _rules_fit(self) -> SocketConfig:
        if self.allow_stores and (self.verbs != "all" or self.deny):
            raise ValueError(
                "allow_stores lets clients write any record: leave out verbs and deny, or allow_stores"
            )
        if self.mode & 0o007 and not (self.allow_uids or self.allow_gids):
            raise ValueError("mode opens the socket to every user: list those who may connect in allow_uids")
        return self

    def access(self) -> Access:
        """Return the rules of the socket's clients."""
        may = READING if self.verbs == "read" else frozenset(VERBS)
        return Access(
            str(self.path),
            namespaces=self.namespaces,
            verbs=may.difference(self.deny),
            show_owners=self.show_owners or self.allow_stores,
            claims_per_second=self.claims_per_second,
            pending=self.pending,
        )

    def narrow(self, limits: Limits) -> Limits:
        """Return the limits of the socket's clients, which are the sidecar's but for those that the table sets."""
        own = {"ephemeral": self.ephemeral, "ephemeral_in_all": self.ephemeral_in_all}
        return replace(limits, **{name: most for name, most in own.items() if most is not None})


_BOUNDS: dict[str, Any] = {"int": Count, "int | None": Count | None, "float": Seconds}
_LIMITS: dict[str, Any] = {each.name: (_BOUNDS[str(each.type)], each.default) for each in fields(Limits)}
LimitsTable: Any = create_model("LimitsTable", __base__=ConfigTable, **_LIMITS)
"""`[limits]`: the fields of `Limits`, each checked."""


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

    url: Annotated[str, AfterValidator(_url), Field(repr=False)] = "memory://"
    """The store: memory:// (this process alone, gone when it ends), redis://, rediss://, unix://, redis+sentinel://
    or redis+cluster://, as in redis://localhost:6379/0. Take `password_file` rather than a password in it."""
    password_file: Annotated[Path, AfterValidator(_readable)] | None = None
    """A file with the password of the store's user; it is read anew for each connection. The URL then has none."""
    socket: Annotated[Path, AfterValidator(_absolute)] = Field(default_factory=default_socket)
    """Where to listen. The socket is made with mode 0660: its user and group may connect."""
    namespace: Name = "fastdedup"
    """The namespace of requests that name no other one; a prefix of every key."""
    timeout: Seconds = 0.25
    """Seconds, the deadline of one operation at the store. After it the policy answers."""
    replicas: Annotated[int, BeforeValidator(_no_flag), Field(ge=0)] = 0
    """Replicas that must confirm each write (Redis's WAIT)."""
    on_shortfall: Literal["report", "raise"] = "report"
    """Where fewer replicas confirm: "report" counts that and goes on, "raise" answers "unavailable"."""
    grace: Seconds = 10.0
    """Seconds that requests under way get to end when the sidecar stops."""
    metrics_address: Annotated[str, AfterValidator(_tcp)] | None = None
    """An IP address and a port that also answer /metrics, /healthz and /readyz, without a password: they show figures
    and namespaces, no keys. Where Prometheus runs on this host, take the loopback address; a pod is asked by its own
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
    """Which namespaces clients may name. Left out: the configured ones where there is a table, else any."""
    limits: LimitsTable = Field(default_factory=LimitsTable)
    """The limits of clients: sizes in bytes, times in seconds."""
    namespaces: dict[Name, NamespaceConfig] = Field(default_factory=dict)
    """A table for each namespace with settings of its own; those that it leaves out are the ones above."""
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
        """Return what reads the password file for each connection to the store; None where the URL has the login."""
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
        named = {name for each in self.sockets for name in each.namespaces} - {self.namespace}
        return {name: {} for name in sorted(named)} | {
            name: table.changes() for name, table in others.items()
        }

    @property
    def configured_only(self) -> bool:
        """True where clients may name the default namespace and those with a table, and no other one."""
        if self.allow_namespaces is None:
            return bool(self.namespaces)
        return self.allow_namespaces == "configured"

    def make_limits(self) -> Limits:
        """Return the limits of the connections."""
        return Limits(**self.limits.model_dump())


class Environment(EnvSettingsSource):
    """Reads `FASTDEDUP_ALLOW_UIDS=0,33` and `FASTDEDUP_ON_UNAVAILABLE=local` as well as JSON."""

    def decode_complex_value(self, field_name: str, field: Any, value: Any) -> Any:
        """Return a list, a table, or the short text for a table."""
        try:
            return super().decode_complex_value(field_name, field, value)
        except ValueError:
            return [each.strip() for each in value.split(",")] if field_name.startswith("allow_") else value


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
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
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

"""The tables of the sidecar's settings: policies, namespaces, sockets, limits. `config.py` has all other settings."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, create_model, model_validator

from ...checks import check_seconds
from ...fallback.base import FallbackPolicy
from ...fallback.local import LocalLRU
from ...fallback.reject import Reject
from ...keys import check_namespace
from ...ledger.settings import LEAST_WINDOW, check_capacity, check_width
from ..access import READING, VERBS, Access
from ..limits import Limits
from .checked import Count, Gid, Mode, Name, Rate, Seconds, SocketPath, SocketVerb, Uid


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


class LedgerConfig(ConfigTable):
    """A ledger that clients of every language may use. Its name is the table's."""

    window: Seconds
    """Seconds for which an id is remembered."""
    capacity: Count
    """Ids in one window, best 4/3 of those that you expect. It may hold more, and gets slower then."""
    exact: bool = True
    """False for 4 bytes an id in place of 7: a new id is then taken for a duplicate once in 27 million times."""
    width: int | None = None
    """Bytes of an id's digest, if these two do not suit: 16 is a whole UUID, 3 needs exact = false."""
    write: Literal["set", "append"] = "set"
    """"set" writes an id's whole bucket (0.6 kB to replicas and the append-only file), "append" its end, for more
    memory."""
    dense: bool = False
    """True for ids that are integers and nearly follow each other, like a partition's offsets: 0.4 bytes each."""
    allow_eviction: bool = False
    """True to go on with a store that evicts keys when its memory is full, and so forgets ids."""
    namespace: Name | None = None
    """The namespace that it belongs to. Left out: the default one."""

    @model_validator(mode="after")
    def _can_be_created(self) -> LedgerConfig:
        check_width(self.exact, self.width, self.dense, self.write)
        check_capacity(self.capacity)
        check_seconds(self.window, "window", least=LEAST_WINDOW)
        return self


def _ledger_name(name: str) -> str:
    """Check the name of a ledger: in HTTP it stands in the path, in RESP in the place of an option."""
    check_namespace(name, "a ledger's name")
    if "/" in name or name.upper() in ("OWNER", "NS"):
        raise ValueError("a ledger's name must have no '/', and must not be OWNER or NS")
    return name


LedgerName = Annotated[str, AfterValidator(_ledger_name)]


class SocketConfig(ConfigTable):
    """A further socket, `[[sockets]]`: a boundary between its clients and those of all other sockets."""

    path: SocketPath
    mode: Mode = 0o660
    owner: Uid | None = None
    """The user who owns the file, by number or name. Left out: the sidecar's own."""
    group: Gid | None = None
    allow_uids: tuple[Uid, ...] = ()
    allow_gids: tuple[Gid, ...] = ()
    allow_stores: bool = False
    """Like the setting of the same name. Stores may do anything in the socket's namespaces, and see owners."""
    namespaces: tuple[Name, ...] = ()
    """Namespaces that clients may name; the first one is for requests without one. Empty: those of `socket`."""
    verbs: Literal["all", "read"] = "all"
    """"read": clients may look at records, and change nothing."""
    deny: tuple[SocketVerb, ...] = ()
    """The verbs that clients may not use, of those that `verbs` allows."""
    show_owners: bool = False
    """True to show the owners of records: a client that knows an owner may settle its claim."""
    show_keys: bool = False
    """True to let clients list records: without it they learn only of keys that they know."""
    claims_per_second: Rate | None = None
    """Claims, tokens, ids, lists of records and figures of ledgers that all clients of the socket may ask for in a
    second."""
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
        if not (self.show_keys or self.allow_stores):
            may -= {"list"}
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

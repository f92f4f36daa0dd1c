"""The rules: which requests are idempotent, and how. To add a setting: a line in `RouteSettings`, one in `Rule`."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, fields
from functools import lru_cache
from hashlib import blake2b
from typing import Any, Generic, Literal, TypedDict, TypeVar, Unpack

from ..checks import check_count, check_flag, check_seconds, check_takes_one, check_wait, shown
from ..errors import ConfigError
from ..kernel.records import MOST_RESULT
from ..keys import Fingerprint, fingerprint
from .fingerprints import bare_path, fingerprint_at, request_fingerprint
from .header import BadKey, KeyMissing
from .record_keys import scope_key, shortened
from .request import FingerprintOf, Named, Principal, PrincipalMissing, Request, Tenant, name_of_caller
from .response import HeaderFilter

T = TypeVar("T")

HEAD_ROOM = 64 * 1024
"""The bytes that a stored response's status and headers may have beside its body."""
METHODS = ("POST", "PATCH")
NOT_KEPT = frozenset((401, 403, 407, 408, 409, 412, 415, 421, 423, 424, 425, 426, 428, 429, 499))
"""The 4xx statuses that a retry may overcome: with other credentials, later, or after the state has changed.

499 is the answer of a handler that stopped because its client had left. 412 and 415 are for a header that the
fingerprint does not have, `If-Match` or `Content-Type`: with another one the request is the same, and it may be
carried out.
"""
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


def keeps(status: int) -> bool:
    """Return whether a response is kept and replayed; else the key is released, and a retry runs again.

    2xx and 3xx are kept, and those 4xx that the same request would get again; 5xx and `NOT_KEPT` are released.
    """
    return status < 500 and status not in NOT_KEPT


class ClaimSettings(TypedDict, total=False):
    """The settings of every claim; see `Rule`."""

    lease: float
    ttl: float
    failure_ttl: float
    renew: bool
    keep: Callable[[int], bool] | Collection[int]
    keep_unreached: bool
    max_request: int
    max_response: int
    unstored: Literal["refuse", "release"]
    on_disconnect: Literal["finish", "cancel"]
    keep_headers: Collection[str] | None
    drop_headers: Collection[str]
    fingerprint: FingerprintOf
    retry_after: float


class KeySettings(ClaimSettings, total=False):
    """The settings of claims of a client's key; see `Rule`."""

    required: bool
    wait: float | None
    key_format: str | None
    key_scope: Literal["route", "path"]
    tenant: Tenant | None


class RouteSettings(KeySettings, total=False):
    """The settings of a route, or of all routes; see `Rule`."""

    methods: Sequence[str]
    principal: Principal


class Route:
    """A path, and its own settings beside those of all routes.

    `/orders` is that path, and `/orders/`; in `/orders/{id}/pay` a name in braces stands for one segment;
    `/api/*` for all paths below. The first route that matches holds.
    """

    def __init__(self, path: str, **settings: Unpack[RouteSettings]) -> None:
        self.path = path
        self.settings = settings

    def __repr__(self) -> str:
        return f"Route({self.path!r})"


@dataclass(frozen=True, slots=True)
class Rule:
    """All settings of one route; `docs/http-rules.md` has a table of them, with what a request meets.

    Raises:
        ConfigError: a setting cannot be used; the message names it.
    """

    path: str
    principal: Principal
    """Names the caller whom a key belongs to. Required: callers must not share keys. See `by_header`, `everyone`."""
    methods: Sequence[str] = METHODS
    required: bool = False
    """True: a request without a key is answered 400. False: it runs without a claim."""
    wait: float = 0.0
    """Seconds that a duplicate waits for the first response before it is answered 409."""
    lease: float | None = None
    """Seconds after which a retry may take over from a process that died; by default the `Dedup`'s."""
    ttl: float | None = None
    """Seconds for which a response is kept; by default the `Dedup`'s."""
    failure_ttl: float | None = None
    """Seconds for which a 4xx response is kept; by default the `Dedup`'s."""
    renew: bool = True
    """Keep the lease alive while the handler runs."""
    keep: Callable[[int], bool] | Collection[int] = keeps
    """The statuses that are kept; others release the key, so that a retry runs again. A 307 or 308 to the same path
    is never kept: the redirected request has the same key."""
    keep_unreached: bool = False
    """FastAPI only: keep also the answer to a request that did not reach its handler: its parameters or body were
    invalid, or a dependency raised. Otherwise its key is released, and the corrected request runs."""
    max_request: int = 1024 * 1024
    """The longest body of a request, in bytes. It is held in memory; a longer one is answered 413."""
    max_response: int = 256 * 1024
    """The longest body of a response that is kept, in bytes; see `unstored`."""
    unstored: Literal["refuse", "release"] = "refuse"
    """For a response whose body is not kept, because it is a stream or too large. "refuse": duplicates are answered
    409, `response-not-stored`. "release": the key is released, and duplicates run again."""
    on_disconnect: Literal["finish", "cancel"] = "finish"
    """For a client that goes away. "finish": the handler finishes, and a retry gets its response; a stream ends, and
    its key is released. "cancel": the handler is cancelled, and a retry runs again. Only coroutines can be
    cancelled: a handler that is known to run in a thread finishes in any case."""
    keep_headers: Collection[str] | None = None
    """The headers of a response that are kept; None stands for all but `drop_headers`."""
    drop_headers: Collection[str] = ("set-cookie",)
    """The headers that are not kept. If it is empty, cookies are replayed as well."""
    stored_headers: HeaderFilter = field(init=False, repr=False)
    """The headers that are stored, by the two settings above."""
    key_format: str | None = None
    """A regular expression that the whole key must match, published in the policy; such as `UUID`."""
    key_scope: Literal["route", "path"] = "route"
    """The place that a key belongs to, beside its caller and method. "route": `/c/{id}`; a key of `/c/1` is answered
    422 at `/c/2`. "path": `/c/1`, with its parameters; at `/c/2` the same key is another key. If an application is
    mounted at two paths, each path has keys of its own. Starlette 1.0 and older does not tell its route: "route" then
    is "path" for the decorator of `fastdedup.integrations.starlette`."""
    tenant: Tenant | None = None
    """Names the tenant whom a request is for; each tenant has keys of its own. See `by_host`. None: all hosts share
    their keys, and a key that comes again under another host is answered 422, because the host may select a tenant
    or a view. If a function is given, only the function decides: `lambda request: ""` is for one application that
    has several hosts."""
    fingerprint: FingerprintOf = request_fingerprint
    """Returns the parts by which two requests are the same; by default method, path, query and body."""
    retry_after: float = 1.0
    """Seconds after which the duplicate of a running request may try again (Retry-After)."""
    by_path: bool = field(init=False, repr=False)
    """True if a key belongs to the path of its request: by `key_scope`, or because the route ends in *."""

    def __post_init__(self) -> None:
        if not isinstance(self.path, str) or not self.path.startswith("/"):
            raise ConfigError(f"a route's path must start with '/', got {self.path!r}")
        for name in ("principal", "fingerprint", "tenant"):  # a dependency of FastAPI may take something else
            if name != "tenant" or self.tenant is not None:
                check_takes_one(getattr(self, name), name, "a Request", may_await=name == "principal")
        self._normalise()
        for name in ("required", "renew", "keep_unreached"):
            check_flag(getattr(self, name), name)
        self._set("wait", check_wait(self.wait))
        self._set("retry_after", check_seconds(self.retry_after, "retry_after", least=0.0))
        for name in ("lease", "ttl", "failure_ttl"):
            if getattr(self, name) is not None:
                self._set(name, check_seconds(getattr(self, name), name))
        check_count(self.max_request, "max_request")
        check_count(self.max_response, "max_response", most=MOST_RESULT - HEAD_ROOM)
        if self.unstored not in ("refuse", "release"):
            raise ConfigError(f"unstored must be 'refuse' or 'release', got {self.unstored!r}")
        if self.on_disconnect not in ("finish", "cancel"):
            raise ConfigError(f"on_disconnect must be 'finish' or 'cancel', got {self.on_disconnect!r}")
        if self.key_scope not in ("route", "path"):
            raise ConfigError(f"key_scope must be 'route' or 'path', got {self.key_scope!r}")
        self._set("by_path", self.path[-1] == "*" or self.key_scope == "path")

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    def _normalise(self) -> None:
        methods = _names(self.methods, "methods")
        if not methods:
            raise ConfigError("methods is empty: the route would guard nothing")
        self._set("methods", tuple(method.upper() for method in methods))
        keep = None if self.keep_headers is None else _names(self.keep_headers, "keep_headers")
        drop = _names(self.drop_headers, "drop_headers")
        self._set("stored_headers", HeaderFilter(keep, drop))
        if callable(self.keep):
            check_takes_one(self.keep, "keep", "a status")
        else:
            self._set("keep", _statuses(self.keep))
        if not isinstance(self.key_format, str | None):
            raise ConfigError(f"key_format must be a regular expression (str), got {shown(self.key_format)}")
        if self.key_format is not None:
            try:
                re.compile(self.key_format)
            except re.error as error:
                raise ConfigError(f"key_format must be a regular expression: {error}") from None

    def keeps(self, status: int) -> bool:
        """Return whether a response of this status is kept."""
        return bool(self.keep(status)) if callable(self.keep) else status in self.keep

    def check_key(self, key: str | None) -> None:
        """Check a request's key; None stands for a request without a key.

        Raises:
            KeyMissing: the rule requires a key.
            BadKey: the key does not match `key_format`.
        """
        if key is None:
            if self.required:
                raise KeyMissing
        elif self.key_format is not None and re.fullmatch(self.key_format, key) is None:
            raise BadKey(f"a key of this operation must match {self.key_format}")

    @property
    def asks_application(self) -> bool:
        """True if `identify` calls functions of the application."""
        return self.tenant is not None or self.fingerprint is not request_fingerprint

    def identify(self, request: Request, principal: Named, key: str) -> tuple[str, Fingerprint]:
        """Return the key of a request's record, with its tenant, and the request's fingerprint.

        Raises:
            PrincipalMissing: the tenant function returned None. Also as for `scope_key`.
            ConfigError: the tenant function returned a value of another type. Also as for `scope_key` and `mark`.
        """
        tenant = "" if self.tenant is None else self._tenant_of(request)
        place = self._place_of(request.method, request.path, request.mount)
        return scope_key(place, principal, key, tenant), self.mark(request)

    def _tenant_of(self, request: Request) -> str:
        assert self.tenant is not None
        tenant = name_of_caller(self.tenant(request), "tenant")
        if tenant is None:
            raise PrincipalMissing("the tenant function found no tenant for this request")
        return _checked_tenant(tenant)

    def scope_key(
        self, method: str, path: str, principal: Named, key: str, *, mount: str = "", tenant: object = ""
    ) -> str:
        """Return the record's key, which is unique for tenant, caller, method, mount, route and key.

        A route that ends in * stands for many paths: its requests' own paths count, just like `key_scope="path"`.
        `/orders` and `/orders/` are one path: an application may serve both, or redirect from one to the other.

        Raises:
            PrincipalMissing: the principal is None or "": callers without a name would share their keys.
            ConfigError: the principal or the tenant is of another type.
        """
        return scope_key(self._place_of(method, path, mount), principal, key, _checked_tenant(tenant))

    def _place_of(self, method: str, path: str, mount: str) -> str:
        if self.by_path:
            return _place(method, path)
        if mount:
            return _place(method, mount.rstrip("/") + self.path)
        return _place_of_route(method, self.path)

    def mark(self, request: Request) -> Fingerprint:
        """Return a request's fingerprint: what `fingerprint` returns, with the host, the route and the path.

        The record's key alone does not tell these apart, and each of them may select a view or a tenant. The host is
        left out if `tenant` is given, because then the tenant is in the key. Django's patterns give one route many
        paths without a name in braces.

        Raises:
            ConfigError: a fingerprint function returned None, or a value that cannot be digested.
        """
        host = request.host if self.tenant is None else ""
        place = f"{len(host)} {host}{self.path}".encode("utf-8", "surrogatepass")
        if self.fingerprint is request_fingerprint:
            return fingerprint_at(request, place)
        value = self.fingerprint(request)
        if value is None:
            raise ConfigError(
                "the function given as fingerprint= returned None; return a value to digest, such as request.body"
            )
        path = bare_path(request.path).encode("utf-8", "surrogatepass")
        whole = b"%b%d %b%b" % (fingerprint(value), len(place), place, path)
        return Fingerprint(blake2b(whole, digest_size=16, person=b"place").digest())


def _checked_tenant(tenant: object) -> str:
    if not isinstance(tenant, str):
        raise ConfigError(f"a tenant must be text, a number or a UUID, got {shown(tenant)}")
    return tenant


def _place(method: str, path: str) -> str:
    return f"{method} {shortened(bare_path(path))}"


_place_of_route = lru_cache(maxsize=1024, typed=True)(_place)
"""A cache for the paths of routes, not for those of requests: clients choose these, and they may be long."""


def declared(path: str) -> str:
    """Return a rule's path for a path that a framework has declared; a * in that path stands for itself."""
    return "/" + path.lstrip("/").replace("*", "%2A")


UUID = "[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}"
"""A `key_format`."""

_SETTINGS = frozenset(one.name for one in fields(Rule) if one.init) - {"path"}


def make_rules(routes: Sequence[Route | str], settings: dict[str, Any]) -> list[Rule]:
    """Return a rule for each route, made of the settings of all routes and its own.

    Raises:
        ConfigError: a setting is unknown, or a principal or routes are missing.
    """
    if isinstance(routes, str | Route) or not routes:
        raise ConfigError(f"routes must be a list of paths and Route(...)s, got {routes!r}")
    return [_rule(Route(route) if isinstance(route, str) else route, settings) for route in routes]


def _rule(route: Route, settings: dict[str, Any]) -> Rule:
    together = {**settings, **route.settings}
    unknown = sorted(set(together) - _SETTINGS)
    if unknown:
        raise ConfigError(f"unknown setting {unknown[0]!r}: use one of {', '.join(sorted(_SETTINGS))}")
    if "principal" not in together:
        raise ConfigError(
            "principal= is missing: give a function that names the caller, so that no caller gets another's result, "
            'such as by_header("x-api-key"), or `everyone` if all callers may share their keys'
        )
    return Rule(route.path, **together)


class RouteTable(Generic[T]):
    """Finds the entry for a request's method and path, by a dictionary or by one regular expression for all."""

    def __init__(self, rules: Sequence[Rule], make: Callable[[Rule], T]) -> None:
        self.entries = [(rule, make(rule)) for rule in rules]
        methods = {method for rule in rules for method in rule.methods}
        self._by_method = {method: self._finder(method) for method in methods}

    def _finder(self, method: str) -> Callable[[str], T | None]:
        chosen = [(bare_path(rule.path), entry) for rule, entry in self.entries if method in rule.methods]
        patterns = [f"({_pattern(path)})" for path, _ in chosen]
        if not any(char in path for path, _ in chosen for char in "{*"):
            return dict(reversed(chosen)).get
        matches = re.compile("|".join(patterns)).fullmatch

        def find(path: str) -> T | None:
            found = matches(path)
            return None if found is None else chosen[(found.lastindex or 1) - 1][1]

        return find

    def find(self, method: str, path: str) -> T | None:
        """Return the entry of the first rule that matches, or None."""
        finder = self._by_method.get(method)
        if finder is None:
            upper = method.upper()  # some frameworks accept a lower-case method
            return None if upper == method else self.find(upper, path)
        bare = bare_path(path)
        entry = finder(bare)
        return finder(path) if entry is None and bare is not path else entry


def _pattern(path: str) -> str:
    """Return a path's regular expression, without groups: `lastindex` counts the groups around the patterns."""
    pieces = re.split(r"(\{[^/{}]+\}|\*)", path)
    if any(segment.count("{") > 1 for segment in path.split("/")):
        raise ConfigError(f"in the path {path!r}, a segment may have only one {{name}}")
    if "*" in path[:-1] or any("{" in piece or "}" in piece for piece in pieces[::2]):
        raise ConfigError(f"in the path {path!r}, {{name}} must be a whole segment, and * must be the end")
    wild = {"*": "(?s:.*)"}
    return "".join(
        wild.get(piece, "[^/]+") if index % 2 else re.escape(piece) for index, piece in enumerate(pieces)
    )


def _names(names: Any, what: str) -> list[str]:
    is_list = isinstance(names, Collection) and not isinstance(names, str | bytes)
    if not (is_list and all(isinstance(name, str) and _TOKEN.fullmatch(name) for name in names)):
        raise ConfigError(f"{what} must be a list of names, got {names!r}")
    return list(names)


def _statuses(statuses: Any) -> frozenset[int]:
    if not isinstance(statuses, Collection) or isinstance(statuses, str | bytes):
        raise ConfigError(f"keep must be a function of a status, or a list of statuses, got {statuses!r}")
    if not all(isinstance(status, int) and 100 <= status <= 599 for status in statuses):
        raise ConfigError(f"keep must have HTTP statuses, 100 to 599, got {statuses!r}")
    return frozenset(statuses)

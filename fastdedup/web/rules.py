"""Which requests are made idempotent, and how. To add a setting: a line in `RouteSettings`, one in `Rule`."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, fields
from hashlib import blake2b
from typing import Any, Generic, Literal, TypedDict, TypeVar, Unpack

from ..checks import check_count, check_seconds
from ..errors import ConfigError
from ..keys import business_key
from .header import BadKey
from .request import Fingerprint, Principal, Request, request_fingerprint
from .response import HeaderFilter

T = TypeVar("T")

METHODS = ("POST", "PATCH")
NOT_KEPT = frozenset((401, 403, 407, 408, 409, 421, 423, 424, 425, 426, 428, 429))
"""Of 4xx: refusals that another try may overcome, with other credentials, later, or against another state."""
_LONGEST = 128
"""Bytes of a path or principal that stand in a record's key, which has 1024 at most, as they are."""
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


def keeps(status: int) -> bool:
    """Return whether a response is the outcome (kept and replayed), or a retry may run anew.

    Kept are 2xx, 3xx and those 4xx that the same request would meet again; 5xx and `NOT_KEPT` are released.
    """
    return status < 500 and status not in NOT_KEPT


class ClaimSettings(TypedDict, total=False):
    """What may be said of any claim; see `Rule` for each."""

    lease: float
    ttl: float
    failure_ttl: float
    renew: bool
    keep: Callable[[int], bool] | Collection[int]
    max_request: int
    max_response: int
    unstored: Literal["refuse", "release"]
    on_disconnect: Literal["finish", "cancel"]
    keep_headers: Collection[str] | None
    drop_headers: Collection[str]
    fingerprint: Fingerprint
    retry_after: float


class KeySettings(ClaimSettings, total=False):
    """What may be said of claims by a client's key, too."""

    required: bool
    wait: float
    key_format: str | None


class RouteSettings(KeySettings, total=False):
    """What may be said of a route, or of all of them."""

    methods: Sequence[str]
    principal: Principal


class Route:
    """A path and what differs there from the settings for all routes.

    `/orders` is that path, and `/orders/`; in `/orders/{id}/pay` a name in braces stands for one segment;
    `/api/*` for all below. The first route that matches is taken.
    """

    def __init__(self, path: str, **settings: Unpack[RouteSettings]) -> None:
        self.path = path
        self.settings = settings

    def __repr__(self) -> str:
        return f"Route({self.path!r})"


@dataclass(frozen=True, slots=True)
class Rule:
    """All that holds for one route.

    Raises:
        ConfigError: a setting cannot be used; the message names it.
    """

    path: str
    principal: Principal
    """Whom a key belongs to. Required: keys of different callers must not meet. See `by_header`, `everyone`."""
    methods: Sequence[str] = METHODS
    required: bool = False
    """True: a request without a key is answered 400. False: it runs without the gate."""
    wait: float = 0.0
    """Seconds that a duplicate waits for the first one's response before it is answered 409."""
    lease: float | None = None
    """Seconds after which another may take over from a process that died; the gate's by default."""
    ttl: float | None = None
    """Seconds for which a response is kept; the gate's by default."""
    failure_ttl: float | None = None
    """Seconds for which a kept 4xx is; the gate's by default."""
    renew: bool = True
    """Keep the lease alive while the handler runs."""
    keep: Callable[[int], bool] | Collection[int] = keeps
    """Which statuses are an outcome; the others release the key, so that a retry runs again."""
    max_request: int = 1024 * 1024
    """Bytes of a request's body at most, which is held in memory; a larger one is answered 413."""
    max_response: int = 256 * 1024
    """Bytes of a response's body at most that are kept; see `unstored`."""
    unstored: Literal["refuse", "release"] = "refuse"
    """What becomes of a key whose response was too large or a stream, which is sent on but not kept: its
    duplicates are refused (409, `response-not-stored`), or it is released and they run again."""
    on_disconnect: Literal["finish", "cancel"] = "finish"
    """When the client goes away: the handler finishes, and a retry replays; or it is cancelled, and a retry
    runs again. Only what is a coroutine down to its last call can be cancelled: a handler in a thread would go
    on beside the retry."""
    keep_headers: Collection[str] | None = None
    """Headers of a response that are kept; None: all but `drop_headers`."""
    drop_headers: Collection[str] = ("set-cookie",)
    """Headers that are not. Empty: cookies are replayed, too."""
    stored_headers: HeaderFilter = field(init=False, repr=False)
    """What the two come to."""
    key_format: str | None = None
    """A regular expression that the whole key must match, published in the policy; such as `UUID`."""
    fingerprint: Fingerprint = request_fingerprint
    """What makes two requests the same; method, path, query and body by default."""
    retry_after: float = 1.0
    """Seconds after which a duplicate of a request in flight is told to try again."""

    def __post_init__(self) -> None:
        if not callable(self.principal):
            raise ConfigError(f"principal is a function from a Request to a name, not {self.principal!r}")
        if not isinstance(self.path, str) or not self.path.startswith("/"):
            raise ConfigError(f"a route's path starts with '/', {self.path!r} does not")
        if not callable(self.fingerprint):
            raise ConfigError(
                f"fingerprint is a function from a Request to 16 bytes, not {self.fingerprint!r}"
            )
        self._normalise()
        for name in ("required", "renew"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(f"{name} is True or False, not {getattr(self, name)!r}")
        for name in ("wait", "retry_after"):
            check_seconds(getattr(self, name), name, least=0.0)
        for name in ("lease", "ttl", "failure_ttl"):
            if getattr(self, name) is not None:
                check_seconds(getattr(self, name), name)
        for name in ("max_request", "max_response"):
            check_count(getattr(self, name), name)
        if self.unstored not in ("refuse", "release"):
            raise ConfigError(f"unstored is 'refuse' or 'release', not {self.unstored!r}")
        if self.on_disconnect not in ("finish", "cancel"):
            raise ConfigError(f"on_disconnect is 'finish' or 'cancel', not {self.on_disconnect!r}")

    def _normalise(self) -> None:
        methods = _names(self.methods, "methods")
        if not methods:
            raise ConfigError("methods is empty: the route would guard nothing")
        object.__setattr__(self, "methods", tuple(method.upper() for method in methods))
        keep = None if self.keep_headers is None else _names(self.keep_headers, "keep_headers")
        drop = _names(self.drop_headers, "drop_headers")
        object.__setattr__(self, "stored_headers", HeaderFilter(keep, drop))
        if not callable(self.keep):
            object.__setattr__(self, "keep", _statuses(self.keep))
        if self.key_format is not None:
            try:
                re.compile(self.key_format)
            except (re.error, TypeError) as error:
                raise ConfigError(f"key_format is no regular expression: {error}") from None

    def keeps(self, status: int) -> bool:
        """Return whether a response of that status is the outcome."""
        return self.keep(status) if callable(self.keep) else status in self.keep

    def check_key(self, key: str) -> None:
        """Raise BadKey for a key that has not the published format."""
        if self.key_format is not None and re.fullmatch(self.key_format, key) is None:
            raise BadKey(f"this operation's keys match {self.key_format}")

    def scope_key(self, method: str, path: str, principal: str | None, key: str) -> str:
        """Return the key of the record: caller, method, route and key, which no other combination gives.

        Of a route that ends in * the path is what counts: it stands for many.

        Raises:
            ConfigError: the principal function returned something else than a name or None.
        """
        if principal is not None and not isinstance(principal, str):
            raise ConfigError(f"a principal is text, or None for anybody; not {principal!r}")
        # Digested: a principal may be a secret, and keys stand in Redis and in logs.
        owner = "-" if principal is None else "=" + _digest(principal.encode("utf-8", "surrogatepass"))
        place = path if self.path[-1] == "*" else self.path
        return business_key(f"{method} {_short(place)}", owner, key)

    def mark(self, request: Request) -> bytes:
        """Return a request's fingerprint.

        Raises:
            ConfigError: a fingerprint function returned something else.
        """
        mark = self.fingerprint(request)
        if not isinstance(mark, bytes) or len(mark) != 16:
            raise ConfigError("fingerprint= returns 16 bytes, as fastdedup.fingerprint() does")
        if self.fingerprint is request_fingerprint or "{" not in self.path:
            return mark
        # The record is one for the route: what the key was sent to is told by the fingerprint alone.
        path = request.path.encode("utf-8", "surrogatepass")
        return blake2b(mark + path, digest_size=16, person=b"path").digest()


UUID = "[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}"
"""For `key_format`."""

_SETTINGS = frozenset(one.name for one in fields(Rule) if one.init) - {"path"}


def make_rules(routes: Sequence[Route | str], settings: dict[str, Any]) -> list[Rule]:
    """Return a rule for each route, from the settings for all of them and its own.

    Raises:
        ConfigError: an unknown setting, no principal, no route.
    """
    if isinstance(routes, str | Route) or not routes:
        raise ConfigError(f"routes is a list of paths and Route(...)s, not {routes!r}")
    return [_rule(Route(route) if isinstance(route, str) else route, settings) for route in routes]


def _rule(route: Route, settings: dict[str, Any]) -> Rule:
    together = {**settings, **route.settings}
    unknown = sorted(set(together) - _SETTINGS)
    if unknown:
        raise ConfigError(f"unknown setting {unknown[0]!r}; there are {', '.join(sorted(_SETTINGS))}")
    if "principal" not in together:
        raise ConfigError(
            "principal= is missing: a function that names whom a key belongs to, so that no caller sees another's "
            'result; by_header("x-api-key"), or `everyone` where all callers may share'
        )
    return Rule(route.path, **together)


class RouteTable(Generic[T]):
    """Finds what belongs to a request's method and path: by a dictionary, or one regular expression for all."""

    def __init__(self, rules: Sequence[Rule], make: Callable[[Rule], T]) -> None:
        self.entries = [(rule, make(rule)) for rule in rules]
        methods = {method for rule in rules for method in rule.methods}
        self._by_method = {method: self._finder(method) for method in methods}

    def _finder(self, method: str) -> Callable[[str], T | None]:
        chosen = [(_bare(rule.path), entry) for rule, entry in self.entries if method in rule.methods]
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
            if method.isupper():
                return None
            return self.find(
                method.upper(), path
            )  # some frameworks take a lower-case method for what it means
        bare = _bare(path)
        entry = finder(bare)
        return finder(path) if entry is None and bare is not path else entry


def _bare(path: str) -> str:
    """A path as the most lenient framework takes it: none must slip past a rule that serves it all the same.

    Many serve `/orders/` as `/orders`; Litestar `//orders`, too; and the `$` of Starlette's patterns matches before
    a line feed at the end.
    """
    if "//" in path or path[-1:] in ("/", "\n"):
        return re.sub("/+", "/", path).rstrip("/\n") or "/"
    return path


def _pattern(path: str) -> str:
    """`lastindex` counts groups: there is none but the one around each pattern."""
    pieces = re.split(r"(\{[^/{}]+\}|\*)", path)
    if any(segment.count("{") > 1 for segment in path.split("/")):
        raise ConfigError(f"in the path {path!r}: one {{name}} in a segment, no more")
    if "*" in path[:-1] or any("{" in piece or "}" in piece for piece in pieces[::2]):
        raise ConfigError(f"in the path {path!r}: {{name}} stands for a segment, * ends a path")
    wild = {"*": "(?s:.*)"}
    return "".join(
        wild.get(piece, "[^/]+") if index % 2 else re.escape(piece) for index, piece in enumerate(pieces)
    )


def _names(names: Any, what: str) -> list[str]:
    if not isinstance(names, Collection) or isinstance(names, str | bytes):
        raise ConfigError(f"{what} is a list of names, not {names!r}")
    if not all(isinstance(name, str) and _TOKEN.fullmatch(name) for name in names):
        raise ConfigError(f"{what} is a list of names, not {names!r}")
    return list(names)


def _statuses(statuses: Any) -> frozenset[int]:
    if not isinstance(statuses, Collection) or isinstance(statuses, str | bytes):
        raise ConfigError(f"keep is a function of a status, or a list of statuses, not {statuses!r}")
    if not all(isinstance(status, int) and 100 <= status <= 599 for status in statuses):
        raise ConfigError(f"keep has HTTP statuses, 100 to 599, not {statuses!r}")
    return frozenset(statuses)


def _short(name: str) -> str:
    """A name as it is, or a digest of it: where it is long, cannot be encoded, or looks like a digest."""
    data = name.encode("utf-8", "surrogatepass")
    escaped = len(data) + name.count("|") + name.count("\\")
    if escaped <= _LONGEST and name.isprintable() and not name.startswith("#"):
        return name
    return "#" + _digest(data)


def _digest(data: bytes) -> str:
    return blake2b(data, digest_size=16).hexdigest()

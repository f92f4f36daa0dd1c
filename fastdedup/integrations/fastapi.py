"""FastAPI: `Claimed` and `OneTimeToken`, dependencies that let a handler run once and replay its response.

Each application has one `Idempotency(app, dedup)`: it captures responses, and describes header and problems in the
OpenAPI document. Main path: `Idempotency.__call__` → the dependency → `AsgiExchange.hold`.
"""

# No `from __future__ import annotations` here: FastAPI reads the annotations of dependencies made in a function.

from collections.abc import AsyncIterator, Callable
from functools import lru_cache, partial
from typing import Annotated, Any, Final, Literal, TypeVar, Unpack

from ..checks import check_count, check_dedup
from ..claim import Claim
from ..errors import ConfigError, UnavailableError
from ..extras import needs
from ..gateway import Dedup
from ..sql.any_inbox import AnyInbox
from ..web import forms
from ..web.admit import admit
from ..web.answers import refusal, unavailable
from ..web.fingerprints import json_fingerprint
from ..web.forms import FIELD, FormRefused, Refusal
from ..web.policy import PublishedPolicy, docs_at, rule_facts
from ..web.record_keys import SCOPE
from ..web.request import EVERYONE, RequestTooLarge, Shared, by_host
from ..web.request import everyone as everybody
from ..web.response import REPLAYED, Response
from ..web.route_claims import RouteClaims
from ..web.rules import UUID, ClaimSettings, KeySettings, Rule, make_rules
from .http.callers import (
    GUARDS,
    Chooser,
    by_dependency,
    check_caller,
    check_chooser,
    check_rule,
    chosen,
    guarding,
    http_request,
    unless_websocket,
)
from .http.committing import Committed, Named, RouteCommits, check_kinds
from .http.exchange import AsgiExchange, supported
from .http.guarded import claim_of, key_fields, request_of
from .http.late_exits import dependencies_of, routes_of, warn_of_late_exits
from .http.lifespan import ASGIApp, Lifespan, Receive, Scope, Send
from .http.openapi import describe, token_header
from .http.response_stage import ReplayStage, begin_committed, calls_ended
from .http.threads import IN_THREADS, calls_of, is_awaited, route_of, tell_calls
from .unreached import watch_handlers

with needs(__name__, "FastAPI", "'fastdedup[web]'"):
    from fastapi import Depends, FastAPI, Request
    from fastapi import Response as FastAPIResponse
    from fastapi.requests import HTTPConnection

__all__ = [
    "UUID",
    "Claimed",
    "Commits",
    "Committed",
    "FormRefused",
    "Idempotency",
    "OneTimeToken",
    "Refusal",
    "by_host",
    "everyone",
    "json_fingerprint",
]

_SLOT = "fastdedup.slot"
MOST_ROUTES: Final = 1024
"""The routes, for each gate, whose rules a dependency keeps: a function given as `dedup=` may return new gates."""
_IN_HANDLER: Final = (
    "The store of idempotency keys did not answer while the request was handled. Repeat the request, as it is, after "
    "Retry-After seconds."
)
"""For claims that a handler makes itself: what it did before them is not known, nor whether the request has a key."""
T = TypeVar("T")


async def everyone() -> Literal[Shared.EVERYONE]:  # async: FastAPI calls other functions in a thread
    """Let all callers share their keys or tokens: a principal, or a subject."""
    return EVERYONE


class Idempotency:
    """Gives an application's `Claimed` and `OneTimeToken` their `Dedup`. Make one for each application.

    It opens `dedup` with the application and closes it, unless it was open before; also if handlers claim by hand.
    An UnavailableError that leaves a handler is answered 503 with Retry-After, unless the application has a handler
    for it, or the work is done and only not recorded (`unrecorded`). Add middleware that compresses after it: the
    middleware that is added last is outermost, so the stored response suits every client.

    Args:
        app: the application.
        dedup: a `Dedup`.
        docs: the address of the documentation, which every error links to; by default the application's `/docs`.
        max_request: the longest body of a claimed request, in bytes; it is held in memory. An operation may have a
            lower limit.

    Raises:
        ConfigError: an argument is of another kind, or the application has an `Idempotency` already.
    """

    def __init__(
        self, app: FastAPI, dedup: Dedup, *, docs: str | None = None, max_request: int = 1024 * 1024
    ) -> None:
        check_dedup(dedup, Dedup, "dedup in Idempotency(app, dedup)")
        if any(
            getattr(middleware.cls, "__name__", "") == _Capture.__name__ for middleware in app.user_middleware
        ):
            raise ConfigError(
                "this application has an Idempotency(...) already: name another Dedup by Claimed(dedup=...)"
            )
        self.app = app
        self.dedup = dedup
        self.web_keys = dedup.scoped(SCOPE)
        """Made at once, and kept: its figures then stand at 0 before the first request."""
        self.docs = PublishedPolicy([], dedup.settings, docs or None).docs or app.docs_url
        self.max_request = check_count(max_request, "max_request")
        self.lifespan = Lifespan(dedup)
        app.add_middleware(_Capture, idempotency=self)
        app.add_exception_handler(_Answered, _answered)
        app.exception_handlers.setdefault(FormRefused, _form_refused)
        app.exception_handlers.setdefault(UnavailableError, _unavailable)
        describe(app, dedup.settings, max_request)

    def docs_at(self, request: Request) -> str | None:
        """Return the documentation's address: a path of this application's is below its mount."""
        return docs_at(self.docs, request.scope.get("root_path", ""))


class _Capture:
    """Puts an exchange into each request's scope, for a dependency to claim in."""

    def __init__(self, app: ASGIApp, idempotency: Idempotency) -> None:
        self.app = app
        self._idempotency = idempotency
        # Mutable: of how many routes the plain functions that use transactions are prepared; more may be added.
        self._told = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            warn_of_late_exits(self._idempotency.app, partial(_has, GUARDS))
            return await self._idempotency.lifespan.run(self.app, scope, receive, send)
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        ours = self._idempotency
        if len(ours.app.routes) != self._told:
            self._told = len(ours.app.routes)
            describe(ours.app, ours.dedup.settings, ours.max_request)
            for route in filter(partial(_has, IN_THREADS), routes_of(ours.app)):
                tell_calls(route.dependant)
        exchange = AsgiExchange(receive, send, ours.max_request)
        scope = supported(scope)
        scope["headers"] = [*scope["headers"]]  # without trailers, see `request_of`
        scope[_SLOT] = (ours, exchange)
        return await exchange.run(self.app, scope)


def _has(mark: str, route: Any) -> bool:
    return any(hasattr(one.call, mark) for one in dependencies_of(route.dependant))


class _Answered(Exception):
    """The request is answered, and its handler does not run."""

    def __init__(self, response: Response) -> None:
        self.response = response


def Claimed(  # noqa: N802 - like FastAPI's own Depends() and Header()
    *,
    principal: Callable[..., Any],
    dedup: Dedup | Chooser | None = None,
    **settings: Unpack[KeySettings],
) -> Any:
    """Return a dependency: the handler runs once for each Idempotency-Key, and gets its `Claim`.

        @app.post("/orders")
        async def order(body: Order, claim: Annotated[Claim, Claimed(principal=current_account)]): ...

    The handler's response settles the claim, and is replayed to duplicates. Missing and malformed keys, duplicates of
    a running request, other payloads and outages are answered before it runs. A request without a key has the claim
    None, unless a key is `required`.

    The settings most used: `required=True` refuses a request without a key, `wait` is for how many seconds a
    duplicate waits for the first response, `ttl` for how many a response is kept, and `fingerprint=json_fingerprint`
    lets a retry encode its JSON anew. `docs/http-rules.md` has all.

    The answer to a request that does not reach the handler is not kept: if FastAPI finds parameters or body invalid,
    or a dependency raises, the key is free, and the corrected request runs (`keep_unreached=True` keeps such an
    answer). The released key counts that attempt, like every released key.

    A dependency with `yield` ends after the response is stored and sent. A commit that fails there comes too late,
    because the response has reported success: give such a dependency `Depends(..., scope="function")`.

    Args:
        principal: a dependency that names the caller whom keys belong to (text, a number or a UUID): best the
            dependency that authenticates. If it returns None or "", a request with a key is answered 400,
            `principal-required`. Give `everyone` if all callers may share their keys.
            Make it `async def` even if it never awaits: FastAPI runs a sync function in a thread, for each request.
        dedup: another `Dedup` than the application's, which you open, or a function that chooses one for a request.
        settings: see `fastdedup.web.rules.Rule`.

    Raises:
        ConfigError: a setting cannot be used.
    """
    claims_at = _routes(dict(settings), "principal", principal, dedup, lambda claims, _: claims)
    facts = _facts(principal, dedup, dict(settings))

    async def claimed(
        connection: HTTPConnection,
        caller: Annotated[Any, Depends(principal)],
    ) -> Claim | None:
        if (request := unless_websocket(connection)) is None:
            return None
        idempotency, exchange = _free_slot(request)
        docs = idempotency.docs_at(request)
        claims = claims_at(request)
        rule = claims.rule

        async def claim(key: str) -> Claim:
            return await claims.claim(*await _identified(rule, request, caller, key))

        got = await admit(key_fields(request.scope), claim, rule, docs)
        if isinstance(got, Response):
            raise _answer(exchange, got)
        if got is not None:
            # From here on nothing may come between the claim and `hold`: `AsgiExchange.run` ends the renewal.
            exchange.hold(request.scope, got, rule, docs)
            watch_handlers(request.scope)
        return got

    return guarding(claimed, facts)


def Commits(  # noqa: N802
    inbox: AnyInbox[Any],
    *,
    principal: Callable[..., Any],
    begin: Any = None,
    dedup: Dedup | Chooser | None = None,
    **settings: Unpack[KeySettings],
) -> Any:
    """Return a dependency: the handler's work, an inbox's row and the response commit in one transaction.

        @app.post("/payments", status_code=201)
        async def pay(
            order: Order, request: Annotated[Committed, Commits(inbox, begin=Session.begin, principal=account)]
        ) -> Receipt:
            request.session.add(Payment(...))

    The response is sent after the COMMIT, and a retry gets it from the row, whatever has become of the process or of
    Redis. A response that the rule does not keep (5xx, some 4xx), an error, and a lost lease roll back; then a
    retry is a first run. A stream, and a response over `max_response`, are refused before the COMMIT.
    `docs/committing-endpoint.md` has the whole table.

    Args:
        inbox: the inbox, of `fastdedup.sql`. Its `keep` should be no shorter than clients retry.
        principal: see `Claimed`.
        begin: begins the transaction, like `Session.begin`; by default the inbox's. Another task may end it.
        dedup: see `Claimed`: the gate before the inbox.
        settings: see `Claimed`; `unstored` has no effect.

    Raises:
        ConfigError: a setting cannot be used, or there is no `begin`.
    """
    inbox.beginning(begin)

    def with_inbox(claims: RouteClaims, endpoint: Any) -> RouteCommits:
        check_kinds(inbox, endpoint, awaited=is_awaited(endpoint))
        return RouteCommits(claims, claims.dedup, inbox, begin)

    route_at = _routes(dict(settings), "principal", principal, dedup, with_inbox)
    facts = _facts(principal, dedup, dict(settings))

    async def commits(
        connection: HTTPConnection,
        caller: Annotated[Any, Depends(principal)],
    ) -> AsyncIterator[Committed[Any]]:
        request = http_request(connection, "Commits")
        idempotency, exchange = _free_slot(request)
        route = route_at(request)
        identify = partial(_identified, route.claims.rule, request, caller)
        watch_handlers(request.scope)  # the exit of another dependency may raise an error
        got = await begin_committed(route, request.scope, exchange, idempotency.docs_at(request), identify)
        if isinstance(got, Response):
            raise _answer(exchange, got)
        work = exchange.stage.work
        calls = None if route.inbox.bridge.is_async else calls_of(request.scope)
        try:
            yield got
            await work.handled()
        except BaseException as error:
            if calls is not None:
                await calls_ended(calls)
            answer = await work.raised(error)
            if answer is None:
                raise
            raise _Answered(answer) from error

    if not inbox.bridge.is_async:
        setattr(commits, IN_THREADS, True)
    # It ends before the response is sent, so errors can be answered.
    return guarding(commits, facts, scope="function")


def OneTimeToken(  # noqa: N802
    *,
    subject: Callable[..., Any],
    field: str = FIELD,
    wait: float | None = forms.WAIT,
    dedup: Dedup | Chooser | None = None,
    **settings: Unpack[ClaimSettings],
) -> Any:
    """Return a dependency: it redeems a form's one-time token; the handler runs once and gets the `Claim`.

        token = await dedup.tokens.issue(subject=session_id)           # for a hidden field, on rendering the form
        @app.post("/orders")
        async def order(claim: Annotated[Claim, OneTimeToken(subject=session_id)]): ...

    The same form again (a second click, a refresh, a duplicated tab) gets the first response. Any other form that
    cannot be accepted raises FormRefused. A short page answers it, unless you handle it to show your form again.

    Args:
        subject: a dependency that returns the token's subject: best a session, which ends with signing out.
        field: the form's field; scripts may send the header X-One-Time-Token instead.
        wait: seconds that a second click waits for the first click's page.
        dedup: as for `Claimed`.
        settings: as for `Claimed`.

    Raises:
        ConfigError: a setting cannot be used.
    """
    settings_of_form = {**settings, "wait": forms.WAIT if wait is None else wait}
    claims_at = _routes(settings_of_form, "subject", subject, dedup, lambda claims, _: claims)
    header = token_header(field)

    async def redeemed(
        connection: HTTPConnection,
        who: Annotated[Any, Depends(subject)],
        one_time_token: str = header,
    ) -> Claim:
        request = http_request(connection, "OneTimeToken")
        idempotency, exchange = _free_slot(request)
        docs = idempotency.docs_at(request)
        claims = claims_at(request)
        try:
            body = await exchange.body(claims.rule.max_request)
        except RequestTooLarge as error:
            raise _Answered(refusal(error, claims.rule, docs)) from None
        token = one_time_token or (await request.form()).get(field)
        if not isinstance(token, str) or not token:
            raise FormRefused(Refusal.MISSING)
        contents = claims.rule.mark(request_of(request.scope, body))  # first, because it may raise
        await idempotency.lifespan.ready()
        redeeming = claims.redeem(token, forms.issued_subject(who))
        leave_session = partial(_leave_session, request)
        got = await forms.admit_form(redeeming, contents, docs, leave_session, person=False)
        if isinstance(got, Response):
            raise _answer(exchange, got)
        watch_handlers(request.scope)
        exchange.hold(request.scope, got, claims.rule, docs, contents)
        return got

    return guarding(redeemed)


def _routes(
    settings: dict[str, Any],
    what: str,
    caller: Any,
    gate: Dedup | Chooser | None,
    make: Callable[[RouteClaims, Any], T],
) -> Callable[[Request], T]:
    """Return a function that finds what `make` returns for a route's claims and its endpoint.

    It is made once for each `Dedup` and endpoint, and kept for the latest `MOST_ROUTES` of them: a function given as
    `dedup=` may return a new `Dedup` for each request, such as `dedup.scoped(tenant)`.
    """
    check_caller(what, caller)
    check_chooser(gate)
    if "methods" in settings:
        raise ConfigError(
            "methods= is only for the middleware: leave it out, a dependency belongs to one operation"
        )
    make_rules(["/"], {"principal": everybody, **settings})  # so that mistakes show here

    @lru_cache(MOST_ROUTES)
    def made(dedup: Dedup, limit: int, path: str, endpoint: Any) -> T:
        rule = Rule(path, everybody, **{"max_request": limit, **settings})
        check_rule(rule, limit, endpoint)
        return make(RouteClaims(dedup, rule), endpoint)

    def route_at(request: Request) -> T:
        idempotency = _slot(request)[0]
        dedup = chosen(gate, request) or idempotency.dedup
        path = str(route_of(request.scope).path)
        return made(dedup, idempotency.max_request, path, request.scope["endpoint"])

    return route_at


def _facts(principal: Any, dedup: Dedup | Chooser | None, settings: dict[str, Any]) -> dict[str, Any]:
    """Return the published facts of a claimed operation, without those that the application decides."""
    named = everybody if principal is everyone else by_dependency
    (rule,) = make_rules(["/"], {"principal": named, **settings})
    facts = rule_facts(rule, dedup.settings if isinstance(dedup, Dedup) else None)
    if "max_request" not in settings:
        del facts["largest_request_bytes"]
    return {name: fact for name, fact in facts.items() if fact is not None}


def _slot(request: Request) -> tuple[Idempotency, AsgiExchange]:
    slot = request.scope.get(_SLOT)
    if slot is None:
        raise ConfigError(
            "Claimed(), Commits() and OneTimeToken() need Idempotency(app, dedup) on their application"
        )
    if request.scope["app"] is not slot[0].app:
        raise ConfigError("a mounted application needs an Idempotency(...) of its own, with the same Dedup")
    return slot  # type: ignore[no-any-return]


def _free_slot(request: Request) -> tuple[Idempotency, AsgiExchange]:
    idempotency, exchange = _slot(request)
    if exchange.recorder is not None or exchange.stage is not None:
        raise ConfigError(
            "an operation can have only one Claimed(), Commits() or OneTimeToken(): one response cannot settle two "
            "claims, nor commit two transactions. If it has one, a middleware has called the application again: add "
            "that middleware after Idempotency(...), so that it is outside"
        )
    if claim_of(request.scope) is not None:
        raise ConfigError(
            "IdempotencyMiddleware has claimed this request already: use either the middleware or Claimed() for this "
            "route"
        )
    return idempotency, exchange


async def _identified(rule: Rule, request: Request, caller: Any, key: str) -> Named:
    """Read a request and open the `Dedup`; return the key of its record, and its fingerprint."""
    idempotency, exchange = _slot(request)
    body = await exchange.body(rule.max_request)
    await idempotency.lifespan.ready()
    return rule.identify(request_of(request.scope, body), caller, key)


def _leave_session(request: Request) -> None:
    """Let Starlette's SessionMiddleware send no cookie: the form's first answer may have made another session."""
    session = request.scope.get("session")
    if getattr(session, "modified", False):
        session.modified = False  # type: ignore[union-attr] # of Starlette's Session


def _answer(exchange: AsgiExchange, response: Response) -> _Answered:
    """Return the answer to raise. A stored response is sent past the middleware that is inside of `Idempotency`."""
    recorder = exchange.recorder
    if response.header(REPLAYED[0]) is None and not (recorder is not None and recorder.replayed):
        return _Answered(response)
    exchange.stage = ReplayStage(exchange, response)
    return _Answered(response.before_middleware())


async def _answered(request: Request, answered: Exception) -> FastAPIResponse:
    assert isinstance(answered, _Answered)
    return _plain(answered.response)


async def _form_refused(request: Request, refused: Exception) -> FastAPIResponse:
    assert isinstance(refused, FormRefused)
    return _plain(refused.response(request_of(request.scope, b"")))


async def _unavailable(request: Request, error: Exception) -> FastAPIResponse:
    """Answer 503 if a handler's own claim finds no store. Work that is done and not recorded stays an error."""
    assert isinstance(error, UnavailableError)
    if error.unrecorded or request.scope["type"] != "http":  # a WebSocket is closed, with 1011
        raise error
    return _plain(unavailable(error, _slot(request)[0].docs_at(request), _IN_HANDLER))


def _plain(response: Response) -> FastAPIResponse:
    plain = FastAPIResponse(response.body, response.status)
    plain.raw_headers = list(response.headers)
    return plain

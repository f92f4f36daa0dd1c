"""`IdempotencyMiddleware` for any WSGI application. Main path: `__call__` → `_guarded` → `WsgiExchange.run`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from inspect import isawaitable, iscoroutine
from typing import Unpack
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from ..checks import check_dedup
from ..errors import ConfigError
from ..flows import drive
from ..keys import Fingerprint
from ..sync import Claim, Dedup
from ..web.admit import admit
from ..web.fingerprints import json_fingerprint
from ..web.policy import PublishedPolicy, docs_at
from ..web.recorder import is_held
from ..web.request import Named, Request, by_header, by_host, everyone
from ..web.response import Response
from ..web.rules import UUID, Route, RouteSettings, RouteTable, Rule, make_rules
from .http.background_claims import BackgroundClaims, Make
from .http.wsgi_exchange import CLAIM, RECORDER, WsgiExchange, send
from .http.wsgi_request import mount_of, read_body, request_of, route_path

__all__ = [
    "UUID",
    "IdempotencyMiddleware",
    "Route",
    "by_header",
    "by_host",
    "claim_of",
    "everyone",
    "json_fingerprint",
]

ReadBody = Callable[[WSGIEnvironment, int], bytes]
"""A function that returns a request's body, of at most so many bytes."""


class WsgiClaims(BackgroundClaims):
    """A route's claims, for synchronous code.

    Raises:
        ConfigError: the rule needs something that WSGI does not have.
    """

    def __init__(self, dedup: Dedup, rule: Rule) -> None:
        if rule.on_disconnect == "cancel":
            raise ConfigError(
                f"on_disconnect='cancel' ({rule.path}): a WSGI handler cannot be cancelled, nor is it told that "
                "its client has left; only 'finish' can be had"
            )
        super().__init__(lambda: dedup, rule)
        self.present()

    def admit(
        self, environ: WSGIEnvironment, docs: str | None, read: ReadBody, make: Make | None = None
    ) -> Claim | Response | None:
        """See `fastdedup.web.admit.admit`. `make` claims in another way, in a flow for `drive`."""
        field = environ.get("HTTP_IDEMPOTENCY_KEY")
        # No server sends text beyond latin-1; escaped it is malformed, and not another key.
        fields = [] if field is None else [field.encode("latin-1", "backslashreplace")]

        async def claim(key: str) -> Claim | None:
            if is_claimed(environ):  # by an outer middleware
                return None
            named = self.identify(environ, read, key)
            return await (self.claim(*named) if make is None else make(key, named))

        return drive(admit(fields, claim, self.rule, docs))

    def identify(self, environ: WSGIEnvironment, read: ReadBody, key: str) -> tuple[str, Fingerprint]:
        """Return the key of a request's record, and the fingerprint; see `Rule.identify`."""
        request = request_of(environ, read(environ, self.rule.max_request))
        return self.rule.identify(request, self._principal(request), key)

    def _principal(self, request: Request) -> Named:
        principal = self.rule.principal(request)
        if not isawaitable(principal):
            return principal
        if iscoroutine(principal):
            principal.close()
        raise ConfigError(f"principal={self.rule.principal!r} is async: under WSGI give a plain function")


class IdempotencyMiddleware:
    """Makes requests with an Idempotency-Key happen once, and replays the first response to the others.

        application = IdempotencyMiddleware(application, dedup, principal=account)
        application = Authentication(application)    # yours

    Put it inside of the middleware that authenticates or compresses. If it stands outside of what authenticates, a
    caller whose key was revoked still gets stored responses: in Flask and Django take their decorators.

    Records live in the namespace `<dedup's>:http`, and are those of the ASGI middleware: both may serve one API. A
    duplicate that waits (`wait=`) blocks its thread.

    Nothing can stop a WSGI handler whose lease is lost. If that matters, let the handler check
    `claim_of(environ).lost` before a step that cannot be undone, and send the `fence` with its writes. Its response
    is then replaced by a 409.

    Args:
        app: the application.
        dedup: a `Dedup` of `fastdedup.sync`.
        routes: paths and `Route`s; every path by default.
        docs: the address of the policy: a path such as `/idempotency`, which is then served here, or a URL of your
            own. Every error links to it.
        settings: the settings of all routes, see `Route` and `fastdedup.web.rules.Rule`; `principal` is required,
            and a plain function.

    Raises:
        ConfigError: a setting cannot be used.
    """

    def __init__(
        self,
        app: WSGIApplication,
        dedup: Dedup,
        *,
        routes: Sequence[Route | str] = ("/*",),
        docs: str | None = None,
        **settings: Unpack[RouteSettings],
    ) -> None:
        check_dedup(dedup, Dedup, "dedup in IdempotencyMiddleware(app, dedup)")
        self.app = app
        rules = make_rules(routes, dict(settings))
        self._table = RouteTable(rules, lambda rule: WsgiClaims(dedup, rule))
        self._policy = PublishedPolicy(rules, dedup.settings, docs)

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Serve one request."""
        method, path = environ["REQUEST_METHOD"], route_path(environ)
        if path == self._policy.path and method in ("GET", "HEAD"):
            page = self._policy.page(environ.get("HTTP_ACCEPT"))
            return send(start_response, page, body=method == "GET")
        guard = self._table.find(method, path)
        if guard is None:
            return self.app(environ, start_response)
        return self._guarded(guard, environ, start_response)

    def _guarded(
        self, claims: WsgiClaims, environ: WSGIEnvironment, start_response: StartResponse
    ) -> Iterable[bytes]:
        docs = docs_at(self._policy.docs, mount_of(environ))
        got = claims.admit(environ, docs, read_body)
        if got is None:
            return self.app(environ, start_response)
        if isinstance(got, Response):
            return send(start_response, got)
        exchange = WsgiExchange(start_response)
        exchange.hold(environ, got, claims.rule, docs)
        return exchange.run(self.app, environ)


def is_claimed(environ: WSGIEnvironment) -> bool:
    """Return whether a request is under a claim; see `is_held`."""
    return is_held(environ.get(RECORDER))


def claim_of(environ: WSGIEnvironment) -> Claim | None:
    """Return the claim under which a request runs, with its `fence` and `lost`.

    Return None if the request came without a key. In Flask call `claim_of(request.environ)`, in Django
    `claim_of(request.META)`.
    """
    return environ.get(CLAIM)

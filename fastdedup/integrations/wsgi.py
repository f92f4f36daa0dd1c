"""`IdempotencyMiddleware` for any WSGI application. Main path: `__call__` → `_guarded` → `WsgiExchange.run`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from inspect import isawaitable, iscoroutine
from typing import Unpack
from urllib.parse import quote
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from ..errors import ConfigError
from ..model import Outcome
from ..sync import Claim, Dedup
from ..web.answers import REFUSALS, answer, refusal
from ..web.header import KeyMissing, parse
from ..web.policy import PublishedPolicy
from ..web.request import Named, Request, by_header, everyone, json_fingerprint
from ..web.response import Response, ResponseCodec
from ..web.rules import UUID, Route, RouteSettings, RouteTable, Rule, make_rules
from .settling import HEAD_ROOM
from .wsgi_exchange import WsgiExchange, WsgiHeldClaim, send
from .wsgi_request import BadBody, read_body, request_of, route_path, supported

__all__ = [
    "UUID",
    "IdempotencyMiddleware",
    "Route",
    "by_header",
    "claim_of",
    "everyone",
    "json_fingerprint",
]

_CLAIM = "fastdedup.claim"


class WsgiGuard:
    """A route's rule, and the `Dedup` with its settings.

    Raises:
        ConfigError: the rule needs something that WSGI does not have.
    """

    __slots__ = ("_dedup", "rule")

    def __init__(self, dedup: Dedup, rule: Rule) -> None:
        if rule.on_disconnect == "cancel":
            raise ConfigError(
                f"on_disconnect='cancel' ({rule.path}): a WSGI handler cannot be cancelled, nor is it told that "
                "its client has left; only 'finish' can be had"
            )
        self.rule = rule
        self._dedup = dedup.scoped(
            "http",
            lease=rule.lease,
            ttl=rule.ttl,
            failure_ttl=rule.failure_ttl,
            codec=ResponseCodec(spelled=True),
            max_result=rule.max_response + HEAD_ROOM,
        )

    def key_of(self, environ: WSGIEnvironment) -> str | None:
        """Return a request's key, or None for a request without a key.

        Raises:
            KeyMissing: the rule requires a key.
            BadKey: the key is malformed, or does not have the published format.
        """
        field = environ.get("HTTP_IDEMPOTENCY_KEY")
        # No server sends text beyond latin-1; escaped it is malformed, and not another key.
        key = None if field is None else parse([field.encode("latin-1", "backslashreplace")])
        if key is not None:
            self.rule.check_key(key)
        elif self.rule.required:
            raise KeyMissing
        return key

    def claim(self, request: Request, key: str) -> Claim:
        """Claim a key for its caller, method and route. Raises what `scope_key` and `Dedup.claim` raise."""
        rule = self.rule
        name = rule.scope_key(request.method, request.path, self._principal(request), key)
        mark = rule.mark(request)
        claim = self._dedup.claim(name, fingerprint=mark, renew=rule.renew)
        if rule.wait and claim.outcome is Outcome.IN_PROGRESS:  # as `patiently` in guard.py
            claim = self._dedup.claim(name, fingerprint=mark, wait=rule.wait, renew=rule.renew)
        return claim

    def _principal(self, request: Request) -> Named:
        principal = self.rule.principal(request)
        if not isawaitable(principal):
            return principal
        if iscoroutine(principal):
            principal.close()
        raise ConfigError(f"principal={self.rule.principal!r} is async: under WSGI give a plain function")


class IdempotencyMiddleware:
    """Makes requests with an Idempotency-Key happen once, and replays the first response to the others.

        app.wsgi_app = IdempotencyMiddleware(app.wsgi_app, dedup, principal=by_header("x-api-key"))    # Flask
        application = IdempotencyMiddleware(get_wsgi_application(), dedup, principal=…)                # Django

    Put it inside of the middleware that authenticates or compresses. Records live in the namespace `<dedup's>:http`,
    and are those of the ASGI middleware: both may serve one API. A duplicate that waits (`wait=`) blocks its thread.

    Nothing can stop a WSGI handler whose lease is lost: where that matters it checks `claim_of(environ).lost` before
    a step that cannot be undone, and sends the `fence` with its writes. Its response is then replaced by a 409.

    Args:
        app: the application.
        dedup: a `Dedup` of `fastdedup.sync`.
        routes: paths and `Route`s; every path by default.
        docs: where the policy is published: a path such as `/idempotency`, which is then served here, or a URL
            of your own. Every error links to it.
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
        if not isinstance(dedup, Dedup):
            raise ConfigError(f"WSGI takes a fastdedup.sync.Dedup, got {dedup!r}")
        self.app = app
        rules = make_rules(routes, dict(settings))
        self._table = RouteTable(rules, lambda rule: WsgiGuard(dedup, rule))
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

    def _docs(self, environ: WSGIEnvironment) -> str | None:
        """Return the policy's address: a path of this application's is below its mount."""
        if self._policy.path is None:
            return self._policy.docs
        return quote(environ.get("SCRIPT_NAME", ""), encoding="latin-1") + self._policy.path

    def _guarded(
        self, guard: WsgiGuard, environ: WSGIEnvironment, start_response: StartResponse
    ) -> Iterable[bytes]:
        docs = self._docs(environ)
        claim: Claim | None = None
        try:
            key = guard.key_of(environ)
            if key is not None:
                body = read_body(environ, guard.rule.max_request)
                claim = guard.claim(request_of(environ, body), key)
        except (*REFUSALS, BadBody) as error:
            return send(start_response, _refusal(error, guard.rule, docs))
        if claim is None:  # outside of the `try`: the application's exceptions are its own
            return self.app(environ, start_response)
        if not claim.acquired:
            return send(start_response, answer(claim, guard.rule, docs))
        environ[_CLAIM] = claim
        supported(environ)
        return WsgiExchange(start_response, WsgiHeldClaim(claim, guard.rule, docs)).run(self.app, environ)


def claim_of(environ: WSGIEnvironment) -> Claim | None:
    """Return the claim under which a request runs, with its `fence` and `lost`.

    None where the request came without a key. In Flask `claim_of(request.environ)`, in Django
    `claim_of(request.META)`.
    """
    return environ.get(_CLAIM)


def _refusal(error: Exception, rule: Rule, docs: str | None) -> Response:
    return error.response(docs) if isinstance(error, BadBody) else refusal(error, rule, docs)

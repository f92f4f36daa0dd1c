"""`IdempotencyMiddleware` for any WSGI application. Main path: `__call__` → `_guarded` → `WsgiExchange.run`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from inspect import isawaitable, iscoroutine
from typing import Unpack
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from ..checks import not_a_gate
from ..claiming import claim_call
from ..core.calls import ClaimCall
from ..core.options import ClaimOptions
from ..errors import ConfigError
from ..gateway import Dedup as AsyncDedup
from ..model import Outcome
from ..sync import Claim, Dedup
from ..sync.claim import answered
from ..web.answers import REFUSALS, answer, refusal
from ..web.fingerprints import json_fingerprint
from ..web.forms import redeemed_subject, refusal_of_another
from ..web.header import parse
from ..web.policy import PublishedPolicy, docs_at
from ..web.record_keys import SCOPE
from ..web.request import Named, Request, by_header, by_host, everyone
from ..web.response import Response, ResponseCodec
from ..web.rules import UUID, Route, RouteSettings, RouteTable, Rule, make_rules
from .guard import record_settings
from .wsgi_exchange import CLAIM, WsgiExchange, send
from .wsgi_request import BadBody, mount_of, read_body, request_of, route_path

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


class WsgiGuard:
    """A route's rule, and the `Dedup` with its settings.

    Raises:
        ConfigError: the rule needs something that WSGI does not have.
    """

    __slots__ = ("_dedup", "_forms", "_options", "rule")

    def __init__(self, dedup: Dedup, rule: Rule) -> None:
        if rule.on_disconnect == "cancel":
            raise ConfigError(
                f"on_disconnect='cancel' ({rule.path}): a WSGI handler cannot be cancelled, nor is it told that "
                "its client has left; only 'finish' can be had"
            )
        self.rule = rule
        self._options = ClaimOptions(wait=rule.wait, renew=rule.renew)
        settings = record_settings(rule, ResponseCodec(spelled=True))
        self._dedup = dedup.scoped(SCOPE, **settings)
        self._forms = dedup.scoped(**settings)  # the namespace in which the application issues its tokens

    def ask(self, environ: WSGIEnvironment, docs: str | None, read: ReadBody) -> Claim | Response | None:
        """Return the claim that a request acquired, or the answer in its handler's place.

        None for a request without a key, and for a request that an outer guard has claimed. Raises what the principal
        and fingerprint functions raise.
        """
        try:
            key = self.key_of(environ)
            if key is None or claim_of(environ) is not None:
                return None
            claim = self.claim(request_of(environ, read(environ, self.rule.max_request)), key)
        except (*REFUSALS, BadBody) as error:
            return refused(error, self.rule, docs)
        return claim if claim.acquired else answer(claim, self.rule, docs)

    def key_of(self, environ: WSGIEnvironment) -> str | None:
        """Return a request's key, or None for a request without a key.

        Raises:
            KeyMissing: the rule requires a key.
            BadKey: the key is malformed, or does not have the published format.
        """
        field = environ.get("HTTP_IDEMPOTENCY_KEY")
        # No server sends text beyond latin-1; escaped it is malformed, and not another key.
        key = None if field is None else parse([field.encode("latin-1", "backslashreplace")])
        self.rule.check_key(key)
        return key

    def claim(self, request: Request, key: str) -> Claim:
        """Claim a request's key. Raises what `Rule.identify` and `Dedup.claim` raise."""
        name, mark = self.rule.identify(request, self._principal(request), key)
        return _patiently(
            self._dedup,
            lambda dedup, options: claim_call(dedup.gate, options, name, mark),
            self._options,
        )

    def redeem(self, token: str, subject: str | None) -> Claim:
        """Redeem a form's token for a subject of `issued_subject`.

        Raises:
            FormRefused: the token is another subject's.
            DedupError: any error of `Tokens.redeem`.
        """
        who = redeemed_subject(subject)
        found = _patiently(
            self._forms,
            lambda dedup, options: dedup.tokens.redeem_with(options, token, who),
            self._options,
        )
        if found.outcome is Outcome.MISMATCH:
            record = self._forms.get(token, "token")
            raise refusal_of_another(None if record is None else record.state)
        return found

    def _principal(self, request: Request) -> Named:
        principal = self.rule.principal(request)
        if not isawaitable(principal):
            return principal
        if iscoroutine(principal):
            principal.close()
        raise ConfigError(f"principal={self.rule.principal!r} is async: under WSGI give a plain function")


def _patiently(
    dedup: Dedup, claim: Callable[[AsyncDedup, ClaimOptions], ClaimCall], options: ClaimOptions
) -> Claim:
    """Claim, and wait for an owner at work only, as `patiently` in guard.py."""
    waits = options.seconds_to_wait > 0.0

    def first(behind: AsyncDedup) -> ClaimCall:
        call = claim(behind, options.at_once)
        call.will_wait = waits
        return call

    found = answered(dedup.bound, first)
    if not waits or found.outcome is not Outcome.IN_PROGRESS:
        return found
    return answered(dedup.bound, lambda behind: claim(behind, options))


class IdempotencyMiddleware:
    """Makes requests with an Idempotency-Key happen once, and replays the first response to the others.

        application = IdempotencyMiddleware(application, dedup, principal=account)
        application = Authentication(application)    # yours

    Put it inside of the middleware that authenticates or compresses. If it stands outside of what authenticates, a
    caller whose key was revoked still gets stored responses: in Flask and Django take their decorators.

    Records live in the namespace `<dedup's>:http`,
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
            raise not_a_gate(dedup, "dedup in IdempotencyMiddleware(app, dedup)", "fastdedup.sync.Dedup")
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

    def _guarded(
        self, guard: WsgiGuard, environ: WSGIEnvironment, start_response: StartResponse
    ) -> Iterable[bytes]:
        docs = docs_at(self._policy.docs, mount_of(environ))
        got = guard.ask(environ, docs, read_body)
        if got is None:
            return self.app(environ, start_response)
        if isinstance(got, Response):
            return send(start_response, got)
        exchange = WsgiExchange(start_response)
        exchange.hold(environ, got, guard.rule, docs)
        return exchange.run(self.app, environ)


def claim_of(environ: WSGIEnvironment) -> Claim | None:
    """Return the claim under which a request runs, with its `fence` and `lost`.

    None where the request came without a key. In Flask `claim_of(request.environ)`, in Django
    `claim_of(request.META)`.
    """
    return environ.get(CLAIM)


def refused(error: Exception, rule: Rule, docs: str | None) -> Response:
    """Return the answer for one of `REFUSALS`, or for a body that cannot be read."""
    return error.response(docs) if isinstance(error, BadBody) else refusal(error, rule, docs)

"""`@one_time_form`: a form takes effect once. Main path: `_OneTime.handle` → `_redeemed` → `capture.run`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, Unpack, overload
from weakref import WeakSet

from django.http import HttpRequest, HttpResponse, QueryDict
from django.utils.datastructures import MultiValueDict

from ...web.answers import refusal
from ...web.forms import (
    CONTENT_TYPES,
    HEADER,
    SAFE_METHODS,
    WAIT,
    FormRefused,
    Refusal,
    admit_form,
    sent_token,
)
from ...web.problems import whole_seconds
from ...web.request import BadBody, RequestTooLarge, everyone
from ...web.response import Response
from ...web.rules import ClaimSettings, Rule
from . import convert
from .bridge import Bridge
from .capture import run
from .config import http
from .settling import DjangoClaims, Hold
from .tokens import Form, Subject, leave_session, open_form, subject_of
from .views import check_settings, wrap

__all__ = ["FormRefused", "Refusal", "one_time_form"]

View = TypeVar("View", bound=Callable[..., Any])
Refused = Callable[[HttpRequest, FormRefused], Any]
_PAGES: WeakSet[Any] = WeakSet()
"""Views that have answered a GET. A view that never has (for example inside of require_POST) may expect form data,
so it must not be called to get its page."""


@overload
def one_time_form(view: View, /) -> View: ...


@overload
def one_time_form(
    *,
    subject: Subject | str | None = None,
    field: str | None = None,
    wait: float | None = WAIT,
    refused: Refused | None = None,
    **settings: Unpack[ClaimSettings],
) -> Callable[[View], View]: ...


def one_time_form(
    view: Any = None,
    /,
    *,
    subject: Subject | str | None = None,
    field: str | None = None,
    wait: float | None = WAIT,
    refused: Refused | None = None,
    **settings: Unpack[ClaimSettings],
) -> Any:
    """Decorate a view whose form takes effect once: GET passes, any other method redeems the form's token.

        @one_time_form
        def order(request):
            form = OrderForm(request.POST or None, request=request)   # with OneTimeFormMixin, or {% one_time_token %}

    The same form again (a second click, a refresh, a duplicated tab) gets the first response. If a form is refused
    and has no response to replay, the answer is the view's own page for a GET, with the refusal's status,
    `request.form_refused` (a FormRefused, for `{% one_time_notice %}`) and a new form. If the view has not answered a
    GET yet, the answer is a short page. If the same form may be sent again, the page has the same token, so that the
    form still takes effect only once. A form that a script sends, with its token in the header X-One-Time-Token, gets
    a problem or a short page.

    Classes: `@method_decorator(one_time_form, name="dispatch")`. Put it inside of `login_required` and similar
    decorators. The token is released, so that the form can be sent again, by an exception, by a form that is not
    valid (`OneTimeFormMixin`) and by `reopen(request)`. With ATOMIC_REQUESTS the view's transaction ends before its
    response is stored.

    Args:
        view: the view, if the decorator is used without arguments.
        subject: a function of the HttpRequest that returns the subject of its tokens; by default
            `FASTDEDUP_HTTP["subject"]`, or else `session_subject`: this session and this user.
        field: the form's field; by default `FASTDEDUP_HTTP["field"]`, or else `one_time_token`.
        wait: seconds that a second click waits for the first click's page.
        refused: a function that makes the page for a refusal: `refused(request, error)`.
        settings: see `fastdedup.web.rules.Rule`.

    Raises:
        ConfigError: a setting cannot be used.
    """
    # A form's key is its token alone.
    rule = Rule("/", everyone, wait=WAIT if wait is None else wait, **settings)
    form = _OneTime(rule, subject, field, refused)

    def decorate(view: Any) -> Any:
        check_settings(rule, view)
        return wrap(view, form.handle)

    return decorate if view is None else decorate(view)


class _OneTime:
    def __init__(
        self, rule: Rule, subject: Subject | str | None, field: str | None, refused: Refused | None
    ) -> None:
        self._claims = DjangoClaims(rule, None)
        self._rule = rule
        self._subject = subject
        self._field = field
        self._refused = refused

    def _view_of(self, request: HttpRequest) -> Any:
        # The view in the URL configuration, because method_decorator decorates again for each request.
        match = request.resolver_match
        return self if match is None else match.func

    async def handle(self, bridge: Bridge, request: HttpRequest, view: Callable[[], Any]) -> HttpResponse:
        """Answer a request."""
        given = http()
        form = open_form(request, self._subject or given.subject, self._field or given.field)
        request.form_refused = None
        if request.method in SAFE_METHODS:
            page = await bridge.view(view)
            if request.method == "GET" and page.status_code == 200:
                _PAGES.add(self._view_of(request))
            return page
        try:
            got = await self._redeemed(bridge, request, form)
        except (RequestTooLarge, BadBody) as error:
            return convert.reply(refusal(error, self._rule, None))
        except FormRefused as error:
            return await self._refuse(bridge, request, form, error, view)
        if isinstance(got, Response):
            return convert.reply(got)
        return await run(bridge, got, request, view)

    async def _redeemed(self, bridge: Bridge, request: HttpRequest, form: Form) -> Hold | Response:
        """Return the claim for the first form, and the first response for a duplicate. Raises FormRefused."""
        # Before a form is read, and its files are digested.
        convert.check_length(request, self._rule.max_request)
        form.token = token = sent_token(request.headers.get(HEADER) or request.POST.get(form.field))
        contents = self._mark(request, form.field)
        subject = await subject_of(bridge, request)
        redeeming = self._claims.redeem(token, subject, blocks=bridge.blocks)

        def leave() -> None:
            form.elsewhere = True
            leave_session(request)

        got = await admit_form(redeeming, contents, None, leave, person=HEADER not in request.headers)
        return got if isinstance(got, Response) else self._claims.hold(got, request.path, None, contents)

    def _mark(self, request: HttpRequest, field: str) -> bytes:
        if request.method == "POST" and request.content_type in CONTENT_TYPES:
            convert.check_end(request)
            body = convert.form_of(request, self._rule.max_request, field)
        else:
            body = convert.body_of(request, self._rule.max_request)
        return self._rule.mark(convert.request_of(request, body))

    # Pages for refused forms

    async def _refuse(
        self, bridge: Bridge, request: HttpRequest, form: Form, error: FormRefused, view: Callable[[], Any]
    ) -> HttpResponse:
        form.refuse(error)
        form.data = request.POST
        request.form_refused = error
        if self._refused is not None:
            return await bridge.call(self._refused, request, error)
        own = form.again or not form.elsewhere
        if own and HEADER not in request.headers and self._view_of(request) in _PAGES:
            with _as_get(request):
                page = await bridge.view(view)
            if page.status_code != 405:
                return _told(request, page, error)
        asked = convert.request_of(request, b"")
        # The host as the proxy reports it.
        asked.headers = [(b"host", request.get_host().encode()), *asked.headers]
        return convert.reply(error.response(asked))


def _told(request: HttpRequest, page: HttpResponse, error: FormRefused) -> HttpResponse:
    """Turn the view's own page into the page of a refusal; another answer, for example a redirect, stays."""
    if page.status_code == 200:
        page.status_code = error.status
    if error.retry_after is not None:
        page["Retry-After"] = whole_seconds(error.retry_after).decode()
    page.setdefault("Cache-Control", "no-store")
    if callable(getattr(page, "render", None)) and not page.is_rendered:
        render = page.render

        def rendered() -> HttpResponse:
            del page.render  # so that it replaces the page's own render() only once
            with _as_get(request):
                return render()

        page.render = rendered
    return page


@contextmanager
def _as_get(request: HttpRequest) -> Iterator[None]:
    """Let a view see the request as a GET. The request is changed in place, because class-based views keep it."""
    before = (request.method, request.POST, request.FILES)
    request.method, request.POST = "GET", QueryDict(encoding=request.encoding)
    request._files = MultiValueDict()  # there is no public way to set it
    try:
        yield
    finally:
        request.method, request.POST, request._files = before

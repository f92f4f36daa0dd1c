"""Django REST Framework: `idempotent` for handlers. It runs after authentication, permissions and throttles.

    class Charges(APIView):
        authentication_classes = [TokenAuthentication]

        @idempotent(principal=by_user, required=True)
        def post(self, request): ...

REST Framework authenticates inside of the view. The middleware and Django's own decorators run before that, find no
user, and answer a request with a key 400. The settings are `FASTDEDUP` and `FASTDEDUP_HTTP`, the same as for
`fastdedup.integrations.django`. If the middleware is installed as well, leave these paths out of its `routes`.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from typing import Any, TypeVar, Unpack

from ..extras import needs

with needs(__name__, "Django REST Framework", "'fastdedup[django]' djangorestframework"):
    from rest_framework.request import Request
    from rest_framework.utils.encoders import JSONEncoder

from asgiref.sync import iscoroutinefunction
from django.core.files.uploadedfile import UploadedFile
from django.http import HttpRequest, RawPostDataException

from ..errors import ConfigError
from ..flows import drive
from ..keys import fingerprint
from ..web.forms import CONTENT_TYPES
from ..web.request import Principal, by_header, by_host, everyone
from ..web.rules import UUID, KeySettings
from .django.capture import claim_of
from .django.convert import body_of, digest_of
from .django.decorators import Operation
from .django.inside import answered
from .django.tokens import by_user
from .django.views import check_settings

__all__ = ["UUID", "by_header", "by_host", "by_user", "claim_of", "everyone", "idempotent"]

Handler = TypeVar("Handler", bound=Callable[..., Any])


def idempotent(
    *, principal: Principal | str | None = None, **settings: Unpack[KeySettings]
) -> Callable[[Handler], Handler]:
    """Decorate a handler: a POST or PATCH request with an Idempotency-Key takes effect once.

    A handler is a method of an APIView or a ViewSet (`post`, `create`, an `@action`; write `@idempotent` below
    `@action`), or a function below `@api_view`. Its rendered response is stored, and replayed to the same caller. An
    exception releases the key, also REST Framework's own, such as ValidationError: the corrected request may have the
    same key. With ATOMIC_REQUESTS the transaction ends before the response is stored.

    Args:
        principal: names the caller whom a key belongs to, see `by_user`; by default `FASTDEDUP_HTTP["principal"]`.
            In the function, `request.source["django.request"]` is Django's request, with the `user` and `auth` that
            REST Framework has found.
        settings: see `fastdedup.web.rules.Rule`. The settings of `FASTDEDUP_HTTP` for all routes apply here, too.

    Raises:
        ConfigError: a setting cannot be used, or is unknown.
    """
    operation = Operation(principal, dict(settings))

    def decorate(handler: Handler) -> Handler:
        _check(operation, handler)

        @functools.wraps(handler)
        def handled(*args: Any, **kwargs: Any) -> Any:
            request = _request_of(args)
            _ = request.user  # authenticates now, also if a view has made that lazy
            view = functools.partial(handler, *args, **kwargs)
            return drive(
                answered(
                    operation, request._request, view, lambda http, limit: _body_of(request, http, limit)
                )
            )

        return handled  # type: ignore[return-value] # it is called as the handler is

    return decorate


def _check(operation: Operation, handler: Any) -> None:
    check_settings(operation.check, handler)
    if isinstance(handler, type):
        raise ConfigError(
            f"a handler must be decorated, got the class {handler.__name__}: decorate its post()"
        )
    if iscoroutinefunction(handler):
        raise ConfigError(
            f"a handler of REST Framework must be a plain function, got the coroutine function {handler.__name__}"
        )


def _request_of(args: tuple[Any, ...]) -> Any:
    """Return REST Framework's request: the first argument of a function, the second of a method."""
    for given in args[:2]:
        if isinstance(given, Request):
            return given
    raise ConfigError(
        f"a handler must be called with REST Framework's request, got {args[:2]!r}: write @idempotent below "
        "@api_view, and on methods of an APIView"
    )


def _body_of(request: Any, http: HttpRequest, limit: int) -> bytes:
    """Return the body; if REST Framework has parsed it already (say, for a permission), the parsed data's digest."""
    try:
        return body_of(http, limit, parsed=False)
    except RawPostDataException:
        if request.content_type.partition(";")[0].strip().lower() in CONTENT_TYPES:
            return body_of(http, limit)
        return fingerprint(json.loads(json.dumps(request.data, default=_plain)))


def _plain(value: Any) -> Any:
    """Return a value of a parser in a form that JSON can hold: a file, a date, a decimal."""
    if isinstance(value, UploadedFile):
        return [value.name, value.content_type, digest_of(value)]
    return JSONEncoder().default(value)

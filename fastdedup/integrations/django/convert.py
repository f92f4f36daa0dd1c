"""Conversions between Django's requests and responses and those of `fastdedup.web`."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterable
from hashlib import blake2b
from io import BytesIO
from typing import Any

from django.core.exceptions import DisallowedHost, RequestDataTooBig
from django.core.files.uploadedfile import UploadedFile
from django.core.handlers.wsgi import LimitedStream
from django.http import (
    HttpRequest,
    HttpResponse,
    HttpResponsePermanentRedirect,
    HttpResponseRedirect,
    QueryDict,
    RawPostDataException,
)
from django.utils.datastructures import ImmutableList
from django.utils.translation import get_language

from ...errors import ConfigError
from ...web.forms import contents
from ...web.recorder import Recorder, is_held
from ...web.request import Request, RequestTooLarge, normal_host
from ...web.response import Response, own_reason
from ..http.exchange import RECORDER
from ..http.wsgi_request import check_whole

SOURCE = "django.request"
"""The name under which a principal function finds the HttpRequest: `request.source["django.request"].user`."""
_CSRF = "csrfmiddlewaretoken"
_UNKNOWN = "Unknown Status Code"
"""Django's reason phrase for a status that has no other."""
_REDIRECTS = frozenset((301, 302, 303, 307, 308))
_PERMANENT = frozenset((301, 308))


def key_fields(request: HttpRequest) -> list[bytes]:
    """Return the value of the request's Idempotency-Key, for `admit`."""
    field = request.META.get("HTTP_IDEMPOTENCY_KEY")
    return [] if field is None else [field.encode("utf-8", "surrogateescape")]


def request_of(request: HttpRequest, body: bytes) -> Request:
    """Return a request in the form that principal and fingerprint functions get.

    `source` has the entries of META, and the HttpRequest under `SOURCE`.
    """
    headers = [(name.lower().encode(), _latin(value)) for name, value in request.headers.items()]
    query = request.META.get("QUERY_STRING", "").encode("utf-8", "surrogateescape")
    source = ChainMap({SOURCE: request}, request.META)
    mount = request.META.get("SCRIPT_NAME") or ""
    host = normal_host(_host_of(request), request.scheme or "http")
    return Request(request.method.upper(), request.path, query, headers, body, source, mount, host)


def _host_of(request: HttpRequest) -> str:
    """Return the host as Django tells it, which may be a proxy's X-Forwarded-Host."""
    try:
        return str(request.get_host())
    except DisallowedHost:  # a view that asks for it is not reached
        return str(request.META.get("HTTP_HOST", ""))


def is_claimed_outside(request: HttpRequest) -> bool:
    """Return whether a middleware of ASGI or WSGI around Django has claimed the request."""
    return any(is_held(known.get(RECORDER)) for known in (getattr(request, "scope", {}), request.META))


def body_of(request: HttpRequest, limit: int, *, parsed: bool = True) -> bytes:
    """Return the body. If Django has parsed it as a form already, return the form's contents instead.

    Raises:
        RawPostDataException: it is parsed already, and `parsed` is False.
        ConfigError: something in front has read it as a stream.
        RequestTooLarge: the body exceeds `limit` bytes.
        BadBody, UnreadablePostError: the client disconnected before it had sent the whole body.
    """
    check_length(request, limit)
    try:
        body: bytes = request.body
    except RequestDataTooBig:
        body = _read_unlimited_by_django(request, limit)
    except RawPostDataException:
        check_end(request)
        if not parsed:
            raise
        parsed_as_form = request.POST or request.FILES or isinstance(request.upload_handlers, ImmutableList)
        # For a body that was read as a stream Django gives an empty form.
        if not (parsed_as_form or _has_no_parts(request)):
            raise ConfigError(
                "something in front of fastdedup has called request.read(), so the body cannot be compared: let it "
                "use request.body"
            ) from None
        return form_of(request, limit)
    check_end(request)
    if len(body) > limit:
        raise RequestTooLarge
    return body


def _has_no_parts(request: HttpRequest) -> bool:
    """True for a multipart body that holds its last boundary alone: an empty form, whatever has parsed it."""
    boundary = (request.content_params or {}).get("boundary", "")
    length = request.META.get("CONTENT_LENGTH") or ""
    return bool(boundary) and length.isdecimal() and int(length) <= len(f"\r\n--{boundary}--\r\n")


def check_length(request: HttpRequest, limit: int) -> None:
    """Raise RequestTooLarge if a request says that its body exceeds `limit` bytes."""
    length = request.META.get("CONTENT_LENGTH") or "0"
    if length.isdecimal() and int(length) > limit:  # with a length that is no number Django reads no body
        raise RequestTooLarge


def check_end(request: HttpRequest) -> None:
    """Raise BadBody if a body that was read had ended early: Django and WSGI do not tell that its client has left."""
    length = request.META.get("CONTENT_LENGTH") or ""
    if not length.isdecimal():
        return
    stream = request._stream
    if isinstance(stream, BytesIO):  # Django has read it as a whole
        check_whole(len(stream.getbuffer()), int(length))
    elif isinstance(stream, LimitedStream) and not stream.read(1):  # a parser, which may leave a part unread
        check_whole(stream._pos, int(length))


def _read_unlimited_by_django(request: HttpRequest, limit: int) -> bytes:
    """Read a body beyond DATA_UPLOAD_MAX_MEMORY_SIZE, up to one byte more than `limit`.

    The view finds the request unread: Django's setting then decides as without a key. It does not count files.
    """
    stream: Any = request._stream
    if stream.seekable():  # as the temporary file of an ASGI request, of which Django has looked for the end
        stream.seek(0)
    body: bytes = request.read(limit + 1)
    request._stream, request._read_started = BytesIO(body), False  # there is no public way
    return body


def form_of(request: HttpRequest, limit: int, *without: str) -> bytes:
    """Return a form's contents: its fields and files, without its CSRF token, which differs in each page.

    Raises:
        RequestTooLarge: they exceed `limit` bytes, and the request had not said its length.
    """
    fields = request.POST.copy()
    for name in (_CSRF, *without):
        fields.pop(name, None)
    uploads = [(name, upload) for name, found in request.FILES.lists() for upload in found]
    if not request.META.get("CONTENT_LENGTH") and _size(fields, uploads) > limit:
        raise RequestTooLarge
    files = ((name, upload.name, upload.content_type, digest_of(upload)) for name, upload in uploads)
    return contents(fields.urlencode(), files)


def _size(fields: QueryDict, uploads: list[tuple[str, Any]]) -> int:
    sizes = (len(value.encode(errors="surrogateescape")) for _, found in fields.lists() for value in found)
    return sum(sizes) + sum(upload.size or 0 for _, upload in uploads)


def tell_language(request: HttpRequest, response: HttpResponse) -> None:
    """Set the header that LocaleMiddleware sets outside of what is stored: later it would tell a retry's language."""
    if hasattr(request, "LANGUAGE_CODE"):
        response.headers.setdefault("Content-Language", get_language())


def take(recorder: Recorder, response: HttpResponse) -> None:
    """Let a recorder take a view's response: its head, and its body unless that is a stream."""
    taken = taken_from(response)
    recorder.start(taken.status, taken.headers, taken.reason, stream=response.streaming)
    if not response.streaming:
        recorder.body(taken.body)


def taken_from(response: HttpResponse) -> Response:
    """Return a view's response in the form that is stored; the body of a stream is empty."""
    headers = [(name.encode(), _latin(value)) for name, value in response.items()]
    headers += [(b"set-cookie", _latin(cookie.OutputString())) for cookie in response.cookies.values()]
    status, phrase = response.status_code, response.reason_phrase
    reason = own_reason(status, phrase, _UNKNOWN)
    return Response(status, headers, b"" if response.streaming else response.content, reason=reason)


def reply(response: Response) -> HttpResponse:
    """Return a Django response that is sent instead of the view's response."""
    made = _class_of(response)("/")  # the place of a redirect, or the content: both are replaced
    made.content, made.status_code = response.body, response.status
    if response.reason:
        made.reason_phrase = response.reason
    del made["Content-Type"]
    for name, value in response.headers:
        if name.lower() == b"set-cookie":
            made.cookies.load(value.decode("latin-1"))
    return mark(made, (header for header in response.headers if header[0].lower() != b"set-cookie"))


def _class_of(response: Response) -> Any:
    """Return the class of a reply: that of a redirect has its `url`, which Django's test client follows."""
    if response.status not in _REDIRECTS or response.header(b"location") is None:
        return HttpResponse
    return HttpResponsePermanentRedirect if response.status in _PERMANENT else HttpResponseRedirect


def mark(response: HttpResponse, headers: Iterable[tuple[bytes, bytes]]) -> HttpResponse:
    """Set headers of a Django response, and return it."""
    for name, value in headers:
        response[name.decode("latin-1")] = value.decode("latin-1")
    return response


def _latin(text: Any) -> bytes:
    return str(text).encode("latin-1", "replace")


def digest_of(upload: UploadedFile) -> str:
    """Return a digest of a file's contents, which can be read again afterwards."""
    digest = blake2b(digest_size=16)
    for chunk in upload.chunks():
        digest.update(chunk)
    upload.seek(0)  # the view reads the file from its start
    return digest.hexdigest()

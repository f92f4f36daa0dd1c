"""Reads a WSGI request: its path, its headers, and its body, which is put back after reading."""

from __future__ import annotations

import re
from io import BytesIO
from wsgiref.types import InputStream, WSGIEnvironment
from wsgiref.util import FileWrapper

from ...web.request import BadBody, Request, RequestTooLarge, normal_host

_LENGTH = re.compile("[0-9]{1,18}")


def route_path(environ: WSGIEnvironment) -> str:
    """Return the text of the path below the application's mount."""
    return _text(environ.get("PATH_INFO", "")) or "/"


def mount_of(environ: WSGIEnvironment) -> str:
    """Return the text of the path of the application's mount."""
    return _text(environ.get("SCRIPT_NAME", ""))


def whole_path(environ: WSGIEnvironment) -> str:
    """Return the text of the path with the application's mount."""
    return _text(environ.get("SCRIPT_NAME", "") + environ.get("PATH_INFO", "")) or "/"


def request_of(environ: WSGIEnvironment, body: bytes) -> Request:
    """Return the request of a WSGI environ."""
    method, path = environ["REQUEST_METHOD"].upper(), whole_path(environ)
    query = _raw(environ.get("QUERY_STRING", ""))
    host = normal_host(environ.get("HTTP_HOST", ""), environ.get("wsgi.url_scheme", "http"))
    return Request(method, path, query, headers_of(environ), body, environ, mount_of(environ), host)


def headers_of(environ: WSGIEnvironment) -> list[tuple[bytes, bytes]]:
    """Return the request's headers, with names in lower case."""
    names = (
        (name[5:] if name.startswith("HTTP_") else name, value)
        for name, value in environ.items()
        if name.startswith("HTTP_") or (name in ("CONTENT_TYPE", "CONTENT_LENGTH") and value)
    )
    return [(_raw(name.replace("_", "-").lower()), _raw(value)) for name, value in names]


def read_body(environ: WSGIEnvironment, limit: int) -> bytes:
    """Return the whole body, and put it back for the application to read.

    Raises:
        RequestTooLarge: the body exceeds the limit; if its header says so, nothing is read.
        BadBody: its length is not a number, it ended early, or its end cannot be known.
    """
    length = _length(environ)
    if length is not None and length > limit:
        raise RequestTooLarge
    body = _read(environ["wsgi.input"], limit + 1 if length is None else length)
    if len(body) > limit:
        raise RequestTooLarge
    check_whole(len(body), length)
    environ["wsgi.input"] = BytesIO(body)
    environ["wsgi.input_terminated"] = True
    environ["CONTENT_LENGTH"] = str(len(body))
    environ.pop("HTTP_TRANSFER_ENCODING", None)  # it is not in chunks any more
    return body


def check_whole(size: int, length: int | None) -> None:
    """Raise BadBody if a body ended before its length: its client has left, or has sent a wrong length."""
    if length is not None and size < length:
        raise BadBody(f"the body ended after {size} of {length} bytes")


def supported(environ: WSGIEnvironment) -> None:
    """Remove the server's file wrapper, which would bypass the capture."""
    if "wsgi.file_wrapper" in environ:
        environ["wsgi.file_wrapper"] = FileWrapper


def _length(environ: WSGIEnvironment) -> int | None:
    """Return the body's length, or None if only its end tells it."""
    length = environ.get("CONTENT_LENGTH")
    chunked = "chunked" in environ.get("HTTP_TRANSFER_ENCODING", "").lower()
    if length and chunked:  # RFC 9112, section 6.3: a reader of the other header would see another request
        raise BadBody("Content-Length and Transfer-Encoding must not be sent together")
    if length:
        if _LENGTH.fullmatch(length) is None:
            raise BadBody("Content-Length must be a number")
        return int(length)
    # Without a length the body is empty, unless the server says that its input ends: a read might block.
    if environ.get("wsgi.input_terminated"):
        return None
    if chunked:  # wsgiref gives the connection itself: a read waits until the client leaves
        raise BadBody("this server does not decode a body in chunks, so send a Content-Length")
    return 0


def _read(stream: InputStream, most: int) -> bytes:
    """Read until the limit or the end: a read may return fewer bytes than asked for."""
    chunks = []
    while most > 0 and (chunk := stream.read(most)):
        chunks.append(chunk)
        most -= len(chunk)
    return b"".join(chunks)


def _text(path: str) -> str:
    """Return a path as text: WSGI has its bytes as latin-1, but it is UTF-8."""
    return path if path.isascii() else _raw(path).decode("utf-8", "surrogateescape")


def _raw(text: str) -> bytes:
    return text.encode("latin-1", "backslashreplace")

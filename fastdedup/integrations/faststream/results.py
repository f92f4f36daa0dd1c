"""Turns the result of a handler, or of a `resolve=` check, into JSON, which the gate or the inbox keeps."""

from __future__ import annotations

from base64 import b64decode, b64encode
from typing import Any

from faststream import Response
from pydantic_core import to_jsonable_python

from ...admin.resolving import Check, answer_of, check_resolve
from ...admin.takeover import Resolution, Resolved, Takeover
from ...checks import with_article
from ...messages.decisions import log

_BODY = "body"
_BYTES = "bytes"
_HEADERS = "headers"


def kept(result: Any) -> dict[str, Any]:
    """Return what is kept of a result: the body that is published, and the headers of a `Response`.

    Raises:
        TypeError: its JSON is a text, which FastStream would publish in another form than the result.
        any other error: JSON cannot hold it.
    """
    if isinstance(result, Response):
        return {**kept(result.body), _HEADERS: result.headers}
    if isinstance(result, bytes):
        return {_BYTES: b64encode(result).decode()}
    body = to_jsonable_python(result)  # like FastStream's own serializer
    if isinstance(body, str) and not isinstance(result, str):
        raise TypeError(f"{with_article(type(result).__name__)} alone would be published as another text")
    return {_BODY: body}


def kept_if_possible(result: Any) -> dict[str, Any] | None:
    """Do as `kept`. None for a result that cannot be kept: that is no failure of the work, which is done."""
    try:
        return kept(result)
    except Exception as error:  # noqa: BLE001 -- a model may raise anything
        log.warning("a result is not kept: %s", error)
        return None


def keeping(check: Check) -> Check:
    """Return a check of `resolve=` whose results have the form of a handler's, by which they are published.

    Raises:
        ConfigError: the check is no function of a Takeover.
    """
    check_resolve(check)

    async def look_up(takeover: Takeover) -> Resolution:
        answer = await answer_of(check, takeover)
        if answer.kind is not Resolved.DONE:
            return answer
        return Resolution.done(kept_if_possible(answer.value))

    return look_up


def restored(record: Any) -> Any:
    """Return the result again: a model comes back as the JSON that it was published as."""
    body = b64decode(record[_BYTES]) if _BYTES in record else record[_BODY]
    return Response(body, headers=record[_HEADERS]) if _HEADERS in record else body

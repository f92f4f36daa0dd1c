"""What a person is told whose form is not acted upon."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import orjson
import pytest

from fastdedup import Outcome, UnavailableError
from fastdedup.web.forms import FormRefused, Refusal, admit_form, check_contents, unavailable
from fastdedup.web.request import Request
from fastdedup.web.response import Response

STATUSES = {
    Refusal.MISSING: 400,
    Refusal.EXPIRED: 410,
    Refusal.FOREIGN: 403,
    Refusal.DONE: 409,
    Refusal.CHANGED: 422,
    Refusal.BUSY: 409,
    Refusal.UNAVAILABLE: 503,
}


def request(path: str = "/buy", **headers: str) -> Request:
    fields = {"host": "shop.test", "accept": "text/html", **headers}
    return Request("POST", path, b"", [(k.encode(), v.encode("latin-1")) for k, v in fields.items()], b"", {})


def link(sent: Request) -> str:
    page = FormRefused(Refusal.EXPIRED).response(sent).body.decode()
    found = re.search(r'<a href="([^"]*)">', page)
    assert found is not None
    return found[1]


@pytest.mark.parametrize("reason", Refusal)
def test_each_refusal_is_a_page_for_people_and_a_problem_for_programs(reason: Refusal) -> None:
    refused = FormRefused(reason, retry_after=2.0)
    page = refused.response(request())
    problem = refused.response(request(accept="*/*"))
    assert page.status == problem.status == refused.status == STATUSES[reason]
    assert refused.title in page.body.decode()
    assert page.header(b"content-type") == b"text/html; charset=utf-8"
    assert page.header(b"cache-control") == b"no-store"
    assert page.header(b"retry-after") == problem.header(b"retry-after") == b"2"
    assert orjson.loads(problem.body)["type"] == f"urn:fastdedup:problem:form-{reason}"


@pytest.mark.parametrize(
    ("referer", "path", "back"),
    [
        ("http://shop.test/form?a=1&b=2", "/buy", "/form?a=1&amp;b=2"),
        ("https://shop.test/form", "/buy", "/form"),
        ("http://evil.test/form", "/buy", "/buy"),
        ("http://shop.test.evil.test/", "/buy", "/buy"),
        ("http://shop.test@evil.test/", "/buy", "/buy"),
        ("http://shop.test//evil.test/", "/buy", "/evil.test/"),
        ("http://shop.test/\\evil.test", "/buy", "/evil.test"),
        ("javascript:alert(1)", "/buy", "/buy"),
        ("http://[", "/buy", "/buy"),
        ('http://shop.test/"><script>', "/buy", "/&quot;&gt;&lt;script&gt;"),
        ("", "//evil.test/", "/evil.test/"),
        ("", "/\t/evil.test/", "/%09/evil.test/"),
        ("", "/\\evil.test", "/%5Cevil.test"),
        ("", '/"><script>', "/%22%3E%3Cscript%3E"),
        ("", "/a?b", "/a%3Fb"),
        ("", "/caf\u00e9", "/caf%C3%A9"),
        ("", "/\udcff", "/%3F"),
    ],
)
def test_the_page_leads_back_to_the_form_and_never_elsewhere(referer: str, path: str, back: str) -> None:
    sent = request(path, referer=referer) if referer else request(path)
    assert link(sent) == back


def test_an_outage_says_when_to_try_again() -> None:
    refused = unavailable(UnavailableError("down", retry_after=3.0))
    assert (refused.reason, refused.retry_after) == (Refusal.UNAVAILABLE, 3.0)


def test_a_used_token_with_other_contents_is_refused() -> None:
    stored = Response(200, [], b"", request=b"a" * 16)
    check_contents(stored, b"a" * 16)
    check_contents(Response(200, [], b""), b"b" * 16)
    check_contents(None, b"b" * 16)
    with pytest.raises(FormRefused) as refused:
        check_contents(stored, b"b" * 16)
    assert refused.value.reason is Refusal.CHANGED


# The session of a form that was sent before


@pytest.mark.parametrize(
    ("outcome", "stored", "refused", "leaves"),
    [
        (Outcome.IN_PROGRESS, None, Refusal.BUSY, True),
        (Outcome.SUCCEEDED, Response(303, ((b"location", b"/thanks"),), b"", request=b"mark"), None, True),
        # These are shown with a form whose token is a new one, of this session.
        (Outcome.SUCCEEDED, None, Refusal.DONE, False),
        (Outcome.SUCCEEDED, Response(200, (), b"", request=b"other contents"), Refusal.CHANGED, False),
        (Outcome.UNKNOWN, None, Refusal.EXPIRED, False),
    ],
)
async def test_a_second_click_sets_no_sessions_cookie_while_or_after_the_first_one_may(
    outcome: Outcome, stored: Response | None, refused: Refusal | None, leaves: bool
) -> None:
    """Fault: the refusal of a second click, while the first was at work, set the cookie of the former session."""
    left: list[bool] = []

    async def redeemed() -> Any:
        return SimpleNamespace(outcome=outcome, result=stored, error=None, degraded=False)

    admitted = admit_form(redeemed(), b"mark", None, lambda: left.append(True), person=True)
    if refused is None:
        assert isinstance(await admitted, Response)
    else:
        with pytest.raises(FormRefused) as found:
            await admitted
        assert found.value.reason is refused
        assert (found.value.retry_after is not None) is (refused is Refusal.BUSY)
    assert left == [True] * leaves

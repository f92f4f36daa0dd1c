"""docs/django.md: its Python runs, and its templates render."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from django.template import engines
from django.test import RequestFactory

from . import django_project as django_project  # sets Django up
from .django_inside import SETTINGS
from .django_shop import SETTINGS as SHOP
from .django_shop import open_shop

PAGE = (Path(__file__).parents[2] / "docs" / "django.md").read_text()
PYTHON = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
HTML = re.findall(r"```html\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture
def shop(redis_url: str) -> Iterator[Any]:
    settings = {**SHOP, **SETTINGS, "MIDDLEWARE": SHOP["MIDDLEWARE"], "TEMPLATES": SHOP["TEMPLATES"]}
    with open_shop(**settings, FASTDEDUP={"url": redis_url, "namespace": "t", "timeout": 5.0}) as desk:
        yield desk


@pytest.mark.parametrize("snippet", PYTHON, ids=lambda text: text.splitlines()[0][:30])
def test_a_snippet_runs(snippet: str, shop: Any) -> None:
    exec(compile(snippet, "docs/django.md", "exec"), {"__name__": "page"})


def test_its_template_renders_the_token_of_its_form(shop: Any) -> None:
    (form,) = (text for text in PYTHON if "OneTimeFormMixin" in text)
    names: dict[str, Any] = {"__name__": "page"}
    exec(form, names)
    request: Any = RequestFactory().get("/")
    request.session, request.user = SimpleNamespace(get=lambda name: None, session_key="s"), None
    (html,) = HTML
    page = engines["django"].from_string(html).render({"form": names["OrderForm"](request=request)}, request)
    assert 'name="one_time_token" value="' in page


def test_guests_are_told_apart_and_strangers_refused(shop: Any) -> None:
    (guests,) = (text for text in PYTHON if "by_visitor" in text)
    names: dict[str, Any] = {}
    exec(guests, names)
    found = [
        names["by_visitor"](_request(key, user)) for key, user in (("a", None), ("b", None), (None, None))
    ]
    assert found == ["a", "b", None]
    assert names["by_visitor"](_request("a", "ann")).endswith(" ann")


def _request(session_key: str | None, user: str | None) -> Any:
    session, account = SimpleNamespace(session_key=session_key), SimpleNamespace(pk=user)
    return SimpleNamespace(source={"django.request": SimpleNamespace(session=session, user=account)})

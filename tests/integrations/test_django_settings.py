"""`settings.FASTDEDUP` and `FASTDEDUP_HTTP`: mistakes are told when Django starts, each by its name."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.test import Client, override_settings

from fastdedup.integrations.django import gate
from fastdedup.sync import Dedup

from . import django_project as django_project  # sets Django up
from .django_shop import APP, SETTINGS, open_shop

MEMORY: dict[str, Any] = {"url": "memory://", "namespace": "t"}
DEDUP = Dedup(namespace="mine")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (None, "settings.FASTDEDUP is missing: FASTDEDUP = {"),
        ("redis://localhost", "settings.FASTDEDUP cannot be imported"),
        (7, "is a dictionary such as"),
        ({"url": "nonsense://"}, "settings.FASTDEDUP cannot be used: "),
        ({"urll": "memory://"}, "'urll'"),
        ({"url": "memory://", "ttl": -1.0}, "ttl"),
    ],
)
def test_a_gate_that_cannot_be_made_is_told_at_the_start(given: Any, told: str) -> None:
    with (
        override_settings(FASTDEDUP=given),
        pytest.raises(ImproperlyConfigured, match=told),
        override_settings(INSTALLED_APPS=[APP]),
    ):
        pass


@pytest.mark.parametrize(
    ("rules", "told"),
    [
        ([], "is a dictionary"),
        ({"principal": "no.such.function"}, "principal cannot be imported"),
        ({"principal": "fastdedup.web.request.everyone", "wiat": 1.0}, "unknown setting 'wiat'"),
        ({"principal": "fastdedup.web.request.everyone", "docs": "here"}, "docs must be a path"),
        ({"field": ""}, "field"),
    ],
)
def test_rules_that_cannot_be_used_are_told_at_the_start(rules: Any, told: str) -> None:
    with (
        override_settings(FASTDEDUP=MEMORY, FASTDEDUP_HTTP=rules),
        pytest.raises(ImproperlyConfigured, match=told),
        override_settings(INSTALLED_APPS=[APP]),
    ):
        pass


def test_the_middleware_asks_for_a_principal() -> None:
    middleware = [*SETTINGS["MIDDLEWARE"], "fastdedup.integrations.django.IdempotencyMiddleware"]
    with (
        open_shop(FASTDEDUP=MEMORY, MIDDLEWARE=middleware),
        pytest.raises(ImproperlyConfigured, match="principal= is missing"),
    ):
        Client().get("/")


@pytest.mark.parametrize("given", [DEDUP, f"{__name__}.DEDUP"])
def test_a_gate_of_ones_own_is_taken_as_it_is(given: Any) -> None:
    for _ in range(2):
        with override_settings(FASTDEDUP=given):
            assert gate() is DEDUP
    assert DEDUP.claim("key").acquired  # nobody has closed it
    DEDUP.forget("key")


def test_there_is_one_gate_and_an_override_has_another() -> None:
    with override_settings(FASTDEDUP=MEMORY):
        first = gate()
        assert gate() is first
        with override_settings(FASTDEDUP={"namespace": "other"}):
            assert gate().settings.namespace == "other"
        assert gate().settings.namespace == "t"


def test_without_django_it_says_what_to_install() -> None:
    code = "import sys; sys.modules['django'] = None; import fastdedup.integrations.django"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)

    assert (
        "ImportError: fastdedup.integrations.django needs Django: pip install 'fastdedup[django]'"
        in done.stderr
    )

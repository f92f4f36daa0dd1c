"""Django's errors linked to the policy as if the application had no mount: the address was another application's.

Below the mount `/` it was `//rules`: a link to another host.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.http import HttpResponse
from django.test import AsyncClient, Client
from django.urls import path

from ..integrations import django_project as django_project  # sets Django up
from ..integrations.django_shop import open_shop

urlpatterns = (path("orders", lambda request: HttpResponse("ordered")),)


@contextmanager
def mounted(mount: str, redis_url: str) -> Iterator[None]:
    with open_shop(
        ROOT_URLCONF=urlpatterns,
        FORCE_SCRIPT_NAME=mount,
        MIDDLEWARE=["fastdedup.integrations.django.IdempotencyMiddleware"],
        FASTDEDUP={"url": redis_url, "namespace": "t", "timeout": 5.0},
        FASTDEDUP_HTTP={
            "principal": "fastdedup.integrations.django.everyone",
            "required": True,
            "docs": "/rules",
        },
    ):
        yield


def link_of(answer: Any) -> str:
    return str(answer["Link"].partition(">")[0].removeprefix("<"))


@pytest.mark.parametrize(
    ("mount", "link"), [("/v2", "/v2/rules"), ("/v2/", "/v2/rules"), ("/café x", "/caf%C3%A9%20x/rules")]
)
async def test_the_link_to_the_policy_is_below_the_mount(mount: str, link: str, redis_url: str) -> None:
    with mounted(mount, redis_url):
        answers = [Client().post("/orders"), await AsyncClient().post("/orders")]
    assert [link_of(answer) for answer in answers] == [link] * 2


def test_the_link_below_the_root_names_no_host(redis_url: str) -> None:
    with mounted("/", redis_url):
        assert link_of(Client().post("/orders")) == "/rules"

"""Django's errors linked to the policy as if the application had no mount: the address was another application's."""

from __future__ import annotations

import pytest
from django.http import HttpResponse
from django.test import AsyncClient, Client
from django.urls import path

from ..integrations import django_project as django_project  # sets Django up
from ..integrations.django_shop import open_shop

urlpatterns = [path("orders", lambda request: HttpResponse("ordered"))]


@pytest.mark.parametrize("mount", ["/v2", "/café x"])
async def test_the_link_to_the_policy_is_below_the_mount(mount: str, redis_url: str) -> None:
    with open_shop(
        ROOT_URLCONF=__name__,
        FORCE_SCRIPT_NAME=mount,
        MIDDLEWARE=["fastdedup.integrations.django.IdempotencyMiddleware"],
        FASTDEDUP={"url": redis_url, "namespace": "t", "timeout": 5.0},
        FASTDEDUP_HTTP={
            "principal": "fastdedup.integrations.django.everyone",
            "required": True,
            "docs": "/rules",
        },
    ):
        answers = [Client().post("/orders"), await AsyncClient().post("/orders")]
    links = [answer["Link"].partition(">")[0] for answer in answers]
    assert links == ["<" + {"/v2": "/v2/rules"}.get(mount, "/caf%C3%A9%20x/rules")] * 2

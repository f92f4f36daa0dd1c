"""Django's DATA_UPLOAD_MAX_MEMORY_SIZE lowered `max_request` in silence, and a one-time form had no limit at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.core.files.uploadedfile import SimpleUploadedFile
from django.http import HttpRequest, HttpResponse
from django.test import AsyncClient, Client, override_settings
from django.urls import path

from fastdedup.integrations.django import everyone, idempotent, one_time_form
from fastdedup.integrations.django.tokens import token_for

from ..integrations import django_project as django_project  # sets Django up
from ..integrations.django_inside import APIView, NinjaAPI, drf, ninja

MIB = 1024 * 1024
KEY = {"Idempotency-Key": "k"}
Post = Callable[..., Any]
RUNS: list[int] = []


def upload(request: HttpRequest) -> HttpResponse:
    RUNS.append(request.FILES["file"].size)
    return HttpResponse(f"{RUNS}")


def unread(request: HttpRequest) -> HttpResponse:
    RUNS.append(0)
    return HttpResponse(f"{RUNS}")


def read(request: HttpRequest) -> HttpResponse:
    RUNS.append(len(request.body))
    return HttpResponse(f"{RUNS}")


def streamed(request: HttpRequest) -> HttpResponse:
    RUNS.append(len(request.read()))
    return HttpResponse(f"{RUNS}")


@one_time_form
def small_form(request: HttpRequest) -> HttpResponse:
    return HttpResponse(token_for(request)) if request.method == "GET" else upload(request)


@one_time_form(max_request=20 * MIB)
def large_form(request: HttpRequest) -> HttpResponse:
    return HttpResponse(token_for(request)) if request.method == "GET" else upload(request)


class DrfUpload(APIView):
    authentication_classes = ()

    @drf.idempotent(principal=everyone, max_request=20 * MIB)
    def post(self, request: Any) -> Any:
        return upload(request)


ninja_api = NinjaAPI()


@ninja_api.post("/upload")
@ninja.idempotent(principal=everyone, max_request=20 * MIB)
def ninja_upload(request: HttpRequest) -> Any:
    return upload(request)


VIEWS = {"upload": upload, "unread": unread, "read": read, "streamed": streamed}
urlpatterns = [
    path("drf/upload", DrfUpload.as_view()),
    path("ninja/", ninja_api.urls),
    path("small", small_form),
    path("large", large_form),
    *(path(f"middleware/{name}", view) for name, view in VIEWS.items()),
    *(
        path(f"decorator/{name}", idempotent(principal=everyone, max_request=20 * MIB)(view))
        for name, view in VIEWS.items()
    ),
]


@pytest.fixture(autouse=True)
def _shop() -> Iterator[None]:
    RUNS.clear()
    rules = {"routes": ["/middleware/*"], "principal": everyone, "max_request": 20 * MIB, "subject": everyone}
    with (
        override_settings(
            ROOT_URLCONF=__name__,
            MIDDLEWARE=["fastdedup.integrations.django.IdempotencyMiddleware"],
            FASTDEDUP={"url": "memory://", "namespace": "t", "timeout": 5.0},
            FASTDEDUP_HTTP=rules,
            REST_FRAMEWORK={"UNAUTHENTICATED_USER": None},
        ),
        override_settings(INSTALLED_APPS=["fastdedup.integrations.django"]),
    ):
        yield


@pytest.fixture(params=["wsgi", "asgi"])
def post(request: pytest.FixtureRequest) -> Post:
    if request.param == "wsgi":
        return Client().post

    async def by_asgi(*args: Any, **given: Any) -> Any:
        return await AsyncClient().post(*args, **given)

    return async_to_sync(by_asgi)


def photo(size: int) -> SimpleUploadedFile:
    return SimpleUploadedFile("photo.jpg", b"x" * size)


@pytest.mark.parametrize("face", ["middleware", "decorator", "drf", "ninja"])
def test_a_file_over_djangos_limit_is_taken_and_replayed(post: Post, face: str) -> None:
    """Django does not count files: without a key the same request passes."""
    url = f"/{face}/upload"
    first, again = (post(url, {"file": photo(3 * MIB)}, headers=KEY) for _ in range(2))
    assert (first.status_code, first.content) == (200, f"[{3 * MIB}]".encode())
    assert (again.status_code, again.content) == (200, first.content)
    other = post(url, {"file": photo(3 * MIB + 1)}, headers=KEY)
    assert other.status_code == 422


@pytest.mark.parametrize("face", ["middleware", "decorator"])
@pytest.mark.parametrize(("view", "status"), [("unread", 200), ("streamed", 200), ("read", 400)])
def test_a_body_over_djangos_limit_meets_what_it_meets_without_a_key(
    post: Post, face: str, view: str, status: int
) -> None:
    body = b"x" * 3 * MIB
    url, kind = f"/{face}/{view}", "application/json"
    assert post(url, body, content_type=kind).status_code == status
    assert post(url, body, content_type=kind, headers=KEY).status_code == status


@pytest.mark.parametrize("face", ["middleware", "decorator"])
def test_a_body_over_the_gates_limit_is_refused(post: Post, face: str) -> None:
    url = f"/{face}/unread"
    assert post(url, b"x" * (20 * MIB + 1), content_type="text/plain", headers=KEY).status_code == 413
    assert not RUNS


def test_a_one_time_form_has_the_gates_limit(post: Post) -> None:
    client = Client()

    def sent(url: str, size: int) -> int:
        token = client.get(url).content.decode()
        return int(post(url, {"one_time_token": token, "file": photo(size)}).status_code)

    assert (sent("/small", 2 * MIB), RUNS) == (413, [])
    assert (sent("/small", 1000), RUNS) == (200, [1000])
    assert (sent("/large", 10 * MIB), RUNS) == (200, [1000, 10 * MIB])

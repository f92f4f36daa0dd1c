"""OpenAPI: made once, and its headers are text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from fastapi import FastAPI

from fastdedup import Dedup
from fastdedup.integrations.fastapi import Claimed, Idempotency, OneTimeToken, everyone
from fastdedup.sidecar.http import openapi
from fastdedup.sidecar.limits import Limits

from ..sidecar.conftest import Running, serve

# Fault: each GET /openapi.json took the event loop for 0.7 s: 20 of a client stopped all others for 12 s.


__all__ = ["serve"]


def test_it_is_made_once_for_the_same_limits(
    serve: Callable[..., Running], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Limits] = []
    document = openapi.document

    def counted(routes: object, limits: Limits) -> object:
        made.append(limits)
        return document(routes, limits)  # type: ignore[arg-type] # as it was called

    monkeypatch.setattr(openapi, "document", counted)
    for most in (7, 9):
        sidecar = serve(limits=Limits(batch=most))
        with sidecar.http() as http:
            answers = [http.get("/openapi.json") for _ in range(5)]
            assert http.head("/openapi.json").content == b""
        body = answers[0].json()["paths"]["/v1/batch"]["post"]["requestBody"]["content"]["application/json"]
        assert body["schema"]["maxItems"] == most
        assert len({answer.content for answer in answers}) == 1
        assert answers[0].headers["content-type"] == "application/json"
    assert [limits.batch for limits in made] == [7, 9]


# The headers of a claim and of a token are strings in OpenAPI: no header can be null. They were
# `anyOf[string, null]`, also where the key was required.


@pytest.mark.parametrize(
    ("dependency", "name", "required"),
    [
        (Claimed(principal=everyone), "Idempotency-Key", False),
        (Claimed(principal=everyone, required=True), "Idempotency-Key", True),
        (OneTimeToken(subject=everyone), "X-One-Time-Token", False),
    ],
)
def test_a_header_is_a_string_that_may_be_left_out(dependency: Any, name: str, required: bool) -> None:
    app = FastAPI()
    Idempotency(app, Dedup())

    @app.post("/", dependencies=[dependency])
    async def order() -> None: ...

    (parameter,) = app.openapi()["paths"]["/"]["post"]["parameters"]
    assert parameter["name"] == name
    assert parameter["required"] is required
    assert parameter["schema"] == {"type": "string", "minLength": 1, "title": name}

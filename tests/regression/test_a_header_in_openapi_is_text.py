"""The headers of a claim and of a token are strings in OpenAPI: no header can be null.

They were `anyOf[string, null]`, also where the key was required.
"""

from __future__ import annotations

from typing import Any

import pytest
from fastapi import FastAPI

from fastdedup import Dedup
from fastdedup.integrations.fastapi import Claimed, Idempotency, OneTimeToken, everyone


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

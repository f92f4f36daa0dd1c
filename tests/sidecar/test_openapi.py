"""The app is held to its own OpenAPI document: by schemathesis, over a running sidecar."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.config import SchemathesisConfig
from schemathesis.specs.openapi.checks import positive_data_acceptance

from fastdedup.kernel.owners import MAX_OWNER_BYTES
from fastdedup.sidecar.http.openapi import document
from fastdedup.sidecar.http.routes import ROUTES
from fastdedup.sidecar.limits import Limits

from .conftest import DEADLINE, Running

TEN_YEARS = 10 * 365 * 86_400_000
LIMITS = Limits(batch=5)
CONFIG: dict[str, Any] = {
    "checks": {
        # Drawn keys are claimed already, drawn owners own nothing, drawn tokens were never issued.
        "positive_data_acceptance": {"expected-statuses": ["2xx", "404", "409"]},
    }
}
DOCUMENT = document(ROUTES, LIMITS)
COUNTER = itertools.count()

api = schemathesis.openapi.from_dict(DOCUMENT, config=SchemathesisConfig.from_dict(CONFIG))


@pytest.fixture(scope="module")
def base_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    sidecar = Running(tmp_path_factory.mktemp("api") / "s.sock", "memory://", LIMITS, {})
    sidecar.start()
    yield f"http://127.0.0.1:{sidecar.port}"
    sidecar.stop()


@api.parametrize()
@settings(max_examples=6, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_the_app_does_as_its_document_says(case: schemathesis.Case, base_url: str) -> None:
    for name in ("cursor", "digest"):  # what is drawn is no cursor that a list gave, and no key's digest
        if isinstance(case.query, dict):
            case.query.pop(name, None)
    for ask in case.body if isinstance(case.body, list) else [case.body]:
        if isinstance(ask, dict) and isinstance(ask.get("key"), str) and 0 < len(ask["key"]) < 200:
            # The same key is drawn again at times, with another fingerprint, which is a mismatch.
            ask["key"] += f" {next(COUNTER)}"
        if isinstance(ask, dict) and isinstance(ask.get("wait"), int) and 5 < ask["wait"] <= TEN_YEARS:
            ask["wait"] = 5  # which says nothing new, and takes less time
        if (
            isinstance(ask, dict)
            and isinstance(ask.get("owner"), str)
            and len(ask["owner"]) <= MAX_OWNER_BYTES
        ):
            # A schema counts characters, and the limit is of bytes.
            ask["owner"] = ask["owner"].encode(errors="replace")[:MAX_OWNER_BYTES].decode(errors="ignore")
    # Drawn names of headers name none that the request has, and `once` goes with no other time.
    excluded = [positive_data_acceptance] if case.operation.path == "/v1/gate" else []
    case.call_and_validate(base_url=base_url, excluded_checks=excluded)


def test_the_document_is_served_and_names_every_route(base_url: str) -> None:
    assert httpx.get(f"{base_url}/openapi.json", timeout=DEADLINE).json() == DOCUMENT
    assert {(route.method.lower(), route.path) for route in ROUTES} == {
        (method, path) for path, methods in DOCUMENT["paths"].items() for method in methods
    }

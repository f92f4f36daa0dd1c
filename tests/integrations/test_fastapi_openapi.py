"""What the OpenAPI document says of `Claimed` and `OneTimeToken`."""

from __future__ import annotations

from typing import Annotated, Any

import pytest
from fastapi import APIRouter, FastAPI, Form, Header, UploadFile, WebSocket
from fastapi.openapi.utils import get_openapi
from fastapi.testclient import TestClient

from fastdedup import Claim, Dedup
from fastdedup.integrations.fastapi import Claimed, Idempotency, OneTimeToken, everyone


@pytest.fixture(scope="module", params=["FastAPI's", "own", "own around FastAPI's"])
def paths(request: pytest.FixtureRequest) -> Any:
    """The document's paths, also if the application replaces `app.openapi`, as FastAPI's pages do."""
    app = FastAPI()
    Idempotency(app, Dedup("memory://", ttl=3600.0))
    made = app.openapi

    def own() -> Any:
        if app.openapi_schema is None:
            app.openapi_schema = (
                made() if "around" in request.param else get_openapi(title="", version="", routes=app.routes)
            )
        return app.openapi_schema

    app.openapi = made if request.param == "FastAPI's" else own  # type: ignore[method-assign]
    router = APIRouter(prefix="/nested")

    @app.post("/orders")
    async def order(claim: Annotated[Claim | None, Claimed(principal=everyone)]) -> None: ...

    @router.post("/needed", responses={409: {"description": "Sold out"}})
    async def needed(
        claim: Annotated[Claim, Claimed(principal=everyone, required=True, ttl=60.0, wait=2.0)],
    ) -> None: ...

    @app.post("/named")
    async def named(claim: Annotated[Claim | None, Claimed(principal=lambda: "ann")]) -> None: ...

    @app.post("/bare")
    async def bare(claim: Annotated[Claim, OneTimeToken(subject=everyone)]) -> None: ...

    @app.post("/form")
    async def form(
        claim: Annotated[Claim, OneTimeToken(subject=everyone, field="nonce")], sku: Annotated[str, Form()]
    ) -> None: ...

    @app.post("/upload")
    async def upload(claim: Annotated[Claim, OneTimeToken(subject=everyone)], file: UploadFile) -> None: ...

    @app.get("/plain")
    async def plain() -> None: ...

    app.include_router(router)
    TestClient(app).get("/plain")
    assert app.openapi() is app.openapi()
    return app.openapi()["paths"]


def header(operation: Any, name: str) -> Any:
    (parameter,) = [one for one in operation["parameters"] if one["name"] == name]
    return parameter


def test_the_header_is_described_and_marked_as_required_where_it_is(paths: Any) -> None:
    optional = header(paths["/orders"]["post"], "Idempotency-Key")
    required = header(paths["/nested/needed"]["post"], "Idempotency-Key")
    assert (optional["in"], optional["required"], required["required"]) == ("header", False, True)
    assert "for 3600 s" in optional["description"]
    assert "for 60 s" in required["description"]
    assert "waits 2 s" in required["description"]


@pytest.mark.parametrize("status", ["400", "409", "413", "422", "503"])
def test_the_problems_are_among_the_responses(paths: Any, status: str) -> None:
    response = paths["/orders"]["post"]["responses"][status]
    content = response["content"]["application/problem+json"]
    assert content["example"]["status"] == int(status)
    assert content["example"]["type"].startswith("urn:fastdedup:problem:")
    assert content["schema"]["required"] == ["type", "title", "status"]
    assert ("Retry-After" in response.get("headers", {})) == (status in ("409", "503"))


def test_what_an_operation_says_itself_stays(paths: Any) -> None:
    response = paths["/nested/needed"]["post"]["responses"]["409"]
    assert response["description"] == "Sold out; A request is outstanding for this Idempotency-Key"


@pytest.mark.parametrize(
    ("path", "kind", "field"),
    [
        ("/bare", "application/x-www-form-urlencoded", "one_time_token"),
        ("/form", "application/x-www-form-urlencoded", "nonce"),
        ("/upload", "multipart/form-data", "one_time_token"),
    ],
)
def test_the_forms_field_is_described_beside_its_others(paths: Any, path: str, kind: str, field: str) -> None:
    operation = paths[path]["post"]
    assert header(operation, "X-One-Time-Token")["required"] is False
    (described,) = operation["requestBody"]["content"]
    assert described == kind
    schema = operation["requestBody"]["content"][kind]["schema"]
    own = schema["allOf"][-1] if "allOf" in schema else schema
    assert field in own["properties"]
    assert {"400", "403", "409", "410", "422", "503"} <= set(operation["responses"])


def test_the_mark_is_gone_and_other_operations_are_as_they_were(paths: Any) -> None:
    assert "x-fastdedup" not in str(paths)
    assert set(paths["/plain"]["get"]["responses"]) == {"200"}


def test_the_rules_are_published_with_the_operation(paths: Any) -> None:
    optional, needed = (paths[path]["post"]["x-idempotency"] for path in ("/orders", "/nested/needed"))
    assert (optional["key"], needed["key"]) == ("optional", "required")
    assert (optional["lifetime_seconds"], needed["lifetime_seconds"]) == (3600.0, 60.0)
    assert optional["failure_lifetime_seconds"] == 3600.0
    assert optional["replayed_statuses"][0] == "200-400"
    assert (optional["largest_request_bytes"], optional["largest_replayed_response_bytes"]) == (
        1048576,
        262144,
    )
    assert "200-400, 402" in header(paths["/orders"]["post"], "Idempotency-Key")["description"]


def test_only_a_required_key_may_be_missing_and_only_a_named_caller_unknown(paths: Any) -> None:
    described = {
        path: paths[path]["post"]["responses"]["400"]["description"] for path in paths if path != "/plain"
    }
    assert "is missing" in described["/nested/needed"]
    assert "is missing" not in described["/orders"]
    assert "caller of this Idempotency-Key is unknown" not in described["/orders"]
    assert "caller of this Idempotency-Key is unknown" in described["/named"]


def test_a_routers_dependency_describes_the_header_once_at_each_operation() -> None:
    """Not at one that is left out of the document, and a WebSocket has no operation."""
    app = FastAPI()
    Idempotency(app, Dedup("memory://"))
    router = APIRouter(prefix="/nested", dependencies=[Claimed(principal=everyone, required=True)])

    @router.post("/{order}")
    async def placed(
        order: int, key: Annotated[str | None, Header(alias="Idempotency-Key")] = None
    ) -> None: ...

    @router.patch("/{order}")
    async def changed(order: int) -> None: ...

    @router.post("/hidden", include_in_schema=False)
    async def hidden() -> None: ...

    @router.websocket("/socket")
    async def socket(websocket: WebSocket) -> None: ...

    app.include_router(router)
    (operations,) = app.openapi()["paths"].values()
    assert set(operations) == {"post", "patch"}
    for operation in operations.values():
        assert header(operation, "Idempotency-Key")["required"]
        assert len(operation["parameters"]) == 2


def test_the_header_that_a_handler_declares_by_itself_is_described_once() -> None:
    """Its name may be in lower case, as FastAPI makes it of a parameter's; FastAPI answers 422 if it is missing."""
    app = FastAPI()
    Idempotency(app, Dedup("memory://"))
    tenant = {"$ref": "#/components/parameters/Tenant"}

    @app.post("/", dependencies=[Claimed(principal=everyone)], openapi_extra={"parameters": [tenant]})
    async def order(idempotency_key: Annotated[str, Header()]) -> None: ...

    given = app.openapi()["paths"]["/"]["post"]["parameters"]
    assert tenant in given
    (key,) = (one for one in given if one != tenant)
    assert (key["name"], key["required"]) == ("Idempotency-Key", True)

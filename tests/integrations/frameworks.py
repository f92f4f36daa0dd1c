"""The same example application in Starlette, FastAPI, Litestar and Django: `POST /{name}` does a `Desk`'s work."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import litestar
from fastapi import FastAPI, UploadFile
from litestar.datastructures import UploadFile as LitestarFile
from litestar.response import Stream
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from fastdedup.integrations.http.lifespan import ASGIApp

from .desk import Made, pieces

METHODS = ["POST", "PATCH", "GET", "PUT", "DELETE"]


def starlette() -> ASGIApp:
    async def call(request: Request) -> Response:
        return starlette_response(
            request, await request.scope["desk"].work(name(request), await request.body(), request.scope)
        )

    async def upload(request: Request) -> Response:
        async with request.form() as form:
            made = await request.scope["desk"].work("upload", await form["file"].read())  # type: ignore[union-attr]
        return starlette_response(request, made)

    def call_in_thread(request: Request) -> Response:
        return starlette_response(request, request.scope["desk"].work_in_thread(name(request)))

    def name(request: Request) -> str:
        return str(request.path_params["name"])

    return Starlette(
        routes=[
            Route("/upload", upload, methods=["POST"]),
            Route("/sync/{name}", call_in_thread, methods=METHODS),
            Route("/{name}", call, methods=METHODS),
        ]
    )


def starlette_response(request: Request, made: Made) -> Response:
    desk, name = request.scope["desk"], request.url.path.rpartition("/")[2]

    def after() -> None:
        desk.after[name] += 1

    response: Response
    if isinstance(made.body, bytes):
        response = Response(made.body, made.status, media_type=made.kind, background=BackgroundTask(after))
    else:
        response = StreamingResponse(pieces(made.body), made.status, media_type=made.kind)
    response.raw_headers.extend((key.encode(), value.encode()) for key, value in made.headers)
    return response


def fastapi() -> ASGIApp:
    app = FastAPI()

    @app.post("/upload")
    async def upload(request: Request, file: UploadFile) -> Response:
        return starlette_response(request, await request.scope["desk"].work("upload", await file.read()))

    @app.api_route("/sync/{name}", methods=METHODS)
    def call_in_thread(request: Request, name: str) -> Response:
        return starlette_response(request, request.scope["desk"].work_in_thread(name))

    @app.api_route("/{name}", methods=METHODS)
    async def call(request: Request, name: str) -> Response:
        made = await request.scope["desk"].work(name, await request.body(), request.scope)
        return starlette_response(request, made)

    return app


# At module level: Litestar reads their annotations.
LitestarRequest = litestar.Request[Any, Any, Any]
LitestarResponse = litestar.Response[Any]


async def litestar_upload(request: LitestarRequest) -> LitestarResponse:
    file = (await request.form())["file"]
    assert isinstance(file, LitestarFile)
    desk = request.scope["desk"]  # type: ignore[typeddict-item]
    return litestar_response(await desk.work("upload", await file.read()))


def litestar_in_thread(request: LitestarRequest) -> LitestarResponse:
    desk = request.scope["desk"]  # type: ignore[typeddict-item]
    return litestar_response(desk.work_in_thread(request.path_params["name"]))


async def litestar_call(request: LitestarRequest) -> LitestarResponse:
    desk = request.scope["desk"]  # type: ignore[typeddict-item]
    body = await request.body()
    return litestar_response(await desk.work(request.path_params["name"], body, request.scope))


def litestar_app() -> ASGIApp:
    every: Any = {"http_method": METHODS}
    return litestar.Litestar(
        [
            litestar.post("/upload")(litestar_upload),
            litestar.route("/sync/{name:str}", sync_to_thread=True, **every)(litestar_in_thread),
            litestar.route("/{name:str}", **every)(litestar_call),
        ],
        openapi_config=None,
        logging_config=None,  # else it takes the log away from the whole process
    )


def litestar_response(made: Made) -> litestar.Response[Any]:
    streamed = not isinstance(made.body, bytes)
    kind: Any = Stream if streamed else litestar.Response
    response = kind(
        pieces(made.body) if streamed else made.body, status_code=made.status, media_type=made.kind
    )
    for name, value in made.headers:
        if name == "set-cookie":
            response.set_cookie(*value.split("="))
        else:
            response.headers[name] = value
    return response  # type: ignore[no-any-return]


def django() -> ASGIApp:
    from . import django_project  # noqa: F401 - configures Django

    from django.core.handlers.asgi import ASGIHandler  # isort: skip

    return ASGIHandler()  # type: ignore[no-any-return]


FRAMEWORKS: dict[str, Callable[[], ASGIApp]] = {
    "starlette": starlette,
    "fastapi": fastapi,
    "litestar": litestar_app,
    "django": django,
}
_apps: dict[str, ASGIApp] = {}


def app_of(framework: str) -> ASGIApp:
    """The framework's application, made once in a process."""
    if framework not in _apps:
        _apps[framework] = FRAMEWORKS[framework]()
    return _apps[framework]

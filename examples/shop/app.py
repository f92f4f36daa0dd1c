"""The shop as a FastAPI app. A worker serves the app that `create` returns."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from fastdedup.integrations.fastapi import Idempotency

from . import counter, front, orders, ungated
from .settings import ShopSettings
from .shop import WebShop
from .watch import Watch


def create(settings: ShopSettings | None = None) -> FastAPI:
    """Return the app. The settings are by default those that the parent set in the environment."""
    shop = WebShop(settings or ShopSettings.from_environment())

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with shop.open():
            yield

    app = FastAPI(title="Halcyon", lifespan=lifespan)
    app.state.shop = shop
    Idempotency(app, shop.dedup)
    for part in (front, ungated, orders, counter):  # the first route that fits a request serves it
        app.include_router(part.router)
    for error, handler in front.HANDLERS.items():
        app.add_exception_handler(error, handler)
    app.add_middleware(Watch, tally=shop.tally)
    return app

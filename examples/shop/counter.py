"""The routes for the figures, and for the switches that a real shop would not have."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Form, HTTPException, Request
from fastapi.responses import RedirectResponse

from fastdedup import UnavailableError

from .orders import OurShop
from .shop import GATE, OUTAGE, WebShop
from .stats import total


async def from_here(request: Request) -> None:
    """Refuse requests from the pages of other sites."""
    if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        raise HTTPException(403, "this is for the shop's own pages")


router = APIRouter(dependencies=[Depends(from_here)])


async def _asked(shop: WebShop, word: str) -> str:
    try:
        return await shop.control.ask(word)
    except UnavailableError as error:
        raise HTTPException(503, str(error)) from None


@router.get("/stats")
async def stats(shop: OurShop) -> dict[str, Any]:
    """Return the sales from the shop's own order book, and fastdedup's answers from the counts of all workers."""
    shop.publish()
    count = shop.order_book.count()
    return {
        "orders": count.orders,
        "sold": count.sold,
        "left": count.left,
        "oversold": count.oversold,
        "degraded": count.degraded,
        "redis": await _asked(shop, "state"),
        **total(shop.folder),
    }


@router.post("/redis")
async def redis(shop: OurShop, do: Annotated[Literal["start", "stop"], Form()]) -> RedirectResponse:
    """Crash Redis, or start it again with its records."""
    state = await _asked(shop, do)
    if state not in ("up", "down"):
        raise HTTPException(500, state)
    return RedirectResponse("/", 303)


@router.post("/outage")
async def outage(outage: Annotated[Literal["refuse", "local"], Form()]) -> RedirectResponse:
    """Choose the policy for a Redis that is down; for browsers without JavaScript."""
    answer = RedirectResponse("/", 303)
    answer.set_cookie(OUTAGE, outage, samesite="lax")
    return answer


@router.post("/gate")
async def gate(gate: Annotated[Literal["on", "off"], Form()]) -> RedirectResponse:
    """Turn the gate on or off for this visitor; for browsers without JavaScript."""
    answer = RedirectResponse("/", 303)
    answer.set_cookie(GATE, gate, samesite="lax")
    return answer


@router.post("/restock")
async def restock(shop: OurShop) -> RedirectResponse:
    """Add as many units as the sale began with."""
    shop.order_book.restock(shop.settings.stock)
    return RedirectResponse("/", 303)

"""The part to copy: two ways to order, each of which happens once, however often it is sent."""

import asyncio
from time import perf_counter
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, HTTPException, Request
from fastapi.responses import HTMLResponse, JSONResponse
from pydantic import BaseModel, Field

from ... import Claim, Dedup
from ...integrations.fastapi import Claimed, OneTimeToken
from .ledger import SoldOut
from .pages import MOST
from .shop import WebShop, shop_of, shown
from .watch import PAYING

router = APIRouter()

_PAYMENT = 0.3
"""Seconds that paying for a form's order takes: time enough for a second click."""
_PATIENCE = 10.0
"""Seconds that the second click waits for the answer to the first."""


# Dependencies are `async def` even where they wait for nothing: FastAPI runs a plain function in a thread, which
# takes longer than all of these together.


async def our_shop(request: Request) -> WebShop:
    """The shop that the request came to."""
    return shop_of(request)


OurShop = Annotated[WebShop, Depends(our_shop)]


class NotOpen(Exception):
    """The sale has not begun."""


class BadForm(Exception):
    """The form does not say how many."""


class OrderIn(BaseModel):
    """An order by JSON."""

    quantity: int = Field(default=1, ge=1, le=MOST)


async def opened(shop: OurShop) -> None:
    """Nobody buys before the sale opens; asked first, so that an early click uses no form up."""
    if shop.opens_in > 0:
        raise NotOpen


def visitors_dedup(request: Request) -> Dedup:
    """Return the `Dedup` with the policy for outages that the visitor has chosen."""
    return shop_of(request).dedup_for(request)


async def buyer(x_buyer: Annotated[str, Header(min_length=1, max_length=100)]) -> str:
    """Whose order it is. A real shop would authenticate."""
    return x_buyer


@router.post("/api/orders", dependencies=[Depends(opened)], status_code=201)
async def order(
    body: OrderIn,
    shop: OurShop,
    name: Annotated[str, Depends(buyer)],
    claim: Annotated[Claim, Claimed(principal=buyer, wait=5.0, required=True, dedup=visitors_dedup)],
) -> JSONResponse:
    """Place an order; send an `Idempotency-Key` of your own, and send it again whenever in doubt."""
    placed = shop.ledger.sell(name, body.quantity, degraded=claim.degraded)
    if isinstance(placed, SoldOut):
        return JSONResponse({"detail": "sold out", "left": placed.left}, 410)
    facts: dict[str, Any] = {"order": placed.number, "buyer": placed.buyer, "quantity": placed.quantity}
    return JSONResponse(facts | {"degraded": placed.degraded}, 201)


async def subject(request: Request) -> str:
    """Whom the form was made for: this visit of this person, so signing out ends it."""
    session = shop_of(request).session(request)
    return "nobody" if session is None else session.subject


async def quantity(request: Request) -> int:
    """Read the form; asked before the token is claimed, so that a mistake does not use it up."""
    wanted = str((await request.form()).get("quantity", ""))
    if wanted not in map(str, range(1, MOST + 1)):
        raise BadForm
    return int(wanted)


@router.post("/orders", dependencies=[Depends(opened)])
async def submit(
    request: Request,
    shop: OurShop,
    wanted: Annotated[int, Depends(quantity)],
    claim: Annotated[
        Claim, OneTimeToken(subject=subject, field="one_time_token", wait=_PATIENCE, dedup=visitors_dedup)
    ],
) -> HTMLResponse:
    """Place an order by the form. The page is the answer itself, no redirect: reloading it sends the form again."""
    page = shop.page(request)
    if page.session is None:  # no token is ever issued to nobody
        raise HTTPException(401)
    started = perf_counter()
    await asyncio.sleep(_PAYMENT)
    setattr(request.state, PAYING, perf_counter() - started)
    placed = shop.ledger.sell(page.session.name, wanted, degraded=claim.degraded)
    if isinstance(placed, SoldOut):
        return shown(page.sold_out(placed.left), 410)
    return shown(page.order(placed), 201)

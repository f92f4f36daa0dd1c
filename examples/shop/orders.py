"""The part to copy: two ways to order. An order happens once, however often it is sent."""

from time import perf_counter
from typing import Annotated, Any

import anyio
from fastapi import APIRouter, Depends, Header, HTTPException, Request
from fastapi.responses import HTMLResponse, JSONResponse
from pydantic import BaseModel, Field

from fastdedup import Claim, Dedup
from fastdedup.integrations.fastapi import Claimed, OneTimeToken

from .order_book import SoldOut
from .pages import MOST
from .shop import WebShop, shop_of, shown
from .watch import PAYING

router = APIRouter()

_PAYMENT = 0.3
"""Seconds that paying for a form's order takes: time enough for a second click."""
_WAIT = 3.0
"""Seconds that the second click waits for the answer to the first."""


# Dependencies are `async def` even if they never await: FastAPI runs a sync function in a thread, which takes longer
# than all these dependencies together.


async def our_shop(request: Request) -> WebShop:
    """Return the shop of the request's app."""
    return shop_of(request)


OurShop = Annotated[WebShop, Depends(our_shop)]


class NotOpen(Exception):
    """The sale has not begun yet."""


class BadForm(Exception):
    """The form has no valid quantity."""


class OrderIn(BaseModel):
    """The JSON of an order."""

    quantity: int = Field(default=1, ge=1, le=MOST)


async def opened(shop: OurShop) -> None:
    """Refuse orders before the sale opens. Runs first, so that an early click does not use up its form."""
    if shop.opens_in > 0:
        raise NotOpen


def visitors_dedup(request: Request) -> Dedup:
    """Return the `Dedup` with the policy for outages that the visitor has chosen."""
    return shop_of(request).dedup_for(request)


async def buyer(x_buyer: Annotated[str, Header(min_length=1, max_length=100)]) -> str:
    """Name the buyer. A real shop would authenticate the buyer."""
    return x_buyer


@router.post("/api/orders", dependencies=[Depends(opened)], status_code=201)
async def order(
    request: Request,
    body: OrderIn,
    name: Annotated[str, Depends(buyer)],
    claim: Annotated[Claim, Claimed(principal=buyer, wait=5.0, required=True, dedup=visitors_dedup)],
) -> JSONResponse:
    """Place an order. Send an `Idempotency-Key` of your own, and send the order again whenever in doubt."""
    return entered(request, name, body.quantity, degraded=claim.degraded)


def entered(request: Request, name: str, wanted: int, *, degraded: bool = False) -> JSONResponse:
    """Enter an order into the order book, and answer with it."""
    basket = f"{name}:{request.headers.get('idempotency-key', '')}"
    placed = shop_of(request).order_book.sell(name, wanted, basket=basket, degraded=degraded)
    if isinstance(placed, SoldOut):
        return JSONResponse({"detail": "sold out", "left": placed.left}, 410)
    facts: dict[str, Any] = {"order": placed.number, "buyer": placed.buyer, "quantity": placed.quantity}
    return JSONResponse(facts | {"degraded": placed.degraded}, 201)


async def subject(request: Request) -> str:
    """Return the subject of a form: this visit of this person, so that signing out ends the form."""
    session = shop_of(request).session(request)
    return "nobody" if session is None else session.subject


async def sent_token(request: Request) -> str:
    """Return the token of a form that was sent; it also names the form's basket."""
    return str((await request.form()).get("one_time_token", ""))


async def quantity(request: Request) -> int:
    """Read the form. Runs before the token is claimed, so that a mistake does not use up the token."""
    wanted = str((await request.form()).get("quantity", ""))
    if wanted not in map(str, range(1, MOST + 1)):
        raise BadForm
    return int(wanted)


@router.post("/orders", dependencies=[Depends(opened)])
async def submit(
    request: Request,
    wanted: Annotated[int, Depends(quantity)],
    claim: Annotated[
        Claim, OneTimeToken(subject=subject, field="one_time_token", wait=_WAIT, dedup=visitors_dedup)
    ],
) -> HTMLResponse:
    """Place an order by the form. The answer is a page, not a redirect, so reloading it sends the form again."""
    return await paid(request, wanted, degraded=claim.degraded)


async def paid(request: Request, wanted: int, *, degraded: bool = False) -> HTMLResponse:
    """Take the payment, enter the order into the order book, and show the receipt."""
    shop = shop_of(request)
    page = shop.page(request)
    if page.session is None:  # tokens are issued only to visitors that are signed in
        raise HTTPException(401)
    started = perf_counter()
    await anyio.sleep(_PAYMENT)
    setattr(request.state, PAYING, perf_counter() - started)
    basket = await sent_token(request)
    placed = shop.order_book.sell(page.session.name, wanted, basket=basket, degraded=degraded)
    if isinstance(placed, SoldOut):
        return shown(page.sold_out(placed.left), 410)
    return shown(page.order(placed), 201)

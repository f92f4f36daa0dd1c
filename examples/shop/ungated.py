"""The same two ways to order for a visitor who has turned the gate off: every click is an order of its own.

The order book, the payment and the answers are those of `orders.py`; only fastdedup is left out.
"""

from typing import Annotated

from fastapi import APIRouter, Depends, Request
from fastapi.responses import HTMLResponse, JSONResponse
from fastapi.routing import APIRoute
from starlette.routing import Match
from starlette.types import Scope

from .orders import OrderIn, buyer, entered, opened, paid, quantity
from .shop import gate_is_on


class _GateOff(APIRoute):
    """A route for the requests of visitors who have turned the gate off; the other requests go on to `orders.py`."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        match, child = super().matches(scope)
        if match is Match.FULL and gate_is_on(Request(scope)):
            match = Match.NONE
        return match, child


router = APIRouter(route_class=_GateOff, include_in_schema=False)


@router.post("/api/orders", dependencies=[Depends(opened)])
async def order(request: Request, body: OrderIn, name: Annotated[str, Depends(buyer)]) -> JSONResponse:
    """Place an order, whether it was sent before or not."""
    return entered(request, name, body.quantity)


@router.post("/orders", dependencies=[Depends(opened)])
async def submit(request: Request, wanted: Annotated[int, Depends(quantity)]) -> HTMLResponse:
    """Place an order by the form, whether it was sent before or not."""
    return await paid(request, wanted)

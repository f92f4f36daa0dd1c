"""The shop's pages: the product, signing in and out, and the answers to refused forms."""

from typing import Annotated, Any

from fastapi import APIRouter, Form, Request
from fastapi.responses import RedirectResponse, Response

from fastdedup import UnavailableError
from fastdedup.integrations.fastapi import FormRefused, Refusal

from .orders import BadForm, NotOpen, OurShop, sent_token
from .pages import MOST, Notice, asset
from .sessions import COOKIE, MAX_NAME, new_session, sealed
from .shop import outage_of, shop_of, shown

router = APIRouter()

_ASSETS = {"shop.css": "text/css", "shop.js": "text/javascript"}
_STANDS = "What you ordered with it stands, and nothing was ordered now. "
NOTICES = {
    Refusal.MISSING: Notice(
        "Please send it again",
        "A part of your form was missing, so nothing was ordered. Here is a fresh one.",
    ),
    Refusal.EXPIRED: Notice(
        "This form has expired",
        "It stood open for too long, and nothing was ordered. Here is a fresh one.",
        "warn",
    ),
    Refusal.FOREIGN: Notice(
        "This form is not yours",
        "It was made for another visit, before signing out or by somebody else. Nothing was ordered. ",
    ),
    Refusal.DONE: Notice(
        "This form was used before",
        _STANDS + "If you want another order, here is a fresh form.",
        "warn",
    ),
    Refusal.CHANGED: Notice(
        "This form was used with other contents",
        _STANDS + "If you want another order, here is a fresh form.",
        "warn",
    ),
    Refusal.BUSY: Notice(
        "Your order is still being placed", "Send this form again in a moment: it cannot order twice.", "warn"
    ),
}
_DOWN = Notice(
    "We cannot take orders just now",
    "We cannot look up whether this form was sent before, and we do not guess. "
    "This is the same form: send it again in a moment, it cannot order twice.",
)
_DOWN_LOCALLY = Notice(
    "Please use this fresh form",
    "We cannot look up your last form just now. If you ordered with it, that order stands. "
    "Here is a fresh one, for a new order.",
    "warn",
)


@router.get("/")
async def window(request: Request, shop: OurShop) -> Response:
    """Show the product, with a new form."""
    return await _product(request)


@router.get("/shop.css")
@router.get("/shop.js")
async def file(request: Request) -> Response:
    """Return a file that the pages need; its address changes with its contents."""
    name = request.url.path[1:]
    headers = {"Cache-Control": "public, max-age=31536000, immutable"}
    return Response(asset(name), media_type=_ASSETS[name], headers=headers)


@router.post("/session")
async def sign_in(
    shop: OurShop, name: Annotated[str, Form(min_length=1, max_length=MAX_NAME)]
) -> RedirectResponse:
    """Sign in with any name."""
    answer = RedirectResponse("/", 303)
    session = new_session(" ".join(name.split()) or "Somebody")
    answer.set_cookie(COOKIE, sealed(session, shop.settings.secret), httponly=True, samesite="lax")
    return answer


@router.post("/session/end")
async def sign_out() -> RedirectResponse:
    """Sign out. From now on the forms of this visit are refused."""
    answer = RedirectResponse("/", 303)
    answer.delete_cookie(COOKIE)
    return answer


async def refused(request: Request, error: FormRefused) -> Response:
    """Answer a refused form with the reason, and with a form that can be sent."""
    wanted = await _wanted(request)
    if error.reason is Refusal.UNAVAILABLE:
        return await _unavailable(request, wanted)
    notice, token = NOTICES[error.reason], None
    if error.reason is Refusal.BUSY:
        token = await sent_token(request)
    answer = await _product(request, notice, error.status, quantity=wanted, token=token)
    if error.reason is Refusal.BUSY:
        answer.headers["Retry-After"] = "1"
    return answer


async def _unavailable(request: Request, wanted: int) -> Response:
    # Whether the form took effect may be unknown, so the safe answer is the same form: a new form would be another
    # order. But a worker cannot accept a form that only Redis knows, so here only a new form helps.
    if outage_of(request) == "local":
        answer = await _product(request, _DOWN_LOCALLY, 503, quantity=wanted)
    else:
        answer = await _product(request, _DOWN, 503, quantity=wanted, token=await sent_token(request))
    answer.headers["Retry-After"] = "1"
    return answer


async def not_open(request: Request, error: NotOpen) -> Response:
    """Answer a click before the sale opens."""
    seconds = max(1, round(shop_of(request).opens_in + 0.5))
    if request.url.path.startswith("/api/"):
        answer: Response = Response('{"detail":"the sale has not begun"}', 403, media_type="application/json")
    else:
        notice = Notice("Not yet", f"The sale opens in {seconds} s. Your form keeps.", "warn")
        answer = await _product(request, notice, 403, token=await sent_token(request))
    answer.headers["Retry-After"] = str(seconds)
    return answer


async def bad_form(request: Request, error: BadForm) -> Response:
    """Answer a form with a wrong quantity: with the same form, because its token is not used."""
    notice = Notice("How many?", f"You can order 1 to {MOST} at once. Nothing was ordered.")
    return await _product(request, notice, 422, token=await sent_token(request))


async def _product(
    request: Request,
    notice: Notice | None = None,
    status: int = 200,
    *,
    quantity: int = 1,
    token: str | None = None,
) -> Response:
    shop = shop_of(request)
    page = shop.page(request)
    if not token:
        try:
            token = await shop.form(page.session)
        except UnavailableError:
            token, notice = "", notice or _DOWN
    count = shop.order_book.count()
    return shown(page.product(token, count, quantity=quantity, notice=notice), status)


async def _wanted(request: Request) -> int:
    wanted = str((await request.form()).get("quantity", ""))
    return int(wanted) if wanted in map(str, range(1, MOST + 1)) else 1


HANDLERS: dict[type[Exception], Any] = {FormRefused: refused, NotOpen: not_open, BadForm: bad_form}

"""`fastdedup demo`: a flash sale without the gate, and with it. `cli.main` registers `COMMANDS`.

Each buyer sends one order several times: some at once, like a double click, the others again after the answer, like
a client that lost it. `Shop.order` is the effect that must happen once, `GatedShop.order` the gate before it.
`hold` is the main path. `examples/` in the repository has sales with forms, payments, messages and a sidecar.
"""

import asyncio
import secrets
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import asdict, dataclass
from time import perf_counter
from typing import Any

import click

from ..compiled import build
from ..gateway import Dedup
from ..sidecar.urls import without_secrets
from .gate import ask, gate_options
from .terminal import AnsweringCommand, print_json

_PAYMENT = 0.001  # seconds; the clicks of a double click overlap in it
_WAIT = 5.0  # seconds that a click waits for the answer to the first one
_AT_ONCE = 1_000  # buyers
_PATIENT = 3  # every third buyer sends the order again only after its answer

Answer = dict[str, Any]
Order = Callable[[str], Coroutine[Any, Any, Answer]]  # of a buyer


class Shop:
    """A shop that checks whether an order was placed before it takes the money, like most shops."""

    def __init__(self, stock: int) -> None:
        # Mutable: the units that are set aside, by buyer; the answers to orders; how often each unit was sold.
        self._free = iter(range(1, stock + 1))
        self._set_aside: dict[str, int] = {}
        self._placed: dict[str, Answer] = {}
        self.sold: Counter[int] = Counter()

    async def order(self, buyer: str) -> Answer:
        """Sell the buyer's unit. There is a payment between the check and the entry: a second click gets through."""
        if buyer in self._placed:
            return self._placed[buyer]
        unit = self._set_aside.get(buyer) or next(self._free, None)
        if unit is None:
            return {"buyer": buyer, "sold_out": True}
        self._set_aside[buyer] = unit
        await asyncio.sleep(_PAYMENT)
        self.sold[unit] += 1
        self._placed[buyer] = {"buyer": buyer, "unit": unit, "order": self.sold.total()}
        return self._placed[buyer]


class GatedShop:
    """The same shop behind the gate."""

    def __init__(self, shop: Shop, dedup: Dedup) -> None:
        self._shop = shop
        self._dedup = dedup
        self.replayed = 0  # mutable: duplicates that got the first answer

    async def order(self, buyer: str) -> Answer:
        """Let the first click through, and give the others its answer."""
        async with self._dedup.claim(f"order:{buyer}", wait=_WAIT) as claim:
            if claim.acquired:
                answer = await self._shop.order(buyer)
                await claim.complete(answer)
                return answer
        self.replayed += 1
        first: Answer = claim.replay()
        return first


@dataclass(frozen=True, slots=True)
class Sale:
    """The figures of one sale."""

    orders: int
    sold_once: int  # units
    sold_again: int  # units that were sold more than once
    replayed: int  # duplicates that got the first answer
    differing: int  # clicks that did not get the answer to the first one
    clicks_per_second: float


async def hold(buyers: int, clicks: int, stock: int, dedup: Dedup | None = None) -> Sale:
    """Hold a sale: behind the gate, if there is one.

    Raises the `DedupError` that stopped it, if any.
    """
    shop = Shop(stock)
    guarded = dedup and GatedShop(shop, dedup)
    began = perf_counter()
    differing = await _visits(guarded.order if guarded else shop.order, buyers, clicks)
    seconds = perf_counter() - began
    once = sum(count == 1 for count in shop.sold.values())
    return Sale(
        orders=shop.sold.total(),
        sold_once=once,
        sold_again=len(shop.sold) - once,
        replayed=guarded.replayed if guarded else 0,
        differing=differing,
        clicks_per_second=buyers * clicks / seconds,
    )


async def _visits(order: Order, buyers: int, clicks: int) -> int:
    """Let all buyers order; return how many clicks did not get the answer to the first one."""
    numbers, differing = iter(range(buyers)), 0

    async def serve() -> None:
        nonlocal differing
        for number in numbers:
            answers = list[Answer]()
            for together in [clicks] if number % _PATIENT else [1] * clicks:
                answers += await asyncio.gather(*(order(f"buyer:{number}") for _ in range(together)))
            differing += sum(answer != answers[0] for answer in answers)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(_AT_ONCE, buyers)):
                group.create_task(serve())
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None  # one error for the outage, not one for each buyer
    return differing


def violations(sale: Sale, due: int) -> Iterator[str]:
    """Yield every promise that was broken in a sale behind the gate, with the figure that shows it."""
    if (sold := sale.sold_once + sale.sold_again) != due:
        yield f"exactly {due} units were to be sold, but {sold} were"
    if sale.sold_again:
        yield f"each unit was to be sold once, but {sale.sold_again} were sold more than once"
    if sale.differing:
        yield f"every click was to get the first click's answer, but {sale.differing} did not"


@click.command(cls=AnsweringCommand, short_help="Hold a flash sale without the gate, then with it.")
@click.option("--buyers", type=click.IntRange(1, 1_000_000), default=10_000, show_default=True)
@click.option(
    "--clicks",
    type=click.IntRange(1, 100),
    default=3,
    show_default=True,
    help="How often each buyer sends the order.",
)
@click.option(
    "--stock", type=click.IntRange(0, 1_000_000), default=100, show_default=True, help="Units for sale."
)
@gate_options(namespace="demo", url="memory://")
def demo(buyers: int, clicks: int, stock: int, url: str, namespace: str, as_json: bool) -> None:
    """Hold a flash sale without the gate, then with it, and check that each promise was kept.

    Names each broken promise, and exits with 1 if there is one. Every run has a new namespace, which begins with the
    given name; its records expire within a minute.
    """
    # A deadline that is long enough for a busy laptop; a web shop would set a shorter one.
    prefix = f"{namespace}-{secrets.token_hex(4)}"
    dedup = Dedup(url, namespace=prefix, lease=10.0, ttl=60.0, failure_ttl=60.0, timeout=5.0)
    say = (lambda line: None) if as_json else click.echo
    units = f"of {stock:,} units were sold"

    async def play() -> tuple[Sale, Sale]:
        async with dedup:
            await dedup.get("here?")  # an outage is an error now, before there is any figure
            say(f"A flash sale on {without_secrets(url)}: {stock:,} units, {buyers:,} buyers, {build()}.")
            say(
                f"Each buyer sends one order {clicks:,} times: by a double click, or again after the answer.\n"
            )
            bare = await hold(buyers, clicks, stock)
            say(f"Without the gate: {bare.sold_again:,} {units} more than once, by {bare.orders:,} orders.")
            gated = await hold(buyers, clicks, stock, dedup)
            say(f"With the gate:    {gated.sold_once:,} {units} once, by {gated.orders:,} orders;")
            say(f"                  {gated.replayed:,} duplicates got the first answer again,")
            say(f"                  {gated.clicks_per_second:,.0f} clicks a second.")
            return bare, gated

    bare, gated = ask(play())
    broken = [*violations(gated, min(stock, buyers))]
    if as_json:
        sales = {"without_gate": asdict(bare), "with_gate": asdict(gated)}
        print_json({"buyers": buyers, "clicks": clicks, "stock": stock, **sales, "violations": broken})
    for violation in broken:
        click.echo(f"Broken promise: {violation}", err=True)
    if broken:
        raise SystemExit(1)
    say("Each promise was kept.")


COMMANDS = (demo,)

"""A flash sale with order forms: many hasty buyers, little stock, one `Dedup`.

`python -m examples.sale` runs it in memory, or on the Redis that REDIS_URL names; a number at the end says how many
buyers come.

Every buyer gets an order form with a one-time token, clicks "buy" several times at once under one idempotency
key, and afterwards sends the used form again under a new key. Some forms are also sent by a thief, and some
thieves invent a token. `Shop.buy` is the main path: the order handler that a web framework would call.
`run_sale` runs the sale and checks fastdedup's promises.
"""

import asyncio
import secrets
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from fastdedup import Claim, Dedup, Outcome, fingerprint

from .program import finish, size, store

IN_FLIGHT = 1_000  # buyers served at the same time
WAIT = 5.0  # seconds that a waiting click waits for the first click's answer
PAYMENT = 0.001  # seconds that handling an order takes; the clicks of one buyer overlap in it
THIEF_EVERY = 10  # every tenth form is also sent by a thief
FORGER_EVERY = 100  # with every hundredth buyer a thief invents a token
FIRST_PAUSE, LONGEST_PAUSE, TRIES = (
    0.005,
    0.5,
    40,
)  # the seconds and tries of a client whose order is in progress


@dataclass(frozen=True, slots=True)
class Report:
    """The figures of one sale. Times are seconds unless the name says otherwise."""

    buyers: int
    clicks: int  # of each buyer, at once
    stock: int
    sold: int
    duplicates_replayed: int  # clicks answered with the recorded result of another click
    in_progress: int  # clicks that were told to ask again, and did so
    tokens_issued: int
    refused_used: int  # the form had been used
    refused_foreign: int  # the form belongs to another buyer
    refused_unknown: int  # the form was never issued
    claims: int
    operations: int  # claims, settlements, issued tokens and consumed tokens
    seconds: float
    p50_ms: float  # of the claims that do not wait for another click's answer
    p99_ms: float
    violations: tuple[str, ...]  # the promises that were broken; empty after a good run


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer of the order handler: an HTTP status and a text."""

    status: int
    body: Any = None


class Shop:
    """A shop that relies on fastdedup for its checks for duplicates, as a user's shop would."""

    def __init__(self, dedup: Dedup, stock: int) -> None:
        self._dedup = dedup
        # The side effects, which must not happen twice.
        self.stock = stock
        self.orders: Counter[str] = Counter()  # units sold to each buyer
        # The books, which the checks at the end read.
        self.first_replies: defaultdict[str, list[Reply]] = defaultdict(
            list
        )  # by key: replies that are no replay
        self.accepted: Counter[str] = Counter()  # by token: how often the token was accepted
        self.refused: Counter[Outcome] = Counter()
        self.answers: Counter[Outcome] = Counter()  # of claims
        self.operations = 0
        self.latencies = array("d")  # seconds, only of claims that do not wait

    async def form(self, buyer: str) -> str:
        """Render an order form: with its token only `buyer` can order, and only once."""
        self.operations += 1
        return await self._dedup.tokens.issue(subject=buyer)

    async def buy(self, buyer: str, token: str, key: str, *, wait: float = 0.0) -> Reply:
        """Handle one click; the main path. `key` is the idempotency key that the client sent with the click."""
        started = perf_counter()
        async with self._dedup.claim(key, fingerprint=fingerprint([buyer, token]), wait=wait) as claim:
            if not wait:
                self.latencies.append(perf_counter() - started)
            self.answers[claim.outcome] += 1
            self.operations += 1
            if not claim.acquired:
                return _duplicate(claim)
            reply = await self._order(buyer, token)
            self.first_replies[key].append(reply)
            self.operations += 2  # the token's consumption and this settlement
            await (claim.complete(reply.body) if reply.status == 200 else claim.fail(reply.body))
            return reply

    async def _order(self, buyer: str, token: str) -> Reply:
        verdict = await self._dedup.tokens.consume(token, subject=buyer)
        if verdict is not Outcome.ACQUIRED:
            self.refused[verdict] += 1
            return Reply(403, f"form refused: {verdict.value}")
        self.accepted[token] += 1
        if self.stock == 0:
            await asyncio.sleep(PAYMENT)
            return Reply(200, {"buyer": buyer, "order": None})
        unit, self.stock = (
            self.stock,
            self.stock - 1,
        )  # reserved before the payment, so that only one pays
        await asyncio.sleep(PAYMENT)
        self.orders[buyer] += 1
        return Reply(200, {"buyer": buyer, "order": unit})


def _duplicate(claim: Claim) -> Reply:
    match claim.outcome:
        case Outcome.SUCCEEDED:
            return Reply(200, claim.result)
        case Outcome.FAILED:
            return Reply(403, claim.error)
        case Outcome.IN_PROGRESS:
            return Reply(409, claim.retry_after)
        case _:
            return Reply(422, claim.outcome.value)


class Crowd:
    """The buyers and thieves, with counts of the wrong answers that they got."""

    def __init__(self, shop: Shop, clicks: int) -> None:
        self._shop = shop
        self._clicks = clicks
        # The counts for the checks at the end.
        self.tokens: list[str] = []
        self.differing = 0  # replies to clicks that were not the first click's reply
        self.wrongly_served = 0  # misused forms that were not refused for the right reason
        self.misuses: Counter[Outcome] = Counter()  # by the right reason for the refusal

    async def visit(self, number: int) -> None:
        """Play one buyer's whole visit: a form, all the clicks at once, and the used form once more."""
        shop, buyer = self._shop, f"buyer:{number}"
        key = f"order:{buyer}"
        token = await shop.form(buyer)
        self.tokens.append(token)
        replies: list[Reply] = []
        async with asyncio.TaskGroup() as group:
            for click in range(self._clicks):
                # A third of the clicks let the server wait for the first click's answer; the others ask again.
                wait = WAIT if (number + click) % 3 == 1 else 0.0
                group.create_task(self._click(replies, buyer, token, key, wait))
            if number % THIEF_EVERY == 0:  # at the same time as the owner's own clicks
                group.create_task(self._misuse(f"thief:{number}", token, Outcome.MISMATCH))
            if number % FORGER_EVERY == 0:
                group.create_task(self._misuse(f"forger:{number}", secrets.token_urlsafe(), Outcome.UNKNOWN))
        first = shop.first_replies[key][:1]
        self.differing += sum([reply] != first for reply in replies)
        await self._misuse(buyer, token, Outcome.SUCCEEDED)

    async def _click(self, replies: list[Reply], buyer: str, token: str, key: str, wait: float) -> None:
        """Send one click as a browser does; while the order is in progress, ask again a little later."""
        pause = FIRST_PAUSE
        for _ in range(TRIES):
            reply = await self._shop.buy(buyer, token, key, wait=wait)
            if reply.status != 409:
                break
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
        replies.append(reply)

    async def _misuse(self, sender: str, token: str, reason: Outcome) -> None:
        """Send a form that must be refused, under a new idempotency key, so that only the token can show it."""
        self.misuses[reason] += 1
        reply = await self._shop.buy(sender, token, f"misuse:{sender}")
        self.wrongly_served += reply != Reply(403, f"form refused: {reason.value}")


def sale_dedup(url: str, prefix: str = "demo") -> Dedup:
    """Return a `Dedup` for one run, with short times and a new namespace, so that no run sees another's records."""
    return Dedup(
        url,
        namespace=f"{prefix}-{secrets.token_hex(4)}",
        lease=10.0,
        ttl=60.0,
        failure_ttl=60.0,
        token_ttl=60.0,
        timeout=5.0,  # long enough for a busy laptop; a web shop would set a shorter deadline
    )


async def run_sale(
    dedup: Dedup,
    *,
    buyers: int,
    clicks: int = 3,
    stock: int = 100,
) -> Report:
    """Run the sale on an open `Dedup` and check it.

    Raises the `DedupError` that stopped the sale, if any. Broken promises are in the report.
    """
    shop = Shop(dedup, stock)
    crowd = Crowd(shop, clicks)
    queue = iter(range(buyers))
    started = perf_counter()
    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(IN_FLIGHT, buyers)):
                group.create_task(_serve(crowd, queue))
    except BaseExceptionGroup as errors:
        raise _first(errors) from None  # one error for the outage, not one for each click in flight
    return make_report(
        shop, crowd, buyers=buyers, clicks=clicks, stock=stock, seconds=perf_counter() - started
    )


async def _serve(crowd: Crowd, queue: Iterator[int]) -> None:
    for number in queue:
        await crowd.visit(number)


def _first(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def make_report(shop: Shop, crowd: Crowd, *, buyers: int, clicks: int, stock: int, seconds: float) -> Report:
    """Return the report of a sale from its books, with the promises that were broken."""
    latencies = sorted(shop.latencies)
    return Report(
        buyers=buyers,
        clicks=clicks,
        stock=stock,
        sold=shop.orders.total(),
        duplicates_replayed=shop.answers[Outcome.SUCCEEDED] + shop.answers[Outcome.FAILED],
        in_progress=shop.answers[Outcome.IN_PROGRESS],
        tokens_issued=len(crowd.tokens),
        refused_used=shop.refused[Outcome.SUCCEEDED],
        refused_foreign=shop.refused[Outcome.MISMATCH],
        refused_unknown=shop.refused[Outcome.UNKNOWN],
        claims=shop.answers.total(),
        operations=shop.operations,
        seconds=seconds,
        p50_ms=_quantile(latencies, 0.50) * 1_000,
        p99_ms=_quantile(latencies, 0.99) * 1_000,
        violations=tuple(_violations(shop, crowd, due=min(stock, buyers))),
    )


def _quantile(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else 0.0


def _violations(shop: Shop, crowd: Crowd, *, due: int) -> Iterator[str]:
    """Yield every broken promise, with the figure that shows it."""
    if (sold := shop.orders.total()) != due:
        yield f"exactly {due} units were to be sold, but {sold} were"
    if greedy := sum(units > 1 for units in shop.orders.values()):
        yield f"each buyer may buy at most once, but {greedy} bought more than one unit"
    if repeated := sum(len(replies) != 1 for replies in shop.first_replies.values()):
        yield f"each idempotency key was to be handled exactly once, but {repeated} were not"
    if crowd.differing:
        yield f"every click was to get the first click's answer, but {crowd.differing} did not"
    if wrong := sum(shop.accepted[token] != 1 for token in crowd.tokens):
        yield f"each token was to be let through exactly once, but {wrong} were not"
    if forged := shop.accepted.keys() - set(crowd.tokens):
        yield f"only issued tokens may be let through, but {len(forged)} others were"
    if crowd.wrongly_served or shop.refused != crowd.misuses:
        yield (
            f"every misused form was to be refused for its reason {_reasons(crowd.misuses)}, "
            f"but the refusals were {_reasons(shop.refused)}, {crowd.wrongly_served} of them wrong or missing"
        )


def _reasons(counts: Counter[Outcome]) -> str:
    return "{" + ", ".join(f"{reason.value}: {count}" for reason, count in sorted(counts.items())) + "}"


async def main() -> Report:
    """Run the sale of the command line."""
    async with sale_dedup(store()) as dedup:
        return await run_sale(dedup, buyers=size(2_000))


if __name__ == "__main__":
    finish("A flash sale", asyncio.run(main()))

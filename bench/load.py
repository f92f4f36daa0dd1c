"""A load generator, in a process of its own: ``python -m bench.load`` (internal).

It does what redis-benchmark cannot do: a fresh key in each HTTP request, batches, and a steady rate. The
parent gives a `Load` as JSON in the argument; the answer is one line of JSON.
"""

import asyncio
import gc
import secrets
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any, cast

import hiredis
import orjson
import uvloop

from bench.contest import GC_THRESHOLDS, ClaimedTwiceError, Setting, ours

SECONDS_MORE = 5.0  # after the end of a turn, for the requests under way to be answered
WARM_UP = 0.2  # the share of a turn
TICK = 0.001  # seconds
Claim = Callable[[str], Awaitable[bool]]


@dataclass(frozen=True, slots=True)
class Load:
    """The load to generate. `role`: a key of ROLES; `where`: a socket's path, for the library a URL."""

    role: str
    where: str
    seconds: float
    callers: int
    batch: int = 0  # claims in a request; 0: each claim is a request of its own
    rate: float = 0.0  # claims a second of all callers together
    namespace: str = "bench"
    path: str = ""  # of a web application


# At full speed, by HTTP


async def http(load: Load) -> dict[str, Any]:
    """Send request after request on every connection; return the claims won, and the seconds.

    `answered` counts the requests of the warm-up and of the end as well, for the server's CPU time.
    All requests are answered by the end: a server that still works on one would find an empty Redis at the next turn.
    """
    return await _as_fast_as_it_goes(load, HttpClient)


async def web(load: Load) -> dict[str, Any]:
    """Send requests to a web application, as `http` does, with a fresh Idempotency-Key in each request."""
    return await _as_fast_as_it_goes(load, WebClient)


async def _as_fast_as_it_goes(load: Load, client: "type[HttpClient]") -> dict[str, Any]:
    loop, salt = asyncio.get_running_loop(), secrets.token_hex(5)
    numbers = count()
    warm_until = time.perf_counter() + WARM_UP * load.seconds
    end = warm_until + load.seconds
    make = partial(client, load, salt, numbers, warm_until, end)
    clients = [(await loop.create_unix_connection(make, load.where))[1] for _ in range(load.callers)]
    async with asyncio.timeout(load.seconds * (1 + WARM_UP) + SECONDS_MORE):
        await asyncio.gather(*(client.done for client in clients))
    for client in clients:
        client.close()
    claims, answered = sum(client.won for client in clients), sum(client.answered for client in clients)
    return {"claims": claims, "answered": answered, "seconds": load.seconds}


class HttpClient(asyncio.Protocol):
    """One connection with one request under way."""

    def __init__(self, load: Load, salt: str, numbers: Any, since: float, end: float) -> None:
        self._batch = load.batch
        self._path = load.path.encode()
        self._salt = salt
        self._numbers = numbers
        self._since = since
        self._end = end
        self._transport: asyncio.Transport
        self._held = b""
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.won = 0
        self.answered = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start (asyncio calls this)."""
        self._transport = cast(
            asyncio.Transport, transport
        )  # uvloop's transports are no subclass of asyncio's
        self._ask()

    def _ask(self) -> None:
        if self._batch:
            items = b",".join(b'{"op":"claim","key":"%b"}' % self._key() for _ in range(self._batch))
            path, body = b"batch", b"[" + items + b"]"
        else:
            path, body = b"claims", b'{"key":"%b"}' % self._key()
        self._transport.write(
            b"POST /v1/%b HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
            b"content-length: %d\r\n\r\n%b" % (path, len(body), body)
        )

    def _key(self) -> bytes:
        return b"%b-%d" % (self._salt.encode(), next(self._numbers))

    def data_received(self, data: bytes) -> None:
        """Count the claims won, and send the next request (asyncio calls this)."""
        data = self._held + data
        won = self._won(data)
        if won is None:
            self._held = data
            return
        self._held = b""
        self.answered += 1
        now = time.perf_counter()
        if won != (self._batch or 1):
            self._fail(ClaimedTwiceError(f"{won} of {self._batch or 1}: {data[:60]!r}"))
        elif now < self._end:
            self.won += won if now >= self._since else 0
            self._ask()
        elif not self.done.done():
            self.done.set_result(None)

    def _won(self, answer: bytes) -> int | None:
        return won_in(answer)

    def close(self) -> None:
        """Close the connection."""
        self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail the turn, because the connection ended before it (asyncio calls this)."""
        self._fail(exc or ConnectionError("the server closed"))

    def _fail(self, error: Exception) -> None:
        if not self.done.done():
            self.done.set_exception(error)


class WebClient(HttpClient):
    """One connection to a web application."""

    def _ask(self) -> None:
        body = b'{"quantity": 1}'
        self._transport.write(
            b"POST %b HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
            b"idempotency-key: %b\r\ncontent-length: %d\r\n\r\n%b"
            % (self._path, self._key(), len(body), body)
        )

    def _won(self, answer: bytes) -> int | None:
        whole = won_in(answer)
        return (
            whole if whole is None else int(answer.startswith(b"HTTP/1.1 201 ") and b"replayed" not in answer)
        )


def won_in(answer: bytes) -> int | None:
    """Return the number of claims that an HTTP answer reports as won; None where the answer is not complete."""
    head, found, body = answer.partition(b"\r\n\r\n")
    if not found:
        return None
    length = head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
    return body.count(b'"outcome":"acquired"') if len(body) >= int(length) else None


# At a steady rate


async def resp(load: Load) -> dict[str, Any]:
    """Claim through the sidecar; each caller has a connection."""
    loop = asyncio.get_running_loop()
    claims = [
        (await loop.create_unix_connection(RespClient, load.where))[1].claim for _ in range(load.callers)
    ]
    return await paced(load, claims)


async def library(load: Load) -> dict[str, Any]:
    """Claim through the library, in this process."""
    async with ours(Setting(load.where, load.namespace, load.callers)) as ops:

        async def claim(key: str) -> bool:
            assert ops.claim
            return ops.won(await ops.claim(key))

        return await paced(load, [claim] * load.callers)


class RespClient(asyncio.Protocol):
    """One connection with one command under way."""

    def __init__(self) -> None:
        self._reader = hiredis.Reader()
        self._transport: asyncio.Transport
        self._answer: asyncio.Future[Any]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep it (asyncio calls this)."""
        self._transport = cast(asyncio.Transport, transport)

    async def claim(self, key: str) -> bool:
        """Claim a key; return True where the claim was won."""
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(b"*2\r\n$8\r\nFD.CLAIM\r\n$%d\r\n%b\r\n" % (len(key), key.encode()))
        answer = await self._answer
        return isinstance(answer, list) and answer[0] == b"acquired"

    def data_received(self, data: bytes) -> None:
        """Deliver a reply (asyncio calls this)."""
        self._reader.feed(data)
        answer = self._reader.gets()
        if answer is not False:
            self._answer.set_result(answer)

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail the claim that waits for a reply (asyncio calls this)."""
        if hasattr(self, "_answer") and not self._answer.done():
            self._answer.set_exception(exc or ConnectionError("the sidecar closed"))


async def paced(load: Load, claims: Sequence[Claim]) -> dict[str, Any]:
    """Start claims at the rate, each by any free caller. A claim's time includes its wait for a free caller.

    Once a millisecond, the resolution of a loop's timer, the claims that are due are started.
    """
    salt, now = secrets.token_hex(5), time.perf_counter
    total = round(load.rate * load.seconds * (1 + WARM_UP))
    spent, due = [0.0] * total, asyncio.Queue[tuple[int, float]]()
    began = now()

    async def caller(claim: Claim) -> None:
        while (item := await due.get())[0] < total:
            if not await claim(f"{salt}-{item[0]}"):
                raise ClaimedTwiceError(str(item[0]))
            spent[item[0]] = now() - item[1]

    async def pacer() -> None:
        i = 0
        while i < total:
            await asyncio.sleep(TICK)
            at = now()
            upto = min(total, int((at - began) * load.rate))
            for number in range(i, upto):
                due.put_nowait((number, at))
            i = upto
        for _ in claims:
            due.put_nowait((total, 0.0))

    async with asyncio.timeout(load.seconds * (1 + WARM_UP) + SECONDS_MORE), asyncio.TaskGroup() as group:
        group.create_task(pacer())
        for claim in claims:
            group.create_task(caller(claim))
    rate = total / (now() - began)
    counted = sorted(spent[round(total * WARM_UP / (1 + WARM_UP)) :])
    p50, p99 = (counted[int(len(counted) * quantile)] * 1000 for quantile in (0.5, 0.99))
    return {"rate": rate, "p50_ms": p50, "p99_ms": p99}


ROLES = {"http": http, "web": web, "resp": resp, "library": library}


async def main(load: Load) -> None:
    """Generate the load and print the result."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    print(orjson.dumps(await ROLES[load.role](load)).decode(), flush=True)


if __name__ == "__main__":
    uvloop.run(main(Load(**orjson.loads(sys.argv[1]))))

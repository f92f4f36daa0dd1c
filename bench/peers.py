"""The peers of fastdedup: the tables of contestants, and the code that calls each peer.

To add a peer: write an async context manager that yields its `Ops`, with its import inside (a peer that is not
installed is a row that says so), and a line in a table below. A peer is used as its documentation shows, with its own
options for speed.
"""

import asyncio
import contextlib
from array import array
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from operator import attrgetter
from time import perf_counter_ns
from typing import Any
from urllib.parse import urlsplit

from bench.contest import (
    CONTESTANTS,
    LEASE_MS,
    TURN_LIMIT,
    ClaimedTwiceError,
    Contestant,
    Ops,
    Setting,
    Spent,
    as_expected,
    our_dedup,
    ours,
    redis_client,
    result_of,
)
from bench.server import ROOT, loopback_port
from bench.worker import Task, employ

CLIENTS = 50  # of redis-benchmark, its default
LEAST = 500_000  # requests of redis-benchmark on a private server: a shorter run is too short for its clock
VALUE = "v" * 28  # as long as our live record
LEASE_S = LEASE_MS // 1000
BATCH = 256
BATCH_SCRIPT = """
local won = {}
for i, key in ipairs(KEYS) do
  won[i] = redis.call('SET', key, ARGV[1], 'NX', 'PX', ARGV[2]) and 1 or 0
end
return won
"""


@asynccontextmanager
async def redis_benchmark(setting: Setting) -> AsyncIterator[Ops]:
    """The ceiling: Redis's own C client, `width` commands in a pipeline; no caller waits for a single answer."""
    where = ["-s", urlsplit(setting.url).path] if setting.url.startswith("unix:") else ["-u", setting.url]
    command = ["redis-benchmark", *where, "-c", str(CLIENTS), "-P", str(setting.width), "--csv"]
    key = f"{setting.namespace}:={setting.namespace}-__rand_int__"  # twelve digits, so as long as ours
    least = LEAST if setting.private else 1

    async def drive(verb: str, keys: Sequence[str], spent: object) -> float:
        size = ["-n", str(max(len(keys), least)), "-r", "1000000000"]
        text = await output([*command, *size, "SET", key, VALUE, "NX", "PX", str(LEASE_MS)])
        return len(keys) / float(text.splitlines()[-1].split('","')[1])

    yield Ops(drive=drive)


async def output(command: Sequence[str]) -> str:
    """Return a program's output; a program that takes longer than the limit of a turn is ended."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *command, stdout=pipe, stderr=pipe, start_new_session=True, cwd=ROOT
    )
    try:
        async with asyncio.timeout(TURN_LIMIT):
            stdout, stderr = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        words = [line for line in stderr.decode().splitlines() if any(map(str.isalpha, line))]
        raise RuntimeError(words[-1] if words else f"{command[0]} ended with status {process.returncode}")
    return stdout.decode()


@asynccontextmanager
async def batched(setting: Setting) -> AsyncIterator[Ops]:
    """Batching by hand on redis-py: a script that does SET NX for many keys, with a few calls at once."""
    client = redis_client(setting)
    script = client.register_script(BATCH_SCRIPT)

    async def drive(verb: str, keys: Sequence[str], spent: object) -> None:
        batches = iter([keys[i : i + BATCH] for i in range(0, len(keys), BATCH)])

        async def caller() -> None:
            for batch in batches:
                if sum(await script(keys=batch, args=["v", LEASE_MS])) != len(batch):
                    raise ClaimedTwiceError

        await asyncio.gather(*(caller() for _ in range(setting.width)))

    try:
        yield Ops(drive=drive)
    finally:
        await client.aclose()


@asynccontextmanager
async def coredis(setting: Setting) -> AsyncIterator[Ops]:
    """Another asyncio client, coredis: ``SET NX PX``, a call for each claim."""
    from coredis import PureToken, Redis

    async with Redis.from_url(setting.url, max_connections=setting.width) as client:
        yield Ops(partial(client.set, value=b"v", condition=PureToken.NX, px=LEASE_MS))


@asynccontextmanager
async def valkey_glide(setting: Setting) -> AsyncIterator[Ops]:
    """A Rust core that multiplexes one connection, valkey-glide. It has no Unix sockets, so it uses TCP."""
    from glide import ConditionalChange, ExpirySet, ExpiryType, GlideClient, GlideClientConfiguration
    from glide import NodeAddress as Address

    async with contextlib.AsyncExitStack() as stack:
        address = Address(*await _tcp_address(stack, setting))
        # By default more than 1000 requests under way are an error, and so is a request that takes 250 ms.
        limits = {"inflight_requests_limit": 4 * setting.callers, "request_timeout": 5000}
        client = await GlideClient.create(GlideClientConfiguration([address], **limits))
        stack.push_async_callback(client.close)
        only_new, expiry = ConditionalChange.ONLY_IF_DOES_NOT_EXIST, ExpirySet(ExpiryType.MILLSEC, LEASE_MS)
        yield Ops(partial(client.set, value=b"v", conditional_set=only_new, expiry=expiry))


async def _tcp_address(stack: contextlib.AsyncExitStack, setting: Setting) -> tuple[str, int]:
    parts = urlsplit(setting.url)
    if parts.scheme == "redis" and not parts.password and parts.path in {"", "/", "/0"}:
        return parts.hostname or "localhost", parts.port or 6379
    if not setting.private:
        raise NotImplementedError("needs a plain TCP address")
    return "127.0.0.1", await stack.enter_async_context(loopback_port(setting.url))


@asynccontextmanager
async def idempotency_kit(setting: Setting) -> AsyncIterator[Ops]:
    """The package idempotency-kit: a claim is its reservation, a cycle its coordinator around an action."""
    from idempotency_kit.core.adapters import JsonResultAdapter
    from idempotency_kit.core.services import IdempotencyDomainService
    from idempotency_kit.core.services.aio.coordinator import AsyncIdempotencyCoordinator
    from idempotency_kit.infra.storage.redis.aio import RedisAsyncIdempotencyRepository

    client = redis_client(setting)
    store = RedisAsyncIdempotencyRepository(client, key_prefix=f"{setting.namespace}:")
    records, adapter = IdempotencyDomainService(), JsonResultAdapter()
    coordinator = AsyncIdempotencyCoordinator(store, records, on_storage_error="raise")

    async def claim(key: str) -> bool:
        await store.save(
            records.create_pending_record("order", key, lease_seconds=LEASE_S)
        )  # raises if taken
        return True

    async def first(key: str) -> str:
        firsts.add(key)
        return result_of(key)

    async def coordinate(key: str) -> tuple[bool, Any]:
        result = await coordinator.coordinate("order", key, 60, adapter, first, key)
        return key in firsts, result

    async def cycle(key: str) -> bool:
        won, _ = await coordinate(key)
        firsts.discard(key)
        return won

    async def replay(key: str) -> bool:
        won, result = await coordinate(key)
        return as_expected(key, won, result)

    firsts: set[str] = set()  # filled by the action, because the coordinator does not report the first caller
    try:
        yield Ops(claim, cycle, replay)
    finally:
        await client.aclose()


@asynccontextmanager
async def idemkit(setting: Setting) -> AsyncIterator[Ops]:
    """The package idemkit: a claim is its backend's, a cycle its decorated function, with its local cache."""
    from idemkit import MethodConfig, RedisBackend, idempotent

    client = redis_client(setting)
    backend = RedisBackend(client, namespace=setting.namespace)
    config = MethodConfig(
        key_fields=["order"],
        scope=lambda: setting.namespace,
        lease_ttl_seconds=LEASE_S,
        expires_after_seconds=60.0,
        use_local_cache=True,
    )
    firsts: set[str] = set()  # filled by the function, because a caller cannot tell whether it ran

    @idempotent(backend=backend, config=config)
    async def pay(order: str) -> str:
        firsts.add(order)
        return result_of(order)

    async def cycle(key: str) -> bool:
        await pay(key)
        won = key in firsts
        firsts.discard(key)
        return won

    async def replay(key: str) -> bool:
        result = await pay(key)
        return as_expected(key, key in firsts, result)

    async def claim(key: str) -> bool:
        return (await backend.claim(key, "", 1, LEASE_S)).our_claim_token is not None

    try:
        yield Ops(claim, cycle, replay)
    finally:
        await backend.aclose()  # its client too


@asynccontextmanager
async def powertools(setting: Setting) -> AsyncIterator[Ops]:
    """AWS Lambda Powertools' Redis layer: blocking, so it is called from `width` threads."""
    from aws_lambda_powertools.utilities.idempotency import IdempotencyConfig, idempotent_function
    from aws_lambda_powertools.utilities.idempotency.persistence.cache import CachePersistenceLayer
    from redis import Redis

    client = Redis.from_url(setting.url, decode_responses=True)
    layer = CachePersistenceLayer(client=client)  # type: ignore[arg-type] # its protocol is narrower
    config = IdempotencyConfig(expires_after_seconds=60)
    config.register_lambda_context(_LambdaContext())  # type: ignore[arg-type] # has every attribute that it reads
    layer.configure(config, key_prefix=setting.namespace)

    def claim(key: str) -> bool:
        layer.save_inprogress(data=key, remaining_time_in_millis=LEASE_MS)  # type: ignore[arg-type] # any JSON
        return True  # raises if taken

    asked: dict[str, Any] = {"data_keyword_argument": "key", "persistence_store": layer, "config": config}
    cycle = idempotent_function(result_of, **asked, key_prefix=setting.namespace)
    verbs = {"claim": claim, "cycle": lambda key: cycle(key=key)}

    async def drive(verb: str, keys: Sequence[str], spent: "array[int] | None") -> None:
        threads = setting.width if spent is None else setting.callers  # a caller's wait counts
        await asyncio.to_thread(_in_threads, threads, verbs[verb], keys, spent)

    try:
        yield Ops(drive=drive)
    finally:
        client.close()


class _LambdaContext:
    """The Lambda context, without which Powertools warns at every call and a crash holds the key until it expires."""

    @staticmethod
    def get_remaining_time_in_millis() -> int:
        return LEASE_MS


def _in_threads(
    threads: int, op: Callable[[str], object], keys: Sequence[str], spent: "array[int] | None"
) -> None:
    source = enumerate(keys)  # shared by all threads: the interpreter's lock guards taking the next item

    def caller() -> None:
        for i, key in source:
            began = perf_counter_ns()
            op(key)
            if spent is not None:
                spent[i] = perf_counter_ns() - began

    with ThreadPoolExecutor(threads) as pool:
        for done in [pool.submit(caller) for _ in range(threads)]:
            done.result()


@asynccontextmanager
async def pure_python(setting: Setting) -> AsyncIterator[Ops]:
    """The same library, not compiled, in a process of its own."""

    async def drive(verb: str, keys: Sequence[str], spent: "array[int] | None") -> float:
        task = Task("claims", setting.url, f"{setting.namespace}-pure", len(keys), setting.callers)
        (answer,) = await employ(task, pure=True)
        return float(answer["ended"] - answer["began"])

    yield Ops(drive=drive)


LIST = 256  # keys in one call of claim_many


@asynccontextmanager
async def in_lists(setting: Setting) -> AsyncIterator[Ops]:
    """Ours, by `claim_many`: each caller claims 256 keys in one call."""
    async with our_dedup(setting) as dedup:

        async def drive(verb: str, keys: Sequence[str], spent: "Spent[int] | None") -> None:
            lists = iter([keys[at : at + LIST] for at in range(0, len(keys), LIST)])

            async def caller() -> None:
                for each in lists:
                    claims = await dedup.claim_many(each)
                    if not all(map(attrgetter("acquired"), claims)):
                        raise ClaimedTwiceError(each[0])

            async with asyncio.TaskGroup() as group:
                for _ in range(setting.width):
                    group.create_task(caller())

        yield Ops(drive=drive)


REDIS_PY, FASTDEDUP = CONTESTANTS
REDIS_BENCHMARK = Contestant("redis-benchmark", redis_benchmark, (64, 256, 512), unit="pipelining")
BATCHED = Contestant("redis-py, batches by hand", batched, (1, 4))
COREDIS = Contestant("coredis SET NX PX", coredis, (1, 8, 32))
VALKEY_GLIDE = Contestant("valkey-glide SET NX PX", valkey_glide)
IDEMPOTENCY_KIT = Contestant("idempotency-kit", idempotency_kit, (0, 32))
IDEMKIT = Contestant("idemkit", idemkit, (0, 8, 32))
POWERTOOLS = Contestant("aws-lambda-powertools", powertools, (1, 8, 64), unit="threads")
UNTUNED = Contestant("fastdedup, default gc", ours, tuned=False)
PURE = Contestant("fastdedup, pure Python", pure_python)
IN_LISTS = Contestant("fastdedup, claim_many of 256", in_lists, (1, 4), unit="lists under way")
UNCACHED = Contestant("fastdedup, known duplicates off", partial(ours, known_duplicates=0.0))

CLIENTS_ONLY = (COREDIS, VALKEY_GLIDE)
LIBRARIES = (IDEMPOTENCY_KIT, IDEMKIT, POWERTOOLS)

EVERYONE = (REDIS_BENCHMARK, REDIS_PY, BATCHED, *CLIENTS_ONLY, *LIBRARIES, FASTDEDUP, UNTUNED, PURE, IN_LISTS)
ONE_CALL_EACH = (REDIS_PY, *CLIENTS_ONLY, *LIBRARIES, FASTDEDUP)
FULL_CYCLE = (REDIS_PY, *LIBRARIES, FASTDEDUP)
REPLAYING = (REDIS_PY, IDEMPOTENCY_KIT, IDEMKIT, FASTDEDUP, UNCACHED)
KEEPING_RECORDS = (REDIS_PY, *LIBRARIES, FASTDEDUP)

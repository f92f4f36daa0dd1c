"""Shared by all tests: a loop for async tests, servers, databases, brokers, stores, a leak checker."""

from __future__ import annotations

import asyncio
import gc
import inspect
import logging
import os
import sys
import typing
import warnings
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, nullcontext
from functools import cache, wraps
from typing import Any

import pytest
import redis
import redis.utils
import uvloop

import fastdedup.sync
from fastdedup.sql import rules
from fastdedup.testing import FakeStore

from . import waiting
from .brokers import KafkaServer, NatsServer, RabbitServer, SqsServer
from .databases import MariaServer, PostgresServer
from .fixtures import Opened, fixture_of
from .marks import MARKS, marks_of
from .servers import RedisServer
from .stores import ROWS, STORES, Backend
from .topologies import Pair
from .unmeasured import adds_nothing, let_programs_measure, measures_programs
from .virtual import VirtualLoop
from .workers import role

DEADLINE = 60.0
"""Seconds that one async test may take."""
PATIENCE = 5.0
"""Seconds that an operation may take where a test names no timeout."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--loop", default="uvloop", choices=["asyncio", "uvloop"], help="event loop of async tests"
    )


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(role(config))
    for mark, meaning in MARKS.items():
        config.addinivalue_line("markers", f"{mark}: {meaning}")
    be_patient()
    # redis-py reads its own version from the disk for each client: 2 ms, for tens of thousands of clients.
    redis.utils.get_lib_version = cache(redis.utils.get_lib_version)
    # Python 3.11 collects a protocol's names anew in each isinstance(); a gate asks for a dozen protocols.
    if sys.version_info < (3, 12):
        vars(typing)["_get_protocol_attrs"] = cache(vars(typing)["_get_protocol_attrs"])


def be_patient() -> None:
    """Give gates and sidecars 5 s for an operation, where a test names no timeout.

    The default of 0.25 s is for a server that does little else. Here tests, their servers and their programs share
    the cores, and each pause of one would fail a test that is about something else.
    """
    for gate in (fastdedup.Dedup, fastdedup.sync.Dedup):
        gate.__init__ = patient(gate.__init__)  # type: ignore[method-assign]
    os.environ["FASTDEDUP_TIMEOUT"] = str(PATIENCE)


def patient(init: Callable[..., None]) -> Callable[..., None]:
    @wraps(init)  # `inspect.signature` shows the true default
    def made(*args: Any, **settings: Any) -> None:
        init(*args, **{"timeout": PATIENCE, **settings})

    return made


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the longest test; measure no coverage if that adds nothing; set the marks of `tests/marks.py`."""
    items.sort(key=lambda item: (item.path.name != "test_compiled.py", "mypy" not in item.name))
    for item in items:
        if adds_nothing(item):
            item.add_marker("no_cover")
        for mark in marks_of(item):
            item.add_marker(mark)


def pytest_collection_finish() -> None:
    """Keep the collected tests, half a million objects, out of each garbage collection that follows."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Let the programs that a test starts measure their coverage only if that adds something.

    Not once for each file: coverage.py sets its variables anew after each test with `no_cover`.
    """
    let_programs_measure(measures_programs(item.path))


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run `async def` tests, each in a loop of its own; a task left behind fails the test."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    factory = uvloop.new_event_loop if pyfuncitem.config.getoption("--loop") == "uvloop" else None
    is_virtual = pyfuncitem.get_closest_marker("virtual_time") is not None
    if is_virtual:
        factory = VirtualLoop
    factory = arguments.get("new_loop", factory)  # a test that is about kinds of loops

    async def run() -> None:
        try:
            # Not pytest-timeout alone: what it raises from a signal handler, a loop's callback may swallow.
            async with asyncio.timeout(None if is_virtual else DEADLINE), AsyncExitStack() as stack:
                for name, each in arguments.items():
                    if isinstance(each, Opened):
                        arguments[name] = await stack.enter_async_context(each.context)
                await pyfuncitem.obj(**arguments)
            await asyncio.sleep(0)  # a task that was cancelled a moment ago ends
            left = asyncio.all_tasks() - {asyncio.current_task()}
            left = {task for task in left if is_virtual or "fastdedup" in task.get_name()}
            assert not left, f"tasks left behind: {left}"
        except BaseException:
            await end_tasks()
            raise

    with asyncio.Runner(loop_factory=factory) as runner:
        try:
            runner.run(run())
        except BaseException:
            # A test that failed may leave a transport open. uvloop warns of that as it closes, and where the
            # warning is an error it never ends. pytest restores the filters.
            warnings.simplefilter("ignore", ResourceWarning)
            raise
    return True


async def end_tasks() -> None:
    """Cancel what a failed test has left until it ends. `Runner` cancels once, which `wait_for` of 3.11 may lose."""
    for _ in range(100):
        left = asyncio.all_tasks() - {asyncio.current_task()}
        if not left:
            return
        for task in left:
            task.cancel()
        await asyncio.wait(left, timeout=0.1)


@pytest.fixture(autouse=True)
def _no_inbox_of_another_test() -> None:
    """Inboxes of one name keep their rows equally long: those of one test are none of another's concern."""
    rules._known.clear()


redis_server = fixture_of(RedisServer, scope="session")
"""This worker's own redis-server."""


@pytest.fixture
def redis_url(redis_server: RedisServer) -> Iterator[str]:
    """The URL of this worker's own redis-server, emptied and checked after the test."""
    yield redis_server.url
    with redis_server.client() as raw:
        try:
            check_ttls(raw)
        finally:  # or each later test would find its keys
            raw.flushdb()


server = fixture_of(RedisServer, scope="module")
"""A redis-server of the test file's own, for sidecars that live as long as the file's tests."""
running_pair = fixture_of(Pair, scope="module")
own_redis = fixture_of(RedisServer)
"""A redis-server of the test's own, to kill, freeze or fill."""
postgres = fixture_of(PostgresServer, scope="session")
"""This worker's own PostgreSQL; `fresh()` makes a database in it. A test that kills a server starts its own."""
mariadb = fixture_of(MariaServer, scope="session")
"""This worker's own MariaDB; `fresh()` makes a database in it. A test that kills a server starts its own."""
rabbitmq = fixture_of(RabbitServer, scope="session")
"""This worker's own RabbitMQ; `name()` names a queue in it. A test that kills a server starts its own."""
nats = fixture_of(NatsServer, scope="session")
"""This worker's own NATS; `name()` names a stream in it. A test that kills a server starts its own."""
kafka = fixture_of(KafkaServer, scope="session")
"""This worker's own broker of Kafka's protocol; `name()` names a topic in it."""
sqs = fixture_of(SqsServer, scope="session")
"""This worker's own moto server, which answers as Amazon SQS does; `name()` names a queue in it."""


@pytest.fixture(scope="session", params=list(STORES))
def running_store(request: pytest.FixtureRequest) -> Iterator[Backend]:
    """Every store of the matrix, one after the other: pytest runs the tests of one store together.

    So a worker has one group of servers at a time: those of Sentinel and Cluster take a tenth of a core while idle.
    """
    with ROWS[request.param]() as backend:
        yield backend


@pytest.fixture
def pair(running_pair: Pair) -> Iterator[Pair]:
    """A server with one replica, the test file's own, healed after the test."""
    yield running_pair
    running_pair.heal()


@pytest.fixture
def store() -> FakeStore:
    """An empty store in memory, whose clock the test moves."""
    return FakeStore()


@pytest.fixture
def backend(running_store: Backend) -> Iterator[Backend]:
    """Every store of the matrix, one test each; emptied and checked after the test."""
    yield running_store
    try:
        if running_store.raw is not None:
            check_ttls(running_store.raw)
    finally:
        running_store.clear()


def check_ttls(raw: redis.Redis) -> None:
    """Promise 4: every key has a TTL. `forever` marks what a test wrote itself."""
    keys = [key for key in raw.scan_iter(count=1000) if b"forever" not in key]
    with raw.pipeline(transaction=False) as pipe:  # a round trip for each takes a second for 1,200 keys
        for key in keys:
            pipe.pttl(key)
        without = [key for key, left in zip(keys, pipe.execute(), strict=True) if left == -1]
    assert not without, f"keys without a TTL: {without[:5]}"


@pytest.fixture
def wait_until() -> Callable[..., Any]:
    """`waiting.wait_until`, for tests that do not import it."""
    return waiting.wait_until


@pytest.fixture
def turns_leave_garbage(monkeypatch: pytest.MonkeyPatch) -> None:
    """A benchmark's turn begins without a collection of all garbage, which takes 0.1 s in a process of tests."""
    for module in ("bench.contest.rounds", "fastdedup.cli.bench"):
        monkeypatch.setattr(f"{module}.collector", lambda **options: nullcontext())


@pytest.fixture(autouse=True)
def _logs_are_on() -> None:
    """Begin each test with the log as a program has it.

    Celery's worker and `logging.config` turn loggers off; a command of fastdedup that a test calls silences its own.
    """
    logging.disable(logging.NOTSET)
    logging.getLogger().setLevel(logging.WARNING)
    ours = logging.getLogger("fastdedup")
    ours.handlers = [each for each in ours.handlers if not isinstance(each, logging.NullHandler)]
    for name, logger in logging.root.manager.loggerDict.items():
        if name.startswith("fastdedup") and isinstance(logger, logging.Logger):
            logger.disabled, logger.propagate = False, True

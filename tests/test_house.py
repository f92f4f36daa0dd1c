"""The house: which floor each module lives on, and that imports run down. Every import counts.

An import inside a function counts, and one under `TYPE_CHECKING` as well: a circle that they hide is still a circle
for the reader. To add a folder, give it a floor in `FLOORS`.
"""

from __future__ import annotations

import ast
import re
import subprocess
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from itertools import chain
from pathlib import Path

import pytest

from scripts.write_sync import MARK, MIRRORS, Mirror, as_written, class_in

from .marks import PLACES
from .unmeasured import FILES, HERE, PROGRAMS

ROOT = Path(__file__).parent.parent

# From the roof to the cellar. A module belongs to the longest name that fits it; names on one floor do not import
# each other, modules of one name may.
FLOORS = (
    ("__main__",),
    ("cli",),
    ("testing",),
    ("sidecar.service", "integrations"),
    ("metrics",),
    ("sidecar.http", "sidecar.resp"),
    ("sidecar",),
    ("messages",),
    ("web", "sync"),
    ("sql",),
    ("sql.drivers",),
    ("sql.dialects",),
    ("sql.faults",),
    ("",),  # the package itself: the public names
    ("gateway",),
    ("once",),
    ("claiming",),
    ("admin",),
    ("ledger", "tokens", "machine", "lock"),
    ("core.many",),
    ("core.traced_lists",),
    ("core.calls",),  # what it awaits is a Claim
    ("claim",),  # which holds a Settlement
    ("core",),
    ("compiled",),
    ("fallback",),
    ("stores",),
    ("stores.sidecar",),
    ("stores.redis", "stores.memory"),
    ("stores.bounded",),
    ("stores.base", "stores.entry"),
    ("ledger.memory",),
    ("ledger.operations",),  # what a store is asked of ledgers: every store knows it, and every policy
    ("ledger.ids",),
    ("ledger.forms",),
    ("kernel",),
    ("decorated",),
    ("arguments",),
    ("keys",),
    ("client",),  # for those who call an API over HTTP: it knows nothing of the gate
    ("downstream",),
    ("results",),
    ("checks", "codec"),
    ("model", "events", "forking", "tasks"),
    ("errors", "declarations", "failures", "backoff", "log_throttle", "flows", "extras"),
)

# What the core still has to give up. These lists only shrink.
CIRCLES: list[set[str]] = []
CLIMBS: set[tuple[str, str]] = set()

# Who besides `stores/redis/` may import Redis's drivers.
DRIVERS = {"redis", "hiredis"}
DRIVER_USERS = {
    "stores.sidecar.store": "the sidecar answers in the Redis protocol, which hiredis reads",
    "sidecar.client": "the command line asks a running sidecar, as any Redis client would",
    "integrations.redis_streams": "its broker is a Redis: the errors of the client tell what to repeat",
    "cli.bench": "redis-py's SET NX PX is the row that fastdedup is compared with",
}

# Private names of libraries that have no public way, by the module that uses them; see `private_doors`.
PRIVATE_OF_LIBRARIES: dict[str, tuple[set[str], str]] = {
    "client.requests": (
        {"_body_position"},
        "requests notes there whether a body can be sent again, and tells it nowhere else",
    ),
    "integrations.aiohttp": (
        {"_payload"},
        "aiohttp gives a request's body once, and has no way to put it back that is not deprecated",
    ),
    "integrations.celery": (
        {"_protected"},
        "Celery's mark of a call within a body: only its own tracer sets it",
    ),
    "integrations.django.capture": (
        {"_iterator", "_resource_closers"},
        "a response's public `streaming_content` and `close` refer to it: with those it would never be collected",
    ),
    "integrations.django.convert": (
        {"_stream", "_read_started", "_pos"},
        "Django neither tells how much of a body came, nor can it be told that a body is unread after it was read",
    ),
    "integrations.django.one_time": (
        {"_files"},
        "Django has no setter for a request's FILES, as it has for POST",
    ),
    "integrations.django.views": (
        {"_non_atomic_requests"},
        "Django's decorator marks a view for one database, and which there are is not known at import",
    ),
    "integrations.drf": (
        {"_request"},
        "REST framework's Request shows the one that it wraps under no other name",
    ),
    "integrations.faststream.brokers.kafka": (
        {"_outer_config"},
        "a subscriber keeps its router's prefix there",
    ),
    "integrations.faststream.brokers.nats": (
        {"_client"},
        "a message tells nowhere else how large a copy may be",
    ),
    "integrations.faststream.brokers.rabbit": ({"_outer_config"}, "as for Kafka"),
    "integrations.faststream.brokers.redis": ({"_client"}, "before FastStream 0.7.8 an ack needs the client"),
    "integrations.faststream.middleware": ({"_outer_config"}, "a subscriber keeps its middlewares there"),
    "integrations.flask.exchange": ({"_get_current_object"}, "Werkzeug documents it, under this name"),
    "integrations.kafka": (
        {
            "_enable_auto_commit",
            "_group_id",
            "_key_deserializer",
            "_key_serializer",
            "_max_poll_interval_ms",
            "_rebalance_timeout_ms",
            "_session_timeout_ms",
            "_subscription",
            "_value_deserializer",
            "_value_serializer",
        },
        "aiokafka shows no setting of its consumers and producers",
    ),
    "integrations.nats": (
        {"_consumer", "_js", "_nc", "_pending_queue", "_sub"},
        "a subscription shows neither its name, its connection nor what it has received",
    ),
    "integrations.rabbitmq.consumer": (
        {"_consumers"},
        "aio-pika before 10.1 restores a consumer whose end the broker did not confirm",
    ),
    "sql.drivers.sqlite3": (
        {"_conn", "_execute"},
        "aiosqlite has no way to read a setting in the thread of its connection, and sqlite3 lets no other read it",
    ),
    "stores.redis.connection": (
        {"_call_connection_lost", "_reader", "_transport", "_writer"},
        "redis-py and asyncio cannot give a connected socket away, nor close one whose event loop is closed",
    ),
    "tasks": (
        {"_get_running_loop", "_log_destroy_pending"},
        "asyncio's documented function raises where no loop runs, and the error is seen elsewhere; asyncio logs a "
        "task as destroyed if its event loop is closed",
    ),
}

# Lines of a file at most: a longer one holds two ideas. Those that still do shall not grow, and leave the list.
MOST_LINES = 500
TOO_LONG: dict[str, int] = {}

# Uses of private names in all tests together.
MOST_IN_TESTS = 100

# Calls of `sleep` in the files of tests, and in what they share. These numbers only shrink. A test in virtual time
# has `pass_time`. In the files of tests, five block a loop, which is the fault that is tested (test_leases.py,
# test_engine.py); two are the pace of endless streams (test_streams.py); and two are pauses between looks at a run
# that goes on (test_chaos_planted.py). Of the others, 30 are the model's, in virtual time, and 29 are the pace, the
# work and the faults of chaos; the rest are pauses between two looks, latencies, and programs whose work takes time.
SLEEPS = (9, 74)

# Documented by the standard library, in spite of their names.
PUBLIC = {"_asdict", "_exit", "_fields", "_make", "_replace"}

# Class names that are defined more than once by design.
NAMESAKES = {
    "Dedup": {"gateway", "sync.gateway"},
    "Claim": {"claim", "sync.claim"},
    "Lock": {"lock", "sync.lock"},
    "LockCall": {"lock", "sync.lock"},
    "Tokens": {"tokens", "sync.tokens"},
    "Ledger": {"ledger.client", "sync.ledger"},
    "StateMachine": {"machine", "sync.machine"},
    "Inspected": {"admin.inspected", "sync.inspected"},
    "Inbox": {"sql.inbox", "sync.sql"},
    "Receipt": {"sql.receipt", "sync.sql"},
    "Consumer": {
        "integrations.rabbitmq.consumer",
        "integrations.kafka",
        "integrations.nats",
        "integrations.redis_streams",
        "integrations.sqs",
    },
    "DedupMiddleware": {
        "integrations.faststream.middleware",
        "integrations.dramatiq",
        "integrations.taskiq",
    },
    "Migration": {"sql.django.migrations.0001_inbox", "sql.django.migrations.0002_fingerprint"},
    "AsyncDriver": {"sql.drivers.sqlalchemy", "sql.drivers.psycopg"},
    "SyncDriver": {"sql.drivers.sqlalchemy", "sql.drivers.psycopg"},
    "IdempotencyMiddleware": {"integrations.asgi", "integrations.wsgi", "integrations.django.middleware"},
}


@cache
def sources() -> dict[str, ast.Module]:
    """Every module of the package, by its name without `fastdedup.`."""
    package = ROOT / "fastdedup"
    return {name_of(path.relative_to(package)): ast.parse(path.read_text()) for path in package.rglob("*.py")}


@cache
def trees_of_tests() -> dict[Path, ast.Module]:
    """Every file below this folder."""
    return {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(HERE.rglob("*.py"))}


def name_of(path: Path) -> str:
    return ".".join(path.with_suffix("").parts).removesuffix("__init__").removesuffix(".")


def imported(module: str, tree: ast.Module, modules: Iterable[str]) -> Iterator[str]:
    """Yield the full name of every module that a module imports, of the package and of others."""
    is_package = any(other.startswith(f"{module}.") for other in modules) or not module
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = origin(module, node, is_package)
            for alias in node.names:
                inner = f"{base}.{alias.name}"
                yield inner if inner.removeprefix("fastdedup.") in modules else base


def origin(module: str, node: ast.ImportFrom, is_package: bool) -> str:
    """Return the module that `from ... import` names, as a full name."""
    if not node.level:
        return node.module or ""
    parts = ["fastdedup", *filter(None, module.split("."))]
    parts = parts[: len(parts) - node.level + is_package]
    return ".".join([*parts, *filter(None, [node.module])])


@cache
def all_imported() -> dict[str, frozenset[str]]:
    """Each module, and all that it imports: to look through every tree takes a second."""
    modules = sources().keys()
    return {module: frozenset(imported(module, tree, modules)) for module, tree in sources().items()}


@cache
def graph() -> dict[str, frozenset[str]]:
    """Each module, and the modules of the package that it imports."""
    found = {}
    for module, imports in all_imported().items():
        names = {name for name in imports if name.partition(".")[0] == "fastdedup"}
        found[module] = frozenset(name.removeprefix("fastdedup").removeprefix(".") for name in names) - {
            module
        }
    return found


@cache
def floor_of(module: str) -> tuple[int, str]:
    """Return the floor of a module, counted from the roof, and the name that it lives under there."""
    fits = [
        (len(name), floor, name)
        for floor, names in enumerate(FLOORS)
        for name in names
        if module == name or (name and module.startswith(f"{name}."))
    ]
    assert fits, f"{module} has no floor: add it to FLOORS"
    return max(fits)[1:]


def circles(edges: dict[str, frozenset[str]]) -> Iterator[list[str]]:
    """Yield circles, each time without the modules of those before."""
    left = dict(edges)
    while True:
        try:
            TopologicalSorter(left).prepare()
            return
        except CycleError as error:
            circle = error.args[1]
            yield circle
            left = {module: names - set(circle) for module, names in left.items() if module not in circle}


def test_no_modules_import_each_other_in_a_circle() -> None:
    allowed = {frozenset((one, other)) for circle in CIRCLES for one in circle for other in circle}
    kept = {
        module: frozenset(name for name in names if frozenset((module, name)) not in allowed)
        for module, names in graph().items()
    }
    assert not [" -> ".join(circle) for circle in circles(kept)]


def test_imports_run_down_the_floors() -> None:
    climbs = []
    for module, names in graph().items():
        floor, under = floor_of(module)
        for name in names:
            below, other = floor_of(name)
            if below < floor or (below == floor and other != under):
                climbs.append((module, name))
    assert not sorted(set(climbs) - CLIMBS)
    assert not sorted(CLIMBS - set(climbs)), "these climb no longer: strike them off"


def test_every_floor_is_lived_on() -> None:
    lived_on = {floor_of(module)[1] for module in sources()}
    assert not {name for names in FLOORS for name in names} - lived_on


@pytest.mark.parametrize("driver", sorted(DRIVERS))
def test_only_the_redis_store_imports_a_driver(driver: str) -> None:
    users = {
        module
        for module, imports in all_imported().items()
        if any(name.partition(".")[0] == driver for name in imports)
    }
    unknown = sorted(user for user in users - DRIVER_USERS.keys() if not user.startswith("stores.redis"))
    assert not unknown


def test_one_module_knows_of_forks() -> None:
    users = {
        module
        for module, tree in sources().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr == "register_at_fork"
    }
    assert users == {"forking"}


def test_every_class_name_is_defined_once() -> None:
    homes: defaultdict[str, set[str]] = defaultdict(set)
    for module, tree in sources().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                homes[node.name].add(module)
    assert {name: where for name, where in homes.items() if len(where) > 1} == NAMESAKES


@pytest.mark.parametrize("mirror", MIRRORS, ids=lambda mirror: mirror.name)
def test_synchronous_classes_repeat_the_asynchronous_ones(mirror: Mirror) -> None:
    text = (ROOT / "fastdedup" / "sync" / mirror.path).read_text(encoding="utf-8")
    end = class_in(text, mirror.name).end_lineno
    after = "".join(text.splitlines(keepends=True)[end:])
    by_hand, _, written = text.removesuffix(after).partition(MARK)
    assert as_written(mirror, f"{by_hand}{MARK}    pass\n{after}") == text, "run `make format`"
    assert not re.search(r"\bawait|async with|event loop", written), "see PHRASES in scripts/write_sync.py"


def test_no_file_is_long() -> None:
    package = ROOT / "fastdedup"
    lines = {name_of(path.relative_to(package)): count_lines(path) for path in package.rglob("*.py")}
    too_long = {name: count for name, count in lines.items() if count > TOO_LONG.get(name, MOST_LINES)}
    assert not too_long, "move an idea out of it, or remove copies"
    assert not {name for name in TOO_LONG if lines[name] <= MOST_LINES}, "no longer too long: strike it off"


def count_lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def private_doors(tree: ast.AST) -> Iterator[str]:
    """Yield each private name of another object than the method's own, or of its class: `x._y`."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute) or not node.attr.startswith("_") or node.attr.startswith("__"):
            continue
        owner = node.value
        own = isinstance(owner, ast.Name) and owner.id in ("self", "cls")
        inherited = (
            isinstance(owner, ast.Call) and isinstance(owner.func, ast.Name) and owner.func.id == "super"
        )
        if not own and not inherited and node.attr not in PUBLIC:
            yield node.attr


def test_no_module_uses_another_objects_private_name() -> None:
    """What a caller needs is a documented method of the other object. Libraries without one are listed above."""
    found = {name: doors for name, tree in sources().items() if (doors := {*private_doors(tree)})}
    assert found == {name: names for name, (names, _) in PRIVATE_OF_LIBRARIES.items()}


def awaits_while_an_error_is_handled(tree: ast.AST) -> Iterator[int]:
    """Yield the line of each `await` inside an except or finally clause."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Try):
            clauses = chain(*(handler.body for handler in node.handlers), node.finalbody)
            inside = chain.from_iterable(map(ast.walk, clauses))
            yield from (each.lineno for each in inside if isinstance(each, ast.Await))


def test_no_compiled_module_awaits_while_it_handles_an_error() -> None:
    """What mypyc makes of that crashes where such an `await` is cancelled."""
    hook = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    found = {
        f"{path}:{line}"
        for path in hook["hooks"]["custom"]["modules"]
        for line in awaits_while_an_error_is_handled(ast.parse((ROOT / path).read_text()))
    }
    assert not found


def test_the_checks_see_what_they_shall_see() -> None:
    """Each kind of import is found, and a circle as well."""
    text = "import redis.asyncio\ndef f():\n    from ..sidecar import verbs\nif T:\n    from .loop import current\n"
    modules = {"sync", "sync.loop", "sync.gateway", "sidecar", "sidecar.verbs"}
    found = set(imported("sync.gateway", ast.parse(text), modules))
    assert found == {"redis.asyncio", "fastdedup.sidecar.verbs", "fastdedup.sync.loop"}
    assert list(imported("sync", ast.parse("from .loop import run"), modules)) == ["fastdedup.sync.loop"]
    assert [*map(set, circles({"a": frozenset("b"), "b": frozenset("ca"), "c": frozenset()}))] == [{"a", "b"}]
    with pytest.raises(AssertionError, match="has no floor"):
        floor_of("utils")
    doors = "self._a\ncls._b\nsuper()._c\nx.__d__\nx._replace()\nx._e\nself.x._f\ny()._g = 1\n"
    assert [*private_doors(ast.parse(doors))] == ["_e", "_f", "_g"]
    risky = "async def f():\n try:\n  await a\n except E:\n  await b\n finally:\n  await c\n"
    assert [*awaits_while_an_error_is_handled(ast.parse(risky))] == [5, 7]


def test_the_examples_import_what_the_reference_documents() -> None:
    """A reader copies them: what they use must stay."""
    pages = "".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs" / "reference").glob("*.md"))
    documented = set(re.findall(r"^::: (fastdedup\S*)", pages, re.MULTILINE))
    found = set()
    for path in (ROOT / "examples").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and not node.level:
                found |= {(path.name, node.module, alias.name) for alias in node.names}
            elif isinstance(node, ast.Import):
                found |= {(path.name, alias.name, "") for alias in node.names}
    ours = {(path, module, name) for path, module, name in found if module.partition(".")[0] == "fastdedup"}
    assert ours
    assert not {each for each in ours if each[1] not in documented or each[2].startswith("_")}


def test_the_top_level_holds_what_belongs_there() -> None:
    """A server that is started by hand in the checkout writes its files here, and `git add` takes them along."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    folders = {path.split("/")[0] for path in listed.splitlines() if "/" in path}
    assert folders == {".ci", ".github", "bench", "docs", "examples", "fastdedup", "lua", "scripts", "tests"}


def test_the_tests_that_measure_no_coverage_are_there() -> None:
    assert [name for name in sorted(FILES | PROGRAMS) if not (HERE / name).is_file()] == []


def test_every_place_of_a_mark_is_there() -> None:
    places = {place.partition("::") for each in PLACES.values() for place in each}
    gone = [file for file, _, _ in places if not any(HERE.glob(f"{file.removesuffix('/')}*"))]
    unnamed = [name for file, _, name in places if name and f"def {name}(" not in (HERE / file).read_text()]
    assert not gone + unnamed


def sleeps(tree: ast.AST) -> Iterator[int]:
    """Yield the line of each call of a `sleep` that takes time: `asyncio.sleep(0)` only lets other tasks run."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and node.args:
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if name == "sleep" and getattr(node.args[0], "value", None) != 0:
                yield node.lineno


def test_the_tests_sleep_and_use_private_names_no_more_than_they_did() -> None:
    """A test waits for a condition: `wait_until`. A fixed time is too short on a busy machine.

    A test that reads what is private stands in the way of changes; `fastdedup.testing.probe` shows most of it. To
    parse all tests takes seconds, so one test does it.
    """
    private = [
        f"{path.relative_to(HERE)}: {name}"
        for path, tree in trees_of_tests().items()
        for name in private_doors(tree)
    ]
    assert len(private) <= MOST_IN_TESTS, "\n".join(private)
    found = {
        path.relative_to(HERE).as_posix(): sum(1 for _ in sleeps(tree))
        for path, tree in trees_of_tests().items()
    }
    in_tests = sum(count for path, count in found.items() if Path(path).name.startswith("test_"))
    assert (in_tests, sum(found.values()) - in_tests) == SLEEPS, (
        "fewer: write the new numbers; more: wait for a condition"
    )

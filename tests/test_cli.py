"""The command line, as people and as programs use it."""

import asyncio
import errno
import json
import os
import re
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result
from redis.asyncio import ConnectionPool

import fastdedup.cli.bench
import fastdedup.cli.demo
import fastdedup.cli.main
import fastdedup.cli.records
from fastdedup import Dedup, DedupError, fingerprint
from fastdedup.cli.bench import BASELINE, CONTESTANTS, SCENARIOS, Contestant, Scenario
from fastdedup.compiled import build
from fastdedup.sidecar.namespaces import RawCodec
from fastdedup.web.response import Response, ResponseCodec
from tests.programs import ended

FEW_CALLERS = (Scenario("few", "Four callers", 4, latency=True),)
DEMO = ["demo", "--buyers", "100", "--stock", "7"]


@pytest.fixture
def namespace() -> str:
    return f"cli-{uuid.uuid4().hex}"


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    monkeypatch.delenv("FASTDEDUP_URL", raising=False)
    monkeypatch.delenv("FASTDEDUP_NAMESPACE", raising=False)
    monkeypatch.setenv("COLUMNS", "100")

    def run(*args: str, **options: Any) -> Result:
        return CliRunner().invoke(fastdedup.cli.main.cli, args, **options)

    return run


@pytest.fixture
def at_redis(run: Callable[..., Result], redis_url: str, namespace: str) -> Callable[..., Result]:
    return lambda *args: run(*args, "--url", redis_url, "--namespace", namespace)


@pytest.fixture
def gate(redis_url: str, namespace: str) -> Callable[[], Dedup]:
    """Makes the service's own gate, whose records the command line looks at."""
    return lambda: Dedup(redis_url, namespace=namespace, ttl=60.0, failure_ttl=60.0)


def settle(gate: Callable[[], Dedup], key: str, result: Any, **options: Any) -> None:
    async def main() -> None:
        async with gate() as dedup:
            claim = await dedup.claim(key, **options)
            await claim.complete(result)

    asyncio.run(main())


# demo


@pytest.mark.parametrize("store", ["memory", "redis"])
def test_demo_shows_in_its_first_ten_lines_what_the_gate_is_for(
    run: Callable[..., Result], store: str, request: pytest.FixtureRequest
) -> None:
    url = "memory://" if store == "memory" else request.getfixturevalue("redis_url")
    result = run("demo", "--buyers", "300", "--stock", "100", env={"FASTDEDUP_URL": url})
    assert (result.exit_code, result.stderr) == (0, "")
    first = result.stdout.splitlines()[:10]
    assert re.search(
        r"^Without the gate: (\d+) of 100 units were sold more than once", "\n".join(first), re.M
    )
    assert "With the gate:    100 of 100 units were sold once, by 100 orders;" in first
    assert build() in first[0]
    assert "?db=" not in first[0]
    assert first[-1] == "Each promise was kept."


def test_demo_prints_nothing_but_json_for_programs(run: Callable[..., Result]) -> None:
    result = run(*DEMO, "--json", "--clicks", "4")
    assert (result.exit_code, result.stderr) == (0, "")
    facts = json.loads(result.stdout)
    assert [facts[name] for name in ("buyers", "clicks", "stock", "violations")] == [100, 4, 7, []]
    bare, gated = facts["without_gate"], facts["with_gate"]
    assert (bare["sold_once"], bare["sold_again"], bare["orders"]) == (
        3,
        4,
        3 + 4 * 4,
    )  # 0, 3 and 6 are patient
    assert (gated["sold_once"], gated["sold_again"], gated["orders"]) == (7, 0, 7)
    assert (gated["replayed"], gated["differing"]) == (300, 0)
    assert gated["clicks_per_second"] > 0


def test_demo_shows_no_password() -> None:
    assert fastdedup.cli.demo.without_secrets("redis://me:secret@host:6379/0?x=1") == "redis://host:6379/0"


def test_demo_sells_to_everybody_if_there_is_enough(run: Callable[..., Result]) -> None:
    result = run("demo", "--buyers", "20", "--stock", "30", "--json")
    assert (result.exit_code, json.loads(result.stdout)["with_gate"]["sold_once"]) == (0, 20)


class AdmitsEveryone(fastdedup.cli.demo.GatedShop):
    """The gate that is not there."""

    async def order(self, buyer: str) -> dict[str, Any]:
        return await self._shop.order(buyer)


class AdmitsNobody(fastdedup.cli.demo.GatedShop):
    """Everybody is told that the units are gone."""

    async def order(self, buyer: str) -> dict[str, Any]:
        return {"sold_out": True}


@pytest.mark.parametrize("options", [[], ["--json"]])
@pytest.mark.parametrize(
    ("broken", "said"),
    [
        (AdmitsEveryone, ["4 were sold more than once", "get the first click's answer, but 8 did not"]),
        (AdmitsNobody, ["exactly 7 units were to be sold, but 0 were"]),
    ],
)
def test_demo_names_each_broken_promise_and_fails(
    run: Callable[..., Result],
    monkeypatch: pytest.MonkeyPatch,
    broken: type[fastdedup.cli.demo.GatedShop],
    said: list[str],
    options: list[str],
) -> None:
    monkeypatch.setattr(fastdedup.cli.demo, "GatedShop", broken)
    result = run(*DEMO, *options)
    assert result.exit_code == 1
    assert "Each promise was kept" not in result.stdout
    lines = result.stderr.splitlines()
    assert len(lines) == len(said)
    for line, words in zip(lines, said, strict=True):
        assert line.startswith("Broken promise: ")
        assert words in line


def test_demo_refuses_a_sale_without_buyers(run: Callable[..., Result]) -> None:
    result = run("demo", "--buyers", "0")
    assert result.exit_code == 2
    assert "--buyers" in result.stderr


def test_demo_runs_on_the_standard_loop_where_uvloop_is_missing(
    run: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "uvloop", None)
    assert run(*DEMO, "--json").exit_code == 0


# inspect


def test_inspect_shows_a_record_for_people(
    at_redis: Callable[..., Result], gate: Callable[[], Dedup]
) -> None:
    settle(gate, "order:42", {"note": "[bold]paid"}, owner="worker-7")
    result = at_redis("inspect", "order:42")
    assert result.exit_code == 0, result.output
    for fact in ("order:42", "succeeded", "worker-7", "[bold]paid", "s left"):
        assert fact in result.stdout


def test_inspect_shows_a_stored_response_and_other_bytes_as_far_as_they_can_be_read(
    at_redis: Callable[..., Result], gate: Callable[[], Dedup]
) -> None:
    async def store() -> None:
        async with gate() as dedup:
            web = dedup.scoped(codec=ResponseCodec())
            response = Response(201, [(b"content-type", b"text/plain")], b"hello \xff")
            await (await web.claim("POST /orders|-|k1")).complete(response)
            await (await dedup.scoped(codec=RawCodec()).claim("raw")).complete(b"\x00raw")

    asyncio.run(store())
    record = json.loads(at_redis("inspect", "POST /orders|-|k1", "--json").stdout)
    assert record["result"] == {
        "status": 201,
        "headers": {"content-type": "text/plain"},
        "body": "hello \\xff",
    }
    assert json.loads(at_redis("inspect", "raw", "--json").stdout)["result"] == "\x00raw"


def test_inspect_prints_json_for_programs(at_redis: Callable[..., Result], gate: Callable[[], Dedup]) -> None:
    settle(gate, "order:42", {"id": 42}, owner="worker-7", fingerprint=fingerprint("body"))
    result = at_redis("inspect", "order:42", "--json")
    assert (result.exit_code, result.stderr) == (0, "")
    record = json.loads(result.stdout)
    assert 0 < record.pop("ttl") <= 60
    assert record.pop("fence") > 0
    assert 0 <= record.pop("age") < 60
    assert record == {
        "key": "order:42",
        "kind": "claim",
        "version": None,
        "holder": None,
        "trace": None,
        "state": "succeeded",
        "owner": "worker-7",
        "attempt": 1,
        "lease": None,
        "fingerprint": fingerprint("body").hex(),
        "result": {"id": 42},
        "error": None,
    }


def test_inspect_shows_how_long_a_claim_is_held(
    at_redis: Callable[..., Result], gate: Callable[[], Dedup]
) -> None:
    async def main() -> tuple[Result, Result]:
        async with gate() as dedup:
            claim = await dedup.claim("order:42", lease=30.0)
            # in a thread: the command line runs an event loop of its own
            shown = await asyncio.to_thread(at_redis, "inspect", "order:42")
            printed = await asyncio.to_thread(at_redis, "inspect", "order:42", "--json")
            await claim.release()
            return shown, printed

    shown, printed = asyncio.run(main())
    assert "processing" in shown.stdout
    record = json.loads(printed.stdout)
    assert record["state"] == "processing"
    assert 0 < record["lease"] <= 30


def test_inspect_says_when_nothing_is_recorded(at_redis: Callable[..., Result], namespace: str) -> None:
    result = at_redis("inspect", "nobody")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == f"Nothing is recorded for 'nobody' in namespace '{namespace}'.\n"
    result = at_redis("inspect", "nobody", "--json")
    assert (result.exit_code, result.stdout, result.stderr) == (1, "null\n", "")


@pytest.mark.parametrize("command", ["inspect", "forget"])
def test_a_digest_without_its_option_is_answered_with_a_hint(
    at_redis: Callable[..., Result], gate: Callable[[], Dedup], command: str
) -> None:
    """The key as `list` shows it, which is no key: the answer was only that nothing is recorded for it."""
    settle(gate, "order:" + "7" * 60, None)
    (listed,) = json.loads(at_redis("list", "--json").stdout)["records"]
    result = at_redis(command, listed["key"])
    assert result.exit_code == 1
    assert result.stderr.endswith(" A key that `list` shows as # and digits is a digest: add --digest.\n")
    assert at_redis(command, listed["key"], "--digest").exit_code == 0
    assert "--digest" not in at_redis(command, listed["key"], "--ledger", "none").stderr


# forget


def test_forget_makes_the_next_claim_the_first(
    at_redis: Callable[..., Result], gate: Callable[[], Dedup]
) -> None:
    settle(gate, "order:42", None)
    result = at_redis("forget", "order:42")
    assert (result.exit_code, result.stdout) == (0, "Forgot 'order:42': its next claim will be the first.\n")
    assert at_redis("inspect", "order:42").exit_code == 1
    again = at_redis("forget", "order:42")
    assert (again.exit_code, again.stdout) == (1, "")
    assert "Nothing is recorded for 'order:42'" in again.stderr


@pytest.mark.parametrize(("present", "code"), [(True, 0), (False, 1)])
def test_forget_prints_json_for_programs(
    at_redis: Callable[..., Result], gate: Callable[[], Dedup], present: bool, code: int
) -> None:
    if present:
        settle(gate, "order:42", None)
    result = at_redis("forget", "order:42", "--json")
    assert (result.exit_code, result.stderr) == (code, "")
    assert json.loads(result.stdout) == {"key": "order:42", "forgotten": present}


# bench

TINY = ["bench", "--seconds", "0.01", "--rounds", "1"]


@pytest.mark.usefixtures("turns_leave_garbage")
def test_bench_shows_a_table_for_each_scenario(
    at_redis: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fastdedup.cli.bench, "SCENARIOS", FEW_CALLERS)
    result = at_redis(*TINY)
    assert result.exit_code == 0, result.output
    for part in ("Four callers", "redis-py SET NX PX", "fastdedup", "per second"):
        assert part in result.stdout
    assert "4/4" in result.stderr  # the progress bar's last line


@pytest.mark.usefixtures("turns_leave_garbage")
@pytest.mark.no_cover
def test_bench_prints_nothing_but_json_for_programs(
    at_redis: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every scenario is played, by fewer callers, which take a hundredth of the time to come up."""
    fewer = [replace(each, callers=min(each.callers, 8)) for each in SCENARIOS]
    monkeypatch.setattr(fastdedup.cli.bench, "SCENARIOS", fewer)
    result = at_redis(*TINY, "--json")
    assert (result.exit_code, result.stderr) == (0, "")
    tables = json.loads(result.stdout)
    assert [table["scenario"] for table in tables] == [scenario.name for scenario in SCENARIOS]
    for table in tables:
        baseline, ours = table["rows"]
        assert baseline["ratios"][BASELINE] == 1.0
        assert ours["figures"]["rate"] > 0


@pytest.mark.usefixtures("turns_leave_garbage")
@pytest.mark.parametrize("name", list(CONTESTANTS))
@pytest.mark.parametrize(
    "turns", [0, 2, 3], ids=["at once", "after the warm-up", "as latencies are recorded"]
)
def test_bench_says_why_a_row_has_no_figures_and_fails(
    at_redis: Callable[..., Result], monkeypatch: pytest.MonkeyPatch, name: str, turns: int
) -> None:
    """The other contestant plays on."""
    begun: list[int] = []

    @asynccontextmanager
    async def tiring(*_: Any) -> AsyncIterator[Contestant]:
        async def ask(key: str) -> bool:
            number = int(key.rpartition("-")[2])
            if number == 0:
                begun.append(number)
            await asyncio.sleep(0)
            return len(begun) <= turns

        yield Contestant(ask, bool, "")

    monkeypatch.setattr(fastdedup.cli.bench, "CONTESTANTS", CONTESTANTS | {name: tiring})
    monkeypatch.setattr(fastdedup.cli.bench, "SCENARIOS", FEW_CALLERS)
    result = at_redis(*TINY, "--json")
    assert result.exit_code == 1
    assert f"Four callers: {name}: n/a: ClaimedTwiceError: cli-" in result.stderr
    [table] = json.loads(result.stdout)
    rows = {row["contestant"]: row for row in table["rows"]}
    assert rows[name]["note"].startswith("n/a: ClaimedTwiceError: cli-")
    other = rows[next(each for each in CONTESTANTS if each != name)]
    assert other["figures"].keys() == {"rate", "cpu_us", "p50_ms", "p99_ms"}
    assert (rows[name]["figures"], BASELINE in other["ratios"]) == ({}, name != BASELINE)


@pytest.mark.usefixtures("turns_leave_garbage")
def test_bench_gives_redis_py_fewer_connections_if_the_server_refuses_many(
    at_redis: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = ConnectionPool.from_url("unix:///nonexistent/redis.sock")
    monkeypatch.setattr(
        fastdedup.cli.bench, "ConnectionPool", SimpleNamespace(from_url=lambda *_, **__: refused)
    )
    monkeypatch.setattr(fastdedup.cli.bench, "SCENARIOS", [replace(FEW_CALLERS[0], callers=40)])
    result = at_redis(*TINY, "--json")
    assert result.exit_code == 0, result.output
    [table] = json.loads(result.stdout)
    assert table["rows"][0]["note"] == "connections: 32"


# What goes wrong


@pytest.mark.parametrize(
    ("where", "told"), [("", "give --url, or set FASTDEDUP_URL"), ("--url=memory://", "inside one process")]
)
@pytest.mark.parametrize("command", [["inspect", "order:42"], ["forget", "order:42"], ["bench"]])
def test_a_command_demands_the_url_of_a_store_that_is_shared(
    run: Callable[..., Result], command: list[str], where: str, told: str
) -> None:
    result = run(*command, *filter(None, [where]))
    assert result.exit_code == 2
    assert told in " ".join(result.stderr.split())


@pytest.mark.parametrize(
    "args",
    [
        ["demo", "--json", "--url", "unix:///nonexistent/redis.sock"],
        ["inspect", "order:42", "--url", "gopher://nowhere"],
        ["inspect", "", "--url", "unix:///nonexistent/redis.sock"],
        ["forget", "order:42", "--url", "redis://h?flavour=vanilla"],
        ["bench", "--url", "unix:///nonexistent/redis.sock"],
        ["bench", "--url", "gopher://nowhere"],
    ],
)
def test_an_error_is_one_line_on_stderr(run: Callable[..., Result], args: list[str]) -> None:
    """After 1 a script took the key of a mistaken `inspect` for a free one."""
    result = run(*args)
    is_away = args[0] in ("demo", "bench") and "nonexistent" in args[-1]
    assert (result.exit_code, result.stdout) == (3 if is_away else 2, "")
    assert result.stderr.startswith("Error: ")
    assert result.stderr.count("\n") == 1


HUGE = str(10**30)


@pytest.mark.parametrize(
    ("args", "wrong"),
    [
        (["demo", "--buyers", HUGE], "--buyers"),
        (["demo", "--clicks", HUGE], "--clicks"),
        (["demo", "--stock", HUGE], "--stock"),
        (["bench", "--url", "redis://h", "--rounds", HUGE], "--rounds"),
        (["ledger", "create", "a", "--window", "7d", "--url", "redis://h", "--capacity", HUGE], "--capacity"),
        (["ledger", "resize", "a", "--url", "redis://h", "--capacity", HUGE], "--capacity"),
        (["ledger", "create", "a", "--capacity", "9", "--url", "redis://h", "--window", "0s"], "--window"),
        (["inbox", "purge", "--keep", "7d", "--url", "sqlite:///x.db", "--batch", HUGE], "--batch"),
        (["inbox", "purge", "--url", "sqlite:///x.db", "--keep", "0s"], "--keep"),
        (["inbox", "stats", "--url", "sqlite:///x.db", "--stretch", "0s"], "--stretch"),
    ],
)
def test_a_number_out_of_range_is_refused_by_its_option(
    run: Callable[..., Result], args: list[str], wrong: str
) -> None:
    result = run(*args)
    assert result.exit_code == 2
    assert f"Error: Invalid value for '{wrong}': " in result.stderr
    assert "is not in the range" in result.stderr or "'0s' is too short: a time has at least" in result.stderr


def test_a_width_for_bits_is_refused(run: Callable[..., Result]) -> None:
    wanted = ["--window", "7d", "--capacity", "9", "--dense", "--width", "16", "--url", "redis://h"]
    assert (
        "--dense keeps a bit for each id, so it goes without --width"
        in run("ledger", "create", "a", *wanted).stderr
    )


@pytest.mark.parametrize("given", ["nan", "inf", "-1"])
@pytest.mark.parametrize("command", [["bench", "--url", "redis://h", "--seconds"], ["top", "--every"]])
def test_a_length_of_time_is_a_finite_number(
    run: Callable[..., Result], command: list[str], given: str
) -> None:
    result = run(*command, given)
    assert (result.exit_code, result.stdout) == (1 if command[0] == "top" else 2, "")
    assert result.stderr.startswith(f"Error: {command[-1]} must be ")


def test_an_error_of_several_lines_becomes_one(
    run: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise DedupError("first line\n  second line")

    monkeypatch.setattr(fastdedup.cli.records, "Dedup", refuse)
    assert run("inspect", "k", "--url", "redis://h").stderr == "Error: first line second line\n"


@pytest.mark.parametrize(
    ("number", "code", "told"),
    [(errno.ENOSPC, 2, "Error: [Errno 28] No space left on device\n"), (errno.EPIPE, 1, "")],
)
def test_an_error_of_the_system_is_one_line_and_a_closed_pipe_none(
    run: Callable[..., Result], monkeypatch: pytest.MonkeyPatch, number: int, code: int, told: str
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fastdedup.cli.records, "Dedup", fail)
    result = run("inspect", "k", "--url", "redis://h")
    assert (result.exit_code, result.stderr) == (code, told)


def test_ctrl_c_does_not_say_that_there_is_no_record(
    run: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ended with 1, and a script went on as if the key were free."""

    def stop(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(fastdedup.cli.records, "Dedup", stop)
    assert run("inspect", "k", "--url", "redis://h").exit_code == 2


# The command itself, in a process of its own


def test_the_installed_command_reports_an_error_without_a_traceback() -> None:
    done = ended("-m", "fastdedup", "inspect", "k", "--url", "unix:///nonexistent/redis.sock")
    assert (done.returncode, done.stdout) == (3, "")
    assert "Traceback" not in done.stderr


NOWHERE = "--url=unix:///nonexistent/redis.sock"
NO_BROKER = "--url=amqp://127.0.0.1:1/"
ANSWERING: list[tuple[str, ...]] = [
    *(
        (command, "k", where)
        for command in ("inspect", "forget")
        for where in (NOWHERE, "--socket=/none.sock")
    ),
    *((*command, NOWHERE) for command in (["conformance"], ["ledger", "stats", "k"])),
    ("ledger", "resize", "k", "--capacity=9", NOWHERE),
    ("ledger", "create", "k", "--window=7d", "--capacity=9", NOWHERE),
    ("dead-letters", "replay", "orders.dead", "--all", NO_BROKER),
]


@pytest.mark.parametrize("command", ANSWERING, ids=" ".join)
def test_no_store_is_told_from_no_record(run: Callable[..., Result], command: tuple[str, ...]) -> None:
    """Both were 1: a script took an outage for a key that is free, or for a guarantee that is broken."""
    mistaken = run(*command[:-1], command[-1].replace("unix:", "gopher:").replace("amqp:", "http:"))
    assert mistaken.exit_code == (3 if "--socket" in command[-1] else 2)
    result = run(*command)
    assert (result.exit_code, result.stdout) == (3, "")
    assert result.stderr.startswith("Error: ")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("closed", [">&-", "<&- >&- 2>&-"])
def test_a_closed_standard_stream_ends_no_command(redis_url: str, namespace: str, closed: str) -> None:
    """A socket got its number, and libuv ended the process by SIGABRT when that was closed."""
    line = f'exec "$0" -m fastdedup forget absent --url "$1" --namespace "$2" {closed}'
    done = subprocess.run(["sh", "-c", line, sys.executable, redis_url, namespace], timeout=60, check=False)
    assert done.returncode == 1


def test_help_lists_every_command(run: Callable[..., Result]) -> None:
    result = run("--help")
    assert result.exit_code == 0
    assert all(
        command in result.stdout
        for command in (
            "demo",
            "inspect",
            "list",
            "forget",
            "bench",
            "serve",
            "top",
            "deploy",
            "ledger",
            "dead-letters",
        )
    )

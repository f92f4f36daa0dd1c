"""The programs of examples/: each runs, keeps its promises on every store, and names a planted bug by its checks."""

import os
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from click.testing import CliRunner

from examples import sidecar as sidecar_demo
from examples.payments import INBOX_TABLE, KILLS, Broker, _report, run_payments
from examples.program import finish
from examples.sale import Report, make_report, run_sale, sale_dedup
from examples.sidecar_clients import HttpWire, RespWire, Wire
from fastdedup import Dedup, DedupError, Outcome, UnavailableError
from fastdedup.cli.main import cli

from .programs import ended
from .sidecar.running import Sidecar

BUYERS, STOCK = 120, 10
THEFTS, FORGERIES = 12, 2  # of 120 buyers: numbers 0, 10, … and 0, 100


@pytest.fixture(params=["memory", "redis"])
def url(request: pytest.FixtureRequest) -> str:
    return "memory://" if request.param == "memory" else request.getfixturevalue("redis_url")


async def sale(dedup: Any, **options: Any) -> Report:
    return await run_sale(dedup, **{"buyers": BUYERS, "stock": STOCK, **options})


async def test_a_sale_keeps_every_promise(url: str) -> None:
    async with sale_dedup(url) as dedup:
        report = await sale(dedup)

    assert report.violations == ()
    assert report.sold == STOCK
    assert report.duplicates_replayed == 2 * BUYERS  # two of each buyer's three clicks, however they asked
    assert report.in_progress > 0
    assert report.tokens_issued == BUYERS
    assert report.refused_used == BUYERS
    assert report.refused_foreign == THEFTS
    assert report.refused_unknown == FORGERIES
    assert report.claims == 4 * BUYERS + THEFTS + FORGERIES + report.in_progress
    assert 0 < report.p50_ms <= report.p99_ms
    assert report.operations > report.claims


# The gates below are each broken in one way. Whatever they do not define is the real gate's.


class BrokenGate:
    def __init__(self, gate: Dedup) -> None:
        self._gate = gate

    def __getattr__(self, name: str) -> Any:
        return getattr(self._gate, name)


class BrokenClaim:
    """A real claim behind which one answer is wrong."""

    def __init__(self, claim: Any, **lies: Any) -> None:
        self._claim = claim
        self.__dict__.update(lies)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._claim, name)


class AdmitsEveryone(BrokenGate):
    """Acquired, for every click: the guard that is not there."""

    @asynccontextmanager
    async def claim(self, key: str, **options: Any) -> Iterator[Any]:
        async with self._gate.claim(key, **options) as claim:
            yield (
                claim
                if claim.acquired
                else BrokenClaim(
                    claim, acquired=True, outcome=Outcome.ACQUIRED, complete=_nothing, fail=_nothing
                )
            )


class ForgetsResults(BrokenGate):
    """Duplicates are told that it worked, and not what came of it."""

    @asynccontextmanager
    async def claim(self, key: str, **options: Any) -> Iterator[Any]:
        async with self._gate.claim(key, **options) as claim:
            yield claim if claim.acquired else BrokenClaim(claim, result=None)


class AdmitsNobody(BrokenGate):
    """Everybody is in progress, for ever, or so the clients are told."""

    @asynccontextmanager
    async def claim(self, key: str, **options: Any) -> Iterator[Any]:
        yield BrokenClaim(None, acquired=False, outcome=Outcome.MISMATCH)


class AcceptsEveryToken(BrokenGate):
    """Used, stolen or made up: every form is good."""

    @property
    def tokens(self) -> "AcceptsEveryToken":
        return self

    async def issue(self, **options: Any) -> str:
        return await self._gate.tokens.issue(**options)

    async def consume(self, token: str, **options: Any) -> Outcome:
        await self._gate.tokens.consume(token, **options)
        return Outcome.ACQUIRED


class ConfusesReasons(AcceptsEveryToken):
    """Refuses the right forms, and says the wrong thing about stolen ones."""

    async def consume(self, token: str, **options: Any) -> Outcome:
        verdict = await self._gate.tokens.consume(token, **options)
        return Outcome.UNKNOWN if verdict is Outcome.MISMATCH else verdict


class AdmitsEveryoneEverywhere(AdmitsEveryone, AcceptsEveryToken):
    """No gate at all."""


async def _nothing(*_: Any) -> None:
    pass


@pytest.mark.parametrize(
    ("broken", "named"),
    [
        (AdmitsEveryone, ["each idempotency key", "every click"]),
        (ForgetsResults, ["every click"]),
        (AdmitsNobody, ["exactly 120 units", "every click", "each token", "every misused form"]),
        (
            AcceptsEveryToken,
            ["bought more than one", "each token", "only issued tokens", "every misused form"],
        ),
        (ConfusesReasons, ["every misused form"]),
        (AdmitsEveryoneEverywhere, ["bought more than one", "each idempotency key", "each token"]),
    ],
)
async def test_a_planted_bug_is_named(broken: type[BrokenGate], named: list[str]) -> None:
    async with sale_dedup("memory://") as dedup:
        report = await sale(broken(dedup), stock=10 * BUYERS)  # enough for every greedy buyer
    for promise in named:
        assert any(promise in violation for violation in report.violations), report.violations


async def test_an_unavailable_store_ends_the_sale_with_the_error_itself() -> None:
    async with sale_dedup("unix:///nonexistent/redis.sock") as dedup:
        with pytest.raises(UnavailableError) as caught:
            await sale(dedup)
    assert isinstance(caught.value, DedupError)


# Through a sidecar


def test_the_sale_through_a_sidecar_keeps_every_promise(url: str) -> None:
    report = sidecar_demo.sell(url, buyers=BUYERS, stock=STOCK)
    assert report.violations == ()
    assert report.sold == STOCK
    assert report.duplicates_replayed == 2 * BUYERS
    assert (report.refused_used, report.refused_foreign, report.refused_unknown) == (
        BUYERS,
        THEFTS,
        FORGERIES,
    )
    assert report.claims == 4 * BUYERS + THEFTS + FORGERIES + report.in_progress


def test_what_the_processes_saw_is_checked_as_one_shops_books() -> None:
    sold = (200, {"buyer": "buyer:0", "order": 1})
    twice = [
        sidecar_demo.Books(
            clicks=[("order:buyer:0", sold)],
            first=[("order:buyer:0", sold)],
            orders=Counter({"buyer:0": 1}),
            accepted=Counter({"token": 1}),
        )
        for _ in range(2)
    ]
    shop, crowd = sidecar_demo.put_together(twice, ["token"], clicks=2)
    report = make_report(shop, crowd, buyers=1, clicks=2, stock=1, seconds=1.0)
    for promise in ("exactly 1 units", "bought more than one", "each idempotency key", "each token"):
        assert any(promise in violation for violation in report.violations), report.violations


def test_what_one_wire_wrote_the_other_reads() -> None:
    with Sidecar() as sidecar, HttpWire(sidecar.path) as http, RespWire(sidecar.path) as resp:
        pairs: list[tuple[Wire, Wire]] = [(http, resp), (resp, http)]
        for number, (one, other) in enumerate(pairs):
            claim = one.claim(f"k{number}", "ab" * 16, 0.0)
            assert claim.outcome is Outcome.ACQUIRED
            one.settle(f"k{number}", claim.owner, {"id": number}, succeeded=True)
            assert other.claim(f"k{number}", "ab" * 16, 0.5).value == {"id": number}
            failed = one.claim(f"f{number}", "ab" * 16, 0.0)
            one.settle(f"f{number}", failed.owner, "no", succeeded=False)
            assert other.claim(f"f{number}", "ab" * 16, 0.0)[::2] == (Outcome.FAILED, "no")
            token = one.issue("user:7")
            assert other.consume(token, "user:8") is Outcome.MISMATCH
            assert other.consume(token, "user:7") is Outcome.ACQUIRED
            assert one.consume(token, "user:7") is Outcome.SUCCEEDED
        with pytest.raises(UnavailableError, match="409"):
            http.settle("k0", "somebody", None, succeeded=True)
        sidecar.end()
        with pytest.raises(UnavailableError, match="does not answer"):
            http.issue("user:7")


# Payments


def test_each_payment_is_made_once_though_the_consumer_is_killed(url: str) -> None:
    report = run_payments(url, messages=40)
    assert report.violations == ()
    assert (report.payments, report.kills, report.acknowledged) == (40, KILLS, 80)
    assert report.deliveries > 80  # a killed consumer's messages came again
    assert report.by_gate + report.by_row >= 40  # more, where a payment's own acknowledgement was lost


def test_a_lost_and_a_doubled_payment_are_named() -> None:
    report = _report(Broker(["a", "b", "c"]), Counter({"a": 1, "b": 2}), 1.0)
    assert len(report.violations) == 2
    assert report.payments == 3


# As programs


@pytest.mark.parametrize("program", ["sale", "payments", "sidecar", "messages"])
def test_each_program_runs_as_its_docstring_says(program: str, redis_url: str) -> None:
    environment = {**os.environ, "REDIS_URL": redis_url, "PATH": "/bin:/usr/bin", "RABBITMQ": "/nonexistent"}
    done = ended("-m", f"examples.{program}", "20", environment=environment)
    assert done.returncode == 0, done.stderr
    facts = dict(re.findall(r"^  (\w[\w ]*\w)  +(.*)$", done.stdout, re.MULTILINE))
    assert facts["promises"] == "kept"
    assert "20" in (facts.get("buyers"), facts.get("payments"))


def test_a_broken_promise_is_told_and_ends_the_program_with_1(capsys: pytest.CaptureFixture[str]) -> None:
    report = _report(Broker(["a"]), Counter({"a": 2}), 1.0)
    with pytest.raises(SystemExit, match="True"):
        finish("Payments", report)
    told = capsys.readouterr()
    assert "BROKEN" in told.out
    assert told.err == "Broken promise: 1 payments were made more than once\n"


def test_the_table_of_the_examples_is_the_one_that_the_command_prints() -> None:
    printed = CliRunner().invoke(cli, ["inbox", "ddl", "--dialect", "sqlite"]).stdout.replace('"', "")
    assert INBOX_TABLE.split() == printed.split()

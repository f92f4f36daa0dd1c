"""`fastdedup top`, `healthcheck`, and records looked at through a running sidecar."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from rich.console import Console

import fastdedup.cli.main
from fastdedup import Dedup, fingerprint
from fastdedup.cli import top
from fastdedup.cli.top import Sample, frame, quantile
from fastdedup.errors import ConfigError, UnavailableError
from fastdedup.sidecar.client import forget_record, get_record
from fastdedup.web.inspection import place_of_request
from fastdedup.web.response import Response, ResponseCodec

from ..fixtures import fixture_of
from .running import Sidecar

Run = Callable[..., Result]
METRICS = """\
# TYPE fastdedup_operations counter
fastdedup_operations_total{namespace="shop",verb="claim",outcome="acquired"} %d
fastdedup_operations_total{namespace="shop",verb="claim",outcome="in_progress"} 100
# TYPE fastdedup_operation_seconds histogram
fastdedup_operation_seconds_bucket{verb="claim",le="0.001"} %d
fastdedup_operation_seconds_bucket{verb="claim",le="0.01"} 1000
fastdedup_operation_seconds_bucket{verb="claim",le="+Inf"} 1000
# TYPE fastdedup_breaker_state gauge
fastdedup_breaker_state{state="closed"} %d
fastdedup_breaker_state{state="open"} %d
# TYPE process_start_time_seconds gauge
process_start_time_seconds 1000
# TYPE fastdedup_degraded counter
fastdedup_degraded_total{namespace="shop",verb="claim",answered="yes"} %d
"""


sidecar = fixture_of(Sidecar, "--namespace", "shop", "--allow-stores", scope="module")


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    for name in ("FASTDEDUP_URL", "FASTDEDUP_NAMESPACE", "FASTDEDUP_SOCKET"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "140")
    return lambda *args: CliRunner().invoke(fastdedup.cli.main.cli, [str(arg) for arg in args])


def drawn(now: Sample, before: Sample | None = None, width: int = 140) -> str:
    out = io.StringIO()
    Console(file=out, width=width).print(frame(now, before, Path("/run/x.sock"), width))
    return out.getvalue()


# top


def test_one_frame_shows_what_a_sidecar_does(sidecar: Sidecar, run: Run) -> None:
    with sidecar.client() as ask:
        for number in range(10):
            ask.execute_command("FD.CLAIM", f"top:{number % 5}")
    result = run("top", "--once", "--socket", sidecar.path)
    assert result.exit_code == 0, result.output
    for part in (str(sidecar.path), "breaker closed", "claim", "acquired 50%", "in_progress 50%", " ms"):
        assert part in " ".join(result.stdout.split())


def test_rates_are_those_between_two_frames_or_since_the_start() -> None:
    before = Sample(METRICS % (400, 500, 1, 0, 0), 1100.0)
    now = Sample(METRICS % (900, 500, 1, 0, 0), 1102.0)
    assert " 5 " in drawn(before)  # 500 in 100 s
    assert " 250 " in drawn(now, before)
    assert "acquired 100%" in drawn(now, before)
    assert "degraded" not in drawn(now)


def test_an_outage_is_shown() -> None:
    told = drawn(Sample(METRICS % (900, 500, 0, 1, 77), 1100.0))
    assert "breaker open" in told
    assert "degraded answers 77" in told


def test_sixty_columns_cut_nothing() -> None:
    text = (
        (METRICS % (900, 500, 0, 1, 77)).replace('"claim"', '"transition"').replace(" 100\n", " 12345678\n")
    )
    told = drawn(Sample(text, 1100.0), width=60)
    assert "…" not in told
    assert max(map(len, told.splitlines())) <= 60
    for part in (
        "breaker open",
        "transition",
        "12,346,578",
        "9.82 ms",
        "in_progress 100%",
        "degraded answers 77",
    ):
        assert part in told


def test_a_quantile_is_guessed_within_its_cell() -> None:
    now = Sample(METRICS % (900, 500, 1, 0, 0), 1100.0)
    assert quantile(now, None, "claim", 0.25) == pytest.approx(0.0005)
    assert quantile(now, None, "claim", 0.75) == pytest.approx(0.0055)
    assert quantile(now, now, "claim", 0.5) == 0.0
    assert quantile(now, None, "issue", 0.5) == 0.0
    endless = Sample('fastdedup_operation_seconds_bucket{verb="claim",le="+Inf"} 5\n', 0.0)
    assert quantile(endless, None, "claim", 0.5) == 0.0


def test_it_goes_on_until_interrupted(sidecar: Sidecar, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(top.time, "sleep", pause)
    out = io.StringIO()
    top.watch(sidecar.path, once=False, every=0.5, console=Console(file=out, width=140))
    assert pauses == [0.5, 0.5, 0.5]
    assert "fastdedup at" in out.getvalue()


def test_it_goes_on_through_a_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    """The counts of the new sidecar begin at 0: its rates are those since its start, never negative."""
    gone = UnavailableError("no sidecar answers at /run/x.sock")
    restarted = (METRICS % (5, 2, 1, 0, 0)).replace("start_time_seconds 1000", "start_time_seconds 1110")
    turns = iter([Sample(METRICS % (900, 500, 1, 0, 0), 1100.0), gone, Sample(restarted, 1115.0)])

    def take(socket: Path) -> Sample:
        turn = next(turns, KeyboardInterrupt())
        if isinstance(turn, BaseException):
            raise turn
        return turn

    monkeypatch.setattr(top, "take", take)
    out = io.StringIO()
    top.watch(
        Path("/run/x.sock"), once=False, every=0.0, console=Console(file=out, width=140, force_terminal=True)
    )
    shown = out.getvalue()
    assert "no sidecar answers at /run/x.sock; trying again until Ctrl-C" in shown
    assert " 21 " in shown  # 105 in 5 s
    assert "│ -" not in shown


def test_an_answer_that_is_no_sidecars_is_said(sidecar: Sidecar, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(top, "fetch", lambda socket, address: (404, b""))
    with pytest.raises(UnavailableError, match="404"):
        top.take(sidecar.path)
    for body in (b"<html>no figures</html>", b"\xff"):
        monkeypatch.setattr(top, "fetch", lambda socket, address, body=body: (200, body))
        with pytest.raises(UnavailableError, match="other text than figures"):
            top.take(sidecar.path)


@pytest.mark.parametrize(
    "command",
    [["top", "--once"], ["healthcheck"], ["inspect", "k"], ["forget", "k"]],
    ids=lambda command: command[0],
)
def test_where_no_sidecar_answers_that_is_said_in_a_line(
    run: Run, tmp_path: Path, command: list[str]
) -> None:
    result = run(*command, "--socket", tmp_path / "none.sock")
    absence = 2 * (command[0] in ("inspect", "forget"))  # 1 says that there is no record
    assert (result.exit_code, result.stdout) == (1 + absence, "")
    assert "no sidecar answers at" in result.stderr
    assert result.stderr.count("\n") == 1


# healthcheck


def test_health_is_the_processs_and_readiness_the_stores(sidecar: Sidecar, run: Run) -> None:
    assert run("healthcheck", "--socket", sidecar.path).exit_code == 0
    assert run("healthcheck", "--ready", "--socket", sidecar.path).exit_code == 0


def test_a_sidecar_without_its_store_is_healthy_and_not_ready(run: Run) -> None:
    with Sidecar("--url", "unix:///nonexistent/redis.sock") as sidecar:
        assert run("healthcheck", "--socket", sidecar.path).exit_code == 0
        result = run("healthcheck", "--ready", "--socket", sidecar.path)
        assert result.exit_code == 1
        assert result.stdout == ""


# inspect and forget


def test_a_record_is_shown_and_forgotten_through_the_sidecar(sidecar: Sidecar, run: Run) -> None:
    with sidecar.client() as ask:
        owner = ask.execute_command("FD.CLAIM", "order:42", "FP", "body")[1]
        ask.execute_command("FD.COMPLETE", "order:42", owner, '{"id": 42}')
    at = ("--socket", sidecar.path)
    shown = run("inspect", "order:42", *at)
    assert shown.exit_code == 0, shown.output
    for part in ("succeeded", '{"id":42}', fingerprint("body").hex()):
        assert part in shown.stdout
    record = json.loads(run("inspect", "order:42", "--json", *at).stdout)
    assert (record["state"], record["result"], record["owner"]) == ("succeeded", {"id": 42}, owner.decode())
    assert run("forget", "order:42", *at).exit_code == 0
    assert run("forget", "order:42", *at).exit_code == 1
    assert run("inspect", "order:42", *at).exit_code == 1


@pytest.mark.parametrize("body", [b"paid", b""])  # without a body it is JSON for the sidecar
@pytest.mark.parametrize("kept", ["result", "error"])
def test_a_web_response_is_shown_by_its_parts(sidecar: Sidecar, run: Run, kept: str, body: bytes) -> None:
    key = f"{kept}-{len(body)}"

    async def serve() -> None:
        async with Dedup(f"sidecar://{sidecar.path}", namespace="shop") as dedup:
            place = place_of_request("POST", "/pay/{int:no}", "ann", key)
            web = dedup.scoped("http", codec=ResponseCodec())
            async with web.claim(place.key) as claim:
                response = Response(201, [(b"x-a", b"b")], body)
                await (claim.complete(response) if kept == "result" else claim.fail(response))

    asyncio.run(serve())
    named = ("--principal", "ann", "--key", key, "--namespace", "shop", "--socket", sidecar.path)
    shown = run("inspect", "--http", "POST", "/pay/{int:no}", *named, "--json")
    assert json.loads(shown.stdout)[kept] == {"status": 201, "headers": {"x-a": "b"}, "body": body.decode()}
    asked = run("inspect", "--http", "POST", "/pay/<int:no>", *named)
    assert "Flask's names are in braces too: /pay/{int:no}. " in asked.stderr


def test_without_a_namespace_it_is_the_sidecars_default(sidecar: Sidecar, run: Run) -> None:
    with sidecar.client() as ask:
        ask.execute_command("FD.CLAIM", "mine", "NS", "sms")
    at = ("--socket", sidecar.path)
    assert run("inspect", "mine", *at).exit_code == 1
    assert run("inspect", "mine", "--namespace", "sms", *at).exit_code == 0


def test_a_namespace_or_key_that_cannot_be_is_said(sidecar: Sidecar) -> None:
    with pytest.raises(ConfigError, match="namespace"):
        get_record(sidecar.path, "k", "no name")
    with pytest.raises(ConfigError):
        forget_record(sidecar.path, "", None)


def test_a_store_that_is_away_is_unavailable() -> None:
    with (
        Sidecar("--url", "unix:///nonexistent/redis.sock") as sidecar,
        pytest.raises(UnavailableError, match=r"^the store does not answer.*log says why"),
    ):
        get_record(sidecar.path, "k", None)


@pytest.mark.parametrize("way", ["--socket", "--url"])
def test_a_sidecar_hears_why_a_record_is_forgotten(sidecar: Sidecar, run: Run, way: str) -> None:
    """As the help says."""
    where = [way, sidecar.path if way == "--socket" else f"sidecar://{sidecar.path}", "--namespace", "shop"]
    with sidecar.client() as ask:
        ask.execute_command("FD.CLAIM", f"k{way}")
    assert run("forget", f"k{way}", *where, "--reason", f"by {way}").exit_code == 0
    assert run("list", *where, "--reason", f"listed by {way}").exit_code == 0
    for line in f'reason="by {way}"', f'reason="listed by {way}"':
        assert line in sidecar.log
    help_text = " ".join(run("forget", "--help").stdout.split())
    assert "for the log of the sidecar (--socket, --url sidecar:///…)" in help_text


def test_a_sidecar_is_told_the_namespace_of_a_web_key(sidecar: Sidecar, run: Run) -> None:
    """Its own default is not that of an application; a store's is, where the application has none of its own."""
    request = ["--http", "POST", "/orders", "--key", "k-1"]
    for command, named in (("inspect", request), ("forget", request), ("list", ["--http"])):
        refused = run(command, *named, "--socket", sidecar.path)
        assert (refused.exit_code, "takes --namespace" in refused.stderr) == (2, True)
        assert run(command, *named, "--url", f"sidecar://{sidecar.path}").exit_code != 2
        help_text = " ".join(run(command, "--help").stdout.split())
        assert (
            "--namespace" in help_text.partition("A web key" if named is request else "The web keys")[2][:230]
        )


def test_socket_and_url_do_not_go_together(run: Run, tmp_path: Path) -> None:
    result = run("inspect", "k", "--socket", tmp_path / "x.sock", "--url", "redis://localhost")
    assert result.exit_code == 2
    assert "not both" in result.stderr

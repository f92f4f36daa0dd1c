"""Fault 18: passwords, tokens and owners were printed.

Where AUTH is renamed, Redis answers it with its arguments, and our exception, `serve` and `inspect`
repeated them. So did messages about settings that were given the wrong variable, and the log of a
failing `on_event`. Secrets are put in everywhere here, and looked for in everything that comes out.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme
from click.testing import CliRunner
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from fastdedup import (
    ConfigError,
    Dedup,
    DedupError,
    InvalidKeyError,
    LocalLRU,
    Reject,
    UnavailableError,
    business_key,
    fingerprint,
)
from fastdedup.cli.bench import Plan
from fastdedup.cli.main import cli
from fastdedup.events import Event
from fastdedup.sidecar.service.config import Config, load
from fastdedup.sidecar.service.mistakes import Sources
from fastdedup.stores import make_store
from fastdedup.stores.redis.url import ServerURL

from ..programs import ended
from ..servers import RedisServer, free_port
from ..waiting import wait_until

WORD = "s3cret"
USER, PASSWORD, OWNER, SUBJECT, TOKEN = (
    f"{WORD}-{name}" for name in ("user", "pass", "owner", "subj", "token")
)
URL = f"redis://{USER}:{PASSWORD}@localhost:1/0"


def told(error: BaseException) -> str:
    """All that an error and what led to it say, and the local variables of those frames that know a login.

    Other frames hold arguments as the caller's own frame does: a token in `tokens.consume(token)`.
    """
    said, left, seen = [], [error], set()
    while left:
        each = left.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        said += [str(each), repr(each), repr(each.args), repr(getattr(each, "__notes__", ""))]
        left += [one for one in (each.__cause__, each.__context__) if one is not None]
        left += [one for one in each.args if isinstance(one, BaseException)]
        trace = each.__traceback__
        while trace is not None:
            module = trace.tb_frame.f_globals["__name__"]
            if module.startswith(("fastdedup.stores", "redis.")):
                said += [f"{module}: {name}={value!r}" for name, value in trace.tb_frame.f_locals.items()]
            trace = trace.tb_next
    return "\n".join(said)


def check(text: str) -> None:
    found = [line for line in text.splitlines() if WORD in line]
    assert not found, found


@pytest.fixture
def everything_logged(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Whatever is logged by anybody meanwhile shows no secret."""
    with caplog.at_level(logging.DEBUG):
        yield
    check(caplog.text)
    check("\n".join(repr(vars(record)) for record in caplog.records))


# Settings that were given the wrong variable

WRONG_URLS: list[Any] = [
    URL.encode(),
    bytearray(URL.encode()),
    [URL],
    (URL,),
    {"url": URL},
    f"{USER}:{PASSWORD}@localhost:6379",
    f"{WORD}:6379",
    f"/{WORD}",
    f"/{WORD}.sock?password={PASSWORD}",
    PASSWORD,
    f"reddis://{USER}:{PASSWORD}@localhost",
    f"redis:/{PASSWORD}@localhost",
    f"http://{USER}:{PASSWORD}@localhost",
    f"redis://{USER}:{PASSWORD}@localhost:port",
    f"redis://:{PASSWORD}/x@localhost",
    f"redis://:12?{PASSWORD}@localhost",
    f"redis://:12#{PASSWORD}@localhost",
    f"redis://localhost?password=x&{WORD}=y",
    f"redis://localhost?db={WORD}",
    f"redis://localhost?socket_timeout={WORD}",
    f"rediss://localhost?ssl_cert_reqs={WORD}",
    f"rediss://localhost?ssl_min_version={WORD}",
    f"redis+sentinel://:{PASSWORD}@localhost/main?sentinel_password={PASSWORD}&flavour=vanilla",
    f"redis+sentinel://localhost?sentinel_password={PASSWORD}",
    f"redis+cluster://:{PASSWORD}@localhost:port",
    f"redis+cluster://:{PASSWORD}@localhost/1",
    f"memory://{PASSWORD}",
    f"memory://?maxsize={WORD}",
    f"sidecar://{USER}:{PASSWORD}@/run/x.sock",
    f"sidecar:///run/x.sock?password={PASSWORD}",
    f"redis://{USER}:{PASSWORD}@localhost/zero",
    f"redis://user:{WORD}@{PASSWORD}@localhost/zero",
    f"redis://:{PASSWORD}@",
    f"redis://:{PASSWORD}@localhost?flavour=vanilla",
    f"redis://localhost/zero?password={PASSWORD}",
    f"redis://localhost?db=zero&password={PASSWORD}",
    f"redis+sentinel://:{PASSWORD}@localhost",
    f"redis+sentinel://:{PASSWORD}@localhost:port/main",
    f"redis+sentinel://:{PASSWORD}/x@localhost/main",
    f"redis+sentinel://:{PASSWORD}@localhost/main/zero",
    f"redis+sentinel://:{WORD}@{PASSWORD}@localhost,/main",
    f"redis+cluster://:{PASSWORD}#x@localhost",
    f"redis+cluster://:{PASSWORD}@localhost?db=zero",
    f"unix://:{PASSWORD}@",
    f"unix://?password={PASSWORD}",
]


@pytest.mark.parametrize("url", WRONG_URLS, ids=range(len(WRONG_URLS)))
def test_a_url_that_cannot_be_used_is_not_repeated(url: Any, everything_logged: None) -> None:
    with pytest.raises(ConfigError) as caught:
        Dedup(url)
    check(told(caught.value))
    with pytest.raises(ConfigError) as caught:
        make_store(url, 0.25)
    check(told(caught.value))


WRONG_SETTINGS: dict[str, Callable[[Any], Any]] = {
    **{
        name: lambda value, name=name: Dedup("memory://", **{name: value})
        for name in (
            *("namespace", "lease", "ttl", "failure_ttl", "token_ttl", "timeout", "replicas", "on_shortfall"),
            *("on_unavailable", "codec", "max_result", "max_pending", "readable_keys", "known_duplicates"),
            "on_event",
        )
    },
    "scoped": lambda value: Dedup("memory://").scoped(value),
    "retry_after": lambda value: Reject(retry_after=value),
    "maxsize": lambda value: LocalLRU(maxsize=value),
    "window": lambda value: business_key("a", window=value),
    "at": lambda value: business_key("a", window=1, at=value),
    "part": lambda value: business_key([value]),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("value", [URL, URL.encode(), [URL], PASSWORD.encode()], ids=range(4))
@pytest.mark.parametrize("setting", WRONG_SETTINGS)
def test_a_setting_does_not_repeat_the_wrong_variable(setting: str, value: Any) -> None:
    with pytest.raises(DedupError) as caught:
        WRONG_SETTINGS[setting](value)
    check(told(caught.value))


async def test_what_utf8_cannot_hold_is_not_repeated() -> None:
    """Python's own error holds the whole text."""
    async with Dedup("memory://") as dedup:
        for ask in (
            lambda: dedup.claim("k", owner=f"{OWNER}\ud800"),
            lambda: dedup.claim("k", fingerprint=f"{SUBJECT}\ud800"),
            lambda: dedup.tokens.issue(subject=f"{SUBJECT}\ud800"),
            lambda: dedup.tokens.issue(subject={SUBJECT: object()}),
        ):
            with pytest.raises((ConfigError, InvalidKeyError)) as caught:
                await ask()
            check(told(caught.value))


# Servers that repeat what they were sent


@pytest.fixture(scope="module")
def renamed() -> Iterator[RedisServer]:
    """Its AUTH is called something else: it answers AUTH with the arguments. On a socket and a port."""
    server = RedisServer("--rename-command", "AUTH", "CONCEALED", "--port", str(port := free_port())).start()
    server.port = port  # type: ignore[attr-defined]
    yield server
    server.stop()


@pytest.fixture(scope="module")
def strict() -> Iterator[RedisServer]:
    """A server whose user may do hardly anything; Redis names the user in its refusals."""
    rule = ["--user", USER, "on", f">{PASSWORD}", "~*", "+ping", "+client"]
    server = RedisServer("--port", str(port := free_port()), *rule).start()
    server.port = port  # type: ignore[attr-defined]
    yield server
    server.stop()


def urls(server: RedisServer, password: str) -> dict[str, str]:
    login = f"{USER}:{password}@"
    place = f"127.0.0.1:{server.port}"  # type: ignore[attr-defined]
    return {
        "socket": f"unix://{login}{server.socket}",
        "tcp": f"redis://{login}{place}",
        "sentinel": f"redis+sentinel://{login}{place}/main?sentinel_username={USER}&sentinel_password={password}",
        "cluster": f"redis+cluster://{login}{place}",
    }


SERVERS = [("renamed", PASSWORD), ("strict", PASSWORD), ("strict", f"{WORD}-wrong")]


async def ask(url: str) -> list[BaseException]:
    """Everything that opening and claiming raise, events included."""
    events: list[Event] = []
    errors: list[BaseException] = []
    gate = Dedup(url, timeout=0.5, on_event=events.append)
    for step in (gate.open, lambda: gate.claim("k"), lambda: gate.tokens.consume(TOKEN, SUBJECT)):
        try:
            await step()
        except Exception as error:  # noqa: BLE001 -- that is what we look at
            errors.append(error)
    await gate.aclose()
    check(repr(events))
    kept = (
        gate.gate.connections,
        gate.gate.connections.common,
        gate.gate.connection,
        gate.gate.connection.store,
    )
    check(f"{gate!r} {[vars(each) for each in kept]!r}")
    return errors


@pytest.mark.parametrize(("name", "password"), SERVERS)
@pytest.mark.parametrize("way", ["socket", "tcp", "sentinel", "cluster"])
async def test_what_a_server_says_is_not_repeated(
    request: pytest.FixtureRequest, name: str, password: str, way: str, everything_logged: None
) -> None:
    """The error says in our own words what is wrong."""
    errors = await ask(urls(request.getfixturevalue(name), password)[way])
    assert errors
    assert isinstance(errors[0], DedupError)
    assert any(
        word in str(errors[0]) for word in ("AUTH", "SENTINEL", "refused", "may not do this", "password")
    ), errors
    for error in errors:
        check(told(error))


@pytest.mark.parametrize(
    ("command", "name"),
    [*itertools.product(["inspect", "forget", "bench", "demo"], ["renamed", "strict"]), ("serve", "renamed")],
)
def test_no_command_prints_the_password(
    request: pytest.FixtureRequest, name: str, command: str, tmp_path: Path
) -> None:
    url = urls(request.getfixturevalue(name), PASSWORD)["socket"]
    more = {
        "inspect": ["k"],
        "forget": ["k"],
        "serve": ["--socket", str(tmp_path / "s")],
    }
    environment = {**os.environ, "FASTDEDUP_URL": url}
    done = ended("-m", "fastdedup", command, *more.get(command, []), environment=environment)
    known = 3 if name == "strict" else 2
    assert done.returncode == (1 if command == "serve" else known)
    assert done.stderr.strip()
    assert "Traceback" not in done.stderr
    check(done.stdout + done.stderr)


# TLS


async def test_the_password_of_a_key_is_not_repeated(tmp_path: Path, everything_logged: None) -> None:
    certificate = trustme.CA().issue_cert("localhost")
    key = load_pem_private_key(certificate.private_key_pem.bytes(), None)
    locked = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"right"))
    (tmp_path / "key.pem").write_bytes(locked)
    certificate.cert_chain_pems[0].write_to_path(str(tmp_path / "cert.pem"))
    files = f"ssl_keyfile={tmp_path}/key.pem&ssl_certfile={tmp_path}/cert.pem&ssl_password={PASSWORD}"
    for error in await ask(f"rediss://{USER}:{PASSWORD}@127.0.0.1:1/0?{files}"):
        check(told(error))


# The sidecar's configuration

WRONG_CONFIG = f"""\
url = "reddis://{USER}:{PASSWORD}@localhost"
lease = "{PASSWORD}"
password = "{PASSWORD}"
log_level = "{PASSWORD}"
allow_uids = ["{USER}"]
namespace = "{URL}"
[limits]
batch = "{PASSWORD}"
[namespaces."{URL}"]
ttl = 1
"""


def test_check_config_repeats_no_value(tmp_path: Path) -> None:
    file = tmp_path / "wrong.toml"
    file.write_text(WRONG_CONFIG)
    result = CliRunner().invoke(cli, ["check-config", str(file)])
    assert result.exit_code == 1
    assert len(result.stderr.splitlines()) >= 7, result.stderr
    check(result.output + result.stderr)
    with pytest.raises(ConfigError) as caught:
        load(file, environment=False)
    check(told(caught.value))


def test_variables_and_flags_are_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("URL", "LEASE", "LOG_LEVEL", "NAMESPACE", "ALLOW_UIDS", "LIMITS__BATCH", "ON_UNAVAILABLE"):
        monkeypatch.setenv(f"FASTDEDUP_{name}", URL)
    for flags in ({}, {"url": PASSWORD, "namespace": URL, "on_unavailable": PASSWORD}):
        with pytest.raises(ConfigError) as caught:
            load(None, flags)
        check(told(caught.value))


def test_no_repr_shows_a_login() -> None:
    shown = [
        Config(url=URL),
        Sources(None, {"url": URL}, {"FASTDEDUP_URL": URL}, "FASTDEDUP_"),
        Plan(URL, 1, 1.0, "bench"),
        Dedup(URL),
        Dedup(URL).scoped("x"),
        make_store(URL, 1.0),
        ServerURL.of(URL),
        ServerURL.of(URL).unconnected(1.0),
    ]
    check("\n".join(f"{each!r} {each!s}" for each in shown))


# Owners, tokens, subjects


async def test_no_answer_shows_its_owner_or_token(redis_url: str, redis_server: RedisServer) -> None:
    async with Dedup(redis_url, token_ttl=60.0, ttl=60.0) as dedup:
        claim = await dedup.claim("order:7", owner=OWNER, fingerprint=SUBJECT)
        token = await dedup.tokens.issue(subject=SUBJECT)
        redeemed = await dedup.tokens.redeem(token, SUBJECT)
        record = await dedup.get("order:7")
        call = dedup.claim("order:8", owner=OWNER)
        shown = [claim, redeemed, record, call, fingerprint(SUBJECT)]
        text = "\n".join(f"{each!r} {each!s}" for each in shown)
        call.close()
        check(text)
        assert token not in text
        await dedup.forget("order:7")
        with pytest.raises(DedupError) as caught:
            await claim.complete()
        check(told(caught.value))


async def test_a_failing_on_event_logs_no_owner(
    redis_url: str, redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    """A lease is lost, and the callback raises an error that repeats the event."""

    def fails(event: Any) -> None:
        raise ValueError(f"{event.owner} lost {event.key}")

    async with Dedup(redis_url, lease=0.2, ttl=60.0, on_event=fails) as dedup:
        with contextlib.suppress(DedupError, asyncio.CancelledError):
            async with dedup.claim("order:7", owner=OWNER, renew=True) as claim:
                await dedup.forget(claim.key)
                await wait_until(lambda: claim.lost, description="the lease is known to be lost")
    assert "on_event callback failed on LeaseLost" in caplog.text
    check(caplog.text)


async def test_an_error_is_not_spoilt_for_whoever_handles_another(everything_logged: None) -> None:
    """What is cut off is redis-py's own: the caller's exception keeps its traceback and cause."""
    async with Dedup("redis://127.0.0.1:1", timeout=1.0) as dedup:
        own = ValueError("the caller's own")
        try:
            raise own
        except ValueError:
            with pytest.raises(UnavailableError, match="Connection refused"):
                await dedup.claim("k")
        assert own.__traceback__ is not None
        assert own.args == ("the caller's own",)

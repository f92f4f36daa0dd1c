"""Fault 13.9: a password could not be changed without a restart.

`credentials=` is asked for the login of each new connection; the sidecar reads its password file again.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.credentials import CredentialProvider

from fastdedup import ConfigError, Dedup, UnavailableError
from fastdedup.stores.memory import MemoryStore
from fastdedup.sync import Dedup as SyncDedup

from ..sidecar.running import Sidecar
from ..topologies import running
from ..waiting import is_answered, wait_until
from .test_secrets_stay_secret import told

USER = "shop"
FIRST, SECOND = "s3cret-one", "s3cret-two"


class Servers:
    """Servers whose user has one password, which can be changed; `url` has no password."""

    def __init__(self, url: str, servers: list[Any]) -> None:
        self.url = url
        self._servers = servers
        self.password = ""
        self.set(FIRST)

    def set(self, password: str) -> None:
        """Change the password at the servers, and close the user's connections."""
        for server in self._servers:
            with server.client() as raw:
                rules = ("reset", "on", f">{password}", "~*", "&*", "+@all")
                raw.execute_command("ACL", "SETUSER", USER, *rules)
                raw.execute_command("CLIENT", "KILL", "USER", USER)
        self.password = password


@pytest.fixture(scope="module", params=["single", "sentinel", "cluster"])
def every(request: pytest.FixtureRequest) -> Iterator[Servers]:
    with running(request.param) as given:
        yield Servers(*given)


@pytest.fixture(scope="module")
def running_server() -> Iterator[Servers]:
    with running("single") as given:
        yield Servers(*given)


@pytest.fixture
def servers(running_server: Servers) -> Servers:
    running_server.set(FIRST)
    return running_server


def gate(url: str, credentials: Any, **settings: Any) -> Dedup:
    return Dedup(url, credentials=credentials, **{"namespace": "t", "timeout": 0.5, **settings})


async def answered(dedup: Dedup) -> bool:
    """Every key gets an answer, of every node."""
    return await is_answered(dedup.claim_many([f"key-{number}" for number in range(64)]))


async def test_a_gate_goes_on_with_the_new_password(every: Servers) -> None:
    """Without a restart, with its claims, and with the subscription of its waiters."""
    every.set(FIRST)
    secret = FIRST
    # Time enough on a busy machine to be refused, and not only to be late.
    async with gate(every.url, lambda: (USER, secret), lease=60.0, timeout=5.0) as dedup:
        assert await answered(dedup)
        claim = await dedup.claim("order")
        every.set(SECOND)
        with pytest.raises(UnavailableError, match="credentials"):
            await dedup.claim("refused")
        secret = SECOND
        await wait_until(lambda: answered(dedup), description="it logs in with the new password")
        waiting = asyncio.ensure_future(dedup.claim("order", wait=20.0))
        await claim.complete("done")
        async with asyncio.timeout(5.0):
            assert (await waiting).result == "done"
        await dedup.forget("order")


async def test_slow_credentials_delay_and_do_not_break(every: Servers) -> None:
    """They may take longer than a call: callers are refused meanwhile, and later ones are answered."""
    every.set(FIRST)
    fetched = asyncio.Event()

    async def fetch() -> tuple[str, str]:
        await fetched.wait()
        return USER, every.password

    async with gate(every.url, fetch, timeout=0.2) as dedup:
        assert not await answered(dedup)
        fetched.set()
        await wait_until(lambda: answered(dedup), description="it has logged in")


class Provider(CredentialProvider):
    """As redis-py's users write one."""

    def __init__(self, servers: Servers) -> None:
        self.servers = servers

    def get_credentials(self) -> tuple[str, str]:
        return USER, self.servers.password


class AsyncProvider(CredentialProvider):
    def __init__(self, servers: Servers) -> None:
        self.servers = servers

    async def get_credentials_async(self) -> tuple[str, str]:
        return USER, self.servers.password


def function(servers: Servers) -> Any:
    return lambda: (USER, servers.password)


def async_function(servers: Servers) -> Any:
    async def login() -> tuple[str, str]:
        return USER, servers.password

    return login


@pytest.mark.parametrize("kind", [function, async_function, Provider, AsyncProvider])
async def test_functions_and_providers_give_the_login(
    servers: Servers, kind: Callable[[Servers], Any], caplog: pytest.LogCaptureFixture
) -> None:
    async with gate(servers.url, kind(servers)) as dedup:
        assert await answered(dedup)
        servers.set(SECOND)
        assert await answered(dedup)
    assert not caplog.records


async def test_the_urls_user_counts_where_none_is_named(servers: Servers) -> None:
    url = servers.url.replace("unix://", f"unix://{USER}@")
    for login in ((None, FIRST), (FIRST,), ("", FIRST), [None, FIRST]):
        async with gate(url, lambda login=login: login) as dedup:
            assert await answered(dedup), login


def test_the_synchronous_gate_goes_on_with_the_new_password(servers: Servers) -> None:
    with SyncDedup(servers.url, namespace="t", credentials=lambda: (USER, servers.password)) as dedup:
        assert dedup.claim("sync-1").acquired
        servers.set(SECOND)
        assert dedup.claim("sync-2").acquired


def test_the_sidecar_reads_its_password_file_again(servers: Servers, tmp_path: Path) -> None:
    """The file has a line's end, as editors write it."""
    file = tmp_path / "password"
    file.write_text(f"{FIRST}\n")
    url = servers.url.replace("unix://", f"unix://{USER}@")
    config = f'url = "{url}"\npassword_file = "{file}"\n'
    with Sidecar(config=config) as sidecar, sidecar.client() as raw:
        assert raw.execute_command("FD.CLAIM", "sidecar-1")[0] == b"acquired"
        file.write_text(SECOND)
        servers.set(SECOND)
        assert raw.execute_command("FD.CLAIM", "sidecar-2")[0] == b"acquired"
        file.unlink()
        servers.set(FIRST)
        with pytest.raises(redis.ResponseError, match="the sidecar's log says why"):
            raw.execute_command("FD.CLAIM", "sidecar-3")
        sidecar.end()
        assert re.search(r"password_file .*: No such file", sidecar.log)
        assert "s3cret" not in sidecar.log + sidecar.out


# What is wrong with them, without the password


def fails() -> Any:
    raise ValueError(FIRST)


async def fails_later() -> Any:
    fails()


def not_there() -> Any:
    raise FileNotFoundError(2, "No such file or directory", "/run/secrets/redis")


@pytest.mark.parametrize(
    ("credentials", "says"),
    [
        (fails, "credentials raised ValueError"),
        (fails_later, "credentials raised ValueError"),
        (lambda: FIRST, "credentials returned str"),
        (lambda: None, "credentials returned NoneType"),
        (lambda: (USER, FIRST.encode()), "a password of type bytes"),
        (lambda: (USER, FIRST, "more"), "3 values"),
        (lambda: (), "0 values"),
        (lambda: (7, FIRST), "a user name of type int"),
        (lambda: (USER, ""), "an empty password"),
        (lambda: (USER, f"{FIRST}-wrong"), "Redis refused the user or password.*credentials"),
    ],
)
async def test_credentials_that_give_no_login_are_a_mistake(
    servers: Servers, credentials: Any, says: str
) -> None:
    """Told at opening; later the policy answers, in the same words."""
    with pytest.raises(ConfigError, match=says) as caught:
        await gate(servers.url, credentials).open()
    assert "s3cret" not in told(caught.value)
    ask = function(servers)
    async with gate(servers.url, lambda: ask()) as dedup:
        ask = credentials
        servers.set(FIRST)
        with pytest.raises(UnavailableError, match=says) as refused:
            await dedup.claim("key")
        assert "s3cret" not in told(refused.value)


async def test_what_the_system_refuses_is_an_outage(servers: Servers) -> None:
    """A file or a service that is away now may be there later."""
    async with gate(servers.url, not_there) as dedup:
        with pytest.raises(UnavailableError, match="credentials raised FileNotFoundError: No such file"):
            await dedup.claim("key")


@pytest.mark.parametrize(
    ("url", "credentials", "says"),
    [
        ("redis://h", (USER, FIRST), "credentials must be a function .*, got tuple"),
        ("redis://h", Provider, "the class Provider: make an object"),
        (f"redis://{USER}:{FIRST}@h", fails, "a password in the URL"),
        (f"unix:///run/redis.sock?password={FIRST}", fails, "a password in the URL"),
        (f"redis+sentinel://:{FIRST}@h/main", fails, "a password in the URL"),
        (f"redis+cluster://:{FIRST}@h", fails, "a password in the URL"),
        ("memory://", fails, "memory:// has no login"),
        ("sidecar:///run/fd.sock", fails, "password_file"),
        (MemoryStore(), fails, "credentials= goes with a URL"),
    ],
)
def test_credentials_that_cannot_be_used_are_refused_at_once(url: Any, credentials: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        Dedup(url, credentials=credentials)
    assert "s3cret" not in told(caught.value)


def test_the_sentinels_keep_the_login_of_the_url(servers: Servers) -> None:
    """`credentials` is for the servers; `sentinel_password=` stays in the URL."""
    dedup = Dedup("redis+sentinel://h/main?sentinel_password=watch", credentials=lambda: (USER, FIRST))
    target = dedup.gate.connection.store._target  # type: ignore[attr-defined]
    sentinel = target.sentinels[0].unconnected(1.0)
    assert (sentinel.username, sentinel.password) == (None, "watch")
    assert target.sentinels[0]._credentials is None

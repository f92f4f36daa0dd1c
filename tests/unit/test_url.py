"""URLs of every store: what they mean, what is wrong with them, and no password in any message."""

import re
from typing import Any

import pytest
from redis.asyncio.connection import Connection, SSLConnection

from fastdedup import ConfigError, Dedup
from fastdedup.stores import make_store
from fastdedup.stores.memory import MemoryStore
from fastdedup.stores.redis import ClusterStore, RedisStore
from fastdedup.stores.redis.sentinel import SentinelTarget
from fastdedup.stores.redis.url import ServerURL, name_of, parse


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("redis://host", {"host": "host"}),
        ("redis://host:6380/3", {"host": "host", "port": 6380, "db": 3}),
        ("redis://user:p%40ss@host/0", {"host": "host", "username": "user", "password": "p@ss"}),
        ("rediss://host:6380", {"host": "host", "port": 6380}),
        ("redis://[::1]:6379/0", {"host": "::1", "port": 6379}),
        ("unix:///run/redis.sock?db=2", {"path": "/run/redis.sock", "db": 2}),
        ("unix://user:pw@/run/redis.sock", {"path": "/run/redis.sock", "username": "user", "password": "pw"}),
        ("REDIS://host", {"host": "host"}),
    ],
)
def test_a_url_says_where_redis_is_and_how_to_log_in(url: str, options: dict[str, Any]) -> None:
    """As redis-py reads it, which many programs share their URL with."""
    parsed, _ = parse(url)
    assert parsed.items() >= options.items()


def test_rediss_is_tls() -> None:
    """The scheme decides, not an option."""
    assert issubclass(parse("rediss://host")[1], SSLConnection)
    assert parse("redis://host")[1].__name__ == "Connection"
    assert parse("unix:///run/redis.sock")[1].__name__ == "UnixDomainSocketConnection"


def test_a_connection_gives_up_within_the_deadline_and_once() -> None:
    """redis-py's stock retries would resend for seconds."""
    connection = ServerURL.of("redis://host").unconnected(0.25)
    assert (connection.socket_timeout, connection.socket_connect_timeout) == (0.25, 0.25)
    assert connection.retry._retries == 0  # redis-py 5.3 has no get_retries()
    assert ServerURL.of("redis://host?socket_timeout=2").unconnected(0.25).socket_timeout == 2


@pytest.mark.parametrize(
    ("url", "kept"),
    [("redis://host", True), ("rediss://host", True), ("redis://h?socket_keepalive=no", False)],
)
def test_a_connection_by_tcp_is_kept_alive_unless_its_url_says_no(url: str, kept: bool) -> None:
    connection = ServerURL.of(url).unconnected(0.25)
    assert isinstance(connection, Connection)
    assert connection.socket_keepalive is kept
    assert ServerURL.of("unix:///run/redis.sock").unconnected(0.25), "it takes no such option"


@pytest.mark.parametrize(
    ("url", "store"),
    [
        ("memory://", MemoryStore),
        ("memory://?maxsize=7&max_bytes=4096", MemoryStore),
        ("redis://host", RedisStore),
        ("rediss://host", RedisStore),
        ("unix:///run/redis.sock", RedisStore),
        ("MEMORY://", MemoryStore),
        ("redis+sentinel://host/main", RedisStore),
        ("rediss+sentinel://host/main", RedisStore),
        ("redis+cluster://host", ClusterStore),
        ("rediss+cluster://host", ClusterStore),
        ("Redis+Cluster://host", ClusterStore),
    ],
)
def test_the_scheme_names_the_store(url: str, store: type) -> None:
    """Whatever its case."""
    assert type(make_store(url, 0.25)) is store


@pytest.mark.parametrize(
    ("url", "advice"),
    [
        # No scheme, or one that nobody knows: the message lists those that exist.
        ("", r"memory://, redis://, rediss://, unix://, redis\+sentinel://, .*redis\+cluster://"),
        ("", "is empty: write redis://localhost:6379/0"),  # a variable is not set
        ("  ", "is empty: write redis://localhost:6379/0"),
        ("localhost:6379", "use one of"),
        ("redis:/host", "use one of"),
        ("http://host", "'http'"),
        ("postgresql://host/db", "'postgresql'"),
        # memory://
        ("memory://host", "write memory://"),
        ("memory:///path", "write memory://"),
        ("memory://?size=7", "write memory://"),
        ("memory://?maxsize=0", "maxsize must be a whole number of at least 1"),
        ("memory://?maxsize=-1", "maxsize"),
        ("memory://?maxsize=many", "maxsize in the memory:// URL must be a whole number"),
        ("memory://?maxsize=1.5", "maxsize"),
        ("memory://?maxsize=", "maxsize"),
        ("memory://?maxsize=7&maxsize=8", "give each option once"),
        ("memory://?maxsize", "maxsize"),
        ("memory://[", "memory://"),
        # redis:// and rediss://
        ("redis://", "names no host: write redis://host:6379/0"),
        ("redis:///0", "names no host"),
        ("rediss://:pw@", "names no host"),
        ("redis://.redis.svc", "a part of it is empty"),
        (f"rediss://{'a' * 64}.svc", "too long"),
        ("redis://a%00", "no name of a host"),
        ("redis://:p\udcff@host", "no UTF-8"),
        ("redis://host:port", "cannot read the Redis URL"),
        ("redis://host:99999", "cannot read the Redis URL"),
        ("redis://host:0", "from 1 to 65535"),
        ("redis://host?port=0", "from 1 to 65535"),
        ("redis://host?port=70000", "from 1 to 65535"),
        ("redis://[::1", "cannot read the Redis URL"),
        ("redis://host/zero", "the database in .* must be a number"),
        ("redis://host/-1", "must be a number"),
        ("redis://host/0/1", "must be a number"),
        ("redis://host/\N{SUPERSCRIPT TWO}", "must be a number"),
        ("redis://host?db=zero", "'db'"),
        ("redis://host?db=1&db=2", "an option is given twice: give it once"),
        ("redis://host/5?db=1", "names one database, and db= another"),
        ("redis+sentinel://host/main?db=1&%64b=2", "an option is given twice: give it once"),
        ("redis+sentinel://host/main/5?db=1", "names one database, and db= another"),
        ("redis://host?d%62=1&db=1", "an option is given twice"),
        ("redis://me@host?username=you", "an option is given twice"),
        ("rediss://:one@host?password=another", "an option is given twice"),
        ("redis://host:6379?port=6380", "an option is given twice"),
        ("redis+sentinel://host/main?sentinel_password=a&sentinel_password=b", "an option is given twice"),
        ("redis://host?socket_timeout=soon", "socket_timeout"),
        ("redis://host?flavour=vanilla", "unknown option: .*flavour"),
        ("redis://host?protocol=9", "protocol"),
        ("rediss://host?ssl_cert_reqs=perhaps", "must be none, optional or required"),
        ("rediss://host?ssl_ca_certs=/nowhere/ca.pem", "ssl_ca_certs: there is no file /nowhere/ca.pem"),
        ("rediss+cluster://host?ssl_certfile=/nowhere/me.pem", "rediss.cluster.*ssl_certfile: there is no"),
        # unix://
        ("unix://", "names no socket: write unix:///path/to/redis.sock"),
        ("unix://?db=0", "names no socket"),
        ("unix://run/redis.sock", "two slashes before the path: write three, unix:///path/to/redis.sock"),
        ("unix:///run/redis.sock?db=zero", "'db'"),
        # redis+sentinel://
        ("redis+sentinel://", "names no host, or an empty host; write redis.sentinel://user"),
        ("redis+sentinel://host", "must stand the name of the service"),
        ("redis+sentinel://host/", "must stand the name of the service"),
        ("redis+sentinel://host/main/0/1", "must stand the name of the service"),
        ("redis+sentinel://host/main/zero", "the database must be a number"),
        ("redis+sentinel://host,/main", "an empty host"),
        ("redis+sentinel://a:1,b:port/main", "its hosts cannot be read"),
        ("redis+sentinel://a:1,b:70000/main", "from 1 to 65535"),
        ("redis+sentinel://a:0/main", "from 1 to 65535"),
        ("redis+sentinel://[::1/main", "its hosts cannot be read"),
        ("redis+sentinel://host,.redis.svc/main", "its hosts cannot be read"),
        ("redis+sentinel://host/m\udcff", "no UTF-8"),
        ("redis+sentinel://host/main?flavour=vanilla", "unknown option: .*flavour"),
        ("redis+sentinel://host/main?socket_timeout=soon", "socket_timeout"),
        # redis+cluster://
        ("redis+cluster://", "names no host"),
        ("redis+cluster://a..b", "its hosts cannot be read"),
        ("redis+cluster://a b", "its hosts cannot be read"),
        ("redis+cluster://host/1", "only database 0"),
        ("redis+cluster://host/zero", "only database 0"),
        ("redis+cluster://host?db=1", "only database 0"),
        ("redis+cluster://host?host=another", "an option is given twice"),
        ("redis+cluster://host?sentinel_password=x", "unknown option: .*sentinel_password"),
        ("rediss+cluster://host?ssl_cert_reqs=perhaps", "must be none, optional or required"),
    ],
)
def test_a_url_that_cannot_be_used_is_refused_at_once(url: str, advice: str) -> None:
    """Before anything is connected; the message says what is wrong or how one looks."""
    with pytest.raises(ConfigError, match=advice):
        Dedup(url)


@pytest.mark.parametrize(
    ("url", "meant"),
    [
        ("localhost:6379", "redis://localhost:6379/0"),
        ("localhost", "redis://localhost:6379/0"),
        ("127.0.0.1:6380/3", "redis://127.0.0.1:6380/3"),
        ("[::1]:6379", "redis://[::1]:6379/0"),
        ("cache.internal:6379", "redis://host:6379/0"),
        ("reddis://localhost", "redis://localhost:6379/0"),
        ("redsi://localhost", "redis://localhost:6379/0"),
        ("redis+sentinal://host/main", "redis+sentinel://host1:26379,host2:26379/service-name/0"),
        ("redis+clutser://host", "redis+cluster://host1:7000,host2:7001"),
        ("REDISS+CLUSTR://host", "rediss+cluster://host1:7000,host2:7001"),
        ("http://host:6379", "redis://localhost:6379/0"),
        ("tcp://host", "redis://localhost:6379/0"),
        ("redis:/localhost", "redis://localhost:6379/0"),
        ("redis:localhost:6379", "redis://localhost:6379/0"),
        ("unix:/run/redis.sock", "unix:///path/to/redis.sock?db=0"),
        ("memory", "memory://?maxsize"),
        ("sidecar:/run/fd.sock", "sidecar:///run/fastdedup/fd.sock"),
        ("/run/redis/redis.sock", "unix:///run/redis/redis.sock"),
        ("/run/fastdedup/fd.sock", "sidecar:///run/fastdedup/fd.sock"),
        ("/some/path", "unix:///path/to/redis.sock"),
        ("./redis.sock", "unix:///path/to/redis.sock"),
    ],
)
def test_a_url_that_is_nearly_one_is_answered_with_what_was_meant(url: str, meant: str) -> None:
    """A slip of the pen, or a URL without its beginning."""
    with pytest.raises(ConfigError, match=re.escape(f"did you mean {meant}")) as caught:
        Dedup(url)
    assert "use one of" in str(caught.value)


@pytest.mark.parametrize("url", [None, 7, b"redis://host", ["redis://host"]])
def test_what_is_no_url_is_refused_at_once(url: Any) -> None:
    """`Dedup(os.environ.get("REDIS_URL"))` with the variable unset is a common slip."""
    with pytest.raises(ConfigError, match="URL"):
        Dedup(url)


def test_a_url_of_sentinels_names_logins_for_both_kinds_of_servers() -> None:
    """The one before the hosts is for Redis; options are for both; TLS is for both."""
    target = SentinelTarget(
        "rediss+sentinel://user:p%40ss@a,b:7,[::1]:8/my%20service/3?sentinel_username=watch"
        "&sentinel_password=w%26d&socket_timeout=2"
    )
    assert target.name == "Redis 'my service' of the sentinels at a:26379, b:7, ::1:8"
    assert [sentinel.address for sentinel in target.sentinels] == [("a", 26379), ("b", 7), ("::1", 8)]
    primary = target.server.at(("host", 6380)).unconnected(0.25)
    assert (primary.host, primary.port, primary.db) == ("host", 6380, 3)
    assert (primary.username, primary.password, primary.client_name) == ("user", "p@ss", "fastdedup")
    for sentinel in (each.unconnected(0.25) for each in target.sentinels):
        assert (sentinel.username, sentinel.password, sentinel.db) == ("watch", "w&d", 0)
        assert isinstance(sentinel, SSLConnection)
        assert isinstance(primary, SSLConnection)
        assert sentinel.socket_timeout == primary.socket_timeout == 2


def test_a_url_of_a_cluster_names_some_of_its_nodes() -> None:
    """Others are found by asking these; the login is for all."""
    store = ClusterStore("redis+cluster://:pw@a:7000,b/0?socket_timeout=2", timeout=0.25)
    assert store.name == "Redis Cluster at a:7000, b:6379"
    connection = store._seed.at(("c", 7)).unconnected(0.25)
    assert (connection.host, connection.port, connection.password) == ("c", 7, "pw")
    assert connection.socket_timeout == 2


def test_an_in_process_store_has_no_replicas() -> None:
    """What cannot be kept is not promised."""
    with pytest.raises(ConfigError, match="memory:// has no replicas"):
        make_store("memory://", 0.25, replicas=1)
    with pytest.raises(ConfigError, match="whole number"):
        make_store("redis://host", 0.25, replicas=-1)


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("redis://user:pw@host:6380/3", "Redis at host:6380"),
        ("redis://host", "Redis at host:6379"),
        ("unix://user:pw@/run/redis.sock?db=2", "Redis at /run/redis.sock"),
    ],
)
def test_a_server_is_named_without_its_password(url: str, name: str) -> None:
    """As it stands in every error message."""
    assert name_of(parse(url)[0]) == name


async def test_a_connection_does_not_read_redis_pys_version_from_the_disk(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """redis-py 8 would, for each: 1 ms in which the event loop stands still."""
    server = ServerURL.of("redis://h")

    def read() -> str:
        raise AssertionError("it was read")

    monkeypatch.setattr("redis.utils.get_lib_version", read)
    for each in (server, server.at(("other", 1)), server.with_login("user", "password")):
        assert each.unconnected(1.0)

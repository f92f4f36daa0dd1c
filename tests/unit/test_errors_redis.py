"""What a driver's or server's error means is decided once, by a table."""

import asyncio
import ssl

import hiredis
import pytest
import redis.exceptions as driver
from redis._parsers.base import BaseParser

from fastdedup import ConfigError, UnavailableError
from fastdedup.stores.redis.errors import LoginRefusedError, translate

WHERE = "Redis at host:6379"
IN_6_2 = "ERR Error running script (call to f_0a9a51ee9632095): @user_script:41: @user_script: 41: "


def wrap(error: Exception) -> Exception:
    """What redis-py makes of a refusal while it shakes hands over a Unix socket."""
    wrapped = driver.ConnectionError(error)
    wrapped.__cause__ = error
    return wrapped


@pytest.mark.parametrize(
    ("reply", "meaning"),
    [
        ("LOADING Redis is loading the dataset in memory", "try again when it has ended that"),
        ("READONLY You can't write against a read only replica.", "write its primary into the URL"),
        ("OOM command not allowed when used memory > 'maxmemory'.", "raise that limit, or delete keys"),
        ("MASTERDOWN Link with MASTER is down", "lost its primary"),
        ("CLUSTERDOWN Hash slot not served", "cluster is down"),
        ("ERR Script attempted to access a slot not served", "cluster is down"),
        (
            "ERR Can not execute a command 'set' while the cluster is down script: on f.",
            "cluster is down",
        ),
        (
            "ERR Can not execute a write command 'set' while the cluster is down and readonly",
            "cluster is down",
        ),
        ("TRYAGAIN Multiple keys request during rehashing of slot", "slot is being moved"),
        ("BUSY Redis is busy running a script.", "SCRIPT KILL ends it"),
        (
            "ERR Script killed by user with SCRIPT KILL. script: 5d8c, on @user_script:1.",
            "has ended the script",
        ),
        ("MISCONF Redis is configured to save RDB snapshots", "look at its disk and its log"),
        ("NOREPLICAS Not enough good replicas to write.", "min-replicas-to-write"),
        ("UNKILLABLE Sorry the script already executed write commands", "another script"),
        ("NOAUTH Authentication required.", "redis://:password@host"),
        ("WRONGPASS invalid username-password pair or user is disabled.", "check those in the URL"),
        ("NOPERM this user has no permissions to run the 'evalsha' command", "needs EVALSHA"),
        ("ERR max number of clients reached", "raise that limit"),
        ("ERR invalid password", "check the one in the URL"),
        ("DENIED Redis is running in protected mode because protected mode is enabled", "protected mode"),
        # What a command meets that a script called: Redis 6.2 wraps it, and later ones word it differently.
        (IN_6_2 + "-OOM command not allowed when used memory > 'maxmemory'.", "out of memory"),
        (IN_6_2 + "-READONLY You can't write against a read only replica.", "read-only replica"),
        (IN_6_2 + "Can not execute the command on a stale replica", "lost its primary"),
        (IN_6_2 + "Script killed by user with SCRIPT KILL...", "has ended the script"),
        (IN_6_2 + "The user executing the script can't run this command or subcommand", "needs EVALSHA"),
        (
            "ERR Can not execute the command on a stale replica script: f, on @user_script:9.",
            "lost its primary",
        ),
        (
            "ERR The user executing the script can't access at least one of the keys mentioned",
            "needs EVALSHA",
        ),
        ("ERR ACL failure in script: User u has no permissions to run the 'set' command", "needs EVALSHA"),
        ("NOPERM ACL failure in script: User u has no permissions to run the 'set' command", "needs EVALSHA"),
    ],
)
def test_a_refusal_of_the_server_is_unavailable(reply: str, meaning: str) -> None:
    """Not now, or not with this login: one idea, and the message says where and why."""
    error = translate(hiredis.ReplyError(reply), WHERE)
    assert isinstance(error, UnavailableError)
    assert str(error).startswith(f"{WHERE}: ")
    assert meaning in str(error)


@pytest.mark.parametrize(
    ("reply", "meaning"),
    [
        ("LOADING Redis is loading the dataset in memory", "loading its data"),
        ("READONLY You can't write against a read only replica.", "read-only replica"),
        ("OOM command not allowed when used memory > 'maxmemory'.", "out of memory"),
        ("MASTERDOWN Link with MASTER is down", "lost its primary"),
        ("CLUSTERDOWN The cluster is down", "cluster is down"),
        ("TRYAGAIN Multiple keys request during rehashing of slot", "slot is being moved"),
        ("NOPERM this user has no permissions to run the 'client|setname' command", "needs EVALSHA"),
        ("WRONGPASS invalid username-password pair or user is disabled.", "check those in the URL"),
        ("NOAUTH Authentication required.", "redis://:password@host"),
        ("BUSY Redis is busy running a script.", "another script"),
        ("ERR max number of clients reached", "maxclients"),
        ("DENIED Redis is running in protected mode", "protected mode"),
    ],
)
@pytest.mark.parametrize("wrapped", [False, True], ids=["as it is", "wrapped"])
def test_a_refusal_means_the_same_while_redis_py_shakes_hands(
    reply: str, meaning: str, wrapped: bool
) -> None:
    """It makes a class of the code and cuts it off; over a Unix socket it wraps that once more."""
    error = BaseParser.parse_error(reply)
    translated = translate(wrap(error) if wrapped else error, WHERE)
    assert isinstance(translated, UnavailableError)
    assert meaning in str(translated)


@pytest.mark.parametrize(
    "reply",
    [
        "NOAUTH Authentication required.",
        "WRONGPASS invalid username-password pair or user is disabled.",
        "NOPERM this user has no permissions to run the 'client|setname' command",
        "ERR The user executing the script can't run this command or subcommand",
        "DENIED Redis is running in protected mode",
        "ERR AUTH <password> called without any password configured for the default user.",
    ],
)
def test_a_login_that_is_refused_can_be_told_from_a_server_that_is_down(reply: str) -> None:
    """At opening it is a mistake; while it lasts later on, an outage."""
    error = hiredis.ReplyError(reply) if "AUTH <" not in reply else driver.AuthenticationError(reply)
    assert isinstance(translate(error, WHERE), LoginRefusedError)


@pytest.mark.parametrize(
    "error",
    [
        ConnectionRefusedError(111, "Connection refused"),
        ConnectionResetError("reset by peer"),
        BrokenPipeError(32, "Broken pipe"),
        FileNotFoundError(2, "No such file or directory"),
        TimeoutError(),
        EOFError(),
        asyncio.IncompleteReadError(b"", 1),
        ssl.SSLError("certificate verify failed"),
        driver.ConnectionError("Error 111 connecting"),
        driver.TimeoutError("Timeout connecting to server"),
        driver.BusyLoadingError("Redis is loading the dataset in memory"),
        driver.AuthenticationError("invalid password"),
    ],
)
def test_a_connection_that_fails_is_unavailable(error: Exception) -> None:
    """Whatever went wrong on the way; where the error has no text, its type says it."""
    translated = translate(error, WHERE)
    assert isinstance(translated, UnavailableError)
    assert " " in str(translated).removeprefix(f"{WHERE}: "), "in words"


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (hiredis.ReplyError("ERR DB index is out of range"), "database number in the URL"),
        (hiredis.ReplyError("ERR SELECT is not allowed in cluster mode"), "only database 0"),
        (wrap(driver.ResponseError("DB index is out of range")), "database number in the URL"),
        (wrap(driver.ResponseError("syntax error")), "a mistake, not an outage"),
        (hiredis.ReplyError(IN_6_2 + "a bug"), "a mistake, not an outage"),
        (hiredis.ReplyError("ERR user_script:3: OOM is my own word script: f"), "a mistake, not an outage"),
        (hiredis.ReplyError("ERR unknown command 'EVALSHA'"), "does not know the command EVALSHA"),
        (hiredis.ReplyError("ERR unknown command `AUTH`, with args beginning with: `x`"), "command AUTH"),
        (hiredis.ReplyError("ERR unknown command 'GEHEIM'"), "does not know a command"),
        (hiredis.ReplyError("ERR Unknown Redis command called from script f"), "does not know a command"),
        (hiredis.ReplyError("ERR Unknown command called from script f"), "does not know a command"),  # Valkey
        (
            hiredis.ReplyError(IN_6_2 + "Unknown Redis command called from Lua script"),
            "does not know a command",
        ),
        (hiredis.ReplyError("ERR Error compiling script (new function)"), "a mistake, not an outage"),
        (hiredis.ReplyError("WRONGTYPE Operation against a key"), "a mistake, not an outage"),
        (hiredis.ProtocolError("no list: 7"), "a mistake, not an outage"),
        (driver.ResponseError("ERR syntax error"), "a mistake, not an outage"),
    ],
)
def test_a_mistake_is_no_outage(error: Exception, advice: str) -> None:
    """A policy must not cover up what only a person can mend."""
    translated = translate(error, WHERE)
    assert isinstance(translated, ConfigError)
    assert advice in str(translated)


@pytest.mark.parametrize("error", [TypeError("our own"), KeyError("k"), ValueError("v"), AssertionError()])
def test_a_programming_error_is_raised_as_it_is(error: Exception) -> None:
    """A bug of ours is neither an outage nor a mistake of the user's."""
    with pytest.raises(type(error)) as caught:
        translate(error, WHERE)
    assert caught.value is error


@pytest.mark.parametrize(
    "error",
    [
        driver.ConnectionError("Error 111 connecting to s3cret"),
        ConnectionResetError(104, "Connection reset by peer"),
        hiredis.ReplyError("LOADING s3cret"),
        hiredis.ReplyError("ERR unknown command `AUTH`, with args beginning with: `s3cret`"),
        hiredis.ReplyError("S3CRET s3cret"),
        wrap(BaseParser.parse_error("WRONGPASS s3cret")),
    ],
)
def test_an_error_that_several_callers_share_means_the_same_to_each(error: Exception) -> None:
    """They wait for one attempt to connect; what led to the error is cut off for the first of them."""
    first, again = translate(error, WHERE), translate(error, WHERE)
    assert (type(again), str(again)) == (type(first), str(first))
    assert "s3cret" not in f"{first} {error!r} {error.args!r}".lower()
    assert error.__cause__ is error.__context__ is None

"""The source of a message's key. The key is never invented: one that is new in each delivery dedups nothing."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from datetime import datetime
from hashlib import blake2b
from typing import Any

from ..arguments import ArgumentsRule
from ..checks import check_takes
from ..errors import ConfigError, InvalidKeyError, describe_error
from ..kernel.keyspace import MAX_KEY_BYTES

KeyRule = Callable[[Any], str | None]
"""Returns the key of a broker's message, or None if it has no key."""
_DIGEST_BYTES = 16
_NO_KEY = "the message has no key: its publisher must set what key= reads"


class NoKeyError(InvalidKeyError):
    """The rule that was chosen finds no key in a message."""


def check_rule(rule: Any, what: str = "key") -> KeyRule:
    """Return the rule, if it is a function and not async.

    Raises:
        ConfigError: the rule is async, or not a function.
    """
    if not callable(rule) or inspect.iscoroutinefunction(rule):
        raise ConfigError(
            f"{what}= must be a function of the message, not async: for example {what}=message_id, "
            f"or {what}=lambda message: message.headers['order']"
        )
    check_takes(rule, f"{what}=", "the message")
    return rule  # type: ignore[no-any-return]


def key_of(rule: KeyRule, message: Any) -> str:
    """Return a message's key in a plain `str`.

    Of a subclass of `str` only the text is used, not its methods: a method that raises would end the consumer again
    at each start.

    Raises:
        NoKeyError: the rule found no key, or failed: a header is missing, the body is not what it expects.
    """
    try:
        key = rule(message)
    except Exception as error:
        raise NoKeyError(f"the rule for its key failed: {describe_error(error)}") from error
    if key is None:
        raise NoKeyError(_NO_KEY)
    if not issubclass(type(key), str):  # isinstance() would ask the value's own __class__
        raise NoKeyError(
            f"key= must return text, got {type(key).__name__}: convert it, for example with str()"
        )
    text = str.__str__(key)
    if not text:
        raise NoKeyError(_NO_KEY)
    return text


def of_arguments(rule: Callable[..., Any], signature: inspect.Signature, what: str = "key") -> KeyRule:
    """Return the rule for a task's call, (message, args, kwargs), of a rule for the task's own arguments.

    Raises:
        ConfigError: it takes an argument that the task does not have, or is no function; `what` names it.
    """
    found = ArgumentsRule(rule, signature, what)
    return lambda call: found(call[1], call[2])


def text_of(value: Any) -> str | None:
    """Return a header's value as a key: brokers send text as bytes, and numbers as numbers. None for another type."""
    if isinstance(value, bytes | bytearray):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return value.hex()
    if isinstance(value, bool) or not isinstance(value, str | int):
        return None
    return str(value)


def place_in_log(topic: str, partition: int, offset: int, time_ms: int) -> str:
    """Return a message's place in a log as a key. The key has its time, because a topic made again begins at 0."""
    return f"{topic}/{partition}/{offset}@{time_ms}"


def place_in_stream(stream: str, sequence: int, time: datetime) -> str:
    """Return a message's place in a stream of JetStream as a key: with its time, like `place_in_log`."""
    return f"{stream}/{sequence}@{time.timestamp()}"


def header(name: str) -> Callable[[Any], str | None]:
    """Return a rule: the key is a header's value; the last one of several with this name."""
    return lambda message: text_of(dict(message.headers or ()).get(name))


def body(message: Any) -> str:
    """Return a digest of the message's body.

    Two orders with equal bodies are one order then: choose it only if a body names its event, by a time or a
    number.
    """
    return body_digest(message.body)


def body_digest(body: bytes) -> str:
    """Return a key made of a message's body, for publishers that set no id.

    Two orders with equal bodies are then one order: choose this only if a body names its event, with a time or a
    number in it.
    """
    return blake2b(body, digest_size=_DIGEST_BYTES, person=b"body").hexdigest()


def gate_key(consumer: str, key: str) -> str:
    """Return the key by which the gate knows a message of one consumer.

    Another consumer of the same message does its own work, so the consumer's name is part of the key.
    """
    name = consumer.replace("\\", "\\\\").replace("|", "\\|")
    whole = f"{name}|{key}"
    if len(whole) * 4 <= MAX_KEY_BYTES or len(whole.encode(errors="replace")) <= MAX_KEY_BYTES:
        return whole
    if len(key.encode(errors="replace")) > MAX_KEY_BYTES:
        return key  # the claim's own error says what is wrong
    # No name ends in a single "|", so no other key has this form.
    digest = blake2b(whole.encode(errors="surrogatepass"), digest_size=_DIGEST_BYTES).hexdigest()
    return f"|{digest}"

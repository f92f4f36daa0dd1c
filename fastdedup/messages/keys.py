"""Where a message's key comes from. Never a made-up one: a key that is new in each delivery dedups nothing."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from hashlib import blake2b
from typing import Any

from ..errors import ConfigError, InvalidKeyError, describe_error
from ..kernel.keyspace import MAX_KEY_BYTES

KeyRule = Callable[[Any], str | None]
"""Returns the key of a broker's message, or None where it has none."""
_DIGEST_BYTES = 16
_NO_KEY = "the message has no key: its publisher must set what key= reads"


class NoKeyError(InvalidKeyError):
    """A message has no key, by the rule that was chosen."""


def check_rule(rule: Any, what: str = "key") -> KeyRule:
    """Return a function of the message that is not async.

    Raises:
        ConfigError: it is another thing.
    """
    if not callable(rule) or inspect.iscoroutinefunction(rule):
        raise ConfigError(
            f"{what}= must be a function of the message, not async: for example {what}=message_id, "
            f"or {what}=lambda message: message.headers['order']"
        )
    return rule  # type: ignore[no-any-return]


def key_of(rule: KeyRule, message: Any) -> str:
    """Return a message's key, as a plain `str`.

    The text of a subclass of `str` is taken without its methods: one that raises would end the consumer, at each
    start again.

    Raises:
        NoKeyError: the rule found none, or failed: a header is missing, the body is not what it expects.
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


def text_of(value: Any) -> str | None:
    """Return a header's value as a key: brokers send text as bytes, and numbers as numbers. None for another kind."""
    if isinstance(value, bytes | bytearray):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return value.hex()
    if isinstance(value, bool) or not isinstance(value, str | int):
        return None
    return str(value)


def place_in_log(topic: str, partition: int, offset: int, time_ms: int) -> str:
    """Return a message's place in a log as a key; with its time, because a topic made anew begins at 0 again."""
    return f"{topic}/{partition}/{offset}@{time_ms}"


def body_digest(body: bytes) -> str:
    """Return a key made of a message's body, for publishers that set no id.

    Two orders with equal bodies then are one order: choose this only where a body names its event, with a time or a
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

"""Ids for what is published: the same one for the same event, or a new one."""

from __future__ import annotations

import uuid
from typing import Any

from ..errors import ConfigError
from ..extras import needs
from ..keys import business_key


def republished_id(namespace: uuid.UUID, *parts: Any) -> str:
    """Return the id of an event: the same for the same parts, in every process and after every restart.

    Args:
        namespace: your own; make it once, by uuid.uuid4(), and keep it.
        parts: the event and what it is about, like those of `business_key`: `"invoice-paid", 7`.

    Returns:
        The text of a UUID of version 5.

    Raises:
        ConfigError: the namespace is not a UUID.
        InvalidKeyError: the parts do not make a business key.
    """
    if not isinstance(namespace, uuid.UUID):
        raise ConfigError(
            f"namespace must be a uuid.UUID of your own, made once by uuid.uuid4(), got {type(namespace).__name__}"
        )
    return str(uuid.uuid5(namespace, business_key(*parts)))


def new_id() -> str:
    """Return an id for what is published once: the text of a UUID of version 7, which sorts by its time.

    Raises:
        ImportError: this Python is older than 3.14, and uuid-utils is not installed.
    """
    return str(_uuid7())


def _uuid7() -> Any:
    if hasattr(uuid, "uuid7"):
        return uuid.uuid7()
    with needs("new_id()", "Python 3.14, or uuid-utils", "'fastdedup[ids]'"):
        from uuid_utils import uuid7
    return uuid7()

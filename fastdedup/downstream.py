"""The idempotency keys of the calls that the work under a claim makes: the next hop must be idempotent too.

A key is a digest of the claim's store key and a name. So it is the same for every attempt and owner, in every
process, after a failover, and also after the record has expired or was forgotten: whoever does the work again then
asks the next hop under the same key, and gets the first answer in place of a second effect. To have a second effect,
claim another key.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar, Token
from hashlib import blake2b
from typing import Final
from urllib.parse import urlsplit

from .checks import shown
from .errors import InvalidKeyError

_ROOT: Final = uuid.UUID("6f1b0c52-5c0e-5d3a-9d3f-0f6a6a3a6f0e")
"""The namespace of these UUIDs; another one would give every call another key."""
_MAX_NAME: Final = 1024
_LONG_NAME: Final = 900


def downstream_key(wire: bytes, name: str) -> str:
    """Return the key of the call `name` behind the claim with this store key: a UUID of version 5, as text.

    Raises:
        InvalidKeyError: the name is empty, too long, or no text.
    """
    if not isinstance(name, str):
        raise InvalidKeyError(f"the name of a call must be text, got {shown(name)}")
    if not 0 < len(name) <= _MAX_NAME or name != name.encode(errors="ignore").decode():
        raise InvalidKeyError(
            f"the name of a call must have 1 to {_MAX_NAME} characters that UTF-8 can encode"
        )
    return str(uuid.uuid5(_ROOT, f"{wire.hex()}/{name}"))


class ClaimedWork:
    """The work under a claim, for the clients of HTTP that it uses.

    Attributes:
        wire: the claim's store key.
    """

    __slots__ = ("_asked", "wire")

    def __init__(self, wire: bytes) -> None:
        self.wire = wire
        # Mutable: how often each method and address was asked for; made at the first request.
        self._asked: Counter[str] | None = None

    def key_for(self, method: str, url: str) -> str:
        """Return the key of a request: of its method, its address without the query, and its place among these.

        So the work must send its requests to one address in the same order each time. Where it does not, two of them
        change keys, and a server that keeps fingerprints refuses both.
        """
        parts = urlsplit(url)
        name = f"{method.upper()} {parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
        if self._asked is None:
            self._asked = Counter()
        self._asked[name] += 1
        return downstream_key(self.wire, f"{_shortened(name)} {self._asked[name]}")


def _shortened(name: str) -> str:
    """Return a name that leaves room for a number; a long one with a digest of the whole."""
    if len(name) <= _LONG_NAME:
        return name
    digest = blake2b(name.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
    return f"{name[:_LONG_NAME]}#{digest}"


present_work: ContextVar[ClaimedWork | None] = ContextVar("fastdedup_claimed_work", default=None)
"""The work under a claim that runs in this context; tasks that it starts inherit it."""


def enter(wire: bytes) -> Token[ClaimedWork | None]:
    """Make a claim's work the present one; pass the answer to `leave`.

    Also where no client is imported yet: the work may import it, and its first request must have the same key as that
    of a later attempt, in a process that has it.
    """
    return present_work.set(ClaimedWork(wire))


def leave(token: Token[ClaimedWork | None] | None) -> None:
    """End what `enter` began. Where that was in another context, which has ended, nothing is to be done."""
    if token is not None:
        try:
            present_work.reset(token)
        except ValueError:
            return


@contextmanager
def claimed_work(wire: bytes | None) -> Iterator[None]:
    """Make a claim's work the present one in a `with` block; None leaves the present one as it is.

    Each block counts its requests anew. So enter it around each run of the work: in a block around two runs, the
    second one would send other keys, and the next hop would act twice.
    """
    token = None if wire is None else enter(wire)
    try:
        yield
    finally:
        leave(token)


@contextmanager
def beside_work() -> Iterator[None]:
    """Make no work the present one in a `with` block: requests are counted as none of the work's, and get new keys.

    A check of `resolve=` runs so. It runs at some attempts only: were its requests counted, one to the address that
    the work asks as well (GraphQL, JSON-RPC) would get the key of an earlier attempt's charge.
    """
    token = present_work.set(None)
    try:
        yield
    finally:
        leave(token)

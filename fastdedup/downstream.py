"""The idempotency keys of the calls that the work under a claim makes: the next hop must be idempotent too.

A key is a digest of the claim's store key and a name. So it is the same for every attempt and owner, in every
process, after a failover, and also after the record has expired or was forgotten: whoever does the work again then
asks the next hop under the same key, and gets the first answer in place of a second effect. To have a second effect,
claim another key.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar, Token
from hashlib import blake2b
from itertools import count
from typing import Final
from urllib.parse import urlsplit
from weakref import ReferenceType, ref

from . import forking
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
        wire: the claim's store key; empty for what is no claim's work.
        around: the work that this one is a part of, where claims are nested; None once it was left.
        entered: takes it back from the context that it was entered in.
        is_left: True where it was left in another context, so that the one that it was entered in still has it.
        forks: how often this process was forked from another one, as the work began.
        holder: what lives as long as this work of synchronous code, and the thread of that; None elsewhere.
    """

    __slots__ = ("_asked", "around", "entered", "forks", "holder", "is_left", "wire")

    entered: Token[ClaimedWork | None]

    def __init__(
        self,
        wire: bytes,
        around: ClaimedWork | None = None,
        holder: tuple[ReferenceType[object], int] | None = None,
    ) -> None:
        self.wire = wire
        self.around = around
        self.is_left = False
        self.forks = forking.forks
        self.holder = holder
        # Mutable: counts how often each method and address was asked for.
        self._asked: dict[str, Iterator[int]] = {}

    @property
    def is_over(self) -> bool:
        """True where what runs in this context is no part of it any more."""
        # Processes that it forks are no part of it: siblings would count alike, and send one key twice.
        if self.is_left or self.forks != forking.forks:
            return True
        if self.holder is None:
            return False
        # An interrupt as it was entered or left may have kept it in its thread: there it ends with its holder. Other
        # threads that it has started, with a copy of the context, go on as a part of it.
        alive, thread = self.holder
        return alive() is None and thread == threading.get_ident()

    def key_for(self, method: str, url: str) -> str:
        """Return the key of a request: of its method, its address without the query, and its place among these.

        So the work must send its requests to one address in the same order each time. Where it does not, two of them
        change keys, and a server that keeps fingerprints refuses both.
        """
        parts = urlsplit(url)
        name = f"{method.upper()} {parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
        # In one step each: several threads may send the work's requests.
        place = next(self._asked.setdefault(name, count(1)))
        return downstream_key(self.wire, f"{_shortened(name)} {place}")


def _shortened(name: str) -> str:
    """Return a name that leaves room for a number; a long one with a digest of the whole."""
    if len(name) <= _LONG_NAME:
        return name
    digest = blake2b(name.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
    return f"{name[:_LONG_NAME]}#{digest}"


PRESENT: ContextVar[ClaimedWork | None] = ContextVar("fastdedup_claimed_work", default=None)
"""The work under a claim that runs in this context; tasks that it starts inherit it."""


def present_work() -> ClaimedWork | None:
    """Return the work under a claim that the running code is a part of."""
    work = unfinished(PRESENT.get())
    return work if work is not None and work.wire else None


def unfinished(work: ClaimedWork | None) -> ClaimedWork | None:
    """Return the innermost work that has not ended: this one, or one around it."""
    while work is not None and work.is_over:
        work = work.around
    return work


def enter(wire: bytes, holder: object = None) -> ClaimedWork:
    """Make a claim's work the present one; pass the answer to `leave`.

    Also where no client is imported yet: the work may import it, and its first request must have the same key as that
    of a later attempt, in a process that has it.

    Args:
        wire: the claim's store key.
        holder: what lives as long as the work, where an interrupt may keep a thread from `leave`.
    """
    around = unfinished(PRESENT.get())
    work = ClaimedWork(wire, around, None if holder is None else (ref(holder), threading.get_ident()))
    work.entered = PRESENT.set(work)
    return work


def leave(work: ClaimedWork | None) -> None:
    """End what `enter` began: what was around it is the present work again.

    Claims that are held in generators may end in another order than they began. Tasks that the work has started, and
    that go on, stay a part of it: an attempt that starts them again sends the same keys.
    """
    if work is None:
        return
    inner = PRESENT.get()
    try:
        PRESENT.reset(work.entered)
    except ValueError:
        work.is_left = True
        del work.entered  # it has the work before, and that one its own
        return
    del work.entered
    if inner is work:
        inner = work.around
    else:
        _unlink(work, inner)
    if inner is not PRESENT.get():
        PRESENT.set(inner)
    work.around = None  # tasks that go on may have it, and claim on


def _unlink(work: ClaimedWork, inner: ClaimedWork | None) -> None:
    """Take a work out of those around an inner one."""
    while inner is not None and inner.around is not work:
        inner = inner.around
    if inner is not None:
        inner.around = work.around


@contextmanager
def claimed_work(wire: bytes | None, holder: object = None) -> Iterator[None]:
    """Make a claim's work the present one in a `with` block; None leaves the present one as it is.

    `holder` is that of `enter`. Each block counts its requests anew. So enter it around each run of the work: in a
    block around two runs, the second one would send other keys, and the next hop would act twice.
    """
    work = None
    try:
        work = None if wire is None else enter(wire, holder)
        yield
    finally:
        leave(work)


@contextmanager
def beside_work() -> Iterator[None]:
    """Make no work the present one in a `with` block: requests are counted as none of the work's, and get new keys.

    A check of `resolve=` runs so. It runs at some attempts only: were its requests counted, one to the address that
    the work asks as well (GraphQL, JSON-RPC) would get the key of an earlier attempt's charge.
    """
    with claimed_work(b""):
        yield

"""The idempotency keys of the calls that the work under a claim makes: the next hop must be idempotent too.

A key is a digest of the claim's store key and a name. So it is the same for every attempt and owner, in every
process, after a failover, and also after the record has expired or was forgotten. If the work runs again, it asks the
next hop under the same key, and gets the first answer in place of a second effect. To have a second effect, claim
another key.
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
"""The namespace of these UUIDs. It must not change: every call would get another key."""
_MAX_NAME: Final = 1024
_LONG_NAME: Final = 900


def downstream_key(wire: bytes, name: str) -> str:
    """Return the key of the call `name` behind the claim with this store key: the text of a UUID of version 5.

    Raises:
        InvalidKeyError: the name is empty, too long, or not text.
    """
    if not isinstance(name, str):
        raise InvalidKeyError(f"the name of a call must be text, got {shown(name)}")
    if not 0 < len(name) <= _MAX_NAME or name != name.encode(errors="ignore").decode():
        raise InvalidKeyError(
            f"the name of a call must have 1 to {_MAX_NAME} characters that UTF-8 can encode"
        )
    return str(uuid.uuid5(_ROOT, f"{wire.hex()}/{name}"))


class ClaimedWork:
    """The work under a claim, for the HTTP clients that it uses.

    Attributes:
        wire: the claim's store key; empty for work that belongs to no claim.
        around: the work around this one, if claims are nested; None once this work was left.
        entered: the token that removes it from the context that it was entered in.
        is_left: True if it was left in another context, so that the first context still has it.
        forks: how often this process had been forked when the work began.
        holder: an object that lives as long as this work of synchronous code, and its thread; None elsewhere.
        asked: counts how often each method and address was requested.
    """

    __slots__ = ("around", "asked", "entered", "forks", "holder", "is_left", "wire")

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
        self.asked: dict[str, Iterator[int]] = {}

    @property
    def is_over(self) -> bool:
        """True if the code that runs in this context is no longer a part of this work."""
        # Forked processes are not a part of it: siblings would count alike, and send one key twice.
        if self.is_left or self.forks != forking.forks:
            return True
        if self.holder is None:
            return False
        # If an interrupt came while it was entered or left, its thread may still have it: there it ends with its
        # holder. Other threads that it has started, with a copy of the context, are still a part of it.
        alive, thread = self.holder
        return alive() is None and thread == threading.get_ident()

    def key_for(self, method: str, url: str) -> str:
        """Return a request's key: from its method, its address without the query, and its place among such requests.

        So the work must send its requests to one address in the same order each time. If it does not, two requests
        swap their keys, and a server that keeps fingerprints refuses both.
        """
        parts = urlsplit(url)
        name = f"{method.upper()} {parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
        # Each in one step, because several threads may send the work's requests.
        place = next(self.asked.setdefault(name, count(1)))
        return downstream_key(self.wire, f"{_shortened(name)} {place}")


def _shortened(name: str) -> str:
    """Return a name that leaves room for a number; a long name is cut, and ends with a digest of the whole name."""
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
    """Make a claim's work the present one; pass the returned work to `leave`.

    This is also needed if no client is imported yet: the work may import it, and its first request must have the same
    key in a later attempt, in a process that has imported the client before.

    Args:
        wire: the claim's store key.
        holder: an object that lives as long as the work, if an interrupt may stop a thread before `leave`.
    """
    around = unfinished(PRESENT.get())
    work = ClaimedWork(wire, around, None if holder is None else (ref(holder), threading.get_ident()))
    work.entered = PRESENT.set(work)
    return work


def leave(work: ClaimedWork | None) -> None:
    """End the work that `enter` began: the work around it is the present one again.

    Claims that are held in generators may end in another order than they began. Tasks that the work has started stay
    a part of it if they go on: an attempt that starts them again sends the same keys.
    """
    if work is None:
        return
    inner = PRESENT.get()
    try:
        PRESENT.reset(work.entered)
    except ValueError:
        work.is_left = True
        del work.entered  # the token refers to the work before, which refers to the one before it
        return
    del work.entered
    if inner is work:
        inner = work.around
    else:
        _unlink(work, inner)
    if inner is not PRESENT.get():
        PRESENT.set(inner)
    work.around = None  # tasks that go on may have this work, and make further claims


def _unlink(work: ClaimedWork, inner: ClaimedWork | None) -> None:
    """Remove a work from the chain around an inner one."""
    while inner is not None and inner.around is not work:
        inner = inner.around
    if inner is not None:
        inner.around = work.around


@contextmanager
def claimed_work(wire: bytes | None, holder: object = None) -> Iterator[ClaimedWork | None]:
    """Make a claim's work the present one in a `with` block, and yield it; None does not change the present one.

    `holder`: see `enter`. Each block counts its requests anew. So use a block for each run of the work: in one block
    around two runs, the second run would send other keys, and the next hop would act twice.
    """
    work = None
    try:
        work = None if wire is None else enter(wire, holder)
        yield work
    finally:
        leave(work)


@contextmanager
def resumed(work: ClaimedWork | None, holder: object = None) -> Iterator[None]:
    """Go on with work that was left, in a `with` block: its requests are counted on. None changes nothing.

    Other work stays the present one: it is that of a claim which a stream holds from one part to the next. The
    resumed work is around it, for the requests after that claim.
    """
    again = None
    try:
        if work is not None:
            present = outermost = unfinished(PRESENT.get())
            again = enter(work.wire, holder)
            again.asked = work.asked
            if outermost is not None:
                while (outer := unfinished(outermost.around)) is not None:
                    outermost = outer
                again.around, outermost.around = None, again
                PRESENT.set(present)
        yield
    finally:
        leave(again)


@contextmanager
def beside_work() -> Iterator[None]:
    """Have no present work in a `with` block: requests do not count as the work's, and get new keys.

    A check of `resolve=` runs in such a block. It runs only in some attempts. If its requests counted, a request to
    an address that the work uses too (GraphQL, JSON-RPC) would get the key of an earlier attempt's charge.
    """
    with claimed_work(b""):
        yield

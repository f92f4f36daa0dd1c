"""What the kernel knows of a ledger that takes part in a claim."""

from __future__ import annotations

from typing import Any, Protocol

from .codes import Code


class IdPlace(Protocol):
    """The place of a key's id in a ledger that remembers the key's success; see `ledger/operations.py`."""

    @property
    def bucket(self) -> bytes:
        """The key of the id's bucket. The record's key begins with it."""
        ...

    @property
    def name(self) -> bytes:
        """The bucket's key and the digest, which name the id."""
        ...

    @property
    def id(self) -> bytes:
        """The id itself, for a policy: stores do not look at it. Empty if it is not known."""
        ...

    @property
    def success_ms(self) -> int:
        """Milliseconds for which a success is remembered."""
        ...

    @property
    def record_ms(self) -> int:
        """Milliseconds for which the record of a success stays."""
        ...

    def seen(self) -> Any:
        """Return the operation that looks whether the ledger remembers the id."""
        ...

    async def find_again(self, code: Code | None) -> IdPlace:
        """Return the id's place in the ledger's present form. `code`: the store's answer to this place."""
        ...

"""The settings that the parent gives its workers: one JSON object in one environment variable."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

_VARIABLE = "FASTDEDUP_SHOP"


@dataclass(frozen=True, slots=True)
class ShopSettings:
    """One worker's settings.

    Attributes:
        folder: the demo's private folder: sockets, Redis's file, the order book, the workers' counts.
        secret: signs the sessions; the same in all workers.
        stock: units for sale.
        opens_at: when the sale opens, in seconds since 1970.
        token_ttl: seconds in which a form can be sent.
        number: the worker's number, from 1.
    """

    folder: str
    secret: str
    stock: int
    opens_at: float
    token_ttl: float
    number: int = 0

    @property
    def redis_socket(self) -> Path:
        """The socket of redis-server."""
        return Path(self.folder) / "redis.sock"

    @property
    def control_socket(self) -> Path:
        """The socket of the parent."""
        return Path(self.folder) / "control.sock"

    @property
    def order_book(self) -> Path:
        """The file of the shop's own database."""
        return Path(self.folder) / "orders.sqlite"

    def environment(self) -> dict[str, str]:
        """Return the environment variable that gives these settings to a child."""
        return {_VARIABLE: json.dumps(asdict(self))}

    @classmethod
    def from_environment(cls) -> ShopSettings:
        """Read the settings that the parent set.

        Raises:
            KeyError: this process is not a child of the demo.
        """
        return cls(**json.loads(os.environ[_VARIABLE]))

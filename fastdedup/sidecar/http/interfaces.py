"""What an HTTP connection needs: the state of its server, and the application that answers."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Protocol

from ...web.problems import ProblemType
from .request import HttpRequest


class ServerState(Protocol):
    """The state that the connections of a server share (uvicorn's `Server.server_state`)."""

    connections: set[Any]
    tasks: set[asyncio.Task[None]]
    default_headers: list[tuple[bytes, bytes]]


class Application(Protocol):
    """The application that answers requests; each answer goes to `respond` of the connection, an `HttpProtocol`."""

    def quick(self, connection: Any, request: HttpRequest) -> bool:
        """Answer a request without a task; return False if it needs one."""

    def turned_down(self, problem: ProblemType) -> None:
        """Hear that a connection ends with a problem, which no request of it has had."""

    def __call__(self, connection: Any, request: HttpRequest) -> Coroutine[Any, Any, None]:
        """Answer a request."""

"""An MCP server whose tool has one effect for equal arguments: the annotation `idempotentHint` made true.

Run it by `python examples/mcp_server.py` (stdio). It needs `pip install 'mcp>=2.3'`. The key is made from the
arguments: an agent that loses the answer, or "tries once more", gets the first answer. `Provider` stands for the
payment system.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass, field
from typing import Any

from mcp.server.mcpserver import MCPServer
from mcp.types import ToolAnnotations

from fastdedup import Dedup, Resolution, Takeover, business_key


@dataclass
class Provider:
    """A payment system, which can be asked what became of a refund."""

    refunds: dict[str, dict[str, Any]] = field(default_factory=dict)
    calls: int = 0

    async def refund(self, reference: str, order: str, cents: int) -> dict[str, Any]:
        """Pay money back: the effect that must happen once."""
        self.calls += 1
        self.refunds[reference] = {"refund": self.calls, "order": order, "cents": cents}
        return self.refunds[reference]

    async def find(self, reference: str) -> dict[str, Any] | None:
        """Return the refund with a reference, if there is one."""
        return self.refunds.get(reference)


def make_server(dedup: Dedup, provider: Provider) -> MCPServer:
    """Return a server with the tool `refund`."""
    server = MCPServer("payments")

    def key(order: str, cents: int, request_id: str) -> str:
        return business_key("refund", order, cents, request_id)

    async def look_up(takeover: Takeover) -> Resolution:
        """Ask the provider what an attempt did whose process has died."""
        found = await provider.find(takeover.key)
        return Resolution.done(found) if found else Resolution.not_done()

    @dedup.once(key=key, wait=10.0, resolve=look_up)
    async def pay_back(order: str, cents: int, request_id: str) -> dict[str, Any]:
        return await provider.refund(key(order, cents, request_id), order, cents)

    @server.tool(annotations=ToolAnnotations(idempotent_hint=True, destructive_hint=True))
    async def refund(order: str, cents: int, request_id: str = "1") -> dict[str, Any]:
        """Refund an order. Equal arguments are one refund; give another request_id to refund once more."""
        return await pay_back(order, cents, request_id)

    return server


async def main() -> None:
    """Serve over stdio, with an open gate."""
    url = os.environ.get("FASTDEDUP_URL", "redis://localhost:6379/0")
    async with Dedup(url, namespace="agent") as dedup:
        await make_server(dedup, Provider()).run_stdio_async()


if __name__ == "__main__":
    asyncio.run(main())

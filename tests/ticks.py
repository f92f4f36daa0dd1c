"""uvicorn as the tests run it: it ends at once where nobody is connected, which otherwise takes it up to 0.2 s."""

from __future__ import annotations

import asyncio
import socket

import uvicorn


class Brisk(uvicorn.Server):
    """Looks often whether it should end. With connections or requests left it drains as uvicorn does."""

    async def main_loop(self) -> None:
        """Run until asked to end (uvicorn calls this)."""
        ticks = 0
        while not await self.on_tick(ticks % 10):  # 0 renews the date that responses carry
            ticks += 1
            await asyncio.sleep(0.005)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End (uvicorn calls this)."""
        if self.server_state.connections or self.server_state.tasks:
            return await super().shutdown(sockets)
        for each in (*self.servers, *(sockets or ())):
            each.close()
        for server in self.servers:
            await server.wait_closed()
        return await self.lifespan.shutdown()

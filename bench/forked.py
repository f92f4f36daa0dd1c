"""Processes to be killed: forked, so that they have everything imported; each has a socket to whoever forked it."""

import asyncio
import os
import signal
import socket
import traceback
from collections.abc import Awaitable, Callable

Run = Callable[[socket.socket], Awaitable[None]]


class Forked:
    """A process that runs a coroutine. No other thread may run in the process that forks it.

    The coroutine gets its end of the socket, which is closed once the other process has ended.
    """

    def __init__(self, run: Run) -> None:
        self.wire, theirs = socket.socketpair()
        self.pid = os.fork()
        if self.pid == 0:
            self.wire.close()
            _run(run, theirs)
        theirs.close()

    def kill(self) -> None:
        """End it as a crash would."""
        os.kill(self.pid, signal.SIGKILL)
        self.close()

    def close(self) -> None:
        """Wait for its end."""
        self.wire.close()
        os.waitpid(self.pid, 0)


def _run(run: Run, wire: socket.socket) -> None:
    """Run the coroutine, and end the process: nothing of the forking one's own end may run in it."""
    status = 1
    try:
        asyncio.run(run(wire))  # type: ignore[arg-type] # a coroutine function's, always
        status = 0
    except BaseException:  # noqa: BLE001 -- it is shown, and the process ends
        traceback.print_exc()
    finally:
        os._exit(status)

"""One worker process: uvicorn on a socket that the parent has bound. `python -m examples.shop.worker FD`."""

import signal
import socket
import sys

import uvicorn

from .app import create


def main() -> None:
    """Serve the shop until a signal."""
    # uvicorn handles the signal, ends in order, and raises the signal again: that must end in a normal exit.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    listener = socket.socket(fileno=int(sys.argv[1]))
    config = uvicorn.Config(
        create,
        factory=True,
        access_log=False,
        log_level="warning",
        server_header=False,
        timeout_graceful_shutdown=3,
    )
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()

"""The bare ASGI application that the sidecar's HTTP is compared with: it reads nothing and answers a constant.

The constant is as long as the sidecar's answer to a claim, and has the same headers.
"""

import gc
from typing import Any

BODY = (
    b'{"outcome":"acquired","owner":"6c97eb05d473e06fab10","fence":1795223625549000,"attempt":1,"lease":30000,'
    b'"result":null,"error":null,"retry_after":null,"degraded":false}'
)
HEADERS = [(b"content-type", b"application/json"), (b"content-length", str(len(BODY)).encode())]
START = {"type": "http.response.start", "status": 201, "headers": HEADERS}
END = {"type": "http.response.body", "body": BODY}


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Answer one request (the server calls this)."""
    await send(START)
    await send(END)


gc.collect()
gc.freeze()  # as the sidecar does at its start

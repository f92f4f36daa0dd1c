"""A WSGI application for gunicorn, in each of its worker classes: a shop whose door a request opens.

`FASTDEDUP_URL` names the Redis; with `USE_BEFORE_FORK=1` the gate is used when the module is loaded. Run it as
`gunicorn tests.integrations.gunicorn_app:app`.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterable
from typing import Any

from fastdedup.integrations.wsgi import IdempotencyMiddleware, everyone
from fastdedup.sync import Dedup

dedup = Dedup(os.environ["FASTDEDUP_URL"], namespace="gunicorn", timeout=5.0)
if os.environ.get("USE_BEFORE_FORK") == "1":
    dedup.claim("before the fork")
runs: Counter[str] = Counter()
door = {"open": False}


def shop(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    path = environ["PATH_INFO"]
    runs[path] += 1
    if path == "/open":
        door["open"] = True
    if path == "/held":  # until the door is open
        while not door["open"]:
            time.sleep(0.01)
    if path == "/locked":  # the synchronous API itself
        with dedup.lock("a lock", wait=10.0):
            time.sleep(0.01)
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [f"{path} {runs[path]}".encode()]


app = IdempotencyMiddleware(shop, dedup, principal=everyone, wait=10.0)

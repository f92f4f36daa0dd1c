"""A flash-sale shop on FastAPI, to look at and to break: `fastdedup demo --web`.

`run.py` owns what runs (redis-server, worker processes); `app.py` is the shop in a worker, and `orders.py` the
part to copy: a JSON endpoint under an `Idempotency-Key`, and a form under a one-time token.
"""

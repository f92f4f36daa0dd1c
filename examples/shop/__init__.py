"""A flash-sale shop on FastAPI, to try out and to break: `python -m examples.shop`, or `make demo-web`.

`run.py` runs redis-server and the worker processes. `app.py` is the shop in a worker. `orders.py` is the part to
copy: a JSON endpoint with an `Idempotency-Key`, and a form with a one-time token. `ungated.py` is the same without
fastdedup, for visitors who turn the gate off.
"""

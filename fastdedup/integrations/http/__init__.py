"""The part that web frameworks share: the way of a request behind the gate, on ASGI, WSGI, threads."""

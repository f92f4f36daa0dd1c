"""Redis: the only package that knows redis-py. `store.py` is the main path."""

from .store import RedisStore

__all__ = ["RedisStore"]

"""Redis: the only package that knows redis-py. `store.py` is the main path."""

from .cluster.store import ClusterStore
from .store import RedisStore

__all__ = ["ClusterStore", "RedisStore"]

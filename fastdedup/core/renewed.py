"""A claim whose lease is kept alive. Not compiled: mypyc's classes cannot be referred to weakly."""

from __future__ import annotations

from .settlement import Settlement


class RenewedSettlement(Settlement):
    """The life of a claim that can be referred to weakly: a claim that is not renewed is spared what that takes."""

    __slots__ = ("__weakref__",)

"""A claim whose lease is kept alive. Not compiled, because mypyc's classes cannot have weak references."""

from __future__ import annotations

from .settlement import Settlement


class RenewedSettlement(Settlement):
    """The life of a claim with weak references; a claim that is not renewed saves their memory."""

    __slots__ = ("__weakref__",)

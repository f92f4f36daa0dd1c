"""Policies for the time in which the store is unavailable. No policy skips the check."""

from .base import FallbackPolicy
from .local import LocalLRU
from .reject import Reject

__all__ = ["FallbackPolicy", "LocalLRU", "Reject"]

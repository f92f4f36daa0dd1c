"""Hypothesis without its own deadline: a busy machine is no failure."""

from hypothesis import settings

settings.register_profile("fastdedup", deadline=None)
settings.load_profile("fastdedup")

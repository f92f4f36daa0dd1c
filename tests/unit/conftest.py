"""Hypothesis without its own deadline: a busy machine is no failure. And what tests of LocalLRU begin with."""

import pytest
from hypothesis import settings

from .lab import Home, Lab

settings.register_profile("fastdedup", deadline=None)
settings.load_profile("fastdedup")


@pytest.fixture
def lab() -> Lab:
    return Lab()


@pytest.fixture
def home() -> Home:
    return Home()

"""Regression tests start many programs, whose lines other tests run as well."""

import pytest


@pytest.fixture(scope="module", autouse=True)
def _programs(programs_unmeasured: None) -> None: ...

"""Without the library that it needs, an integration names the extra that installs it."""

from __future__ import annotations

import pytest

from .programs import ended

INTEGRATIONS = ("celery", "django", "dramatiq", "taskiq")
CLIENTS = ("httpx", "requests")


@pytest.mark.parametrize(
    "module", [*(f"integrations.{name}" for name in INTEGRATIONS), *(f"client.{name}" for name in CLIENTS)]
)
def test_without_its_library_the_error_names_the_extra(module: str) -> None:
    library = module.partition(".")[2]
    found = ended("-c", f"import sys; sys.modules['{library}'] = None; import fastdedup.{module}")
    assert f"pip install 'fastdedup[{library}]'" in found.stderr

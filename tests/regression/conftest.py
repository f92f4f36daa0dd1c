"""Programs that these tests start measure no coverage, which takes each 0.4 s: other tests run the same lines."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from ..servers import unmeasured


@pytest.fixture(scope="module", autouse=True)
def _programs_are_unmeasured() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name in os.environ.keys() - unmeasured().keys():
            patch.delenv(name)
        yield

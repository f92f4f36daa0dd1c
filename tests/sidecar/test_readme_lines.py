"""The README's lines for the sidecar, as they stand there, on another socket."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from .running import Sidecar, paste

README = (Path(__file__).parents[2] / "README.md").read_text()
SOCKET = "/run/fastdedup/fd.sock"


def line(start: str) -> str:
    found = re.search(rf"^{start} .*?(?= +#|$)", README, flags=re.M)
    assert found, f"the README has no line that starts with {start}"
    return found[0]


@pytest.mark.parametrize("start", ["redis-cli", "curl"])
def test_a_line_that_is_pasted_acquires_the_key(start: str) -> None:
    with Sidecar() as sidecar:
        said = paste(line(start).replace(SOCKET, str(sidecar.path)))
    assert (json.loads(said)["outcome"] if start == "curl" else said.splitlines()[0]) == "acquired"

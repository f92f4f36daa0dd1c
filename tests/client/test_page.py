"""docs/client.md: its snippets run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from .stripe import Server

PAGE = (Path(__file__).parents[2] / "docs" / "client.md").read_text()
SNIPPETS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize("number", range(len(SNIPPETS)))
def test_a_snippet_runs_and_its_request_acts_once(number: int, stripe: Server) -> None:
    snippet = SNIPPETS[number].replace("http://localhost:8000", stripe.url)
    stripe.state.faults.extend(["lose", "503", "cut", ""] if "error.request" in snippet else ["lose"])
    exec(compile(snippet, "docs/client.md", "exec"), {"__name__": "page"})
    assert len(stripe.state.effects) == 1
    assert len(stripe.state.seen) == (4 if "error.request" in snippet else 2)
    assert len(set(stripe.state.keys)) == 1

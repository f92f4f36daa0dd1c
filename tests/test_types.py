"""mypy's strict mode accepts the code, as in `make types`, and pyright's accepts what users write."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from .programs import ended

ROOT = Path(__file__).parent.parent


@pytest.mark.timeout(600)
def test_the_code_passes_mypy_strict() -> None:
    """In the tests, so that it runs beside them: without its cache it takes a core for a minute."""
    done = ended("-m", "mypy", cwd=ROOT, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr


def test_users_code_passes_pyright_strict(tmp_path: Path) -> None:
    """By basedpyright, which brings its checker along, where pyright would fetch it from the network."""
    settings = {
        "typeCheckingMode": "strict",
        "include": [str(ROOT / "tests/typing/strict_usage.py")],
        "extraPaths": [str(ROOT)],
    }
    config = tmp_path / "pyrightconfig.json"
    config.write_text(json.dumps(settings))
    done = ended("-m", "basedpyright", "--project", config, "--pythonpath", sys.executable, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 errors, 0 warnings" in done.stdout

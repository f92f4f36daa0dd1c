"""mypy's strict mode accepts the code, as in `make types`, and pyright's accepts what users write."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.timeout(600)
def test_the_code_passes_mypy_strict() -> None:
    """In the tests, so that it runs beside them: without its cache it takes a core for a minute."""
    done = subprocess.run(
        [sys.executable, "-m", "mypy"], cwd=ROOT, capture_output=True, text=True, check=False
    )
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
    command = [sys.executable, "-m", "basedpyright", "--project", str(config), "--pythonpath", sys.executable]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 errors, 0 warnings" in done.stdout

"""Pyright's strict mode accepts what users write; `make types` runs mypy."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


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

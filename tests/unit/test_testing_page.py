"""docs/testing.md: its application and its tests, run by a pytest of their own, as a reader would run them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fastdedup import Outcome
from fastdedup.testing import Acquisition, ClaimsOfKey

from ..sql_pages.pages import Page

ROOT = Path(__file__).parents[2]
PAGE = Page("testing.md")
FILES = {re.match(r"# (\w+\.py)\n", block)[1]: block for block in PAGE.all_blocks("python")}  # type: ignore[index]
TESTS = len(re.findall(r"^ *(?:async )?def test_", "".join(FILES.values()), re.MULTILINE))
SITE = '''
"""What a reader's project has besides: Django's settings and a view. And a look at what pytest's start imports."""
import sys
from itertools import count
import django
import pytest
from django.conf import settings
from django.http import HttpResponse
from django.urls import path

@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests():                    # the plugins are loaded, no conftest.py is yet
    assert "_fastdedup_pytest" in sys.modules
    assert not [name for name in sys.modules if name.partition(".")[0] in ("fastdedup", "redis", "hiredis")]

def pytest_configure():
    settings.configure(
        ROOT_URLCONF="site_of_page", ALLOWED_HOSTS=["*"], SECRET_KEY="test", USE_TZ=True,
        INSTALLED_APPS=["fastdedup.integrations.django"],
        MIDDLEWARE=["fastdedup.integrations.django.IdempotencyMiddleware"],
        FASTDEDUP={"url": "redis://localhost:6379/0", "namespace": "django"},
        FASTDEDUP_HTTP={"principal": "fastdedup.integrations.django.everyone", "routes": ["/pay/"]},
    )
    django.setup()
    from fastdedup.integrations.django import idempotent
    urlpatterns.append(path("o/<int:n>/", idempotent()(lambda request, n: HttpResponse(f"order {n}"))))

numbers = count(1)
urlpatterns = [path("pay/", lambda request: HttpResponse(f"payment {next(numbers)}"))]
'''


def test_the_page_runs(tmp_path: Path) -> None:
    """In one run: what pytest imports for nothing, every fixture, three styles of tests, three clients."""
    for name, text in FILES.items() | {("site_of_page.py", SITE)}:
        (tmp_path / name).write_text(text, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "site_of_page", "-p", "anyio.pytest_plugin"]
    # Named, as the environment may have been installed before this plugin came.
    command += ["-p", "_fastdedup_pytest", "-p", "no:cacheprovider", "--rootdir", str(tmp_path)]
    # Newer Starlettes ask for another httpx.
    command += ["-W", "error", "-W", "ignore:Using `httpx` with `starlette.testclient`"]
    environment = os.environ | {
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # the others of our own take a second to import
        "PYTHONPATH": os.pathsep.join((str(ROOT), str(tmp_path))),
    }
    ran = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert f"{TESTS} passed" in ran.stdout


def test_its_message_is_the_code_s() -> None:
    (text,) = PAGE.blocks("Time, outages, and what was claimed", "text")
    seen = ClaimsOfKey("mail:7")
    seen.acquisitions = [
        Acquisition("5d0c1f0a9a6e8e4f7c21", 1, 1, 0.0, "released"),
        Acquisition("0b7d34f1c2a98e5510aa", 2, 2, 0.0, "completed"),
    ]
    seen.duplicates[Outcome.SUCCEEDED] = 1
    assert text.splitlines()[1:] == str(seen).splitlines()


@pytest.mark.parametrize("fixture", ["dedup", "dedup_sync", "dedup_store", "dedup_clock", "dedup_outage"])
def test_it_tells_of_each_fixture(fixture: str) -> None:
    plugin = (ROOT / "_fastdedup_pytest.py").read_text(encoding="utf-8")
    assert f"\ndef {fixture}(" in plugin
    assert f"| `{fixture}` |" in "\n".join(PAGE.sections.values())

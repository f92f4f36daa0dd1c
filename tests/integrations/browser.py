"""A headless Chromium, driven by Playwright: the one that `.ci/chromium.sh` finds, not one of Playwright's own."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, expect, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PATIENCE_MS = 15_000


def find_chromium() -> str | None:
    """The path of a Chromium or Chrome: CHROMIUM's, else the PATH's."""
    named = os.environ.get("CHROMIUM")
    return named or next(filter(None, map(shutil.which, NAMES)), None)


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser; each `new_context()` of it is a visitor with cookies of their own."""
    path = find_chromium()
    assert path, "there is no Chromium on the PATH: .ci/chromium.sh finds or installs one"
    # As root, as in containers, Chromium has no sandbox; and /dev/shm may be small there.
    flags = ["--no-sandbox", "--disable-dev-shm-usage"] if os.geteuid() == 0 else []
    expect.set_options(timeout=PATIENCE_MS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=flags, timeout=60_000)
        try:
            yield browser
        finally:
            browser.close()

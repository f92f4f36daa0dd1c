"""What a run with pytest-xdist does once where each worker would do it: rewrite the test files, measure imports.

Without this a worker computes 28 s before its first test, of which coverage takes half, and rewriting the asserts
6 s; and `no_cover` leaves coverage on.
"""

from __future__ import annotations

import gc
import os
import warnings
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from typing import Any

import pytest

import fastdedup

TESTS = Path(__file__).parent


def role(config: pytest.Config) -> Controller | Worker:
    """Return the plugin of this process."""
    return Worker(config) if hasattr(config, "workerinput") else Controller()


def coverage_of(config: pytest.Config) -> Any:
    """Return what measures coverage in this process, or None."""
    return getattr(config.pluginmanager.getplugin("_cov"), "cov_controller", None)


class Controller:
    """The process that starts the workers, and runs the tests where there are no workers."""

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_setupnodes(self) -> None:
        """Keep coverage.py from starting in a worker as in any program: pytest-cov starts it there."""
        os.environ.pop("COVERAGE_PROCESS_CONFIG", None)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionstart(self, session: pytest.Session) -> None:
        """Import the whole package under coverage, for all workers, while they collect."""
        if coverage_of(session.config) and getattr(session.config.option, "numprocesses", None):
            import_module("tests.integrations.django_project")  # Ninja asks for Django's settings
            for module in walk_packages(fastdedup.__path__, "fastdedup."):
                import_module(module.name)


class Worker:
    """One of the workers."""

    def __init__(self, config: pytest.Config) -> None:
        # pytest-cov measures twice in a worker, from here and from the session's start: `no_cover` pauses the second.
        if coverage := coverage_of(config):
            coverage.cov.stop()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection(self, session: pytest.Session) -> Iterator[None]:
        """Collect without coverage, and without looking for garbage, which there is not."""
        coverage = coverage_of(session.config)
        if coverage:
            coverage.pause()
        gc.disable()
        if session.config.args_source is pytest.Config.ArgsSource.TESTPATHS:
            import_share(session.config.workerinput)  # type: ignore[attr-defined]
        result = yield
        gc.enable()
        if coverage:
            coverage.resume()
        return result


def import_share(worker: dict[str, Any]) -> None:
    """Import this worker's share of the test files: where all read them in one order, each rewrites all of them."""
    number, count = int(worker["workerid"].removeprefix("gw")), worker["workercount"]
    for file in sorted(TESTS.rglob("test_*.py"))[number::count]:
        # To collect the file shows again what fails here.
        with suppress(Exception), warnings.catch_warnings():
            warnings.simplefilter("error")
            if (settings := file.with_name("conftest.py")).exists():
                import_module(module_name(settings))
            import_module(module_name(file))


def module_name(file: Path) -> str:
    return ".".join(file.relative_to(TESTS.parent).with_suffix("").parts)

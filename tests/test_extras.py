"""Without the library that it needs, an integration or a command names the extra that installs it."""

from __future__ import annotations

import importlib
import os
import sys
import tempfile
import traceback
from collections.abc import Callable
from functools import partial

import pytest
from coverage import Coverage

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*multi-threaded, use of fork:DeprecationWarning"
)  # Python 3.12+

INTEGRATIONS = ("aiohttp", "celery", "django", "dramatiq", "taskiq")
CLIENTS = ("httpx", "requests")
MODULES = {
    **{f"fastdedup.integrations.{name}": (name, name) for name in INTEGRATIONS},
    **{f"fastdedup.client.{name}": (name, name) for name in CLIENTS},
    "fastdedup.integrations.sqs": ("botocore", "sqs"),
}
SERVE = [
    (library, "serve", 1, "sidecar") for library in ("uvicorn", "pydantic_settings", "prometheus_client")
]


def without(library: str, work: Callable[[], object]) -> tuple[int, str]:
    """Do work in a fork that imports fastdedup anew, without a library; return its exit code and its errors."""
    with tempfile.TemporaryFile() as errors:
        pid = os.fork()
        if pid == 0:
            code = 1
            sys.stderr = open(errors.fileno(), "w", closefd=False)  # noqa: SIM115 -- until it ends
            try:
                for name in [
                    name for name in sys.modules if name.partition(".")[0] in ("fastdedup", library)
                ]:
                    del sys.modules[name]
                sys.modules[library] = None  # type: ignore[assignment]
                work()
                code = 0
            except SystemExit as ended:
                code = int(ended.code or 0)
            except BaseException:  # noqa: BLE001 -- for the test
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                if (measured := Coverage.current()) is not None:
                    measured.stop()
                    measured.save()
                os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        errors.seek(0)
        return code, errors.read().decode()


@pytest.mark.parametrize("module", MODULES)
def test_without_its_library_the_error_names_the_extra(module: str) -> None:
    library, extra = MODULES[module]
    code, told = without(library, partial(importlib.import_module, module))
    assert (code, f"pip install 'fastdedup[{extra}]'" in told) == (1, True), told


@pytest.mark.parametrize(
    ("library", "command", "code", "extra"),
    [
        ("click", "demo", 2, "cli"),
        ("rich", "demo", 2, "cli"),
        ("aio_pika", "dead-letters list orders.dead --url amqp://host", 2, "rabbitmq"),
        *SERVE,
    ],
)
def test_without_its_library_a_command_names_the_extra(
    library: str, command: str, code: int, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one line, without a traceback."""
    monkeypatch.setattr(sys, "argv", ["fastdedup", *command.split()])
    ended, told = without(library, lambda: importlib.import_module("fastdedup.__main__").main())
    assert (ended, f"pip install 'fastdedup[{extra}]'" in told) == (code, True), told
    assert told.count("\n") == 1

"""The compiled package: the same promises, kept by the same tests."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(900)  # it is built here

ROOT = Path(__file__).parent.parent
# What asks the compiled modules the most, in the time that `make test` has.
TESTS = [
    "tests/contract",
    "tests/outage/test_lost_replies.py",
    "tests/regression/test_lifecycle.py",
    "tests/regression/test_traps.py",
    "tests/regression/test_ways_around_the_web_gate.py",
    "tests/sidecar/test_batch_answers.py",
    "tests/sidecar/test_resp_connection.py",
    "tests/test_bad_input.py",
    "tests/unit/test_engine.py",
    "tests/unit/test_keys.py",
    "tests/unit/test_recent.py",
    "tests/unit/test_owners.py",
    "tests/unit/test_records.py",
    "tests/unit/test_renewal.py",
    "tests/unit/test_single_claims.py",
    "tests/unit/test_testing.py",
]
# `make test-compiled` runs these as well.
MORE = [
    "tests/integrations/test_draft.py",
    "tests/integrations/test_middleware.py",
    "tests/integrations/test_middleware_outage.py",
    "tests/outage/test_faults.py",
    "tests/outage/test_policies.py",
    "tests/outage/test_processes_and_loops.py",
    "tests/regression/test_opened_again.py",
    "tests/sidecar/test_fuzz.py",
    "tests/sidecar/test_http.py",
    "tests/sidecar/test_resp.py",
    "tests/sidecar/test_store.py",
    "tests/unit/test_shards.py",
]
# Without the contract's rows of these stores: Redis and the sidecar's store run nearly the same compiled lines.
ALIKE = "not sentinel and not fakeredis and not cluster and not local and not memory"
LOOK = """
import asyncio, inspect, sys
import fastdedup
from fastdedup import Dedup
from fastdedup.compiled import build

class Mine(Dedup):
    def tell(self):
        return self.scoped("more")

def refusal(call):
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"

async def main():
    async with Mine("memory://") as dedup:
        claim = await asyncio.create_task(dedup.claim("a"))
        async with dedup.tell().claim("a"):
            pass
        return claim.acquired

# What waits inside gets the exception by throw(): Python 3.12 warns of throw() with three arguments.
async def give_up():
    async with Dedup("memory://") as dedup:
        await dedup.claim("a")
        try:
            async with asyncio.timeout(0.01):
                await dedup.claim("a", wait=5.0)
        except TimeoutError:
            return "given up"

print(build())
print(fastdedup.__file__)
print(asyncio.run(main()))
print(asyncio.run(give_up()))
print(inspect.iscoroutinefunction(Dedup.open), "lease" in inspect.signature(Dedup.claim).parameters)
print(refusal(lambda: Dedup("memory://").claim(b"a")))
print(refusal(lambda: Dedup("memory://", lease="30")))
"""

# Prints the docstring and the parameters of each public class and of its methods, as JSON.
SHOW = """
import inspect, json
import fastdedup

def shown(thing):
    try:
        parameters = [
            (each.name, each.kind if each.name != "self" else 0, repr(each.default))
            for each in inspect.signature(thing).parameters.values()
        ]
    except (TypeError, ValueError):
        parameters = None
    return inspect.getdoc(thing), parameters

classes = {name: each for name in fastdedup.__all__ if inspect.isclass(each := getattr(fastdedup, name))}
public = [(name, method) for name, cls in classes.items() for method in vars(cls) if method[0] != "_"]
methods = {f"{name}.{method}": vars(classes[name])[method] for name, method in public}
print(json.dumps({name: shown(each) for name, each in sorted((classes | methods).items())}))
"""


def build(folder: Path) -> Path:
    """Build the wheel in a folder. `make test` does so while pip installs, and names it in COMPILED_FOLDER."""
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT]
    # To optimise 420,000 lines of C takes a minute; `make test-compiled` does it, as users' installations do.
    level = {} if os.environ.get("COMPILED_TESTS") == "all" else {"MYPYC_OPT_LEVEL": "0"}
    environment = os.environ | {"FASTDEDUP_COMPILE": "1"} | level
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return folder


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a compiled package, as it is installed."""
    folder = tmp_path_factory.mktemp("compiled")
    built = os.environ.get("COMPILED_FOLDER")
    (wheel,) = (ROOT / built if built else build(folder)).glob("*.whl")
    assert "none-any" not in wheel.name
    zipfile.ZipFile(wheel).extractall(folder / "package")
    return folder / "package"


def run(package: Path, *command: str) -> str:
    """Run Python where the compiled package comes before the checkout, in which the tests are."""
    others = {name: value for name, value in os.environ.items() if not name.startswith(("COV", "PYTEST"))}
    environment = others | {"PYTHONSAFEPATH": "1", "PYTHONPATH": f"{package}{os.pathsep}{ROOT}"}
    done = subprocess.run(
        [sys.executable, *command], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{done.stdout[-6000:]}\n{done.stderr[-2000:]}"
    return done.stdout


def test_it_looks_like_the_other(package: Path) -> None:
    build, where, acquired, waited, looks, bytes_as_key, text_as_lease = run(
        package, "-W", "error", "-c", LOOK
    ).splitlines()
    assert build == "compiled"
    assert Path(where).is_relative_to(package)
    assert acquired == "True"
    assert waited == "given up"
    assert looks == "True True"
    assert bytes_as_key == "InvalidKeyError: a key must be text, got bytes; decode it, or use its hex()"
    assert text_as_lease == "ConfigError: lease must be a number of seconds or a timedelta, got str"


def test_its_docstrings_and_signatures_are_those_of_the_source(package: Path) -> None:
    compiled, source = (json.loads(run(place, "-c", SHOW)) for place in (package, ROOT))
    assert len(source) > 100
    assert {name: compiled[name] for name, each in source.items() if each != compiled[name]} == {}


def test_it_keeps_the_promises(package: Path) -> None:
    options = ["-q", "--tb=short", "--import-mode=append", "-p", "no:cacheprovider", "-p", "no:schemathesis"]
    options += ["--maxfail=5", "--timeout=60"]  # where one thing is broken much is, and each takes its time
    # Beside other tests the cores are busy: a second worker would only collect, and start its servers, once more.
    tests = ["-n", "2", *TESTS, *MORE] if os.environ.get("COMPILED_TESTS") == "all" else [*TESTS, "-k", ALIKE]
    closing = run(package, "-m", "pytest", *options, *tests).splitlines()[-1]
    assert "passed" in closing
    assert "skipped" not in closing

"""The wheel, not the checkout: what users install works where no checkout is."""

import ast
import json
import os
import re
import subprocess
import sys
import tomllib
import venv
import zipfile
from collections.abc import Iterable
from configparser import ConfigParser
from email.parser import HeaderParser
from importlib.metadata import packages_distributions
from itertools import chain
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import fastdedup
from scripts.hatch_readme import LINK, readable

pytestmark = pytest.mark.timeout(300)  # a fresh environment and an installation over the network

ROOT = Path(__file__).parent.parent
BASE = {"redis", "hiredis", "orjson"}


def clean_environment() -> dict[str, str]:
    """Give this process's environment, without what would let the checkout or its tools in."""
    ours = ("PYTHON", "VIRTUAL_ENV", "COV", "PYTEST", "FASTDEDUP")
    return {name: value for name, value in os.environ.items() if not name.startswith(ours)}


def run(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, cwd=ROOT)
    (built,) = folder.glob("fastdedup-*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the commands of a fresh environment in which the wheel is installed with its CLI."""
    folder = tmp_path_factory.mktemp("fresh") / "venv"
    venv.create(folder)  # its packages come by this environment's pip, as installing another takes seconds
    commands = folder / ("Scripts" if os.name == "nt" else "bin")
    pip = (sys.executable, "-m", "pip", "--python", commands / "python", "--disable-pip-version-check")
    run(*pip, "install", "--quiet", "--no-compile", f"{wheel}[cli]", cwd=folder)
    return commands


def test_the_wheel_carries_every_script_and_the_type_marker(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    scripts = {f"fastdedup/lua/{script.name}" for script in (ROOT / "lua").glob("*.lua")}
    assert scripts
    assert scripts <= names
    assert "fastdedup/py.typed" in names


def test_the_wheel_carries_the_package_and_pytests_fixtures_alone(wheel: Path) -> None:
    names = sorted({name.partition("/")[0] for name in zipfile.ZipFile(wheel).namelist()})
    assert names[:2] == ["_fastdedup_pytest.py", "fastdedup"]
    assert len(names) == 3
    assert names[2].endswith(".dist-info")


def test_the_wheel_tells_pytest_of_its_fixtures(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (points,) = (name for name in archive.namelist() if name.endswith("/entry_points.txt"))
        told = ConfigParser()
        told.read_string(archive.read(points).decode())
    assert dict(told["pytest11"]) == {"fastdedup": "_fastdedup_pytest"}


def test_the_readme_of_the_wheel_has_no_relative_link(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        text = archive.read(metadata).decode()
    assert "# fastdedup" in text
    assert not [target for _, _, target in LINK.findall(text) if not target.startswith("https://")]


def test_with_an_address_the_readme_s_links_are_absolute() -> None:
    text = "[a](docs/a.md#b) ![c](d.svg) [`e`](f) [g](https://h) [i](#j)\n```python\nx[1](y)\n```\n"
    there = "https://host/o/n"
    assert readable(text, there, "1.0") == (
        f"[a]({there}/blob/v1.0/docs/a.md#b) ![c]({there}/raw/v1.0/d.svg) [`e`]({there}/blob/v1.0/f) "
        "[g](https://h) [i](#j)\n```python\nx[1](y)\n```\n"
    )
    assert readable("![c](d.svg)[`e`](f) [g](https://h)", "", "1.0") == "`e` [g](https://h)"


def test_the_changes_date_this_version() -> None:
    """A release's heading is its version and its day."""
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    dated = re.findall(r"^## (\d\S*) \((\d{4}-\d\d-\d\d)\)$", changes, re.MULTILINE)
    assert dated[0][0] == fastdedup.__version__
    assert [day for _, day in dated] == sorted((day for _, day in dated), reverse=True)


def test_the_base_install_is_small(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        headers = HeaderParser().parsestr(archive.read(metadata).decode())
    requirements = [Requirement(line) for line in headers.get_all("Requires-Dist", [])]
    base = [r for r in requirements if "extra" not in str(r.marker or "")]
    assert {r.name for r in base} == BASE
    uvloop = [r.marker for r in requirements if r.name == "uvloop" and r.marker]
    assert uvloop
    assert not any(each.evaluate({"sys_platform": "win32", "extra": "uvloop"}) for each in uvloop)


def test_the_web_extra_brings_nothing_of_the_sidecars() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert {Requirement(each).name for each in extras["web"]} == {"fastapi", "python-multipart", "starlette"}


def test_the_lowest_versions_name_every_requirement_of_users() -> None:
    """`make lowest` installs these; a requirement without a bound would be tested with its newest version."""
    constraints = run(sys.executable, ROOT / ".ci" / "lowest.py", cwd=ROOT).split()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    ours = ("dev", "examples", "bench", "docs", "release")
    extras = {name: each for name, each in project["optional-dependencies"].items() if name not in ours}
    theirs = [
        Requirement(each) for each in (*project["dependencies"], *(r for e in extras.values() for r in e))
    ]
    named = {each.partition("==")[0] for each in constraints}
    assert {each.name for each in theirs} - {"fastdedup"} == named
    for line in constraints:
        name, _, version = line.partition("==")
        assert all(version in each.specifier for each in theirs if each.name == name), line


def test_the_bench_extra_brings_what_the_bench_imports() -> None:
    """In a fresh environment its committing endpoints did not start: nothing brought SQLAlchemy."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras: dict[str, list[str]] = project["optional-dependencies"]

    def names(requirements: Iterable[str]) -> set[str]:
        found = set()
        for each in map(Requirement, requirements):
            if each.name == "fastdedup":
                found |= names(name for extra in each.extras for name in extras[extra])
            else:
                found.add(each.name)
        return found

    trees = [
        ast.parse(file.read_text(encoding="utf-8"))
        for file in (ROOT / "bench").glob("*.py")
        if not file.name.startswith("test_")
        and file.name != "endpoint_kills.py"  # it runs with the tests' packages
    ]
    imported = {
        name.partition(".")[0]
        for node in chain.from_iterable(map(ast.walk, trees))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in (
            [node.module or ""] if isinstance(node, ast.ImportFrom) else [each.name for each in node.names]
        )
    }
    packages = packages_distributions()
    needed = {package for name in imported for package in packages.get(name, ())}
    offered = names(
        chain.from_iterable(extras[name] for name in extras if name not in ("dev", "docs", "release"))
    )
    assert "SQLAlchemy" in needed
    assert {each.lower() for each in needed} & {each.lower() for each in offered} <= names(
        [*project["dependencies"], *extras["bench"]]
    )


def test_the_installed_command_runs_the_demo_outside_the_checkout(installed: Path, tmp_path: Path) -> None:
    output = run(installed / "fastdedup", "demo", "--buyers", "300", "--stock", "10", "--json", cwd=tmp_path)
    report = json.loads(output)
    assert (report["buyers"], report["with_gate"]["sold_once"], report["violations"]) == (300, 10, [])


def test_the_installed_command_runs_the_demo_on_redis_with_the_scripts_it_carries(
    installed: Path, redis_url: str, tmp_path: Path
) -> None:
    output = run(
        *(installed / "fastdedup", "demo", "--buyers", "300", "--stock", "10", "--json", "--url", redis_url),
        cwd=tmp_path,
    )
    assert json.loads(output)["violations"] == []


def test_the_installed_package_is_not_the_checkout(installed: Path, tmp_path: Path) -> None:
    where = run(installed / "python", "-c", "import fastdedup; print(fastdedup.__file__)", cwd=tmp_path)
    assert not Path(where.strip()).is_relative_to(ROOT)

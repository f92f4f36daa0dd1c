"""Compiles the main path with mypyc where `FASTDEDUP_COMPILE=1` is set. Otherwise the wheel is pure Python.

Both wheels have the same source. `pyproject.toml` names the modules that each claim runs through. They are compiled
in a copy, because compiled modules in a checkout would hide their own source.
"""

import ast
import os
import shutil
import subprocess
import sys
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

# MYPYC_OPT_LEVEL is 3 unless set: tests compile at 0, which saves a minute of a core.
SETUP = """
import os
import sys
from pathlib import Path
from hatch_docstrings import keep_docstrings
from mypyc.build import mypycify
from setuptools import setup

files = sys.argv.pop().split()
modules = mypycify(
    ["--config-file=mypy.ini", *files],
    group_name="fastdedup",
    opt_level=os.environ.get("MYPYC_OPT_LEVEL", "3"),
    debug_level="0",
)
keep_docstrings(Path("."), files)
for each in modules:
    if sys.platform != "win32":
        # To look at the indentation of 450,000 generated lines takes gcc 85 s.
        each.extra_compile_args.append("-Wno-misleading-indentation")
if sys.platform == "linux":
    # Names that nobody reads, tables to unwind C++ exceptions and empty parts of pages are a third of the files.
    for each in modules:
        each.extra_compile_args += ["-fvisibility=hidden", "-fno-asynchronous-unwind-tables"]
        each.extra_link_args += ["-Wl,-s", "-Wl,-z,noseparate-code"]
setup(name="fastdedup", packages=[], ext_modules=modules)
"""
FUTURE = "from __future__ import annotations\n"
MYPY = """
[mypy]
# Other installed packages must not change the result.
ignore_missing_imports = True
no_site_packages = True
follow_imports = silent
"""


class CompileHook(BuildHookInterface):
    """Adds the compiled modules to a wheel."""

    @property
    def asked(self) -> bool:
        """True where the build is to be compiled: for a wheel, with `FASTDEDUP_COMPILE` set."""
        return self.target_name == "wheel" and os.environ.get("FASTDEDUP_COMPILE", "0") not in ("", "0")

    def dependencies(self) -> list[str]:
        """Return the packages that compiling needs."""
        return self.config["requires"] if self.asked else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile (hatchling calls this)."""
        if not self.asked or version == "editable":
            return
        folder = TemporaryDirectory(prefix="fastdedup-build-")
        self._folder = folder  # kept until the wheel is written
        built = compiled(Path(self.root), Path(folder.name), self.config["modules"], self.config["public"])
        build_data["force_include"].update({str(path): name for path, name in built.items()})
        build_data["pure_python"] = False
        build_data["infer_tag"] = True


def compiled(root: Path, folder: Path, modules: list[str], public: list[str]) -> dict[Path, str]:
    """Compile `modules` of the package in `root`; return the files with their paths in the wheel."""
    shutil.copytree(root / "fastdedup", folder / "fastdedup", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(root / "scripts/hatch_docstrings.py", folder)
    (folder / "mypy.ini").write_text(MYPY)
    (folder / "setup.py").write_text(SETUP)
    for name in public:
        path = folder / name
        path.write_text(widened(path.read_text()))
    command = [sys.executable, "setup.py", "--quiet", "build_ext", "--inplace", " ".join(modules)]
    # With PYTHONSAFEPATH the setup file would not find its own folder, which has the module that it imports.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(
            "fastdedup could not be compiled: install a C compiler and Python's headers, or unset FASTDEDUP_COMPILE "
            f"to install pure Python.\n{done.stdout}{done.stderr}"
        )
    found = chain(
        folder.glob("*__mypyc.*"), folder.glob("fastdedup/**/*.so"), folder.glob("fastdedup/**/*.pyd")
    )
    return {path: path.relative_to(folder).as_posix() for path in found}


def widened(source: str) -> str:
    """Make every parameter `Any`: our own checks refuse wrong arguments, with better messages than mypyc's.

    Those of an `@overload` stay: it is for checkers alone.
    """
    lines = source.splitlines(keepends=True)
    functions = [
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and "overload" not in map(ast.unparse, node.decorator_list)
    ]
    marks = [
        each.annotation
        for node in functions
        for each in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
        if each.annotation is not None
    ]
    for mark in sorted(marks, key=lambda mark: (mark.lineno, mark.col_offset), reverse=True):
        assert mark.lineno == mark.end_lineno, f"line {mark.lineno}: a parameter's type must be on one line"
        line = lines[mark.lineno - 1].encode()
        lines[mark.lineno - 1] = (line[: mark.col_offset] + b"Any" + line[mark.end_col_offset :]).decode()
    wide = "".join(lines)
    return wide.replace(FUTURE, f"{FUTURE}from typing import Any\n", 1)  # to import it twice does no harm

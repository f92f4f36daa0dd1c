"""Prints, as constraints for pip, the lowest version of each package that pyproject.toml lets users install.

The tools of the project's own extras are not users' packages. Where two extras name one package, the higher bound
counts, also that of `dev`: pip installs all of them together.
"""

import re
import tomllib
from pathlib import Path

TOOLS = {"dev", "examples", "docs", "release", "bench"}
NAMED = re.compile(r"(?P<name>[\w.-]+)(?:\[[\w,-]+\])?>=(?P<lowest>[\d.]+)")


def main() -> None:
    """Print one line a package."""
    project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    theirs = [
        *project["dependencies"],
        *(each for name in extras if name not in TOOLS for each in extras[name]),
    ]
    lowest: dict[str, str] = {}
    for requirement in (*theirs, *extras["dev"]):
        if (found := NAMED.match(requirement)) and (requirement in theirs or found["name"] in lowest):
            name, version = found["name"], found["lowest"]
            lowest[name] = max(lowest.get(name, "0"), version, key=as_numbers)
    for name, version in sorted(lowest.items()):
        print(f"{name}=={version}")


def as_numbers(version: str) -> list[int]:
    """Return a version as numbers, which compare as versions do."""
    return [int(part) for part in version.split(".")]


main()

"""Describes each mistake in a configuration, and its place: a line of the file, a variable, or a flag."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from ...checks import NAME
from ...errors import ConfigError

_TABLE = re.compile(r"\s*\[\[?([^\]]+)\]")
_KEY = re.compile(
    r"""\s*((?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*'))*)\s*="""
)
_PART = re.compile(r"""[A-Za-z0-9_-]+|"[^"]*"|'[^']*'""")
_SECRET = {"url"}


class Mistakes(ConfigError):
    """A configuration that cannot be used.

    Attributes:
        lines: the mistakes, each in one line.
    """

    def __init__(self, lines: Sequence[str]) -> None:
        super().__init__("; ".join(lines))
        self.lines = list(lines)


@dataclass
class Sources:
    """The sources that a configuration was read from."""

    file: Path | None
    flags: dict[str, Any] = field(repr=False)
    environment: dict[str, str] = field(repr=False)
    prefix: str
    text: str = field(default="", repr=False)

    def place(self, path: Sequence[str]) -> str:
        """Return the place that gave a setting: the flag, the variable, or the file and line."""
        if path and path[0] in self.flags:
            return f"--{path[0].replace('_', '-')}"
        variable = self._variable(path)
        if variable:
            return variable
        line = line_of(self.text, path)
        return f"{self.file}:{line}" if line else str(self.file or "settings")

    def _variable(self, path: Sequence[str]) -> str:
        names = {name.upper(): name for name in self.environment}
        for length in range(len(path), 0, -1):
            found = names.get(self.prefix + "__".join(path[:length]).upper())
            if found:
                return found
        return ""


def describe(error: ErrorDetails, sources: Sources, model: type[BaseModel]) -> str:
    """Return a mistake as `place: key: what is wrong`."""
    path = [str(part) for part in error["loc"] if part != "[key]"]
    name = ".".join(map(_name, path))
    return f"{sources.place(path)}: {name + ': ' if name else ''}{_what(error, path, model)}"


def unknown_variables(
    environment: Iterable[str], prefix: str, model: type[BaseModel], ours: Callable[[str], bool]
) -> list[str]:
    """Return a mistake for each variable that has the prefix and names no setting.

    Args:
        environment: the variables' names.
        prefix: what the name of a setting's variable begins with.
        model: the settings.
        ours: returns False for a variable that has the prefix and is not for us.
    """
    known = [prefix + name.upper() for name in model.model_fields]
    return [
        f"{name}: unknown setting" + _meant(name.upper().partition("__")[0], known)
        for name in sorted(environment)
        if name.upper().startswith(prefix)
        and name.upper().partition("__")[0] not in known
        and ours(name.upper())
    ]


def in_order(lines: Sequence[str]) -> list[str]:
    """Sort mistakes by their lines in the file; mistakes from other places come last."""

    def line(mistake: str) -> int:
        found = re.match(r".*?:(\d+): ", mistake)
        return int(found[1]) if found else 1 << 30

    return sorted(lines, key=line)


_WORDS = {
    "tuple_type": 'must be a list in brackets, such as ["payments"]',
    "float_parsing": "must be a number, such as 30.0",
    "int_parsing": "must be a whole number, such as 1000",
}
"""Pydantic's messages, which are in the words of Python, in the words of TOML."""


def _what(error: ErrorDetails, path: Sequence[str], model: type[BaseModel]) -> str:
    if error["type"] == "extra_forbidden":
        return "unknown key" + _meant(path[-1], _known(model, path[:-1]))
    if error["type"] == "literal_error":
        expected = str(error.get("ctx", {}).get("expected", ""))
        return f"must be {expected}" + _meant(str(error["input"]), re.findall(r"'([^']*)'", expected))
    message = _WORDS.get(error["type"], error["msg"].removeprefix("Value error, "))
    value = error["input"]
    if error["type"] == "value_error" or isinstance(value, bool) or not isinstance(value, int | float):
        return message  # text is not shown, because it may be a password from a wrong variable
    return f"{message}, got {value!r}"


def _name(part: str) -> str:
    return part if re.fullmatch(NAME, part) and "://" not in part else "(a name)"


def _meant(word: str, known: Iterable[str]) -> str:
    close = get_close_matches(word, list(known), n=1)
    return f"; did you mean {close[0]}?" if close else ""


def _known(model: type[BaseModel], path: Sequence[str]) -> list[str]:
    """Return the keys that the table at `path` may have."""
    for part in path:
        found = model.model_fields.get(part)
        inner = _model_in(found.annotation) if found is not None else model
        if inner is None:
            return []
        model = inner
    return list(model.model_fields)


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """Return the table in a field's type: the type itself, a member of a union, or the values of a dict."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for inner in reversed(getattr(annotation, "__args__", ())):
        found = _model_in(inner)
        if found is not None:
            return found
    return None


def line_of(text: str, path: Sequence[str]) -> int:
    """Return the line that sets a key, or else the longest part of its path; 0 if no line does."""
    best, depth = 0, 0
    for number, keys in _keys(text):
        shared = _shared(keys, path)
        # The header of the key's table counts if no closer line is found; other keys of the table do not count.
        if shared == min(len(keys), len(path)) and shared > depth:
            best, depth = number, shared
    return best


def _keys(text: str) -> Iterator[tuple[int, list[str]]]:
    table: list[str] = []
    count: Counter[str] = Counter()
    for number, line in enumerate(text.splitlines(), start=1):
        if header := _TABLE.match(line):
            table = _parts(header[1])
            if line.lstrip().startswith("[["):
                table.append(str(count[header[1]]))
                count[header[1]] += 1
            yield number, table
        elif key := _KEY.match(line):
            yield number, table + _parts(key[1])


def _parts(dotted: str) -> list[str]:
    return [part.strip("\"'") for part in _PART.findall(dotted)]


def _shared(keys: Sequence[str], path: Sequence[str]) -> int:
    count = 0
    for key, part in zip(keys, path, strict=False):
        if key != part:
            break
        count += 1
    return count

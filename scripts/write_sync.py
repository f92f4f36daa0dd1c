"""Writes what `fastdedup/sync/` repeats of the asynchronous API: signatures, docstrings, and the call behind each.

`python scripts/write_sync.py` writes each class of `MIRRORS` from the line `MARK` to its end; with `--check` it only
fails if a file is not as it would be written. What is above that line is by hand, and decides: a public name there is
not written again, and a method `_first` there is what the written `first` calls: with its arguments by position if it
takes a list of them, which is faster. If `_first` has a docstring, it is the docstring of `first`, too.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "fastdedup"
MARK = "    # The rest of the class is written by scripts/write_sync.py, which `make format` runs.\n"
BOUND = "self.bound.latest"
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Mirror:
    """A class of the synchronous API, and the asynchronous class that it repeats.

    Args:
        path: the file below `fastdedup/sync/`.
        name: of both classes.
        source: the file below `fastdedup/` that holds the asynchronous class.
        left_out: public names for integrations, which call them in the background thread.
        behind: what answers for it: the asynchronous object in the background thread, or a claim.
        runs: what runs a coroutine of `behind` in the background thread; "" if `behind` is not asynchronous.
    """

    path: str
    name: str
    source: str
    left_out: str = ""
    behind: str = BOUND
    runs: str = ""


@dataclass(frozen=True, slots=True)
class ByHand:
    """A name that a class has above `MARK`.

    Args:
        words: its docstring, with quotes; "" for none.
        takes_list: it is a method with `*arguments`.
    """

    words: str = ""
    takes_list: bool = False


MIRRORS = (
    Mirror("claim.py", "Claim", "claim.py", "settlement", behind="self._claim", runs="self._run"),
    Mirror(
        "gateway.py", "Dedup", "gateway.py", "aclose gate in_flight is_open on_batch pending with_settings"
    ),
    Mirror("inspected.py", "Inspected", "admin/inspected.py"),
    Mirror(
        "ledger.py",
        "Ledger",
        "ledger/client.py",
        "bytes_of dense distrust forget_bytes forget_record first_undoable place_of record_of store_key view",
    ),
    Mirror("lock.py", "Lock", "lock.py", behind="self._claim"),
    Mirror("machine.py", "StateMachine", "machine.py", "store_key"),
    Mirror("tokens.py", "Tokens", "tokens.py", "use wire"),
)
TYPES = (
    ("async def", "def"),
    (r"Coroutine\[Any, Any, (\w+)\]", r"\1"),
    (r"Awaitable\[(\w+)\]", r"\1"),
    (r"\bClaimCall\b", "Claim"),
    (r"\bCheck\b", "SyncCheck"),
)
"""What signatures have, and what stands in its place in synchronous code."""
PHRASES = (
    (r"Await the call or enter it with `async with`", "Settle it yourself, or enter it with `with`"),
    (r"not open, closed, or another event loop", "closed, or its store is an object of another process"),
    (r"\bcancelled\b", "interrupted"),
)
"""What docstrings have, and what stands in its place."""


def as_written(mirror: Mirror, text: str) -> str:
    """Return the text of a module, with what is below `MARK` in its class as it shall be."""
    by_hand, _, _ = text.partition(MARK)
    after = text.splitlines(keepends=True)[class_in(text, mirror.name).end_lineno :]
    members = members_of(mirror, names_by_hand(by_hand, mirror.name))
    return formatted("".join([by_hand, MARK, "\n", "\n\n".join(members), "\n\n\n", *after]))


def class_in(text: str, name: str) -> ast.ClassDef:
    """Return the class of that name in the text of a module."""
    return next(each for each in ast.parse(text).body if isinstance(each, ast.ClassDef) and each.name == name)


def names_by_hand(text: str, name: str) -> dict[str, ByHand]:
    """Return the methods of a class, and the attributes that they set."""
    nodes = [*ast.walk(class_in(text, name))]
    attributes = (each for each in nodes if isinstance(each, ast.Attribute))
    own = {each.attr: ByHand() for each in attributes if isinstance(each.ctx, ast.Store)}
    methods = (each for each in nodes if isinstance(each, Function))
    return own | {each.name: ByHand(docstring(text, each), each.args.vararg is not None) for each in methods}


def docstring(text: str, node: Function) -> str:
    """Return a docstring as it stands in the text, quotes included."""
    return ast.get_source_segment(text, node.body[0]) or "" if ast.get_docstring(node) else ""


def members_of(mirror: Mirror, own: dict[str, ByHand]) -> Iterator[str]:
    """Yield each member of the asynchronous class, as the synchronous one has it."""
    text = (PACKAGE / mirror.source).read_text(encoding="utf-8")
    body = class_in(text, mirror.name).body
    for member, following in zip(body, [*body[1:], None], strict=True):
        if isinstance(member, ast.AnnAssign) and isinstance(following, ast.Expr):
            attribute, kind = ast.unparse(member.target), ast.unparse(member.annotation)
            words = ast.get_source_segment(text, following) or ""
            signature = f"    @property\n    def {attribute}(self) -> {kind}:"
            yield block(signature, words, f"return {mirror.behind}.{attribute}")
        elif isinstance(member, Function) and is_repeated(member.name, mirror, own):
            yield method(mirror, text, member, own)


def is_repeated(name: str, mirror: Mirror, own: dict[str, ByHand]) -> bool:
    """True for a public name that is not by hand, and for a special one whose work is."""
    if name in own or name in mirror.left_out.split():
        return False
    return private(name) in own or not name.startswith("_")


def private(name: str) -> str:
    """Return the name of the method by hand that a written one calls."""
    return f"_{name.strip('_')}"


def method(mirror: Mirror, text: str, node: Function, own: dict[str, ByHand]) -> str:
    """Return a method: its signature with the comment above it, its docstring, and the call."""
    lines = text.splitlines(keepends=True)
    first = min([node.lineno, *(each.lineno for each in node.decorator_list)]) - 1
    while lines[first - 1].strip().startswith("#"):
        first -= 1
    if "overload" in map(ast.unparse, node.decorator_list):
        return replaced("".join(lines[first : node.end_lineno]), TYPES)
    signature = replaced("".join(lines[first : node.body[0].lineno - 1]), TYPES)
    words = own.get(private(node.name), ByHand()).words or replaced(docstring(text, node), PHRASES)
    return block(signature.rstrip(), words, call(mirror, node, own))


def block(signature: str, words: str, statement: str) -> str:
    """Return the text of a method with its docstring, "" for none."""
    return "\n        ".join(filter(None, [signature, words, statement]))


def call(mirror: Mirror, node: Function, own: dict[str, ByHand]) -> str:
    """Return the statement that answers for a method."""
    returned = ast.unparse(node.returns) if node.returns else "None"
    word = "" if returned == "None" else "return "
    if by_hand := own.get(private(node.name)):
        return f"{word}self.{private(node.name)}({passed(node, by_position=by_hand.takes_list)})"
    if "property" in map(ast.unparse, node.decorator_list):
        return f"return {mirror.behind}.{node.name}"
    asked = f"{node.name}({passed(node)})"
    if returned in {each.name for each in MIRRORS}:
        return f"return {returned}(self.bind(lambda it: it.{asked}))"
    if isinstance(node, ast.AsyncFunctionDef) and mirror.behind == BOUND:
        return f"{word}self.bound.run(lambda it: it.{asked})"
    if isinstance(node, ast.AsyncFunctionDef) and mirror.runs:
        return f"{word}{mirror.runs}(lambda: {mirror.behind}.{asked})"
    return f"{word}{mirror.behind}.{asked}"


def passed(node: Function, *, by_position: bool = False) -> str:
    """Return the arguments with which a method passes on what it got."""
    given = node.args
    each = [arg.arg for arg in given.args[1:]]
    each += [f"*{given.vararg.arg}"] if given.vararg else []
    each += [arg.arg if by_position else f"{arg.arg}={arg.arg}" for arg in given.kwonlyargs]
    each += [f"**{given.kwarg.arg}"] if given.kwarg else []
    return ", ".join(each)


def replaced(text: str, rules: tuple[tuple[str, str], ...]) -> str:
    """Return a text in which each rule has been applied."""
    for found, instead in rules:
        text = re.sub(found, instead, text)
    return text


def formatted(text: str) -> str:
    """Return the text of a module as ruff formats it."""
    command = [sys.executable, "-m", "ruff", "format", "--stdin-filename", "written.py", "-"]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout


def main() -> None:
    """Write the files, or check them."""
    for mirror in MIRRORS:
        path = PACKAGE / "sync" / mirror.path
        text = path.read_text(encoding="utf-8")
        if (wanted := as_written(mirror, text)) == text:
            continue
        if "--check" in sys.argv:
            sys.exit(f"{path} is not as scripts/write_sync.py writes it: run `make format`")
        path.write_text(wanted, encoding="utf-8")


if __name__ == "__main__":
    main()

"""Counts words that make a sentence hard to read, and fails if a folder has more of them than its bar.

`python scripts/check_english.py` reads the docstrings, comments and texts of `fastdedup/`, and its pages, those of
`docs/` and of `bench/`, and the README. It prints each hit of a folder with too many, with its file and line. With
`--hits` it prints all hits, and their number for each folder. A hit is not always wrong: "where" may name a place,
and "as" may not mean "because". So each folder has a bar: the number of hits that are left in it. If you remove some,
lower the bar; a folder without a bar must have no hit.
"""

from __future__ import annotations

import ast
import io
import itertools
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
WORDS = {
    "where": ("if, when, or the name of the place", re.compile(r"\b[Ww]here\b")),
    "nobody": ("no caller, no other owner", re.compile(r"\b[Nn]obody\b")),
    "whoever": ("the caller, the owner", re.compile(r"\b[Ww]hoever\b")),
    "is told": ("gets, learns, is called with", re.compile(r"\b(?:is|are|was|were|be|been) told\b")),
    "as": (
        "because, like, when",
        re.compile(
            r",\s+as\s+(?!(?:far|if|long|many|much|soon|well)\b)|(?<!soon )(?<!far )(?<!long )\bas (?:it|they)\b"
        ),
    ),
}
"""By word, the plain words to use instead, and the pattern of a hit."""
BARS = {
    "docs": 11,
    "integrations": 1,
    "sidecar": 4,
    "web": 5,
}
"""The most hits of each folder below `fastdedup/`, and of `docs` and `bench`; "." is the package's own modules."""
_CODE = re.compile(r"`[^`]*`")
_BLOCK = re.compile(r"^( *)```.*?^\1```", re.MULTILINE | re.DOTALL)


def texts_of(source: str) -> Iterator[tuple[int, str]]:
    """Yield each docstring, comment and text of a module, with its first line. A text is a string with a space."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Constant(str(text)) if " " in text:
                yield node.lineno, text
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def hits_in(texts: Iterable[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """Yield the line and the word of each hit in texts with their first lines. Words in backticks do not count."""
    for first, text in texts:
        plain = _CODE.sub(_blank, text)
        for word, (_, pattern) in WORDS.items():
            for hit in pattern.finditer(plain):
                yield first + plain.count("\n", 0, hit.start()), word


def hits_of(source: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the word of each hit in a module."""
    return hits_in(texts_of(source))


def hits_of_page(page: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the word of each hit in a page. Its blocks of code do not count."""
    return hits_in([(1, _BLOCK.sub(_blank, page))])


def _blank(code: re.Match[str]) -> str:
    return re.sub(r"\w", "-", code[0])


def folder_of(path: Path) -> str:
    """Return the name of a file's bar: its folder, or that below `fastdedup/`; "." is the package's own modules."""
    folder, *below = path.parts
    if folder != "fastdedup":
        return folder
    return below[0] if len(below) > 1 else "."


def hits_below(root: Path) -> list[tuple[Path, int, str]]:
    """Return the file, line and word of each hit in the package and the pages of a project, file by file."""
    patterns = ("fastdedup/**/*.py", "fastdedup/**/*.md", "docs/**/*.md", "bench/*.md", "README.md")
    found = []
    for file in itertools.chain.from_iterable(sorted(root.glob(pattern)) for pattern in patterns):
        hits = (hits_of if file.suffix == ".py" else hits_of_page)(file.read_text(encoding="utf-8"))
        found += [(file.relative_to(root), line, word) for line, word in sorted(hits)]
    return found


def main() -> None:
    """Print the hits, and exit with a message if a folder has more of them than its bar."""
    hits = hits_below(ROOT)
    counts = Counter(folder_of(path) for path, _, _ in hits)
    above = {folder for folder, count in counts.items() if count > BARS.get(folder, 0)}
    for path, line, word in hits:
        if "--hits" in sys.argv or folder_of(path) in above:
            print(f"{path}:{line}: {word}: write {WORDS[word][0]}")
    if "--hits" in sys.argv:
        for folder in sorted(BARS.keys() | counts.keys()):
            print(f"{folder}: {counts[folder]} of {BARS.get(folder, 0)}")
    if above:
        sys.exit(f"more hard words than the bars of {__file__} allow, in: {', '.join(sorted(above))}")


if __name__ == "__main__":
    main()

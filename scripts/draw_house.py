"""Draws the house in docs/architecture.md: its floors, the rooms on each, and what each room stands on.

`python -m scripts.draw_house` writes the picture between the lines `BEGIN` and `END` of the page; with `--check` it
only fails if the picture is not as it would be drawn. The floors are those of `tests/test_house.py`, the arrows are
the imports of the package, and the words are the first sentence of each room's docstring: there is no other list.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from itertools import zip_longest
from textwrap import wrap

from tests.test_house import FLOORS, ROOT, floor_of, graph, sources

PAGE = ROOT / "docs" / "architecture.md"
BEGIN = "<!-- The picture is drawn by scripts/draw_house.py, which `make format` runs. -->\n\n```text\n"
END = "```\n\n<!-- The end of the picture. -->\n"
WIDTHS = (5, 17, 31, 56)
"""Of the columns, in characters: floor, room, what it stands on, what it is."""
PACKAGE = "fastdedup"
"""Written for the package's own room, which has the name "" in `FLOORS`."""


def drawn(text: str) -> str:
    """Return the text of the page, with the picture as it shall be."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        sys.exit(f"{PAGE} must have the lines of BEGIN and END, with the picture between them")
    return "".join([before, begin, *picture(), end, after])


def picture() -> Iterator[str]:
    """Yield the lines of the picture, from the roof to the cellar."""
    below = rooms_below()
    further = all_below(below)
    yield line("floor", "room", "stands on", "what it is")
    yield "   ".join("─" * width for width in WIDTHS) + "\n"
    for number, names in enumerate(FLOORS, 1):
        for at, room in enumerate(names):
            floor = "" if at else str(number)
            stands_on = ", ".join(sorted(other or PACKAGE for other in nearest(room, below, further)))
            yield from row(floor, room or PACKAGE, stands_on, words_of(room))


def row(*cells: str) -> Iterator[str]:
    """Yield the lines of a room; a long cell takes more than one."""
    wrapped = [wrap(cell, width) for cell, width in zip(cells, WIDTHS, strict=True)]
    for parts in zip_longest(*wrapped, fillvalue=""):
        yield line(*parts)


def line(*parts: str) -> str:
    """Return one line of the picture."""
    return "   ".join(part.ljust(width) for part, width in zip(parts, WIDTHS, strict=True)).rstrip() + "\n"


def rooms_below() -> dict[str, set[str]]:
    """Return each room, and the rooms on lower floors that its modules import from."""
    below: dict[str, set[str]] = {room: set() for names in FLOORS for room in names}
    for module, imports in graph().items():
        floor, room = floor_of(module)
        below[room] |= {other for lower, other in map(floor_of, imports) if lower > floor}
    return below


def nearest(room: str, below: dict[str, set[str]], further: dict[str, set[str]]) -> set[str]:
    """Return the rooms that a room imports from, without those that another one of these stands on."""
    return below[room] - set[str]().union(*(further[other] for other in below[room]))


def all_below(below: dict[str, set[str]]) -> dict[str, set[str]]:
    """Return each room, and all rooms that it stands on, down to the cellar; `below` begins with the roof."""
    found: dict[str, set[str]] = {}
    for room in reversed(below):
        found[room] = below[room].union(*(found[other] for other in below[room]))
    return found


def words_of(room: str) -> str:
    """Return the first sentence of a room's docstring; a long one up to its colon, after three words or more."""
    text = " ".join((ast.get_docstring(sources()[room]) or "").partition("\n\n")[0].split())
    sentence = text.replace("`", "").partition(". ")[0].removesuffix(".")
    start = sentence.partition(": ")[0]
    return start if len(sentence) > WIDTHS[-1] and len(start.split()) > 2 else sentence


def main() -> None:
    """Write the picture, or check it."""
    text = PAGE.read_text(encoding="utf-8")
    if (wanted := drawn(text)) == text:
        return
    if "--check" in sys.argv:
        sys.exit(f"{PAGE} is not as scripts/draw_house.py draws it: run `make format`")
    PAGE.write_text(wanted, encoding="utf-8")


if __name__ == "__main__":
    main()

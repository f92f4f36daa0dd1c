"""All mutants, with their numbers."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from .mutant import Mutant
from .of_claims import CLAIMS, LEDGERS
from .of_engine import ENGINE, UNDO
from .of_inbox import INBOX
from .of_lua import LUA
from .of_memory import MEMORY
from .of_outages import FALLBACK, REDIS_CLIENT

ROOT = Path(__file__).parents[2]
TABLES = (LUA, MEMORY, ENGINE, UNDO, CLAIMS, LEDGERS, REDIS_CLIENT, FALLBACK, INBOX)


class Numbered(NamedTuple):
    """A mutant of the table."""

    number: int
    file: str
    mutant: Mutant

    def text(self, root: Path = ROOT) -> str:
        """Return the file with the fault. Raises ValueError if the text to replace does not stand there once."""
        text = (root / self.file).read_text()
        found = text.count(self.mutant.old)
        if found != 1:
            which = f"mutant {self.number} ({self.mutant.breaks})"
            raise ValueError(f"the text of {which} stands {found} times in {self.file}, not once")
        return text.replace(self.mutant.old, self.mutant.new)

    def is_chosen(self, words: list[str]) -> bool:
        """True if one of the words is its number, or stands in its file's name or its sentence; or without words."""
        about = f"{self.file} {self.mutant.breaks}".lower()
        return not words or any(word == str(self.number) or word.lower() in about for word in words)


ALL = [
    Numbered(number, file, mutant)
    for number, (file, mutant) in enumerate(
        ((file, mutant) for table in TABLES for file, mutants in table.items() for mutant in mutants), 1
    )
]

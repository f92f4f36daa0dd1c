"""What the programs share: the store, the size of a run, and what they print at the end."""

import os
import sys
from dataclasses import asdict
from typing import Any


def store() -> str:
    """Return the store's URL: the environment's REDIS_URL, or a store in this process."""
    return os.environ.get("REDIS_URL", "memory://")


def size(usual: int) -> int:
    """Return how large the run shall be: the program's only argument."""
    return int(sys.argv[1]) if len(sys.argv) > 1 else usual


def finish(title: str, report: Any) -> None:
    """Print a report, a dataclass with `violations`; exit with 1 if a promise was broken."""
    print(title)
    for name, figure in asdict(report).items():
        if name != "violations":
            shown = format(
                figure, ",.1f" if isinstance(figure, float) else "," if isinstance(figure, int) else ""
            )
            print(f"  {name.replace('_', ' '):22}{shown}")
    print(f"  {'promises':22}{'BROKEN' if report.violations else 'kept'}")
    for violation in report.violations:
        print(f"Broken promise: {violation}", file=sys.stderr)
    sys.exit(bool(report.violations))

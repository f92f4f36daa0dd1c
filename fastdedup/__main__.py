"""``python -m fastdedup`` and the ``fastdedup`` command; the command line itself is `fastdedup.cli.main`."""

import sys
from io import TextIOWrapper


def main() -> None:
    """Run the command line; where click or rich is missing, print which extra to install."""
    try:
        from fastdedup.cli.main import cli
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in {"click", "rich"}:
            raise  # a broken installation: installing the extra would not help
        print(
            f"fastdedup: the command line needs {error.name}: pip install 'fastdedup[cli]'", file=sys.stderr
        )
        sys.exit(2)
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(
            errors="backslashreplace"
        )  # a key may have what this terminal or pipe cannot take
    cli(prog_name="fastdedup")


if __name__ == "__main__":
    main()

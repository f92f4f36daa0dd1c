"""``python -m fastdedup`` and the ``fastdedup`` command; the command line itself is `fastdedup.cli.main`."""

import sys
from io import TextIOWrapper

import fastdedup
from fastdedup.compiled import build


def main() -> None:
    """Run the command line. If click or rich is missing, print which extra to install; `--version` needs neither."""
    try:
        from fastdedup.cli.main import cli
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in {"click", "rich"}:
            raise  # a broken installation: installing the extra would not help
        if sys.argv[1:] == ["--version"]:
            print(f"fastdedup {fastdedup.__version__}, {build()}")  # the same line as `--version` prints
            return
        print(
            f"fastdedup: the command line needs {error.name}: pip install 'fastdedup[cli]'", file=sys.stderr
        )
        sys.exit(2)
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(
            errors="backslashreplace"
        )  # a key may have characters that this terminal or pipe cannot show
    cli(prog_name="fastdedup")


if __name__ == "__main__":
    main()

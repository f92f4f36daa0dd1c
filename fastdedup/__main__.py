"""``python -m fastdedup`` and the ``fastdedup`` command; the command line itself is `fastdedup.cli.main`."""

import os
import sys
from io import TextIOWrapper

import fastdedup
from fastdedup.compiled import build


def main() -> None:
    """Run the command line. If click or rich is missing, print which extra to install; `--version` needs neither."""
    _fill_closed_streams()
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
        # A key may have characters that this terminal or pipe cannot show.
        sys.stdout.reconfigure(errors="backslashreplace")
    cli(prog_name="fastdedup")


def _fill_closed_streams() -> None:
    """Open the null device for each standard stream that is closed, because a socket would get its number.

    Then libuv ends the process when that socket is closed, and what another library prints would go to its peer.
    """
    for name in ("stdin", "stdout", "stderr"):  # by their numbers: a file gets the lowest one that is free
        if getattr(sys, name) is None:
            mode = "r" if name == "stdin" else "w"
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 -- it stays open


if __name__ == "__main__":
    main()

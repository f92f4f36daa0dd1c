"""Takes the files outside of docs/ that pages link to into the site, below repository/. MkDocs calls the hooks here.

The pages are read on a code host as well, so their links are paths in the repository. A linked page becomes a page of
the site, any other file is copied, and each link is rewritten. So no link needs to know where the repository is.
"""

from __future__ import annotations

import logging
import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the tests read links by this file, and run without MkDocs
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

log = logging.getLogger("mkdocs.hooks.outside")
ROOT = Path(__file__).parent.parent
# In the site without a link from a page of docs/: the navigation names them.
ROOTS = ("CHANGELOG.md", "CONTRIBUTING.md", "tests/chaos/README.md", "fastdedup/sidecar/README.md")
CODE = re.compile(r"^```.*?^```|`[^`\n]+`", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"(\]\()([^)\s#:]+)((?:#[^)\s]*)?\))")


def links_of(path: str, text: str) -> set[str]:
    """Return the repository's files that a page links to. Code holds no links."""
    folder = posixpath.dirname(path)
    found = LINK.findall(CODE.sub("", text))
    return {posixpath.normpath(posixpath.join(folder, target)) for _, target, _ in found}


def place_of(path: str) -> str:
    """Return where a file of the repository is in the site."""
    return path.removeprefix("docs/") if path.startswith("docs/") else f"repository/{path}"


def path_of(place: str) -> str:
    """Return the file of the repository that is at this place in the site."""
    return place.removeprefix("repository/") if place.startswith("repository/") else f"docs/{place}"


def outside_files(pages: set[str]) -> set[str]:
    """Return every file outside of docs/ that these pages link to, and what the pages among those link to."""
    found, left = set(pages), list(pages)
    while left:
        path = left.pop()
        if path.endswith(".md") and (ROOT / path).is_file():
            new = links_of(path, (ROOT / path).read_text(encoding="utf-8")) - found
            found |= new
            left += new
    return {path for path in found if not path.startswith("docs/") and (ROOT / path).is_file()}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the files outside of docs/."""
    from mkdocs.structure.files import File

    pages = {path_of(file.src_uri) for file in files.documentation_pages()} | {*ROOTS}
    for path in sorted(outside_files(pages)):
        files.append(File.generated(config, place_of(path), abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrite a page's links from paths in the repository to places in the site."""
    here = page.file.src_uri
    folder = posixpath.dirname(path_of(here))

    def rewrite(link: re.Match[str]) -> str:
        start, target, end = link.groups()
        place = place_of(posixpath.normpath(posixpath.join(folder, target)))
        if files.get_file_from_path(place) is None:  # a warning fails the strict build
            log.warning("%s links to %s, which is no file: name a file", path_of(here), target)
        return start + posixpath.relpath(place, posixpath.dirname(here) or ".") + end

    pieces, at = [], 0
    for code in CODE.finditer(markdown):
        pieces += [LINK.sub(rewrite, markdown[at : code.start()]), code[0]]
        at = code.end()
    return "".join([*pieces, LINK.sub(rewrite, markdown[at:])])

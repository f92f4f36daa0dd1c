"""Makes README.md readable on a package index, which has no other file of the repository. Hatchling calls this.

Where the repository's address is known, relative links become absolute ones, and the package has project URLs.
GitHub's runners tell the address; elsewhere FASTDEDUP_REPOSITORY=https://host/owner/name does. Without it each link
becomes its text.
"""

import os
import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

FENCE = re.compile(r"(^```.*?^```$)", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"(!?)\[((?:`[^`\n]*`|[^\[\]`])*)\]\((?![a-z]+:|#)([^)\s]+)\)")


def repository() -> str:
    """Return the repository's address, or "" where nothing tells it."""
    server, name = os.environ.get("GITHUB_SERVER_URL", ""), os.environ.get("GITHUB_REPOSITORY", "")
    told = os.environ.get("FASTDEDUP_REPOSITORY", "") or (f"{server}/{name}" if server and name else "")
    return told.rstrip("/")


def readable(text: str, address: str, version: str) -> str:
    """Return the page with absolute links to this version's files, or without links where there is no address."""

    def link(found: re.Match[str]) -> str:
        image, label, target = found.groups()
        if not address:
            return "" if image else label
        return f"{image}[{label}]({address}/{'raw' if image else 'blob'}/v{version}/{target})"

    parts = FENCE.split(text)
    return "".join(part if part.startswith("```") else LINK.sub(link, part) for part in parts)


def urls(address: str) -> dict[str, str]:
    """Return the project URLs that a package index shows."""
    main = f"{address}/blob/main"
    return {
        "Source": address,
        "Documentation": f"{main}/docs/index.md",
        "Changelog": f"{main}/CHANGELOG.md",
        "Issues": f"{address}/issues",
        "Security": f"{main}/SECURITY.md",
    }


class ReadmeHook(MetadataHookInterface):
    """Gives the package its description and its URLs."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set `readme` and `urls`, which pyproject.toml calls dynamic (hatchling calls this)."""
        address = repository()
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        readme = readable(text, address, str(metadata["version"]))
        metadata["readme"] = {"content-type": "text/markdown", "text": readme}
        metadata["urls"] = urls(address) if address else {}

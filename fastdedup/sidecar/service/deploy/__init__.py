"""The files that run the sidecar as a service: systemd units, a Dockerfile, a manifest. They lie in this folder."""

from __future__ import annotations

from importlib.resources import files

FILES = {
    "systemd": ("fastdedup.socket", "fastdedup.service"),
    "docker": ("Dockerfile",),
    "kubernetes": ("sidecar.yaml",),
    "nginx": ("nginx.conf",),
}


def printed(what: str) -> str:
    """Return the files of one kind, one after the other; each begins with where it goes."""
    folder = files(__name__)
    return "\n".join(folder.joinpath(name).read_text(encoding="utf-8") for name in FILES[what])

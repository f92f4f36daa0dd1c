"""The files around a sidecar: systemd units, a Dockerfile, a manifest, nginx, alerts, a dashboard. They lie here."""

from __future__ import annotations

from importlib.resources import files

FILES = {
    "systemd": ("fastdedup.socket", "fastdedup.service"),
    "docker": ("Dockerfile",),
    "kubernetes": ("sidecar.yaml",),
    "nginx": ("nginx.conf",),
    "prometheus": ("alerts.yaml",),
    "grafana": ("dashboard.json",),
}


def printed(what: str) -> str:
    """Return the files of one kind, one after the other; each but JSON begins with the path to install it at."""
    folder = files(__name__)
    return "\n".join(folder.joinpath(name).read_text(encoding="utf-8") for name in FILES[what])

"""The published policy: a server's rules for idempotency keys (draft, sections 2.3 and 2.5: it MUST publish them)."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from itertools import groupby
from typing import Any
from urllib.parse import quote

import orjson

from ..checks import shown
from ..core.settings import Settings
from ..errors import ConfigError
from .header import DRAFT, MAX_KEY, NAME
from .problems import PROBLEMS
from .request import everyone
from .response import NEVER, Response
from .rules import Rule

_STATUSES = range(200, 600)
_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color-scheme:light dark}"
    "table{border-collapse:collapse;width:100%}th,td{border-bottom:1px solid #8884;padding:.4rem .6rem;"
    "text-align:left;vertical-align:top}code{font-family:ui-monospace,monospace}"
)


class PublishedPolicy:
    """Describes the rules to the authors of clients, in JSON and in a page.

    Args:
        rules: the rules that hold.
        settings: the settings of the `Dedup`, for times that no rule names.
        docs: the address of the policy: a path of this server, a URL of other documentation, or None.

    Raises:
        ConfigError: `docs` is neither a path nor a URL.
    """

    def __init__(self, rules: Sequence[Rule], settings: Settings, docs: str | None) -> None:
        if docs is not None and not isinstance(docs, str):
            raise ConfigError(f"docs must be text, got {shown(docs)}")
        if docs is not None and not (docs.startswith(("/", "https://", "http://")) and docs.isascii()):
            raise ConfigError(f"docs must be a path such as /idempotency, or a URL, got {docs!r}")
        if docs is not None and any(char in docs for char in '<>" \r\n'):
            raise ConfigError(f"docs must fit into a Link header, got {docs!r}")
        self.docs = docs
        self.path = docs if docs is not None and docs.startswith("/") else None
        self.facts: dict[str, Any] = {
            "header": NAME,
            "specification": DRAFT,
            "key": "a String of RFC 8941, quotes optional: 1 to 255 characters, best a UUID; new for each request, "
            "the same for each retry",
            "scope": 'the caller, the method and the route, or its path where key_scope is "path": the same key '
            "elsewhere is another key. Under another host it is refused, or is another tenant's key",
            "operations": [
                {"path": rule.path, "methods": list(rule.methods), **rule_facts(rule, settings)}
                for rule in rules
            ],
            "headers_not_replayed": sorted(name.decode() for name in NEVER),
            "errors": [problem.facts(about=problem.about) for problem in PROBLEMS],
        }

    def page(self, accept: str | None) -> Response:
        """Return the policy: HTML for a browser, JSON for other clients."""
        html = accept is not None and "text/html" in accept
        body = _page(self.facts).encode() if html else orjson.dumps(self.facts, option=orjson.OPT_INDENT_2)
        kind = b"text/html; charset=utf-8" if html else b"application/json"
        headers = [
            (b"content-type", kind),
            (b"content-length", b"%d" % len(body)),
            (b"vary", b"accept"),
            (b"cache-control", b"max-age=300"),
        ]
        return Response(200, headers, body)


def docs_at(docs: str | None, mount: str) -> str | None:
    """Return the address of a policy for a request; a path of an application is below its `mount`, a path or ""."""
    if docs is None or not docs.startswith("/"):
        return docs
    return quote(mount.rstrip("/"), errors="replace") + docs  # two slashes at the start name another host


def rule_facts(rule: Rule, settings: Settings | None) -> dict[str, Any]:
    """Return the published facts of a rule: its key, lifetimes, replayed statuses and limits.

    A lifetime is None if the rule does not name it and the settings are not known yet.
    """
    ttl, failure_ttl = (settings.ttl, settings.failure_ttl) if settings else (None, None)
    return {
        "key": "required" if rule.required else "optional",
        "key_format": rule.key_format or f".{{1,{MAX_KEY}}}",
        "key_scope": rule.key_scope,
        "caller": "any" if rule.principal is everyone else "required",
        "lifetime_seconds": ttl if rule.ttl is None else rule.ttl,
        "failure_lifetime_seconds": failure_ttl if rule.failure_ttl is None else rule.failure_ttl,
        "replayed_statuses": statuses(rule),
        "in_flight": f"waits {rule.wait:g} s for the first response, then 409" if rule.wait else "409",
        "largest_request_bytes": rule.max_request,
        "largest_replayed_response_bytes": rule.max_response,
        "streams_and_larger_responses": "sent once; repeated requests get 409"
        if rule.unstored == "refuse"
        else "sent, and repeated requests are processed again",
    }


def statuses(rule: Rule) -> list[str]:
    """Return the ranges of statuses that a rule keeps and replays: `["200-399", "400", "402", …]`."""
    ranges = []
    runs = groupby(enumerate(filter(rule.keeps, _STATUSES)), lambda pair: pair[1] - pair[0])
    for _, run in runs:
        kept = [status for _, status in run]
        ranges.append(str(kept[0]) if len(kept) == 1 else f"{kept[0]}-{kept[-1]}")
    return ranges


def _page(facts: dict[str, Any]) -> str:
    operations = "".join(
        f"<h3><code>{escape(', '.join(one['methods']))} {escape(one['path'])}</code></h3><table>"
        + "".join(_row(name, value) for name, value in one.items() if name not in ("path", "methods"))
        + "</table>"
        for one in facts["operations"]
    )
    errors = "".join(
        f"<tr><td>{one['status']}</td><td><code>{escape(one['type'])}</code></td>"
        f"<td>{escape(one['title'])}. {escape(one['about'])}</td></tr>"
        for one in facts["errors"]
    )
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>Idempotency keys</title>'
        '<meta name="viewport" content="width=device-width">'
        f"<style>{_STYLE}</style><h1>Idempotency keys</h1>"
        f"<p>The request header <code>{NAME}</code> (<code>{DRAFT}</code>) makes it safe to repeat a request.</p>"
        f"<table>{_row('key', facts['key'])}{_row('scope', facts['scope'])}"
        f"{_row('headers_not_replayed', facts['headers_not_replayed'])}</table>"
        f"<h2>Operations</h2>{operations}"
        f"<h2>Errors</h2><table><tr><th>Status</th><th>Type</th><th>Meaning</th></tr>{errors}</table></html>"
    )


def _row(name: str, value: object) -> str:
    text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return f"<tr><th>{escape(name.replace('_', ' '))}</th><td>{escape(text)}</td></tr>"

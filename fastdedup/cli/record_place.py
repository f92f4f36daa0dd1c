"""The record of an operator's command: the argument and the options that name it, and their meaning."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from ..admin.inspection import KINDS, wire_of_key
from ..kernel.keyspace import names_of
from ..web.inspection import GATE, RequestPlace, place_of_request, principal_of_header
from ..web.request import as_received
from .terminal import with_options


@dataclass(frozen=True)
class RecordPlace:
    """The record that a command names: a key of some kind, or an id of a ledger.

    Attributes:
        key: the key, or the id.
        kind: the key's kind.
        digest: the key is a digest.
        ledger: the ledger's name, for an id.
        hint: the text to print if nothing is recorded.
        request: the place of a web request's record, or None.
    """

    key: str
    kind: Any
    digest: bool
    ledger: str | None
    hint: str
    request: RequestPlace | None = None

    def within(self, namespace: str) -> str:
        """Return the namespace of the record: the gate's, or below it."""
        return namespace if self.request is None else self.request.within(namespace)

    def listed_as(self, namespace: str) -> str | None:
        """Return the digest that `list` shows for the record; None if it shows the key, or no such record."""
        if self.ledger is not None or self.kind == "machine":
            return None
        wire = wire_of_key(namespace, self.key, self.kind, digest=self.digest)
        shown = names_of(wire)[1]
        return None if shown == self.key and not self.digest else shown


socket_option = click.option(
    "--socket",
    type=click.Path(dir_okay=False, path_type=Path),
    is_eager=True,  # read before --url, which is not needed with it
    help="Ask the sidecar that listens here, instead of a store. Its namespace is the default one; "
    "--http takes --namespace.",
)
"""The option of each command that asks a store or a sidecar."""
reason_option = click.option(
    "--reason",
    help="Why, in up to 256 characters, for the log of the sidecar (--socket, --url sidecar:///…). A Redis of --url "
    "keeps no log of this.",
)
"""The option of each command that leaves a trace at a sidecar: `forget` and `list`."""


place_options = with_options(
    click.argument("key", required=False),
    click.option(
        "--kind",
        type=click.Choice(list(KINDS)),
        default="claim",
        show_default=True,
        help='What KEY is of. A machine\'s KEY is its name, "/" and the id.',
    ),
    click.option(
        "--digest",
        is_flag=True,
        help="KEY is # and 32 hexadecimal digits: the form in which `list` shows a token or a long key.",
    ),
    click.option(
        "--http",
        nargs=2,
        metavar="METHOD PATH",
        help="A web key: the route's method and path, such as POST /orders/{id}. With --key and not KEY, and "
        "with --namespace, the application's own: needed with --socket, and by --url unless it is the default.",
    ),
    click.option(
        "--principal", help="The web key's owner: the principal function's result. [default: everyone]"
    ),
    click.option(
        "--principal-header",
        metavar="VALUE",
        help="The web key's owner, if by_header(…) or a proxy's gate distinguishes callers: the header's value.",
    ),
    click.option(
        "--tenant", help="For which tenant: what the function given as tenant= returns, such as the host."
    ),
    click.option("--key", "web_key", help="The request's Idempotency-Key, for --http."),
    click.option("--ledger", help="KEY is an id of this ledger."),
    socket_option,
)
"""The argument and the options that name a record."""


def place_of(
    key: str | None,
    kind: str,
    digest: bool,
    http: tuple[str, str] | None,
    principal: str | None,
    principal_header: str | None,
    tenant: str | None,
    web_key: str | None,
    ledger: str | None,
) -> RecordPlace:
    """Return the place that the options name; a mistake ends the command."""
    if http is None:
        if any(each is not None for each in (principal, principal_header, tenant, web_key)):
            raise click.UsageError(
                "--principal, --principal-header, --tenant and --key go with --http METHOD PATH"
            )
        if key is None:
            raise click.UsageError("the key is missing: give KEY, or --http METHOD PATH --key …")
        if ledger is not None and (kind != "claim" or digest):
            raise click.UsageError("--ledger goes without --kind and --digest: KEY is an id of the ledger")
        is_listed = key.startswith("#") and ledger is None and not digest
        hint = " A key that `list` shows as # and digits is a digest: add --digest." if is_listed else ""
        if ledger is not None and not is_default("socket"):
            hint = " The record of a claim with remember= is looked at by --url only, not by --socket."
        return RecordPlace(key, kind, digest, ledger, hint)
    if web_key is None:
        raise click.UsageError("--http needs --key, the request's Idempotency-Key")
    if key is not None:
        raise click.UsageError(
            f"with --http the key is given by --key alone, not as KEY: {key!r} is too much"
        )
    if kind != "claim" or digest or ledger is not None:
        raise click.UsageError("--http goes without --kind, --digest and --ledger")
    if principal is not None and principal_header is not None:
        raise click.UsageError("give --principal or --principal-header, not both")
    at_gate = http[0].upper() == GATE  # a proxy's requests, whose records are in the namespace that it names
    if at_gate and tenant is not None:
        raise click.UsageError("--tenant is not for GATE: a proxy's gate knows no tenants")
    if not at_gate and is_default("namespace") and not is_default("socket"):
        raise click.UsageError("--http with --socket takes --namespace: the one of the service's gate")
    hint = ""
    if not at_gate and "{" not in http[1]:
        hint = " PATH is the declared path of the route, such as /orders/{id}"
        hint += "; Flask's names are in braces too: /pay/{int:no}." if "<" in http[1] else "."
    if principal_header is not None:
        value = principal_header.strip()
        principal = as_received(value) if at_gate else principal_of_header(value)
    elif principal is not None and not at_gate:
        hint += " If by_header(…) tells callers apart, give the header's value by --principal-header."
    request = place_of_request(*http, principal, web_key, tenant)
    return RecordPlace(request.key, "claim", False, None, hint, request)


# At the store


def namespace_if_given(namespace: str) -> str | None:
    """Return the namespace, or None if it was not given: then the sidecar uses its own default."""
    return None if is_default("namespace") else namespace


def is_default(name: str) -> bool:
    """Return whether the running command's option has its default."""
    return click.get_current_context().get_parameter_source(name) is ParameterSource.DEFAULT

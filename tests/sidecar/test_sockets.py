"""Several sockets in one sidecar: what the clients of each may do, and how much."""

from __future__ import annotations

import json
import os
import re
import stat
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import redis

from fastdedup import Dedup
from fastdedup.sidecar.access import VERBS, Access, TokenBucket
from fastdedup.sidecar.client import UnixConnection
from fastdedup.sidecar.ephemeral import EphemeralClaims, Holdings
from fastdedup.sidecar.http.route import EACH
from fastdedup.sidecar.http.routes import ROUTES
from fastdedup.sidecar.limits import LimitError, Limits
from fastdedup.sidecar.resp.commands import COMMANDS, VERB_OF
from fastdedup.sidecar.resp.frames import encode
from fastdedup.sidecar.resp.store_commands import COMMANDS as OF_STORES
from fastdedup.sidecar.resp.store_commands import Ear
from fastdedup.sidecar.service.config import Config, load
from fastdedup.sidecar.service.mistakes import Mistakes
from fastdedup.sidecar.service.tables import SocketConfig
from fastdedup.sidecar.service.texts import summary

from .running import DEADLINE, Sidecar, client, figure

TENANTS = """
[namespaces.payments]
[namespaces.mail]

[[sockets]]
path = "{run}/payments.sock"
mode = "0600"
namespaces = ["payments"]
deny = ["forget"]

[[sockets]]
path = "{run}/mail.sock"
namespaces = ["mail", "payments"]
show_owners = true

[[sockets]]
path = "{run}/look.sock"
namespaces = ["payments"]
verbs = "read"

[[sockets]]
path = "{run}/stores.sock"
namespaces = ["mail"]
allow_stores = true

[[sockets]]
path = "{run}/slow.sock"
claims_per_second = 0.01
ephemeral = 2
ephemeral_in_all = 3

[[sockets]]
path = "{run}/narrow.sock"
pending = 2
owner = {owner}
group = {group}
"""
# Only root may give a file to another user. Everybody may give it to a group of their own.
OWNER, GROUP = (65534, 65534) if os.getuid() == 0 else (os.getuid(), min({os.getgid(), *os.getgroups()}))


class Tenants:
    """A sidecar with a socket for each tenant."""

    def __init__(self, sidecar: Sidecar) -> None:
        self.sidecar = sidecar

    def path(self, name: str) -> Path:
        return self.sidecar.path.parent / f"{name}.sock"

    def resp(self, name: str) -> redis.Redis:
        return client(self.path(name))

    def http(self, name: str, method: str, address: str, body: Any = None) -> tuple[int, Any, Any]:
        with closing(UnixConnection(self.path(name))) as connection:
            kind = {} if body is None else {"content-type": "application/json"}
            connection.request(method, address, None if body is None else json.dumps(body), kind)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read()), answer.headers


@pytest.fixture(scope="module")
def tenants() -> Iterator[Tenants]:
    with Sidecar(config=TENANTS.format(run="{run}", owner=OWNER, group=GROUP)) as sidecar:
        yield Tenants(sidecar)


def ask(connection: redis.Redis, *words: str) -> Any:
    return connection.execute_command(*words)


# Namespaces


def test_a_socket_serves_its_namespaces_only(tenants: Tenants) -> None:
    with tenants.resp("payments") as own:
        assert ask(own, "FD.CLAIM", "one", "NS", "payments")[0] == b"acquired"
        remembered = (
            ("FD.CLAIM", "one", "REMEMBER", "orders"),
            ("FD.FAIL", "one", "me", "x", "REMEMBER", "orders"),
        )
        for command in (
            ("FD.CLAIM", "one"),
            ("FD.GET", "one"),
            ("FD.RELEASE", "one", "me"),
            ("FD.ISSUE",),
            *remembered,
        ):
            with pytest.raises(redis.exceptions.NoPermissionError, match="this socket serves payments only"):
                ask(own, *command, "NS", "mail")
    for method, address, body in (
        ("POST", "/v1/claims", {"key": "one", "namespace": "mail"}),
        ("POST", "/v1/claims/release", {"key": "one", "owner": "me", "namespace": "mail"}),
        ("POST", "/v1/claims", {"key": "one", "namespace": "mail", "remember": "orders"}),
        (
            "POST",
            "/v1/claims/renew",
            {"key": "one", "owner": "me", "namespace": "mail", "remember": "orders"},
        ),
        ("GET", "/v1/records?key=one&namespace=mail", None),
    ):
        status, problem, _ = tenants.http("payments", method, address, body)
        assert (status, problem["type"]) == (403, "urn:fastdedup:problem:forbidden")
    asks = [{"op": "claim", "key": "two", "namespace": "mail"}, {"op": "claim", "key": "two"}]
    status, answers, _ = tenants.http("payments", "POST", "/v1/batch", asks)
    assert (status, [each["status"] for each in answers]) == (200, [403, 201])


def test_requests_without_a_namespace_get_the_sockets_first_one(tenants: Tenants) -> None:
    with tenants.resp("payments") as payments, tenants.resp("mail") as mail:
        assert ask(payments, "FD.CLAIM", "first")[0] == b"acquired"
        assert ask(mail, "FD.CLAIM", "first")[0] == b"acquired"
        assert ask(mail, "FD.CLAIM", "first", "NS", "payments")[0] == b"in_progress"


def test_a_socket_with_namespaces_shows_no_metrics_of_others(tenants: Tenants) -> None:
    assert tenants.http("payments", "GET", "/metrics")[0] == 404
    assert tenants.http("payments", "GET", "/healthz")[0] == 200
    assert tenants.http("payments", "GET", "/readyz")[0] == 200


# Verbs


def test_what_a_socket_denies_neither_wire_does(tenants: Tenants) -> None:
    with tenants.resp("payments") as own:
        ask(own, "FD.CLAIM", "kept")
        with pytest.raises(redis.exceptions.NoPermissionError, match="does not allow 'forget'"):
            ask(own, "FD.FORGET", "kept")
        assert tenants.http("payments", "DELETE", "/v1/records?key=kept")[0] == 403
        assert ask(own, "FD.GET", "kept") is not None


def test_a_socket_for_reading_changes_nothing(tenants: Tenants) -> None:
    with tenants.resp("payments") as own, tenants.resp("look") as look:
        owner = ask(own, "FD.CLAIM", "seen")[1].decode()
        assert json.loads(ask(look, "FD.GET", "seen"))["state"] == "processing"
        for command in (
            ("FD.CLAIM", "new"),
            ("FD.COMPLETE", "seen", owner),
            ("FD.ISSUE",),
            ("FD.CONSUME", "t"),
        ):
            with pytest.raises(redis.exceptions.NoPermissionError):
                ask(look, *command)
        held = {"key": "seen", "owner": owner}
        assert tenants.http("look", "POST", "/v1/claims", {"key": "new"})[0] == 403
        assert tenants.http("look", "POST", "/v1/claims/release", held)[0] == 403
        for address in ("/v1/gate?principal=everyone&missing=pass", "/v1/gate/orders"):
            assert tenants.http("look", "GET", address)[:1] == (403,)
        changes = [{"op": "claim", "key": "new"}, {"op": "release", **held}]
        assert [each["status"] for each in tenants.http("look", "POST", "/v1/batch", changes)[1]] == [
            403,
            403,
        ]
        assert ask(own, "FD.CLAIM", "new")[0] == b"acquired"


def test_every_command_and_address_says_what_it_does() -> None:
    assert {name for name in COMMANDS if name.startswith(b"FD.")} == {*VERB_OF, *OF_STORES}
    assert set(VERB_OF.values()) == set(VERBS)
    assert {route.verb for route in ROUTES} == {*VERBS, "", EACH}


# Owners


def test_owners_are_shown_only_where_the_socket_says_so(tenants: Tenants) -> None:
    with tenants.resp("payments") as own, tenants.resp("look") as look, tenants.resp("mail") as mail:
        owner = ask(own, "FD.CLAIM", "mine")[1].decode()
        assert json.loads(ask(look, "FD.GET", "mine"))["owner"] is None
        assert tenants.http("look", "GET", "/v1/records?key=mine")[1]["owner"] is None
        assert ask(mail, "FD.CLAIM", "mine", "NS", "payments")[1].decode() != owner
        assert json.loads(ask(mail, "FD.GET", "mine", "NS", "payments"))["owner"] == owner


# Stores


async def test_stores_are_served_on_their_socket_in_its_namespaces(tenants: Tenants) -> None:
    async with Dedup(f"sidecar://{tenants.path('stores')}", namespace="mail") as mail:
        assert (await mail.claim("stored")).acquired
        assert await mail.forget("stored")
    with (
        tenants.resp("payments") as own,
        pytest.raises(redis.ResponseError, match="serves no sidecar:// stores"),
    ):
        ask(own, "FD.STORE", "1")
    async with Dedup(f"sidecar://{tenants.path('stores')}", namespace="payments") as payments:
        with pytest.raises(Exception, match="this socket serves mail only"):
            await payments.claim("stored")


def test_a_listener_hears_of_its_namespaces_only() -> None:
    got: list[bytes] = []
    ear = Ear(lambda message: got.append(message) is None, ("mail",))
    for wire in (b"payments:=secret", b"mail:=heard", b"mailing:=secret"):
        ear.hear(wire)
    assert got == [encode([b"freed", b"mail:=heard"])]


# The file


def test_a_socket_has_its_own_mode(tenants: Tenants) -> None:
    assert stat.S_IMODE(tenants.path("payments").stat().st_mode) == 0o600
    assert stat.S_IMODE(tenants.path("mail").stat().st_mode) == 0o660


def test_a_socket_belongs_to_its_owner_and_group(tenants: Tenants) -> None:
    found = tenants.path("narrow").stat()
    assert (found.st_uid, found.st_gid) == (OWNER, GROUP)


# Quotas


def test_claims_over_the_rate_are_told_when_to_ask_again(tenants: Tenants) -> None:
    with tenants.resp("slow") as slow:
        assert ask(slow, "FD.CLAIM", "quick")[0] == b"acquired"
        with pytest.raises(redis.ResponseError, match=r"UNAVAILABLE \d{4,} .*claims_per_second"):
            ask(slow, "FD.CLAIM", "quick")
        assert ask(slow, "FD.GET", "quick") is not None
    status, problem, headers = tenants.http("slow", "POST", "/v1/claims", {"key": "quick"})
    assert (status, problem["type"]) == (429, "urn:fastdedup:problem:quota-exceeded")
    assert 50 < int(headers["retry-after"]) <= 100
    batch = tenants.http("slow", "POST", "/v1/batch", [{"op": "claim", "key": "quick"}])
    assert [each["status"] for each in batch[1]] == [429]
    assert (
        figure(tenants.sidecar.figures(), "fastdedup_quota_refusals_total", socket=str(tenants.path("slow")))
        == 3
    )


def test_operations_under_way_have_a_quota_of_their_socket(tenants: Tenants) -> None:
    with tenants.resp("narrow") as holder, tenants.resp("narrow") as waiting:
        owner = ask(holder, "FD.CLAIM", "busy")[1].decode()
        pipeline = waiting.connection_pool.get_connection()
        for _ in range(2):
            pipeline.send_command("FD.CLAIM", "busy", "WAIT", "20000")
        pipeline.send_command("PING")  # behind these two
        pipeline.send_command("FD.GET", "busy")
        assert re.match(r"UNAVAILABLE 100 .*under way.*pending", until(holder, True, "FD.GET", "busy"))
        assert tenants.http("narrow", "POST", "/v1/claims", {"key": "busy"})[0] == 429
        pipeline.disconnect()
        waiting.connection_pool.release(pipeline)
        assert until(holder, False, "FD.RELEASE", "busy", owner) == ""


def until(connection: redis.Redis, refused: bool, *words: str) -> str:
    """Ask until the sidecar has seen what other clients have done; return the refusal."""
    ends = time.monotonic() + DEADLINE
    while time.monotonic() < ends:
        try:
            ask(connection, *words)
            said = ""
        except redis.ResponseError as error:
            said = str(error)
        if bool(said) is refused:
            return said
    raise TimeoutError(words)


def test_a_token_bucket_fills_as_time_goes_by() -> None:
    now = [0.0]
    bucket = TokenBucket(2.0, lambda: now[0])
    assert [bucket.take(1), bucket.take(1), bucket.take(1)] == [0.0, 0.0, 0.5]
    now[0] = 0.5
    assert bucket.take(5) == 0.0  # a batch as a whole; the next one waits for all of it
    assert bucket.take(1) == 2.5
    now[0] = 100.0
    assert [bucket.take(1), bucket.take(1), bucket.take(1)] == [0.0, 0.0, 0.5]


def test_ephemeral_claims_have_a_quota_of_their_socket() -> None:
    everybody = EphemeralClaims(Limits(ephemeral=9, ephemeral_in_all=4))
    one, other = (EphemeralClaims(Limits(ephemeral=2, ephemeral_in_all=3), everybody) for _ in range(2))
    first, second, third = Holdings(one), Holdings(one), Holdings(other)
    for each in (first, first, second):
        each.ask()
    with pytest.raises(LimitError, match="have 3 EPHEMERAL"):
        second.ask()
    third.ask()
    with pytest.raises(LimitError, match="have 4 EPHEMERAL"):
        third.ask()
    first.leave()
    third.ask()
    assert (one.count, other.count, everybody.count) == (1, 2, 3)


# The configuration


@pytest.mark.parametrize(
    ("table", "mistake"),
    [
        ("mode = 660", "must be text of octal digits"),
        ('mode = "0666"', "list those who may connect"),
        ('allow_stores = true\nverbs = "read"', "leave out verbs and deny"),
        ('deny = ["forgot"]', "did you mean forget"),
        ('deni = ["forget"]', "did you mean deny"),
        ("claims_per_second = 0", "greater than 0"),
    ],
)
def test_a_mistake_in_a_socket_names_its_line(tmp_path: Path, table: str, mistake: str) -> None:
    file = tmp_path / "fastdedup.toml"
    file.write_text(f'[[sockets]]\npath = "/run/a.sock"\n[[sockets]]\npath = "/run/b.sock"\n{table}\n')
    with pytest.raises(Mistakes) as raised:
        load(file, environment=False)
    assert mistake in str(raised.value)
    assert int(str(raised.value).removeprefix(f"{file}:").partition(":")[0]) in (3, 5, 6)


def test_two_sockets_never_share_a_path() -> None:
    one = {"path": "/run/a.sock"}
    with pytest.raises(ValueError, match="two sockets have the same path"):
        Config(sockets=(one, one))


def test_the_summary_tells_the_rules_of_a_socket() -> None:
    socket = SocketConfig(
        path=Path("/run/a.sock"), namespaces=("payments",), deny=("forget",), claims_per_second=5
    )
    lines = list(summary(Config(sockets=(socket,))))
    assert any("/run/a.sock: mode 0660" in line and "payments" in line and "forget" in line for line in lines)


def test_a_socket_without_rules_is_not_asked() -> None:
    assert not Access().has_rules
    assert not Access(namespaces=("payments",)).has_rules

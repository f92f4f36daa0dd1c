"""Routes, their settings, and whom a key belongs to."""

from __future__ import annotations

import re
from enum import Enum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastdedup import ConfigError
from fastdedup.kernel.keyspace import MAX_KEY_BYTES, Keyspace, Kind
from fastdedup.web.fingerprints import bare_path
from fastdedup.web.header import MAX_KEY, BadKey
from fastdedup.web.request import EVERYONE, PrincipalMissing, Request, by_header, everyone
from fastdedup.web.rules import UUID, Route, RouteTable, Rule, declared, keeps, make_rules

# Settings


async def later(given: Any) -> bool:
    """Cannot be awaited by a rule."""
    return False


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("path", "orders"),
        ("path", None),
        ("principal", None),
        ("principal", "ann"),
        ("methods", "POST"),
        ("methods", []),
        ("methods", None),
        ("methods", ["PO ST"]),
        ("methods", [1]),
        ("required", "yes"),
        ("renew", 1),
        ("wait", -1),
        ("wait", "1"),
        ("wait", True),
        ("wait", float("nan")),
        ("lease", 0),
        ("lease", "30"),
        ("ttl", -1),
        ("ttl", float("inf")),
        ("failure_ttl", 0),
        ("keep", 200),
        ("keep", "200"),
        ("keep", ["200"]),
        ("keep", [20]),
        ("keep", None),
        ("max_request", 0),
        ("max_request", 1.5),
        ("max_response", -1),
        ("max_response", True),
        ("max_response", 255 * 1024 * 1024),
        ("unstored", "keep"),
        ("on_disconnect", "stop"),
        ("keep_headers", "x-run"),
        ("keep_headers", ["x run"]),
        ("drop_headers", None),
        ("drop_headers", "set-cookie"),
        ("key_format", "("),
        ("key_format", 5),
        ("key_format", b"[a-z]+"),  # each request with a key was answered 500
        ("key_format", re.compile("[a-z]+")),  # it stood as "re.compile(...)" in the error that clients get
        ("key_scope", "url"),
        ("fingerprint", None),
        ("fingerprint", b"x" * 16),
        ("retry_after", -1),
        ("retry_after", None),
        ("principal", lambda: "ann"),  # such as a dependency of FastAPI
        ("principal", lambda request, user: user),
        ("fingerprint", lambda: b"x"),
        ("tenant", lambda host, path: host),
        ("keep", lambda: True),
        ("keep", later),  # what it returned was always true: each 5xx was kept for a day
        ("fingerprint", later),
        ("tenant", later),
    ],
)
def test_a_setting_that_cannot_be_used_is_told_by_its_name(setting: str, value: Any) -> None:
    settings = {"path": "/", "principal": everyone, setting: value}
    with pytest.raises(ConfigError, match=setting):
        Rule(**settings)


@pytest.mark.parametrize("path", ["/a/*/b", "/{a/b", "/a}", "/{}", "/{a/b}", "/**", "/{a}*}"])
def test_a_path_that_is_no_pattern_is_told(path: str) -> None:
    with pytest.raises(ConfigError, match="must be a whole segment"):
        table(path)


def test_an_unknown_setting_is_told_with_those_that_there_are() -> None:
    with pytest.raises(ConfigError, match=r"unknown setting 'waits': use one of .*wait"):
        make_rules(["/"], {"principal": everyone, "waits": 1})
    with pytest.raises(ConfigError, match="stored_headers"):
        make_rules(["/"], {"principal": everyone, "stored_headers": None})


def test_a_rule_needs_a_principal() -> None:
    with pytest.raises(ConfigError, match="principal= is missing"):
        make_rules(["/"], {})


@pytest.mark.parametrize("routes", ["/orders", [], None, Route("/orders")])
def test_routes_are_a_list(routes: Any) -> None:
    with pytest.raises(ConfigError, match="routes"):
        make_rules(routes, {"principal": everyone})


def test_a_routes_own_settings_go_before_those_for_all() -> None:
    rules = make_rules(
        [Route("/a", wait=2.0, methods=["put"]), "/b"], {"principal": everyone, "wait": 1.0, "required": True}
    )
    assert [(rule.wait, rule.methods, rule.required) for rule in rules] == [
        (2.0, ("PUT",), True),
        (1.0, ("POST", "PATCH"), True),
    ]
    assert repr(Route("/a", wait=2.0)) == "Route('/a')"


@pytest.mark.parametrize(
    ("status", "kept"),
    [(200, True), (204, True), (303, True), (400, True), (404, True), (422, True), (410, True)]
    + [(status, False) for status in (401, 403, 408, 409, 412, 415, 425, 428, 429, 499, 500, 502, 503, 599)],
)
def test_outcomes_are_kept_and_what_a_retry_may_overcome_is_not(status: int, kept: bool) -> None:
    assert keeps(status) is kept
    assert Rule("/", everyone).keeps(status) is kept


def test_which_statuses_are_kept_may_be_listed() -> None:
    rule = Rule("/", everyone, keep=range(200, 300))
    assert rule.keeps(204)
    assert not rule.keeps(303)


# Paths


def table(*paths: str, **settings: Any) -> RouteTable[str]:
    return RouteTable(make_rules(list(paths), {"principal": everyone, **settings}), lambda rule: rule.path)


@pytest.mark.parametrize(
    ("pattern", "path", "found"),
    [
        ("/orders", "/orders", True),
        ("/orders", "/orders/", True),  # many frameworks serve it: not a way past the rule
        ("/orders/", "/orders", True),
        ("/orders", "/orders//x", False),
        ("/orders", "/Orders", False),
        ("/a.c", "/abc", False),
        ("/orders/{id}", "/orders/7", True),
        ("/orders/{id}", "/orders/", False),
        ("/orders/{id}", "/orders/7/", True),
        ("/orders/{id}", "/orders/7/pay", False),
        ("/orders/{id}/pay", "/orders/7/pay", True),
        ("/{a}-x", "/7-x", True),
        ("/orders", "/orders\n", True),  # the $ of Starlette's patterns matches before it
        ("/orders", "//orders", True),  # Litestar serves it
        ("/api/*", "/api/", True),
        ("/api/*", "/api/a/b\nc", True),
        ("/api/*", "/api", False),
        ("/*", "/", True),
        ("/(x)", "/(x)", True),
        ("/é", "/é", True),
    ],
)
def test_a_path_stands_for_itself_a_name_in_braces_for_a_segment_a_star_for_all_below(
    pattern: str, path: str, found: bool
) -> None:
    assert table(pattern).find("POST", path) == (pattern if found else None)


def test_the_first_route_that_matches_is_taken() -> None:
    rules = table("/orders/new", "/orders/{id}", "/orders/*", "/*")
    assert [rules.find("POST", path) for path in ("/orders/new", "/orders/7", "/orders/7/pay", "/x")] == [
        "/orders/new",
        "/orders/{id}",
        "/orders/*",
        "/*",
    ]


def test_a_method_finds_its_own_routes_only() -> None:
    rules = make_rules([Route("/a", methods=["PUT"]), Route("/{x}")], {"principal": everyone})
    found = RouteTable(rules, lambda rule: rule.path)
    assert found.find("PUT", "/a") == "/a"
    assert found.find("POST", "/a") == "/{x}"
    assert found.find("PUT", "/b") is None
    assert found.find("GET", "/a") is None
    assert [found.find(method, "/a") for method in ("put", "123", "")] == ["/a", None, None]


def test_among_two_hundred_routes_each_is_found() -> None:
    paths = [f"/r{at}/{{id}}" for at in range(200)]
    rules = table(*paths)
    assert all(rules.find("POST", path.format(id=7)) == path for path in paths)


# Whom a key belongs to

NAMES = st.one_of(
    st.just(EVERYONE),
    st.text(min_size=1, max_size=12),
    st.text(alphabet="|\\-=# a", min_size=1, max_size=6),
    st.text(alphabet="ab|\\", min_size=120, max_size=200),
    st.text(st.characters(categories=["Cs", "Ll"]), min_size=1, max_size=5),
)
KEYS = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), min_size=1, max_size=MAX_KEY)
CALLS = st.tuples(st.sampled_from(["POST", "PATCH"]), NAMES.map(lambda name: f"/{name}"), NAMES, KEYS)
EVERY = Rule("/*", everyone)


@given(one=CALLS, other=CALLS)
def test_no_two_callers_methods_paths_or_keys_share_a_record(one: Any, other: Any) -> None:
    same = (one[0], bare_path(one[1]), *one[2:]) == (other[0], bare_path(other[1]), *other[2:])
    assert (EVERY.scope_key(*one) == EVERY.scope_key(*other)) == same


@given(call=CALLS)
def test_every_scope_key_can_be_stored(call: Any) -> None:
    assert Keyspace("shop:http", Kind.CLAIM).wire(EVERY.scope_key(*call))


def test_the_longest_of_all_can_be_stored() -> None:
    worst = EVERY.scope_key("PATCH", "/" + "|" * 127, "|" * 128, "|" * MAX_KEY)
    assert len(worst.encode()) <= MAX_KEY_BYTES


def test_a_principal_which_may_be_a_secret_stands_in_no_key() -> None:
    assert "s3cret" not in EVERY.scope_key("POST", "/", "s3cret", "k")


def test_a_principal_that_looks_like_the_digest_of_a_long_one_is_not_taken_for_it() -> None:
    victim = "victim" * 40
    digest = EVERY.scope_key("POST", "/", victim, "k").split("|")[1].removeprefix("=")
    assert EVERY.scope_key("POST", "/", digest, "k") != EVERY.scope_key("POST", "/", victim, "k")


def test_everyone_is_not_the_principal_whose_name_is_a_dash() -> None:
    scopes = {EVERY.scope_key("POST", "/", name, "k") for name in (EVERYONE, "-", "=", "None")}
    assert len(scopes) == 4


class Account(str, Enum):  # noqa: UP042 -- its str() is its name
    ANN = "ann"


class Masked(str):
    """A key that an application does not want in its log."""

    __slots__ = ()

    def __str__(self) -> str:
        return "***"


@pytest.mark.parametrize("principal", [Account.ANN, Masked("ann")], ids=["enum", "masked"])
def test_a_principal_is_its_text_and_not_what_it_shows(principal: str) -> None:
    """All callers that show "***" were one caller."""
    assert EVERY.scope_key("POST", "/", principal, "k") == EVERY.scope_key("POST", "/", "ann", "k")


@pytest.mark.parametrize("principal", [None, ""])
def test_a_caller_without_a_name_is_refused(principal: str | None) -> None:
    with pytest.raises(PrincipalMissing):
        EVERY.scope_key("POST", "/", principal, "k")


def test_below_a_pattern_the_route_counts_below_a_star_the_path() -> None:
    pay = Rule("/orders/{id}/pay", everyone)
    assert pay.scope_key("POST", "/orders/1/pay", "ann", "k") == pay.scope_key(
        "POST", "/orders/2/pay", "ann", "k"
    )
    assert EVERY.scope_key("POST", "/a", "ann", "k") != EVERY.scope_key("POST", "/b", "ann", "k")


def test_with_the_paths_scope_each_path_has_keys_of_its_own() -> None:
    pay = Rule("/orders/{id}/pay", everyone, key_scope="path")
    keys = [pay.scope_key("POST", path, "ann", "k") for path in ("/orders/1/pay", "/orders/2/pay")]
    assert keys[0] != keys[1]
    assert pay.scope_key("POST", "/orders/1/pay/", "ann", "k") == keys[0]


def test_a_declared_path_stands_for_itself() -> None:
    assert declared("^a/*$") == "/^a/%2A$"
    assert declared("/orders/{id}") == "/orders/{id}"


@pytest.mark.parametrize("principal", [7.0, b"ann", True, ["ann"]])
def test_a_principal_that_is_no_text_is_a_mistake_of_the_program(principal: Any) -> None:
    with pytest.raises(ConfigError, match="a principal must be text"):
        EVERY.scope_key("POST", "/", principal, "k")


def test_by_header_keeps_a_digest_not_the_secret() -> None:
    principal = by_header("X-Api-Key")
    request = Request("POST", "/", b"", [(b"x-api-key", b"s3cret")], b"", {})
    name = principal(request)
    assert name is not None
    assert "s3cret" not in name
    assert principal(Request("POST", "/", b"", [], b"", {})) is None
    assert principal(Request("POST", "/", b"", [(b"x-api-key", b"")], b"", {})) is None


@pytest.mark.parametrize("name", ["", "é", None, 5, "x_api_key"])
def test_by_header_takes_a_headers_name(name: Any) -> None:
    with pytest.raises(ConfigError, match="by_header"):
        by_header(name)


def test_a_key_must_match_the_whole_format() -> None:
    rule = Rule("/", everyone, key_format=UUID)
    rule.check_key("8e03978e-40d5-43e8-bc93-6894a57f9324")
    for bad in ("x", "8e03978e-40d5-43e8-bc93-6894a57f9324\n", "x8e03978e-40d5-43e8-bc93-6894a57f9324"):
        with pytest.raises(BadKey, match="match"):
            rule.check_key(bad)


@pytest.mark.parametrize("value", [None, object(), float("nan")])
def test_a_fingerprint_function_returns_what_can_be_digested(value: Any) -> None:
    rule = Rule("/", everyone, fingerprint=lambda request: value)
    with pytest.raises(ConfigError, match=r"fingerprint"):
        rule.mark(Request("POST", "/", b"", [], b"", {}))

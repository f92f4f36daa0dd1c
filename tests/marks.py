"""Which tests get which mark: `servers`, `browser`, `compiled`, `slow`. `make quick` runs the tests without one.

The marks are set here and nowhere else, by folder, by file, or by the fixtures that a test asks for.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .unmeasured import STORES, named

# The beginning of a test's name: its folder below tests/, its file, or `file::function`.
PLACES = {
    "servers": (
        "committing/",
        "gated_inbox/",
        "messages/",
        "outage/test_cluster.py",
        "outage/test_replicas.py",
        "outage/test_sentinel.py",
        "regression/test_a_forbidden_key_is_refused_alone.py",
        "regression/test_connections.py::test_the_breaker_stays_open_until_the_rights_are_back",
        "regression/test_failovers.py",
        "regression/test_local_answers.py::test_a_returning_node_gets_its_keys_while_another_is_down",
        "regression/test_password_is_rotated.py",
        "regression/test_replicas.py",
        "regression/test_subscriptions.py",
        "sidecar/test_gate_nginx.py",
        "sql/",
        "sql_pages/",
        "test_servers.py",
        "unit/test_bench_messages.py",
    ),
    "browser": (
        "integrations/test_shop_browser.py",
        "integrations/test_shop_page.py",
        "regression/test_a_form_that_ends_its_session.py::test_a_browser_that_clicks_again_learns_what_was_done",
    ),
    "compiled": ("test_compiled.py",),
    "slow": (
        "model/test_crashes.py",
        "model/test_interleavings.py",
        "model/test_simulation_on_a_cluster.py",
        "model/test_simulation_on_a_server.py",
        "model/test_simulation_with_sentinels.py",
        "outage/",
        "test_packaging.py",
        "unit/test_bench",
        "unit/test_chaos_",
    ),
}
"""Servers: anything but one redis-server. Slow: tests of what few changes touch, each of which takes seconds."""
FIXTURES = {"servers": {"kafka", "mariadb", "nats", "postgres", "rabbitmq"}}
MARKS = {
    "servers": "needs more than one redis-server: a database, a broker, nginx, Sentinel, a Cluster or a sidecar",
    "browser": "opens pages in Chromium",
    "compiled": "tests the package as mypyc compiles it",
    "slow": "takes seconds, and few changes touch what it tests",
}


def marks_of(item: pytest.Item) -> Iterator[str]:
    """Yield the marks of a test."""
    place = f"{named(item.path)}::{item.name}"
    fixtures = {*getattr(item, "fixturenames", ())}
    row = getattr(item, "callspec", None)
    params = row.params if row is not None else {}
    # The model runs on memory and on a server beside these two. The far end is the spec itself.
    side = str(params.get("side", params.get("sides")))
    is_slow = side.endswith(("fakeredis", "far end"))
    is_another = side.startswith("valkey")
    by_row = {"servers": params.get("running_store") in STORES or is_another, "slow": is_slow}
    for mark in MARKS:
        if place.startswith(PLACES[mark]) or fixtures & FIXTURES.get(mark, set()) or by_row.get(mark):
            yield mark

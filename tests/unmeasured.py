"""Which tests and programs measure no coverage, which doubles their CPU time: others run the same lines.

Where something is taken out of here, only time is lost.
"""

import os
from pathlib import Path

import pytest

from .warm import coverage_variables

HERE = Path(__file__).parent
STORES = {"fakeredis", "sentinel", "cluster", "cluster by slot", "sidecar"}
"""Rows of the matrix that add five branches. `no_cover` at a test that goes many rounds says the same of it."""
BEGINNINGS = ("test_bench_", "test_chaos_")
"""Tests of `bench` and of `tests/chaos`, which are not in the package."""
FILES = frozenset(
    (
        "client/test_claims.py",
        "client/test_faces.py",
        "client/test_server.py",
        "committing/test_drivers.py",
        "committing/test_killed_servers.py",
        "contract/test_adoption.py",
        "contract/test_batches.py",
        "contract/test_claims.py",
        "contract/test_conformance.py",
        "contract/test_dense_ledgers.py",
        "contract/test_ledgers.py",
        "contract/test_records.py",
        "contract/test_settling.py",
        "contract/test_tokens.py",
        "contract/test_typed_results.py",
        "contract/test_waiting.py",
        "gated_inbox/test_failure_table.py",
        "gated_inbox/test_killed_consumers.py",
        "integrations/test_asgi_server.py",
        "integrations/test_draft.py",
        "integrations/test_figures.py",
        "integrations/test_middleware.py",
        "integrations/test_middleware_outage.py",
        "integrations/test_shop.py",
        "integrations/test_shop_browser.py",
        "integrations/test_shop_life.py",
        "integrations/test_shop_page.py",
        "integrations/test_test_clients.py",
        "integrations/test_web_page.py",
        "integrations/test_wsgi.py",
        "integrations/test_wsgi_server.py",
        "messages/test_celery.py",
        "messages/test_consumers.py",
        "messages/test_handout.py",
        "messages/test_killed_workers.py",
        "messages/test_messages_example.py",
        "model/test_calls.py",
        "model/test_closure.py",
        "model/test_crashes.py",
        "model/test_interleavings.py",
        "outage/test_faults.py",
        "outage/test_ledger_outages.py",
        "outage/test_lost_replies.py",
        "outage/test_policies.py",
        "outage/test_processes_and_loops.py",
        "outage/test_reconciliation.py",
        "outage/test_redis_down.py",
        "outage/test_replicas.py",
        "regression/test_a_claim_outlives_its_closed_gate.py",
        "regression/test_a_form_that_ends_its_session.py",
        "regression/test_a_handler_in_a_thread_keeps_its_response.py",
        "regression/test_callbacks.py",
        "regression/test_callers.py",
        "regression/test_clocks.py",
        "regression/test_ephemeral_claims.py",
        "regression/test_failovers.py",
        "regression/test_given_up_claims.py",
        "regression/test_hosts_are_apart.py",
        "regression/test_late_and_failed_claims.py",
        "regression/test_leases.py",
        "regression/test_lifecycle.py",
        "regression/test_named_owners.py",
        "regression/test_next_hop.py",
        "regression/test_once_commits_the_transaction_of_its_row.py",
        "regression/test_openapi.py",
        "regression/test_password_is_rotated.py",
        "regression/test_records_in_logs_and_lists.py",
        "regression/test_replicas.py",
        "regression/test_secrets_stay_secret.py",
        "regression/test_sidecar_answers.py",
        "regression/test_sidecar_memory.py",
        "regression/test_sidecar_reads.py",
        "regression/test_sidecar_sockets.py",
        "regression/test_streams.py",
        "regression/test_subscriptions.py",
        "regression/test_synchronous_code_under_gevent.py",
        "regression/test_the_inbox_compares_fingerprints.py",
        "regression/test_the_recipes_let_their_group_in.py",
        "regression/test_what_failed_is_no_duplicate.py",
        "sidecar/test_a_claim_from_a_shell.py",
        "sidecar/test_batch_answers.py",
        "sidecar/test_deploy.py",
        "sidecar/test_gate_nginx.py",
        "sidecar/test_http_connection.py",
        "sidecar/test_languages.py",
        "sidecar/test_ledgers.py",
        "sidecar/test_openapi.py",
        "sidecar/test_serve.py",
        "sidecar/test_sync.py",
        "sidecar/test_takeover.py",
        "site/test_architecture_page.py",
        "site/test_other_pages.py",
        "site/test_pages.py",
        "site/test_recipes.py",
        "site/test_sizing.py",
        "site/test_tables.py",
        "sql_pages/test_ways.py",
        "test_examples.py",
        "test_house.py",
        "test_mcp_server.py",
        "test_readme.py",
        "test_servers.py",
        "test_the_way_of_a_claim.py",
        "unit/test_bench.py",
        "unit/test_breaker.py",
        "unit/test_checks.py",
        "unit/test_engine.py",
        "unit/test_fallback.py",
        "unit/test_full_buckets.py",
        "unit/test_health.py",
        "unit/test_long_lists.py",
        "unit/test_reconcile.py",
        "unit/test_records.py",
        "unit/test_shared_answers.py",
        "unit/test_single_claims.py",
        "unit/test_stuck_page.py",
        "unit/test_testing_page.py",
        "unit/test_wakeups.py",
        "unit/test_web_header.py",
        "unit/test_web_recorder.py",
    )
)
"""Files below this folder that add few lines, or none, to what the other files run; each one's share was measured."""
PROGRAMS = frozenset(("integrations/test_shop.py", "sidecar/test_ledgers.py", "sidecar/test_takeover.py"))
"""Files whose programs run lines that no test runs in its own process. To measure takes a program half a second."""
_REMOVED: dict[str, str] = {}
"""The variables by which coverage.py starts in a program, as they were set in this process."""


def is_unmeasured(path: Path) -> bool:
    """Return whether a file's tests measure no coverage."""
    return named(path) in FILES


def measures_programs(path: Path) -> bool:
    """Return whether the programs that a file's tests start measure their coverage."""
    return named(path) in PROGRAMS


def let_programs_measure(measured: bool) -> None:
    """Set the variables by which coverage.py starts in a program, or remove them."""
    _REMOVED.update({name: os.environ.pop(name) for name in coverage_variables(os.environ)})
    if measured:
        os.environ.update(_REMOVED)


def named(path: Path) -> str:
    """Return a file's name as it stands in the lists here."""
    return path.relative_to(HERE).as_posix() if path.is_relative_to(HERE) else path.as_posix()


def adds_nothing(item: pytest.Item) -> bool:
    """Return whether a test measures no coverage."""
    row = getattr(item, "callspec", None)
    store = row.params.get("running_store") if row is not None else None
    if store == "synchronous":  # few other tests run much of `fastdedup.sync`
        return False
    return store in STORES or item.path.name.startswith(BEGINNINGS) or is_unmeasured(item.path)

"""`fastdedup.testing.conformance`: a store that keeps its guarantees passes, a broken one fails the right ones."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any

import pytest
from click.testing import CliRunner

from fastdedup import ConfigError, Outcome, UnavailableError
from fastdedup.cli.main import cli
from fastdedup.kernel.codes import Code
from fastdedup.kernel.operations import Verdict
from fastdedup.kernel.owners import owner_field
from fastdedup.kernel.replies import Adopted
from fastdedup.kernel.terms import terms
from fastdedup.kernel.verbs import Verb
from fastdedup.ledger.operations import without_ledger
from fastdedup.stores.base import Store
from fastdedup.stores.memory import MemoryStore
from fastdedup.testing import conformance
from fastdedup.testing.guarantees import CHECKS

from ..chaos.planted import Wrapped
from ..stores import DownStore

HOUR = 3_600_000  # milliseconds


class UsersStore(Wrapped):
    """A user's own store: it has no optional ability. A subclass changes operations or replies."""

    def __init__(self) -> None:
        super().__init__(MemoryStore())
        self.calls = 0

    async def execute(self, verb: Verb, ops: Sequence[Any]) -> Sequence[Any]:
        self.calls += 1
        asked = [self.asked(op) for op in ops]
        replies = await self.inner.execute(verb, asked)
        return [self.changed(op, reply) for op, reply in zip(asked, replies, strict=True)]

    def asked(self, op: Any) -> Any:
        return op

    def changed(self, op: Any, reply: Any) -> Any:
        return reply


class LetsAllIn(UsersStore):
    def changed(self, op: Any, reply: Any) -> Any:
        if isinstance(reply, Verdict) and reply.outcome is Outcome.IN_PROGRESS:
            return Verdict(Outcome.ACQUIRED, fence=reply.fence, attempt=1, left_ms=30_000)
        return reply


class ForgetsOwners(UsersStore):
    def asked(self, op: Any) -> Any:
        if op.verb is Verb.CLAIM:
            self.calls += 1
            op.draw_again(owner_field(f"somebody-{self.calls}"))
        return op


class DropsFences(UsersStore):
    def changed(self, op: Any, reply: Any) -> Any:
        if isinstance(reply, Verdict) and reply.outcome is Outcome.ACQUIRED:
            return Verdict(reply.outcome, fence=7, attempt=reply.attempt, left_ms=reply.left_ms)
        return reply


class LosesResults(UsersStore):
    def asked(self, op: Any) -> Any:
        if op.verb is Verb.SETTLE:
            op.payload = b"null"
        return op


class AcceptsStaleOwners(UsersStore):
    def changed(self, op: Any, reply: Any) -> Any:
        return Code.OK if op.verb in (Verb.SETTLE, Verb.RELEASE, Verb.RENEW) else reply


class IgnoresFingerprints(UsersStore):
    def asked(self, op: Any) -> Any:
        if op.verb is Verb.CLAIM:
            op.fingerprint = None
        return op


class IgnoresLeases(UsersStore):
    """Its leases last an hour, whatever the claim asks for."""

    def asked(self, op: Any) -> Any:
        if op.verb is Verb.CLAIM:
            op.terms = terms(op.terms.mode, HOUR, op.terms.keep_ms + HOUR, op.terms.watch)
        return op


class LetsEachIssue(UsersStore):
    def changed(self, op: Any, reply: Any) -> Any:
        return Code.OK if op.verb is Verb.ISSUE else reply


class LetsEachConsume(UsersStore):
    """Another owner may consume a token that is redeemed or failed."""

    def changed(self, op: Any, reply: Any) -> Any:
        if op.verb is Verb.CLAIM and op.terms.consumes and reply.outcome is Outcome.FAILED:
            return Verdict(Outcome.ACQUIRED, fence=reply.fence, attempt=reply.attempt)
        return reply


class AdoptsNothing(UsersStore):
    """It says that it adopted a record, and kept its own."""

    def changed(self, op: Any, reply: Any) -> Any:
        if isinstance(reply, Adopted) and reply.code is Code.THEIRS_STANDS:
            return Adopted(Code.OURS_STANDS, reply.owner, reply.fence)
        return reply


class WaitsForNoCall(UsersStore):
    def changed(self, op: Any, reply: Any) -> Any:
        return Code.ALREADY if reply is Code.PENDING else reply


class RemembersTooLong(UsersStore):
    """It remembers an id for five times its ledger's window, so the check asks in time on a busy machine, too."""

    def __init__(self) -> None:
        super().__init__()
        self.since: dict[bytes, float] = {}

    def changed(self, op: Any, reply: Any) -> Any:
        if op.verb is not Verb.FIRST or reply is not Code.OK:
            return reply
        since = self.since.setdefault(op.place, monotonic())
        known = 0.1 < monotonic() - since < 5 * op.terms.window_ms / 1000
        return Code.ALREADY if known else reply


class UndoesAnyCall(UsersStore):
    def asked(self, op: Any) -> Any:
        if op.verb is Verb.FORGET_ID:
            op.entry = op.entry[: op.terms.width]
        return op


class RemembersNoSuccess(UsersStore):
    def asked(self, op: Any) -> Any:
        return without_ledger(op) if op.verb is Verb.SETTLE else op


class HasOnlyTheRecord(UsersStore):
    """It answers a claim whose success a ledger remembers from the record alone, as long as that is there."""

    def asked(self, op: Any) -> Any:
        return without_ledger(op) if op.verb is Verb.CLAIM else op


class SaysNothing(UsersStore):
    async def listen(self, on_freed: Callable[[bytes | None], None]) -> None:
        """Call no callback."""


class HasNoLedgers(UsersStore):
    async def execute(self, verb: Verb, ops: Sequence[Any]) -> Sequence[Any]:
        if verb not in (Verb.CLAIM, Verb.SETTLE, Verb.RELEASE, Verb.RENEW, Verb.READ, Verb.FORGET):
            raise NotImplementedError(f"no {verb.name}")
        if any(op.remembering for op in ops):
            raise NotImplementedError("no ledgers")
        return await super().execute(verb, ops)


BROKEN: dict[type[UsersStore], set[int]] = {
    LetsAllIn: {1, 3},
    ForgetsOwners: {2},
    DropsFences: {4, 8},
    AcceptsStaleOwners: {5, 6},
    LosesResults: {7},
    IgnoresFingerprints: {9},
    IgnoresLeases: {3, 4, 5, 9, 10, 15},
    LetsEachIssue: {6, 13},
    LetsEachConsume: {10},
    SaysNothing: {14},
    AdoptsNothing: {15},
    WaitsForNoCall: {17},
    RemembersTooLong: {18},
    UndoesAnyCall: {19},
    RemembersNoSuccess: {20},
    HasOnlyTheRecord: {20},
}
"""The guarantees that each of these stores must fail; it may fail others, which build on them."""


async def test_a_store_that_keeps_its_guarantees_passes() -> None:
    store = UsersStore()
    found = await conformance(store)
    found.check()
    assert [finding.number for finding in found] == [*range(1, 21)]
    assert {finding.status for finding in found} == {"PASS"}
    assert store.calls


@pytest.mark.parametrize("kind", BROKEN)
async def test_a_broken_store_fails_the_right_guarantees(
    kind: type[UsersStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fastdedup.testing.trial.PATIENCE", 0.5)  # for a lease that does not end
    found = await conformance(kind(), only=sorted(BROKEN[kind]))
    assert {finding.number for finding in found.broken} == BROKEN[kind]
    assert all(finding.detail for finding in found.broken)
    with pytest.raises(AssertionError, match="breaks its guarantees"):
        found.check()


async def test_an_operation_that_the_store_has_not_is_not_supported() -> None:
    found = await conformance(HasNoLedgers(), only=[1, 10, 11, 16])
    assert [finding.status for finding in found] == ["PASS", *["NOT SUPPORTED"] * 3]
    assert not found.broken


async def test_a_store_that_does_not_answer_has_no_findings() -> None:
    with pytest.raises(UnavailableError):
        await conformance(DownStore(), timeout=0.2)


async def test_a_number_of_no_guarantee_is_an_error() -> None:
    with pytest.raises(ConfigError, match="1 to 20"):
        await conformance("memory://", only=[21])


def test_each_guarantee_of_a_store_has_a_check() -> None:
    numbers = [int(number) for number in re.findall(r"^(\d+)\. ", inspect.getdoc(Store) or "", re.MULTILINE)]
    assert sorted(CHECKS) == numbers


def test_the_command_prints_each_guarantee() -> None:
    result = CliRunner().invoke(cli, ["conformance"], env={"COLUMNS": "100"})
    assert result.exit_code == 0, result.output
    assert result.output.count("PASS") == 20
    assert "Every record expires by itself." in result.output


def test_the_command_leaves_no_record(redis_url: str, redis_server: Any) -> None:
    result = CliRunner().invoke(cli, ["conformance", "--json", "--url", redis_url, "--namespace", "mine"])
    assert result.exit_code == 0, result.output
    assert {finding["status"] for finding in json.loads(result.output)} == {"PASS"}
    with redis_server.client() as raw:
        left = raw.keys("*")
    assert all(re.match(rb"mine-[0-9a-f]{12}:~ledger", key) for key in left), left

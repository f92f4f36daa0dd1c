"""The table of verbs, and what is derived from it."""

from __future__ import annotations

import pytest

from fastdedup.kernel.operations import Op
from fastdedup.kernel.verbs import UNREPEATED, Effect, Keys, Resend, Verb
from fastdedup.ledger import operations as of_ledgers  # noqa: F401 -- so that all classes are defined
from fastdedup.sidecar.access import READING, VERBS
from fastdedup.stores.sidecar.wire import runs_of

from .test_sidecar_wire import BATCHES


def classes(kind: type[Op] = Op) -> dict[Verb, type[Op]]:
    """Return each verb's class of operations."""
    found: dict[Verb, type[Op]] = {}
    for each in kind.__subclasses__():
        if each.__module__.startswith("fastdedup."):
            found |= classes(each)
            found |= {each.verb: each} if "verb" in vars(each) else {}
    return found


def test_a_verb_is_found_by_its_name_and_in_a_dictionary_too() -> None:
    assert Verb("claim") is Verb.CLAIM
    assert {Verb.CLAIM: 1}["claim"] == 1  # type: ignore[index] # it is as any other text
    assert {verb.row.name for verb in Verb} == {verb.value for verb in Verb}


def test_every_verb_has_a_class_of_operations() -> None:
    assert set(classes()) == set(Verb)


@pytest.mark.parametrize("verb", Verb)
def test_an_operation_can_be_marked_as_unsure_if_its_row_says_so(verb: Verb) -> None:
    assert hasattr(classes()[verb], "resent") == (verb.row.resend is Resend.MARKED)


@pytest.mark.parametrize("ops", BATCHES, ids=lambda ops: ops[0].verb.value)
def test_an_operation_takes_as_many_arguments_as_the_row_says(ops: list[Op]) -> None:
    [(run, some)] = runs_of(ops[0].verb, ops[:1])
    assert len(run.arguments.pack(some)) == run.arguments.most


@pytest.mark.parametrize("ops", BATCHES, ids=lambda ops: ops[0].verb.value)
def test_only_a_verb_with_a_result_records_one(ops: list[Op]) -> None:
    assert ops[0].verb.row.result or not any(op.result for op in ops)
    assert ("result" in vars(type(ops[0]))) == ops[0].verb.row.result


def test_what_names_no_owner_is_not_repeated() -> None:
    assert set(UNREPEATED) == {verb for verb in Verb if verb.row.effect is Effect.REMOVES}


def test_a_claim_cannot_write_into_a_bucket() -> None:
    """Nor can anything else that an owner does to a key."""
    of_owners = {verb for verb in Verb if verb.row.of_owner}
    assert not any(verb.row.keys & (Keys.BUCKET | Keys.LEDGER) for verb in {Verb.CLAIM, *of_owners})


def test_users_may_be_allowed_what_reads() -> None:
    """The sidecar's rules know the names that users know, but for the few that only stores send."""
    names = {verb.row.users or verb.value for verb in Verb}
    assert names - {*VERBS} == {"adopt", "transition", "forget_id", "weigh"}
    reading = {verb.row.users or verb.value for verb in Verb if verb.row.effect is Effect.READS}
    assert reading - {"weigh"} <= READING

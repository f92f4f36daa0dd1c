"""The numbered guarantees of a store, each as a check that runs against any store. `conformance` is the main path.

A run works in a namespace of its own, and forgets its records at its end. The sentences of the table are those of
`fastdedup.stores.base.Store`. tests/contract goes further than this: it uses many processes, and values that another
program has written.
"""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from ..errors import ConfigError, UnavailableError
from ..stores.base import Store
from . import claim_checks, ledger_checks
from .trial import BrokenError, Check, Trial, open_trial

Status = Literal["PASS", "FAIL", "NOT SUPPORTED"]

CHECKS: Final[dict[int, Check]] = {**claim_checks.CHECKS, **ledger_checks.CHECKS}
"""The check of each guarantee, by its number."""

_LIMIT: Final = 15.0
"""Seconds that one check may take."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The result for one guarantee.

    Attributes:
        number: the guarantee's number.
        sentence: the guarantee's first sentence, from the documentation of `Store`.
        status: "PASS", "FAIL", or "NOT SUPPORTED" if the store does not have the operation.
        detail: what was wrong, or which operation is missing; empty if the guarantee was kept.
    """

    number: int
    sentence: str
    status: Status
    detail: str = ""


class Conformance(tuple[Finding, ...]):
    """The findings of one run, in the order of the guarantees."""

    __slots__ = ()

    @property
    def broken(self) -> list[Finding]:
        """The findings with the status "FAIL"."""
        return [finding for finding in self if finding.status == "FAIL"]

    def check(self) -> None:
        """Raise AssertionError, which names each broken guarantee, if there is one."""
        lines = [f"{each.number}. {each.sentence} -- {each.detail}" for each in self.broken]
        if lines:
            raise AssertionError("the store breaks its guarantees:\n" + "\n".join(lines))


async def conformance(
    store: str | Store, *, namespace: str = "conformance", timeout: float = 2.0, only: Sequence[int] = ()
) -> Conformance:
    """Run the guarantees of a store against a store, and return a finding for each.

    Args:
        store: a URL, or your own store object. The run opens the object and closes it.
        namespace: the beginning of the namespace; a random part is added for each run, so that no other record is
            touched. The records of the run are forgotten at its end. Its ledgers, which no call removes, expire
            within about a day.
        timeout: seconds, the deadline of one operation.
        only: the numbers of the guarantees to run; all of them by default.

    Raises:
        ConfigError: the store cannot be used, or a number is not that of a guarantee.
        UnavailableError: the store does not answer.
    """
    if unknown := set(only) - CHECKS.keys():
        raise ConfigError(f"guarantees have the numbers 1 to {max(CHECKS)}, got {sorted(unknown)}")
    sentences = _sentences()
    async with open_trial(store, namespace, timeout) as trial:
        return Conformance(
            [await _finding(number, sentences[number], trial) for number in sorted(only or CHECKS)]
        )


async def _finding(number: int, sentence: str, trial: Trial) -> Finding:
    """Run one check, and turn its end into a finding. An outage ends the whole run: it is no finding."""
    try:
        async with asyncio.timeout(_LIMIT):
            await CHECKS[number](trial)
    except NotImplementedError as error:
        return Finding(number, sentence, "NOT SUPPORTED", str(error))
    except BrokenError as broken:
        return Finding(number, sentence, "FAIL", str(broken))
    except TimeoutError:
        return Finding(number, sentence, "FAIL", f"the check did not end within {_LIMIT:g} seconds")
    except UnavailableError:
        raise
    except Exception as error:  # noqa: BLE001 -- whatever a user's store raises is a finding
        return Finding(number, sentence, "FAIL", f"{type(error).__name__}: {error}")
    return Finding(number, sentence, "PASS")


def _sentences() -> dict[int, str]:
    """Return the first sentence of each guarantee, from the documentation of `Store`."""
    numbered = re.findall(r"^(\d+)\. +(.+?\.)(?=\s|$)", inspect.getdoc(Store) or "", re.DOTALL | re.MULTILINE)
    return dict.fromkeys(CHECKS, "") | {int(number): " ".join(text.split()) for number, text in numbered}

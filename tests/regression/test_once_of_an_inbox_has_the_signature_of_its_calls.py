"""A function under `Inbox.once` showed the transaction, which its caller must not give, and to checkers `(...)`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
from fastapi import FastAPI

from fastdedup.sql import Inbox
from fastdedup.sync.sql import Inbox as SyncInbox
from fastdedup.testing import inbox_database


async def later(session: Any, order: str, *, amount: int = 1) -> int:
    return amount


def now(session: Any, order: str, *, amount: int = 1) -> int:
    return amount


class Desk:
    async def later(self, session: Any, order: str, *, amount: int = 1) -> int:
        return amount

    def now(self, session: Any, order: str, *, amount: int = 1) -> int:
        return amount


@pytest.mark.parametrize(
    ("kind", "function", "method"), [(Inbox, later, Desk.later), (SyncInbox, now, Desk.now)]
)
def test_it_is_the_functions_without_the_transaction(kind: Any, function: Any, method: Any) -> None:
    once, of_methods = (kind(name, keep=60.0, begin=lambda: None).once(str) for name in ("billing", "desk"))
    work = once(function)
    assert str(inspect.signature(work)) == "(order: 'str', *, amount: 'int' = 1) -> 'int'"
    assert sorted(work.__annotations__) == ["amount", "order", "return"]
    assert "session" in function.__annotations__
    assert str(inspect.signature(of_methods(method))) == "(self, order: 'str', *, amount: 'int' = 1) -> 'int'"
    assert (work.__name__, work.__wrapped__) == (function.__name__, function)


@pytest.mark.parametrize(
    "function", [lambda *given: given, lambda *given, **more: given], ids=["positional", "all"]
)
def test_a_function_of_any_arguments_keeps_them(function: Callable[..., Any]) -> None:
    once = SyncInbox("billing", keep=60.0, begin=lambda: None).once(str)  # type: ignore[arg-type,return-value]
    assert inspect.signature(once(function)) == inspect.signature(function)


def test_fastapi_asks_its_client_for_the_rest() -> None:
    inbox = SyncInbox("billing", keep=60.0)
    with inbox_database(inbox) as connection:
        app = FastAPI()

        @app.post("/orders/{order}")
        @inbox.once(key=lambda session, order, amount: order, begin=lambda: connection)
        def book(session: Any, order: str, amount: int) -> int:
            return amount

        operation = app.openapi()["paths"]["/orders/{order}"]["post"]
        assert [parameter["name"] for parameter in operation["parameters"]] == ["order", "amount"]

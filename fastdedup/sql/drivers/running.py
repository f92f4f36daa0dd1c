"""How a flow of statements is run: once for async drivers, once for synchronous ones."""

from __future__ import annotations

from typing import TypeVar

from ..dialects.base import Flow, Rows, TableName
from ..faults import translated
from .base import Driver

T = TypeVar("T")


async def run(driver: Driver, flow: Flow[T], table_name: TableName) -> T:
    """Run a flow by an async driver. Raises what `told` returns."""
    done: Rows | None = None
    fault: Exception | None = None
    while True:
        try:
            statement = flow.send(done) if fault is None else flow.throw(fault)  # type: ignore[arg-type]
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        done = fault = None
        try:
            done = await driver.execute(statement)
        except Exception as error:  # noqa: BLE001 -- the flow gets it, and raises it again
            fault = told(error, table_name)


def run_now(driver: Driver, flow: Flow[T], table_name: TableName) -> T:
    """Run a flow by a synchronous driver. Raises what `told` returns."""
    done: Rows | None = None
    fault: Exception | None = None
    while True:
        try:
            statement = flow.send(done) if fault is None else flow.throw(fault)  # type: ignore[arg-type]
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        done = fault = None
        try:
            done = driver.execute(statement)
        except Exception as error:  # noqa: BLE001 -- the flow gets it, and raises it again
            fault = told(error, table_name)


def told(error: Exception, table_name: TableName) -> Exception:
    """Return the error for the caller: this library's where it has one, with the driver's own as its cause."""
    ours = translated(error, table_name)
    if ours is None:
        return error
    ours.__cause__ = error
    return ours

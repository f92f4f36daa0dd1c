"""The databases of the inbox's tests, made once for a worker, and the ways into them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from ..fixtures import async_fixture
from .places import Place, SQLiteDatabase, place_of
from .ways import ONE_EACH, WAYS, Party

_numbers = itertools.count(1)
Opener = Callable[..., Party]


@pytest.fixture(scope="session")
def postgres_place(postgres: Any) -> Place:
    return place_of("postgresql", postgres.fresh(), postgres)


@pytest.fixture(scope="session")
def mariadb_place(mariadb: Any) -> Place:
    return place_of("mysql", mariadb.fresh(), mariadb)


@pytest.fixture(scope="session")
def sqlite_place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    place = place_of("sqlite", SQLiteDatabase(tmp_path_factory.mktemp("sqlite") / "inbox.db"))
    place.sql("PRAGMA journal_mode = WAL")
    return place


PLACES = {"postgresql": "postgres_place", "mysql": "mariadb_place", "sqlite": "sqlite_place"}


def opener(request: pytest.FixtureRequest, name: str) -> Opener:
    way = WAYS[name]
    place = request.getfixturevalue(PLACES[way.kind])
    return lambda **options: way.party(place, **options)


@pytest.fixture(params=list(WAYS))
def way(request: pytest.FixtureRequest) -> Opener:
    """Open a connection, or session: every way, one test each. `way(option=…)` passes options to the driver."""
    return opener(request, request.param)


@pytest.fixture(params=[name for name, way in WAYS.items() if way.kind != "sqlite"])
def server_way(request: pytest.FixtureRequest) -> Opener:
    """Open a connection to a server, where two transactions write at the same time: every way, one test each."""
    return opener(request, request.param)


@pytest.fixture(params=ONE_EACH)
def database(request: pytest.FixtureRequest) -> Opener:
    """Open a connection: one way into each kind of database."""
    return opener(request, request.param)


@pytest.fixture
def of(request: pytest.FixtureRequest) -> Callable[[str], Opener]:
    """Give the opener for a way by its name."""
    return lambda name: opener(request, name)


party = async_fixture(lambda of, name: of(name)())
"""A connection of the way with the test's `name`, open while the test runs."""


@pytest.fixture
def key() -> str:
    """A key that no test has received."""
    return f"key-{next(_numbers)}"

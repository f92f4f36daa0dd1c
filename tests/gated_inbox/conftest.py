"""The servers of these tests, which kill them: one of each for a worker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ..databases import MariaServer, PostgresServer
from ..servers import RedisServer
from .shop import Place, new_key, open_place


@pytest.fixture(scope="session")
def mortal_postgres() -> Iterator[Place]:
    with open_place(PostgresServer) as place:
        yield place


@pytest.fixture(scope="session")
def mortal_mariadb() -> Iterator[Place]:
    with open_place(MariaServer) as place:
        yield place


@pytest.fixture(scope="session")
def mortal_redis() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture
def key() -> str:
    return new_key()


@pytest.fixture
def place(request: pytest.FixtureRequest, way: str) -> Place:
    """The database of a test that has a `way`, which is a driver."""
    mortal: Place = request.getfixturevalue("mortal_mariadb" if way == "pymysql" else "mortal_postgres")
    return mortal

"""The servers of these tests, which kill them: one of each for a worker."""

from __future__ import annotations

import pytest

from ..databases import MariaServer, PostgresServer
from ..fixtures import fixture_of
from ..servers import RedisServer
from .shop import Place, new_key, open_place

mortal_postgres = fixture_of(open_place, PostgresServer, scope="session")
mortal_mariadb = fixture_of(open_place, MariaServer, scope="session")
mortal_redis = fixture_of(RedisServer, scope="session")


@pytest.fixture
def key() -> str:
    return new_key()


@pytest.fixture
def place(request: pytest.FixtureRequest, way: str) -> Place:
    """The database of a test that has a `way`, which is a driver."""
    mortal: Place = request.getfixturevalue("mortal_mariadb" if way == "pymysql" else "mortal_postgres")
    return mortal

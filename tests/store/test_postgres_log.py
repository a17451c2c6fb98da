"""The version log in PostgreSQL: the conformance suite, races, faults of the server, and what is refused."""

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import test_log_conformance
from servers import PostgresServer

from tidelake.env import SystemClock
from tidelake.store.postgres.address import Address
from tidelake.store.postgres.log import PostgresVersionLog, create_log, open_log
from tidelake.store.protocols import VersionLog

pytestmark = pytest.mark.full

CLOCK = SystemClock()


@pytest.fixture(scope="module")
def database(postgres: PostgresServer) -> str:
    """The address of one database for the tests of this module: each has a lake of its own there."""
    return postgres.url(postgres.new_database())


def made_log(url: str, place: str = "") -> PostgresVersionLog:
    place = place or f"memory://{uuid.uuid4().hex}"
    address = Address(url)
    return open_log(address, create_log(address, uuid.uuid4().hex, place, CLOCK), place, CLOCK)


@pytest.fixture
def log(database: str) -> Iterator[VersionLog]:
    log = made_log(database)
    yield log
    log.close()


@pytest.fixture
def make_log(database: str) -> Callable[[str], VersionLog]:
    made: dict[str, str] = {}

    def make(root: str) -> VersionLog:
        address = Address(database)
        if root not in made:
            made[root] = create_log(address, uuid.uuid4().hex, root, CLOCK)
        return open_log(address, made[root], root, CLOCK)

    return make


class TestPostgresLog(test_log_conformance.TestLog):
    """The conformance suite; the fixture `log` of this module comes first."""


def test_what_was_written_is_there_after_closing(
    make_log: Callable[[str], VersionLog], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    test_log_conformance.test_what_was_written_is_there_after_closing(make_log, tmp_path, request)

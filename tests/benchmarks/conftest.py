"""The Spark session of this process, for the measurements that use one."""

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session")
def spark() -> Iterator[object]:
    """The tests of `tests/spark` share it when they run in the same process."""
    pytest.importorskip("pyspark")
    from tidelake.spark.session import local_session

    session = local_session(
        "tidelake-tests", 2, **{"spark.sql.shuffle.partitions": "2", "spark.driver.memory": "1g"}
    )
    yield session
    session.stop()

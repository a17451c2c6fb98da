"""What Spark does with filters that a Python data source takes; prints JSON, for the table of `seen.py`."""

import json
from collections.abc import Iterator
from typing import Any

from tidelake.spark import local_session
from tidelake.spark.installed import VERSION


def pushed(spark: Any) -> str:
    """Whether two queries on one DataFrame are right if its source takes filters."""
    if VERSION < (4, 1):
        return "from 4.1"
    from pyspark.sql.datasource import DataSource, DataSourceReader, EqualTo, InputPartition

    class Reader(DataSourceReader):
        wanted: int | None = None

        def pushFilters(self, filters: Any) -> Iterator[Any]:
            for one in filters:
                if isinstance(one, EqualTo) and one.attribute == ("k",):
                    self.wanted = one.value
                else:
                    yield one

        def partitions(self) -> list[InputPartition]:
            return [InputPartition(0)]

        def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
            return ((k,) for k in range(10) if self.wanted in (None, k))

    class Source(DataSource):
        @classmethod
        def name(cls) -> str:
            return "pushed"

        def schema(self) -> str:
            return "k int"

        def reader(self, schema: Any) -> Reader:
            return Reader()

    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    spark.dataSource.register(Source)
    frame = spark.read.format("pushed").load()
    found = [len(frame.filter("k = 3").collect()), len(frame.collect()), len(frame.filter("k = 4").collect())]
    spark.conf.unset("spark.sql.python.filterPushdown.enabled")
    return "right" if found == [1, 10, 1] else "wrong"


if __name__ == "__main__":
    session = local_session("probes", "1")
    answer = pushed(session)
    session.stop()
    print(json.dumps(answer))

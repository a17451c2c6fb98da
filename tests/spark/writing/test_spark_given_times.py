"""Default times of DataFrames and statements that would leap from given times to the wall clock."""

from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

import tidelake
from tidelake import spark as ts

pytestmark = [pytest.mark.usefixtures("small_tasks"), pytest.mark.full]

AGO = "2024-03-01"


def test_writes_without_a_time_are_refused_after_a_time_of_long_ago(spark: Any, tmp_path: Any) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.string())])
    with tidelake.open(tmp_path / "lake") as lake:
        c = lake.create("c", schema, key=["id"], time="date")
        c.upsert(pa.table({"id": [1], "v": ["a"]}), time=AGO)
        frame, upper = spark.createDataFrame([(2, "b")], "id bigint not null, v string"), c.upper

        def saved(**options: str) -> None:
            writer = frame.write.format("tidelake").mode("append").options(**options)
            writer.save(f"{tmp_path}/lake/c")

        ts.register(spark)
        writes: dict[str, Any] = {
            "append": lambda **at: ts.append(c, frame, **at),
            "write": lambda **at: ts.write(c, frame, **at),
            "a dump": lambda **at: ts.write(c, frame, "snapshot", **at),
            "upsert": lambda **at: ts.upsert(c, frame, **at),
            "replace": lambda **at: ts.replace(c, frame, **at),
            "insert": lambda **at: ts.sql(spark, "INSERT INTO c VALUES (3, 'c')", lake=lake, **at),
            "update": lambda **at: ts.sql(spark, "UPDATE c SET v = 'z' WHERE id > 0", lake=lake, **at),
            "the format": saved,
            "upserts of the format": lambda **at: saved(envelope="upsert", **at),
        }
        for name, write in writes.items():
            with pytest.raises(Exception, match="gives no time, and would close all times up to"):
                write()
            assert c.upper == upper, name
        for n, write in enumerate(writes.values()):
            write(time=f"2024-03-{n + 2:02}")
            assert c.upper.elements == (upper.elements[0] + n + 1,)
        ts.sql(spark, "DELETE FROM c WHERE id > 0", lake=lake, time="now")
        assert c.upper.elements[0] > upper.elements[0] + 365
        with pytest.raises(tidelake.errors.UsageError, match="for statements that change"):
            ts.sql(spark, "SELECT * FROM c", lake=lake, time="now")

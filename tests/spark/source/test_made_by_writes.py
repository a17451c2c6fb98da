"""Collections that a write through the format makes, and tables of Spark's catalog, which keep nothing."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

import tidelake
from tidelake import spark as ts

COLUMNS = "id bigint, name string, seen timestamp, gone boolean"


@pytest.fixture
def place(tmp_path: Path) -> str:
    tidelake.open(tmp_path / "lake").close()
    return str(tmp_path / "lake")


def test_a_write_with_a_key_makes_the_collection_once(spark: Any, place: str) -> None:
    frame = spark.createDataFrame([(1, "Ann", None, False), (2, "Bob", None, True)], COLUMNS)
    write = frame.write.format("tidelake").mode("append").option("envelope", "upsert")
    options = {"key": "id", "timeUnit": "ms", "deleteColumn": "gone"}
    for _ in range(2):
        write.options(**options).save(f"{place}/people")
    with tidelake.open(place) as lake:
        people = lake["people"]
        assert people.schema.names == ["id", "name", "seen"]
        assert (people.key, str(people.domain)) == (("id",), "ms")
        assert people.to_arrow(columns=["id", "name"]).to_pylist() == [{"id": 1, "name": "Ann"}]
    with pytest.raises(Exception, match="option key=name: the key of the collection is id"):
        write.options(**{**options, "key": "name"}).save(f"{place}/people")
    with pytest.raises(Exception, match="no collection 'others'"):
        frame.write.format("tidelake").mode("append").save(f"{place}/others")
    with pytest.raises(Exception, match=r"make it by lake\.create first"):
        frame.write.format("tidelake").mode("append").options(key="id", envelope="canal").save(f"{place}/new")


@pytest.mark.full
def test_a_table_of_the_catalog_says_what_to_write_instead(spark: Any, place: str) -> None:
    with tidelake.open(place) as lake:
        made = lake.create("people", {"id": int, "name": str}, key=["id"])
        ts.register(spark)
        options = f"OPTIONS (path '{place}/people')"
        with pytest.raises(Exception, match="CREATE TEMPORARY VIEW"):
            spark.sql(f"CREATE TABLE kept USING tidelake {options}")
        spark.sql(f"CREATE TABLE kept (id BIGINT, name STRING) USING tidelake {options}")
        try:
            with pytest.raises(Exception, match="CREATE TEMPORARY VIEW"):
                spark.sql("SELECT * FROM kept").collect()
            with pytest.raises(Exception, match="CREATE TEMPORARY VIEW"):
                spark.sql("INSERT INTO kept VALUES (1, 'Ann')")
        finally:
            spark.sql("DROP TABLE kept")
        assert made.upper.less_equal(made.domain.minimum)

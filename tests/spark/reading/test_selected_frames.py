"""Conditions as Spark SQL understands them, and as the helpers carry them out."""

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

import tidelake
from tidelake.config import Config
from tidelake.spark import changes, release, snapshot, updates
from tiers import examples
from where_reference import FIELDS, condition, random_rows

pytestmark = pytest.mark.usefixtures("small_tasks")
SCHEMA = pa.schema([field for field, _ in FIELDS])


@pytest.fixture
def collection(tmp_path: Path) -> Any:
    config = Config(part_target_bytes=8192, row_group_rows=8, fold_rows=1, inline_part_bytes=0)
    with tidelake.open(tmp_path / "lake", config=config) as lake:
        c = lake.create("c", SCHEMA, key=["k", "s"])
        rng = random.Random(1)
        for _ in range(3):
            c.append(random_rows(rng, FIELDS, 150))
        yield c
        release(c)


def lines(frame: Any, names: list[str]) -> list[str]:
    return sorted(map(str, frame.select(*(f"`{name}`" for name in names)).toArrow().to_pylist()))


@pytest.mark.full
@pytest.mark.grows
def test_spark_sql_finds_the_same_rows(spark: Any, collection: Any) -> None:
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    snapshot(spark, collection).createOrReplaceTempView("everything")
    # Spark rounds what it compares with a float4 to 4 bytes, and says of a null bigint that it is less
    # than a number past all bigints. Neither is SQL; elsewhere both are compared with plain Python.
    fields = [field for field in FIELDS if field[0].name not in ("f4", "k")]
    fields.append((SCHEMA.field("k"), [-256, -1, 0, 1, 2, 255, None]))
    names = [*SCHEMA.names, "_time", "_diff"]
    found = 0
    count = examples(60)
    for seed in range(count):
        sql, _ = condition(random.Random(seed), fields)
        expected = lines(spark.sql(f"SELECT * FROM everything WHERE {sql}"), names)
        ours = snapshot(spark, collection, where=sql.replace("TIMESTAMP_NTZ", "TIMESTAMP"))
        assert lines(ours, names) == expected, sql
        found += 0 < len(expected) < 400
    assert found > count // 4


def test_frames_have_the_columns_and_rows_that_are_asked_for(spark: Any, collection: Any) -> None:
    asked = {"columns": ["d", "k"], "where": "k > 0 AND s LIKE 'a%'"}
    reads = [
        lambda **more: snapshot(spark, collection, 1, **more),
        lambda **more: changes(spark, collection, 0, 2, **more),
        lambda **more: updates(spark, collection, 0, 3, **more),
    ]
    for read in reads:
        frame = read(**asked)
        assert frame.columns == ["d", "k", "_time", "_diff"]
        expected = read().where("k > 0 AND s LIKE 'a%'")
        assert lines(frame, frame.columns) == lines(expected, frame.columns) != []

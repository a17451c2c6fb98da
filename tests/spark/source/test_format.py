"""The format `tidelake` as Spark users meet it: reads against the oracle, options, views, errors."""

import random
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from decimal import Decimal
from functools import reduce
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pytest

import inside

pytest.importorskip("pyspark")

from pyspark.errors import PySparkException

import tidelake
from tidelake.config import Config
from tidelake.data.ingest.convert import convert
from tidelake.errors import TidelakeError
from tidelake.model.frontier import Frontier
from tidelake.model.time import TimeDomain
from tidelake.spark import register, release
from tidelake.spark.columns import frame_arrow
from tidelake.testing import tables
from tidelake.testing.oracle import Oracle, canonical
from tiers import some
from where_reference import FIELDS, condition, random_rows

COUNTER = TimeDomain("counter")
STORED = Config(part_target_bytes=8192, row_group_rows=8, fold_rows=1, inline_part_bytes=0, merge_budget_s=0)
TEXTS = ["", "a", "A", "ä", "Zürich", "\U0001f30a", "\x00", "z" * 100, None]
SIMPLE = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.string())])


def make(
    tmp_path: Path,
    schema: pa.Schema = tables.SCHEMA,
    key: tuple[str, ...] = tables.KEY,
    time: str = "counter",
    name: str = "c",
) -> tidelake.Collection:
    return tidelake.open(tmp_path / f"lake {uuid.uuid4().hex}", config=STORED).create(
        name, schema, key=list(key), time=time
    )


def path_of(c: tidelake.Collection) -> str:
    return f"{inside.shard(c).spec.url}/{c.name}"


def load(spark: Any, c: tidelake.Collection, **options: Any) -> Any:
    return spark.read.format("tidelake").options(**options).load(path_of(c))


def simple(*rows: tuple[int, str | None, int, int]) -> pa.Table:
    k, v, time, diff = zip(*rows, strict=True)
    return pa.table({"k": k, "v": pa.array(v, pa.string()), "_time": time, "_diff": diff})


def numbered(tmp_path: Path) -> tidelake.Collection:
    """Row 1 at time 0, its change at 1, row 2 twice at 2; all before 5 closed."""
    c = make(tmp_path, SIMPLE, ("k",))
    c.append(simple((1, "a", 0, 1), (1, "a", 1, -1), (1, "b", 1, 1), (2, "x", 2, 2)), upper=5)
    return c


def refused(read: Callable[[], Any]) -> str:
    with pytest.raises((PySparkException, TidelakeError)) as caught:
        read().collect()
    return str(caught.value)


def lines(frame: Any) -> list[str]:
    return sorted(map(str, frame.toArrow().to_pylist()))


# Reads


def random_history(c: tidelake.Collection, rng: random.Random) -> Oracle:
    """Rows that come, change and go, with every awkward value, none less than no times."""
    oracle = Oracle(Frontier.of(0), Frontier.of(0))
    for lower in (0, 5, 10):
        held: list[tuple[Any, int, int]] = []
        present = oracle.snapshot(lower - 1) if lower else Counter()
        for row in rng.sample(sorted(present, key=str), len(present) // 2):
            held.append((raw_of[row], rng.randrange(lower, lower + 5), -present[row]))
        for _ in range(40):
            row = random_row(rng)
            raw_of[tuple(map(canonical, row))] = row
            held.append((row, rng.randrange(lower, lower + 5), rng.choice([1, 1, 2])))
        c.append(tables.table(held, COUNTER), upper=lower + 5)
        oracle.append([(tuple(map(canonical, row)), t, d) for row, t, d in held], Frontier.of(lower + 5))
    return oracle


raw_of: dict[Any, Any] = {}


def random_row(rng: random.Random) -> tuple[Any, ...]:
    numbers = [0.0, -0.0, 1.5, float("-inf"), float("nan"), None]
    decimals = [None, Decimal("0.00"), Decimal("-1234567.89")]
    n = rng.choice([None, -1, 0, 7, 2**40])
    return rng.choice(TEXTS), n, rng.choice(numbers), rng.choice(decimals), rng.choice([None, [], [1, None]])


def rows_of(table: pa.Table) -> list[Any]:
    return [tuple(canonical(row[name]) for name in tables.SCHEMA.names) for row in table.to_pylist()]


@pytest.mark.promise(
    "A read by the format equals the oracle's answer: a table, rows with time and `_diff`, netted "
    "changes, every update, or a change feed",
    rule="`spark/source/batch.py`, `spark/source/planning.py`",
    also=["::test_every_type_comes_as_spark_wants_it"],
)
@pytest.mark.full
@pytest.mark.parametrize("seed", [0, 1])
def test_reads_equal_the_oracle_before_and_after_a_merge(spark: Any, tmp_path: Path, seed: int) -> None:
    c = make(tmp_path)
    oracle = random_history(c, random.Random(seed))
    for _ in range(2):
        for time in (4, 11, 14):
            table = load(spark, c, asOf=time).toArrow()
            assert table.schema.names == tables.SCHEMA.names
            assert Counter(rows_of(table)) == oracle.snapshot(time)
            with_diff = tables.updates(load(spark, c, asOf=time, withDiff=True).toArrow(), COUNTER)
            assert Counter({row: d for row, _, d in with_diff}) == oracle.snapshot(time)
            assert {t for _, t, _ in with_diff} == {time}
        netted = tables.updates(load(spark, c, after=3, through=11).toArrow(), COUNTER)
        assert Counter({row: d for row, _, d in netted}) == oracle.changes(3, 11)
        every = tables.updates(load(spark, c, lower=2, upper=13).toArrow(), COUNTER)
        between = oracle.between(Frontier.of(2), Frontier.of(13))
        assert Counter({(row, t): d for row, t, d in every}) == between
        feed = load(spark, c, lower=2, upper=13, changeFeed=True).toArrow()
        moved: Counter[Any] = Counter()
        for row, line in zip(rows_of(feed), feed.to_pylist(), strict=True):
            comes = line["_change_type"] in ("insert", "update_postimage")
            moved[row, line["_commit_version"]] += 1 if comes else -1
        assert Counter({at: n for at, n in moved.items() if n}) == between
        assert sum(map(abs, between.values())) == feed.num_rows
        assert c.merge().applied or len(c.state().spine) == 1


@pytest.mark.full
def test_ends_that_are_left_out_are_the_last_closed_time(spark: Any, tmp_path: Path) -> None:
    c = numbered(tmp_path)
    assert lines(load(spark, c)) == lines(load(spark, c, asOf=4))
    assert lines(load(spark, c, after=0)) == lines(load(spark, c, after=0, through=4))
    assert lines(load(spark, c, lower=1)) == lines(load(spark, c, lower=1, upper=5))
    assert load(spark, c, lower=1).count() == 3
    assert load(spark, c, lower=9).collect() == []


def test_a_snapshot_is_a_plain_table_and_with_diff_counts(spark: Any, tmp_path: Path) -> None:
    c = numbered(tmp_path)
    frame = load(spark, c)
    assert [(f.name, f.dataType.simpleString(), f.nullable) for f in frame.schema] == [
        ("k", "bigint", False),
        ("v", "string", True),
    ]
    assert sorted(map(tuple, frame.collect())) == [(1, "b"), (2, "x"), (2, "x")]
    counted = load(spark, c, withDiff="true", asOf=3)
    assert counted.columns == ["k", "v", "_time", "_diff"]
    assert sorted(map(tuple, counted.collect())) == [(1, "b", 3, 1), (2, "x", 3, 2)]


def test_a_change_feed_has_the_columns_that_others_have(spark: Any, tmp_path: Path) -> None:
    c = make(tmp_path, SIMPLE, ("k",), "ms")
    c.append(simple((1, "a", 1000, 1), (1, "a", 2000, -1), (1, "b", 2000, 1), (2, "x", 2500, 1)), upper=9000)
    frame = load(spark, c, lower="1970-01-01 00:00:02Z", changeFeed=True)
    assert [(f.name, f.dataType.simpleString()) for f in frame.schema][2:] == [
        ("_change_type", "string"),
        ("_commit_version", "bigint"),
        ("_commit_timestamp", "timestamp"),
    ]
    at = datetime(1970, 1, 1, 0, 0, 2, tzinfo=UTC)
    found = frame.toArrow().to_pylist()
    assert [(r["k"], r["v"], r["_change_type"], r["_commit_version"]) for r in found] == [
        (1, "a", "update_preimage", 2000),
        (1, "b", "update_postimage", 2000),
        (2, "x", "insert", 2500),
    ]
    assert found[0]["_commit_timestamp"] == at
    netted = load(spark, c, after=1000, through=3000, changeFeed=True, columns="v")
    assert netted.columns[:2] == ["v", "_change_type"]
    assert sorted((r.v, r._change_type, r._commit_version) for r in netted.collect()) == [
        ("a", "update_preimage", 3000),
        ("b", "update_postimage", 3000),
        ("x", "insert", 3000),
    ]


def test_timestamps_are_times_of_a_clock(spark: Any, tmp_path: Path) -> None:
    c = make(tmp_path, SIMPLE, ("k",), "us")
    c.append(simple((1, "a", 1_000_000, 1), (2, "b", 2_000_000, 1)), upper=10_000_000)
    for text, found in (("1970-01-01 00:00:01.999999Z", 1), ("1970-01-01T01:00:02+01:00", 2), ("999999", 0)):
        assert load(spark, c, asOf=text).count() == found
    assert "does not say its zone" in refused(lambda: load(spark, c, asOf="1970-01-01 00:00:01"))


@pytest.mark.full
def test_tuple_times(spark: Any, tmp_path: Path) -> None:
    domain = TimeDomain.parse("tuple(2)")
    c = make(tmp_path, time="tuple(2)")
    held = [((f"k{i}", i, None, None, None), (i % 3, i % 4), 1) for i in range(12)]
    c.append(tables.table(held, domain), lower=(0, 0), upper=[(3, 4)])
    assert load(spark, c, asOf="(1, 2)").count() == 6
    every = load(spark, c, lower="[(1, 0), (0, 3)]", upper="(3, 4)")
    assert every.columns[-3:] == ["_time_0", "_time_1", "_diff"]
    assert every.count() == sum(1 for _, (a, b), _ in held if a >= 1 or b >= 3)
    assert "no single last time" in refused(lambda: load(spark, c))
    assert "are no versions" in refused(lambda: load(spark, c, lower="(0, 0)", changeFeed=True))


@pytest.mark.full
def test_every_type_comes_as_spark_wants_it(spark: Any, tmp_path: Path) -> None:
    from test_columns import SCHEMA, VALUES

    schema = SCHEMA.insert(0, pa.field("id", pa.int64(), nullable=False))
    c = make(tmp_path, schema, ("id",))
    columns = {name: pa.array(values, kind) for name, (kind, values) in VALUES.items()}
    c.append(pa.table({"id": [0, 1], **columns}, schema=schema))
    got = load(spark, c).toArrow()
    expected = c.snapshot(columns=schema.names).read_all().select(schema.names)
    wanted = frame_arrow(expected.schema)
    assert str(got.to_pylist()) == str(
        [row for batch in expected.to_batches() for row in convert(batch, wanted).to_pylist()]
    )
    refused_type = make(tmp_path, pa.schema([("k", pa.int64()), ("t", pa.time64("us"))]), ("k",), name="t")
    assert "column 't' is a time64[us], which Spark cannot hold" in refused(lambda: load(spark, refused_type))
    assert load(spark, refused_type, columns="k", timeout=0).columns == ["k"]


def test_a_row_less_than_no_times_is_an_error_that_shows_it(spark: Any, tmp_path: Path) -> None:
    c = make(tmp_path, SIMPLE, ("k",))
    c.append(simple((1, "a", 0, 1), (7, "gone", 0, -2)))
    message = refused(lambda: load(spark, c))
    for told in ("a row has the multiplicity -2", "'v': 'gone'", "withDiff=true"):
        assert told in message
    assert sorted(r._diff for r in load(spark, c, withDiff=True).collect()) == [-2, 1]


def test_an_empty_collection_is_an_empty_table_once_a_time_is_closed(spark: Any, tmp_path: Path) -> None:
    c = make(tmp_path, SIMPLE, ("k",))
    assert "NotYetClosed" in refused(lambda: load(spark, c))
    c.append(simple((1, "a", 0, 1)).slice(0, 0), upper=3)
    assert load(spark, c).collect() == [] and load(spark, c).columns == ["k", "v"]
    assert load(spark, c, after=0).collect() == []
    assert load(spark, c, lower=0, changeFeed=True).collect() == []


@pytest.mark.full
def test_a_large_read_is_cut_into_tasks(spark: Any, tmp_path: Path) -> None:
    from pyspark.sql.functions import spark_partition_id

    rng = random.Random(3)
    c = tidelake.open(tmp_path / "lake").create("c", SIMPLE, key=["k"])
    n = 60_000
    c.append(pa.table({"k": range(n), "v": [rng.randbytes(60).hex() for _ in range(n)]}))
    frame = load(spark, c, parallelism=3)
    placed = Counter(r.p for r in frame.select(spark_partition_id().alias("p")).collect())
    assert len(placed) == 3 and sum(placed.values()) == n
    assert load(spark, c, parallelism=1).rdd.getNumPartitions() == 1
    assert frame.selectExpr("sum(k)").first()[0] == n * (n - 1) // 2


# Columns and conditions


@pytest.fixture
def mixed(tmp_path: Path) -> Iterator[tidelake.Collection]:
    with tidelake.open(tmp_path / "lake", config=STORED) as lake:
        c = lake.create("c", pa.schema([field for field, _ in FIELDS]), key=["k", "s"])
        rng = random.Random(1)
        for _ in range(3):
            c.append(random_rows(rng, FIELDS, 100))
        yield c


def same_conditions(spark: Any, c: tidelake.Collection, seeds: Iterable[int]) -> int:
    """How many conditions were true of some rows and not of all; each as Spark SQL's own filter finds."""
    # Not cached: of cached batches Spark forgets NaN, and finds none of them greater than infinity.
    load(spark, c, asOf=2).createOrReplaceTempView("everything")
    # See test_where_spark_and_sql_differ.
    fields = [(f, v) for f, v in FIELDS if f.name not in ("f4", "k")]
    fields.append((c.schema.field("k"), [-256, -1, 0, 1, 2, 255, None]))
    total, telling = spark.table("everything").count(), 0
    for seed in seeds:
        sql, _ = condition(random.Random(seed), fields)
        expected = lines(spark.sql(f"SELECT * FROM everything WHERE {sql}"))
        ours = load(spark, c, asOf=2, where=sql.replace("TIMESTAMP_NTZ", "TIMESTAMP"))
        assert lines(ours) == expected, sql
        telling += 0 < len(expected) < total
    return telling


@pytest.mark.promise(
    "`where` of the format finds the rows that Spark SQL's own filter finds",
    rule="`data/query/where.py`",
    also=["::test_spark_sql_finds_the_same_rows_of_many_conditions"],
)
def test_spark_sql_finds_the_same_rows(spark: Any, mixed: tidelake.Collection) -> None:
    assert same_conditions(spark, mixed, [1170, *range(100, 111)]) > 4


@pytest.mark.full
def test_spark_sql_finds_the_same_rows_of_many_conditions(spark: Any, mixed: tidelake.Collection) -> None:
    assert same_conditions(spark, mixed, range(1000, 1060)) > 18


@pytest.mark.parametrize(
    ("condition_", "column"),
    # Spark compares a float4 with a decimal as doubles, and what it writes as 0.1 is no float4.
    [("f4 < 0.1", "f4"), ("k < 9223372036854775808", "k")],
)
def test_null_is_never_less_than_a_number(
    spark: Any, mixed: tidelake.Collection, condition_: str, column: str
) -> None:
    found = load(spark, mixed, asOf=2, where=condition_).toArrow()[column]
    assert found.null_count == 0 and len(found)


def test_columns_and_where_and_views_give_what_is_asked_for(spark: Any, mixed: tidelake.Collection) -> None:
    frame = load(spark, mixed, asOf=2, columns="d, `small one`,k", where="k > 0 AND s LIKE 'a%'")
    assert frame.columns == ["d", "small one", "k"]
    whole = load(spark, mixed, asOf=2).where("k > 0 AND s LIKE 'a%'").select("d", "`small one`", "k")
    assert lines(frame) == lines(whole) != []
    counted = load(spark, mixed, after=0, columns="b", where="b")
    assert counted.columns == ["b", "_time", "_diff"]
    assert {r.b for r in counted.collect()} == {True}


@pytest.mark.full
def test_a_schema_of_the_user_prunes_columns(spark: Any, tmp_path: Path) -> None:
    c = numbered(tmp_path)

    def read(schema: str, **options: Any) -> Any:
        return spark.read.format("tidelake").schema(schema).options(**options).load(path_of(c))

    assert sorted(map(tuple, read("v string").collect())) == [("b",), ("x",), ("x",)]
    assert sorted(map(tuple, read("v string, k bigint").collect())) == [("b", 1), ("x", 2), ("x", 2)]
    assert sorted(map(tuple, read("_diff bigint", withDiff=True).collect())) == [(1,), (2,)]
    feed = read("_change_type string", lower=1, changeFeed=True)
    assert sorted(r[0] for r in feed.collect()) == ["insert", "insert", "update_postimage", "update_preimage"]
    for schema, reason in (
        ("w string", "no column 'w': there are 'k', 'v'"),
        (
            "_diff bigint",
            "no column '_diff': there are 'k', 'v'; _diff and the times come with withDiff=true",
        ),
        ("k int", "column 'k' is bigint, not int: leave the schema as it is, and cast afterwards"),
        ("v string not null", "column 'v' may be null: leave NOT NULL out"),
    ):
        assert reason in refused(lambda schema=schema: read(schema)), schema


@pytest.mark.promise("Filters of Spark lose no rows: none is pushed down", rule="`spark/source/batch.py`")
def test_filters_of_spark_lose_no_rows(spark: Any, tmp_path: Path) -> None:
    c = numbered(tmp_path)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        frame = load(spark, c)
        assert frame.filter("k = 1").count() == 1
        assert frame.count() == 3
        assert frame.filter("v LIKE 'x%'").count() == 2
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


# Versions


@pytest.mark.full
def test_two_frames_of_different_times_can_be_joined(spark: Any, tmp_path: Path) -> None:
    c = numbered(tmp_path)
    old, new = load(spark, c, asOf=0), load(spark, c, asOf=1)
    assert [tuple(r) for r in old.join(new, "k").collect()] == [(1, "a", "b")]
    assert sorted(map(tuple, old.unionAll(new).collect())) == [(1, "a"), (1, "b")]


@pytest.mark.promise(
    "A DataFrame of the format keeps the version of its first use, and the columns of its `load`; "
    "one that was dropped before that is an error",
    rule="`spark/source/planning.py`",
    also=["::test_columns_that_change_between_load_and_use_are_read_as_they_were"],
)
def test_a_frame_keeps_the_version_of_its_first_use(spark: Any, tmp_path: Path) -> None:
    c = numbered(tmp_path)
    frame = load(spark, c)
    c.append(simple((3, "y", 5, 1)))
    assert frame.count() == 4
    c.append(simple((4, "z", 6, 1)))
    assert frame.count() == 4 and frame.filter("k > 2").count() == 1
    assert load(spark, c).count() == 5


def test_columns_that_change_between_load_and_use_are_read_as_they_were(spark: Any, tmp_path: Path) -> None:
    c = make(tmp_path, SIMPLE, ("k",))
    c.append(simple((1, "a", 0, 1)))
    before = load(spark, c)
    c.evolve(SIMPLE.append(pa.field("w", pa.float64())))
    c.append(pa.table({"k": [2], "v": ["b"], "w": [0.5]}))
    assert sorted(map(tuple, before.collect())) == [(1, "a"), (2, "b")]
    between = load(spark, c)
    assert sorted(map(tuple, between.collect())) == [(1, "a", None), (2, "b", 0.5)]
    stale = load(spark, c)
    c.evolve(pa.schema([SIMPLE.field("k"), pa.field("w", pa.float64())]), drop=["v"])
    assert sorted(map(tuple, between.collect())) == [(1, "a", None), (2, "b", 0.5)]
    # What was dropped since has no values any more: nulls would be wrong ones.
    assert "column 'v' was dropped since" in refused(lambda: stale)
    # A column of that name that comes later is another one.
    c.evolve(SIMPLE.append(pa.field("w", pa.float64())))
    renamed = load(spark, c)
    c.evolve(rename={"w": "x"})
    assert sorted(map(tuple, renamed.select("k", "w").collect())) == [(1, None), (2, 0.5)]
    c.evolve(pa.schema([SIMPLE.field("k"), pa.field("x", pa.float64())]), drop=["v"])
    assert load(spark, c, asOf=0).columns == ["k", "x"]
    widened = make(tmp_path, pa.schema([("k", pa.int32())]), ("k",), name="w")
    widened.append(pa.table({"k": pa.array([1], pa.int32())}))
    narrow = load(spark, widened)
    widened.evolve(pa.schema([("k", pa.int64())]))
    assert "cannot be read under schema 0" in refused(lambda: narrow)


# Names and places


@pytest.mark.promise(
    "Any name of a collection can be read by a path",
    rule="`spark/source/place.py`",
    also=["::test_names_that_end_in_a_slash_and_escapes_of_urls"],
)
@pytest.mark.full
def test_any_name_can_be_read(spark: Any, tmp_path: Path) -> None:
    place = tmp_path / "lä ke"
    names = ["prïces 🌊", "a/b c/d", "per%20cent#?&=", "back\\slash", "'quote`\"", "日本,語"]
    with tidelake.open(place, config=STORED) as lake:
        for name in names:
            lake.create(name, SIMPLE, key=["k"]).append(simple((1, name, 0, 1)))
    frames = [spark.read.format("tidelake").load(f"{place}/{name}") for name in names]
    frames += [
        spark.read.format("tidelake").option("collection", name).load(str(place)) for name in names[:2]
    ]
    everything = reduce(lambda one, more: one.unionAll(more), frames)
    assert [row.v for row in everything.collect()] == [*names, *names[:2]]


@pytest.mark.full
def test_names_that_end_in_a_slash_and_escapes_of_urls(spark: Any, tmp_path: Path) -> None:
    place = tmp_path / "lä ke"
    with tidelake.open(place, config=STORED) as lake:
        lake.create("a/", SIMPLE, key=["k"]).append(simple((1, "slash", 0, 1)))
        lake.create("ü b", SIMPLE, key=["k"]).append(simple((1, "space", 0, 1)))
    reader = spark.read.format("tidelake")
    assert reader.load(place.as_uri() + "/a%2F").first().v == "slash"
    assert spark.read.format("tidelake").load(place.as_uri() + "/%C3%BC%20b").first().v == "space"
    assert spark.read.format("tidelake").load(f"file:{place}/ü b").first().v == "space"
    assert spark.read.format("tidelake").option("path", f"{place}/ü b/").load().first().v == "space"


@pytest.mark.full
def test_views_and_sql_over_them(spark: Any, tmp_path: Path) -> None:
    c = numbered(tmp_path)
    path = unquote(urlsplit(path_of(c)).path)
    spark.sql(f"CREATE OR REPLACE TEMP VIEW now USING tidelake OPTIONS (path '{path}')")
    spark.sql(f"CREATE OR REPLACE TEMP VIEW then USING tidelake OPTIONS (path '{path}', asOf 0)")
    spark.sql(
        "CREATE OR REPLACE TEMP VIEW moves USING tidelake "
        f"OPTIONS (path '{path}', lower '1', changeFeed 'true', where 'k = 1')"
    )
    grouped = spark.sql("SELECT k, count(*) AS n, max(v) AS v FROM now GROUP BY k ORDER BY k")
    assert [tuple(r) for r in grouped.collect()] == [(1, 1, "b"), (2, 2, "x")]
    joined = spark.sql("SELECT now.v, then.v FROM now JOIN then USING (k)")
    assert [tuple(r) for r in joined.collect()] == [("b", "a")]
    kinds = spark.sql("SELECT _change_type, v FROM moves ORDER BY 1 DESC")
    assert [tuple(r) for r in kinds.collect()] == [("update_preimage", "a"), ("update_postimage", "b")]
    spark.sql(f"CREATE OR REPLACE TEMP VIEW one (v STRING) USING tidelake OPTIONS (path '{path}')")
    assert spark.table("one").columns == ["v"] and spark.table("one").count() == 3


def test_spark_drops_the_options_of_a_query_over_a_view(spark: Any, tmp_path: Path) -> None:
    """A trap of Spark, which docs/spark.md tells of. If this fails, tell no more of it."""
    path = unquote(urlsplit(path_of(numbered(tmp_path))).path)
    spark.sql(f"CREATE OR REPLACE TEMP VIEW now USING tidelake OPTIONS (path '{path}')")
    newest = sorted(map(tuple, spark.table("now").collect()))
    assert sorted(map(tuple, spark.sql("SELECT * FROM now WITH (asOf = 0)").collect())) == newest
    assert sorted(map(tuple, spark.read.option("asOf", 0).table("now").collect())) == newest


# Registration and errors


@pytest.mark.full
def test_spark_finds_the_format_by_itself_and_may_be_told(spark: Any, tmp_path: Path) -> None:
    c = numbered(tmp_path)
    # What is registered is of one session; what was found is of all.
    other = spark.newSession()
    assert load(other, c).count() == 3
    register(other)
    register(other)
    assert load(other, c).count() == 3


@pytest.mark.parametrize(
    ("options", "reason"),
    some(
        [
            ({"asof": "-"}, "UsageError: option asOf='-' is not a time of unit counter: give a whole number"),
            ({"asoff": "1"}, "UsageError: unknown option 'asoff': did you mean asOf?"),
            ({"after": "3", "through": "1"}, "UsageError: changes after 3 cannot end at 1"),
            ({"where": "w > 1"}, "UsageError: where: no column named 'w': there are 'k', 'v'"),
            ({"where": "k +"}, "UsageError: where='k +' cannot be parsed"),
            ({"columns": "w"}, "UsageError: columns=['w']: no column named 'w': there are 'k', 'v'"),
            ({"columns": "k,k"}, "UsageError: columns=['k', 'k']: column 'k' appears twice"),
            (
                {"asOf": "77", "timeout": "0"},
                "NotYetClosed: time 77 is not closed: the last closed time is 4",
            ),
            ({"asOf": "0"}, "HistoryCompacted: history at 0 is compacted: since=[1]"),
            ({"envelope": "append"}, "option 'envelope' is one of writes, not of batch reads: leave it out"),
        ],
        every=5,
    ),
)
def test_errors_name_the_option_and_the_remedy(
    spark: Any, tmp_path: Path, options: dict[str, str], reason: str
) -> None:
    c = numbered(tmp_path)
    c.advance_since(1)
    assert reason in refused(lambda: load(spark, c, **options))


@pytest.mark.full
def test_places_without_a_lake_or_collection_are_named(spark: Any, tmp_path: Path) -> None:
    reader = spark.read.format("tidelake")
    assert f"NotALake: there is no directory '{tmp_path}/no'" in refused(
        lambda: reader.load(f"{tmp_path}/no/c")
    )
    with tidelake.open(tmp_path / "lake") as lake:
        lake.create("prices", SIMPLE, key=["k"])
    assert "the nearest names are 'prices'" in refused(lambda: reader.load(f"{tmp_path}/lake/price"))
    assert "no path: write load('<lake>/<collection>')" in refused(reader.load)
    assert "several paths" in refused(lambda: reader.load([str(tmp_path), str(tmp_path)]))


@pytest.mark.full
def test_a_read_of_a_dropped_collection_says_so(spark: Any, tmp_path: Path) -> None:
    place = tmp_path / "lake"
    with tidelake.open(place, config=STORED) as lake:
        c = lake.create("c", SIMPLE, key=["k"])
        c.append(simple((1, "a", 0, 1)))
        frame = load(spark, c)
        assert frame.count() == 1
        assert release(c) == 1
        lake.drop("c")
    assert "was dropped" in refused(lambda: frame)

"""Views of Spark's SQL: their answer at every time is Spark's own, over the contents at that time."""

from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")
pytest.importorskip("duckdb")

from py4j.protocol import Py4JError

import tidelake
from tidelake import spark as ts
from tidelake.errors import UsageError
from tidelake.spark.views import engine
from tidelake.spark.views.analyzer import SparkAnalyzer
from tidelake.spark.views.dialect import SparkTexts, linear, of_rows, rendered
from tidelake.spark.views.engine import FIXED, RECORDED, SparkEngine
from tidelake.views.definition import Definition
from tidelake.views.engine import reason
from tidelake.views.plan import Join

PRICE = pa.decimal128(10, 2)
ORDERS = pa.schema(
    [("id", pa.int64()), ("customer", pa.int64()), ("price", PRICE), ("f", pa.float64()), ("s", pa.string())]
)
CUSTOMERS = pa.schema([("id", pa.int64()), ("country", pa.string())])
QUERIES = {
    "sums": "SELECT c.country, count(*) AS n, sum(o.price) AS total, avg(o.price) AS mean, sum(o.id) AS ids "
    "FROM orders o LEFT JOIN customers c ON o.customer = c.id GROUP BY c.country",
    "groups": "SELECT customer, max(price) AS most, sum(f) AS f, count(DISTINCT s) AS d FROM orders "
    "GROUP BY customer",
    "first": "SELECT * FROM (SELECT id, customer, row_number() OVER (PARTITION BY customer "
    "ORDER BY price DESC, id) AS r FROM orders) WHERE r <= 1",
    "texts": 'SELECT id, s || "\'q\\\\" AS t FROM orders WHERE s IS NOT NULL',
    "lost": "SELECT id FROM customers "
    "WHERE id NOT IN (SELECT customer FROM orders WHERE customer IS NOT NULL)",
    "counts": "SELECT country, (SELECT count(*) FROM orders o WHERE o.customer = c.id) AS n FROM customers c",
    "turned": "SELECT id, -price AS price FROM orders ORDER BY price + 0 NULLS LAST LIMIT 2",
    "rolled": "SELECT customer, s, grouping_id() AS g, count(*) AS n FROM orders "
    "GROUP BY customer, s WITH ROLLUP",
    # There are such rows at some of the times only.
    "cube": "SELECT customer, max(price) AS most, count(*) AS n FROM orders WHERE s = 'y' "
    "GROUP BY CUBE (customer)",
    "no keys": "SELECT count(*) AS n FROM orders WHERE s = 'y' GROUP BY GROUPING SETS (())",
    "using": "SELECT * FROM (SELECT s, customer AS id FROM orders) JOIN customers USING (id)",
    "natural": "SELECT *, q.s AS t FROM (SELECT s, customer AS id FROM orders) q NATURAL FULL JOIN customers",
    "least": "SELECT min(price) AS least, count(*) AS n FROM orders",
}


def orders(*rows: tuple[Any, ...]) -> pa.Table:
    names = [*ORDERS.names, "_diff"]
    given = {name: [row[i] for row in rows] for i, name in enumerate(names)}
    given["price"] = [None if one is None else Decimal(one) for one in given["price"]]
    return pa.table(given, schema=pa.schema([*ORDERS, ("_diff", pa.int64())]))


@pytest.fixture
def lake(tmp_path: Path) -> Any:
    with tidelake.open(tmp_path / "lake") as opened:
        opened.create("orders", ORDERS, key=["id"])
        opened.create("customers", CUSTOMERS, key=["id"])
        rows = orders(
            (1, 7, "1.50", 0.1, "a'b", 1), (2, 8, "2.25", 0.2, "x", 1), (3, None, None, None, None, 2)
        )
        opened.write({"customers": pa.table({"id": [7, 8], "country": ["IT", "FR"]}), "orders": rows}, time=1)
        yield opened


@pytest.mark.full
@pytest.mark.promise(
    "A view of Spark's SQL is at every time Spark's own answer over the contents of its inputs at that time",
    rule="`SparkEngine` in `spark/views/engine.py`, `views/rules.py`",
)
def test_views_of_sparks_sql_are_sparks_answers_at_every_time(spark: Any, lake: Any) -> None:
    for name, sql in QUERIES.items():
        ts.view(spark, lake, name, sql)
    changes = orders(
        (2, 8, "2.25", 0.2, "x", -1), (2, 8, "2.27", float("nan"), "y", 1), (4, 7, "9.99", 1.5, "a'b", 1)
    )
    moved = pa.table({"id": [8, 9], "country": ["FR", "DE"], "_diff": [-1, 1]})
    lake.write({"customers": moved, "orders": changes}, time=2)
    lake.write({"orders": orders((1, 7, "1.50", 0.1, "a'b", -1), (3, None, None, None, None, -1))}, time=3)
    done = ts.refresh(spark, lake)
    assert {one.view for one in done} == {*QUERIES}
    for name in QUERIES:
        for time in (1, 2, 3):
            assert ts.verify(spark, lake, name, time).equal, (name, time)
    assert str(lake["sums"].schema.field("mean").type) == "decimal128(14, 6)"


@pytest.mark.full
@pytest.mark.parametrize("over", ["PARTITION BY customer", "PARTITION BY customer ORDER BY price"])
def test_a_sum_of_floats_in_a_window_is_taken_back_as_it_was_made(spark: Any, lake: Any, over: str) -> None:
    # Added as they come, these are 1.0 or 0.9999999999999999.
    floats = [(10 + i, 9, "1.00", f, "x", 1) for i, f in enumerate([0.7, 0.2, 0.1])]
    lake.write({"orders": orders(*floats[:2])}, time=2)
    view = ts.view(spark, lake, "totals", f"SELECT id, sum(f) OVER ({over}) AS total FROM orders")
    lake.write({"orders": orders(floats[2])}, time=3)
    ts.refresh(spark, lake)
    lake.write({"orders": orders((13, 9, "1.00", 4.0, "y", 1))}, time=4)
    ts.refresh(spark, lake)
    for time in (2, 3, 4):
        found, wanted = (one.snapshot(time).read_all()["_diff"].to_pylist() for one in (view, lake["orders"]))
        assert sorted(found) == sorted(wanted), time


@pytest.mark.full
def test_rows_with_floats_that_differ_are_compared_up_to_a_bound(
    spark: Any, lake: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    ts.view(spark, lake, "floats", "SELECT customer, sum(f) AS total FROM orders GROUP BY customer")
    ts.view(spark, lake, "prices", "SELECT customer, sum(price) AS total FROM orders GROUP BY customer")
    assert all(ts.verify(spark, lake, name).equal for name in ("floats", "prices"))
    # As if the rows that are alike were too many, where only floats can be nearly equal.
    monkeypatch.setattr(engine, "DIFFERING_MAX", -1)
    assert ts.verify(spark, lake, "prices").equal
    with pytest.raises(
        UsageError, match=r"view 'floats' has more than .*: rebuild the view, or verify it at"
    ):
        ts.verify(spark, lake, "floats")


@pytest.mark.full
def test_a_view_keeps_its_settings_and_the_session_its_own(spark: Any, lake: Any) -> None:
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    before = {name: spark.conf.get(name, None) for name in (*FIXED, "spark.sql.shuffle.partitions")}
    try:
        sql = "SELECT id, hour(timestamp_seconds(id * 3600)) AS h FROM orders"
        view = ts.view(spark, lake, "hours", sql)
        definition = Definition.of("hours", view.state())
        assert definition is not None
        assert (definition.dialect, dict(definition.settings)[RECORDED[1]]) == ("spark", "Asia/Tokyo")
        spark.conf.set("spark.sql.session.timeZone", "UTC")
        lake.write({"orders": orders((5, 7, "1.00", 0.1, "z", 1))}, time=2)
        assert not lake.refresh()
        with pytest.raises(UsageError, match=r"tidelake\.spark has refresh"):
            lake.refresh("hours")
        ts.refresh(spark, lake, ["hours"])
        found = Counter((row["id"], row["h"]) for row in view.snapshot().read_all().to_pylist())
        assert found == Counter([(1, 10), (2, 11), (3, 12), (5, 14)])
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    assert before == {name: spark.conf.get(name, None) for name in before}


@pytest.mark.full
def test_collections_and_columns_may_have_any_name(spark: Any, lake: Any) -> None:
    lake.create("my-orders.1", {"id": "int64", 'a"b`c': "string"}, key=["id"])
    lake.write({"my-orders.1": pa.table({"id": [1], 'a"b`c': ["x"]})}, time=2)
    ts.view(spark, lake, "v 1", 'SELECT `a"b``c` AS `a"``b`, id FROM `my-orders.1` WHERE id IN (SELECT 1)')
    assert lake["v 1"].snapshot().read_all().to_pydict()['a"`b'] == ["x"]
    assert ts.verify(spark, lake, "v 1").equal


@pytest.mark.full
def test_settings_of_the_application_are_not_those_of_a_view(spark: Any, lake: Any) -> None:
    # What `spark-defaults.conf` says is in each session.
    given = {"spark.sql.legacy.sizeOfNull": "true", "spark.sql.timestampType": "TIMESTAMP_NTZ"}
    sql = "SELECT size(split(s, 'x')) AS n, CAST('2024-01-01' AS TIMESTAMP) AS t FROM orders"
    conf = spark._jsc.sc().conf()
    for name, value in given.items():
        conf.set(name, value)
    try:
        view = ts.view(spark, lake, "sizes", sql)
    finally:
        for name in given:
            conf.remove(name)
    assert str(view.schema.field("t").type) == "timestamp[us, tz=UTC]"
    assert -1 not in view.snapshot().read_all()["n"].to_pylist()


@pytest.mark.full
@pytest.mark.parametrize(
    ("sql", "why"),
    [
        ("SELECT id, current_timestamp() AS t FROM orders", "current_timestamp"),
        ("SELECT id, rand() AS r FROM orders", r"rand\(\) cannot be in a view of Spark's SQL"),
        ("SELECT customer, first(s) AS s FROM orders GROUP BY customer", r"write min\(x\) or max\(x\)"),
        ("SELECT id FROM orders LIMIT 3", "LIMIT without ORDER BY"),
        ("SELECT nothing FROM orders", r"Spark: .*nothing"),
        ("SELECT 1; SELECT 2", "has 2: keep one"),
        ("SELECT map(id, s) AS m FROM orders", r"map\(\) cannot"),
    ],
)
def test_what_is_no_function_of_contents_is_refused_by_name(
    spark: Any, lake: Any, sql: str, why: str
) -> None:
    with pytest.raises(UsageError, match=why):
        ts.view(spark, lake, "v", sql)
    assert "v" not in lake


def test_texts_of_a_plan_are_written_in_sparks_words() -> None:
    text = """SELECT i0."a""b", '"x" HUGEINT \\' //', 1::HUGEINT, i0."n" // 64, error('no'), `HUGEINT`"""
    assert rendered(text) == (
        "SELECT i0.`a\"b`, '\"x\" HUGEINT \\' //', 1::DECIMAL(38,0), i0.`n` DIV 64, "
        "raise_error('no'), `HUGEINT`"
    )
    assert rendered("WITH x AS MATERIALIZED (SELECT r.* EXCLUDE (m), unnest(range(n)) AS m)") == (
        "WITH x AS  (SELECT r.* EXCEPT (m), explode(sequence(1L, n)) AS m)"
    )


def test_a_session_that_has_ended_is_told() -> None:
    class Ended:
        def newSession(self) -> Any:
            raise Py4JError("Cannot call methods on a stopped SparkContext.")

    with pytest.raises(UsageError, match="stopped, or cannot be reached: give one that runs"):
        SparkEngine(Ended(), ())  # type: ignore[arg-type]


def test_hints_are_refused_also_those_on_an_alias() -> None:
    text = "SELECT /*+ BROADCAST(c), MERGE(a) */ a.id FROM a JOIN b AS c ON a.id = c.id"
    with pytest.raises(UsageError, match=r"hints, such as BROADCAST\(c\): leave them out"):
        SparkAnalyzer(None).read(text)  # type: ignore[arg-type]


def test_arguments_of_other_types_are_named(tmp_path: Path) -> None:
    with tidelake.open(tmp_path / "lake") as lake:
        for sql in (5, b"SELECT 1", ["SELECT 1"]):
            with pytest.raises(UsageError, match=r"sql=.* must be"):
                ts.view(None, lake, "v", sql)  # type: ignore[arg-type]
            with pytest.raises(UsageError, match=r"sql=.* must be"):
                lake.view("v", sql)  # type: ignore[arg-type]
        for call in (ts.verify, ts.explain, ts.rebuild):
            with pytest.raises(UsageError, match="spark=5 is a int, and must be SparkSession"):
                call(5, 5, "v")  # type: ignore[operator]


def test_a_quote_within_a_text_is_no_quote() -> None:
    import sqlglot

    node = sqlglot.parse_one("""SELECT 'it\\'s', "a\\\\", x IS NOT NULL""", dialect="spark")
    assert node.sql(SparkTexts) == r"SELECT 'it\u0027s', 'a\\', x IS NOT NULL"


def test_sums_of_decimals_have_sparks_types_or_are_computed_from_rows() -> None:
    found = linear("avg", "x", "DECIMAL(10,2)", "TRUE")
    assert found is not None and "AS DECIMAL(14,6))" in found.result
    assert linear("sum", "x", "DECIMAL(38,10)", "TRUE") is None
    assert linear("avg", "x", "DECIMAL(30,4)", "TRUE") is None
    assert linear("sum", "x", "DECIMAL(28,0)", "TRUE") is not None
    # A sum of two of these may not fit, and is NULL without ANSI mode; nothing is taken away from that again.
    assert linear("sum", "x", "DECIMAL(38,0)", "TRUE") is None
    assert linear("sum", "x", "DOUBLE", "TRUE") is None


@pytest.mark.parametrize(
    "tables", ["a, b AS c", "a, b JOIN c ON b.x = c.x, d", "a CROSS JOIN b", "a, LATERAL (SELECT 1)"]
)
def test_a_comma_between_tables_stays_a_comma(tables: str) -> None:
    # By hashes that differ from session to session, Spark writes `x > (SELECT ...)` the other way round if a
    # join within is a cross join.
    import sqlglot

    text = f"SELECT 1 FROM {tables}"
    assert sqlglot.parse_one(text, dialect=SparkTexts).sql(SparkTexts) == text


def test_texts_are_added_in_their_order_as_the_floats_that_they_become() -> None:
    for type_ in ("DOUBLE", "FLOAT", "STRING"):
        found = of_rows("sum", "x", type_, distinct=False, present="TRUE")
        assert "array_sort(collect_list(CAST(CASE WHEN TRUE THEN x END AS DOUBLE)))" in found
    assert of_rows("min", "x", "STRING", distinct=False, present="TRUE") == "min(x)"
    assert of_rows("sum", "x", "DECIMAL(38,9)", distinct=False, present="TRUE") == "sum(x)"


@pytest.mark.full
def test_numbers_of_two_types_are_looked_up_by_their_equality(spark: Any) -> None:
    tables = {"a": {"k": "INT", "t": "TIMESTAMP"}, "b": {"k": "BIGINT", "t": "DATE"}}
    for name in ("k", "t"):
        plan = SparkEngine(spark).compiled(
            f"SELECT a.k, b.t FROM a JOIN b ON a.{name} = b.{name}", tables.get
        )
        (join,) = [stage for stage in plan.stages if isinstance(stage, Join)]
        assert len(join.equals) == 1 and join.where is None, name


def test_a_reason_is_without_places_in_texts_that_no_user_wrote() -> None:
    error = RuntimeError("[X] a is 0. SQLSTATE: 22012\n== SQL (line 1, position 9) ==\n..._t` FROM d0 A...\n")
    assert reason(error) == "[X] a is 0."

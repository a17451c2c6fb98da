"""`ts.sql`: collections as tables of Spark's SQL, and statements that change them in one commit."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("pyspark")

import tidelake
from tidelake import spark as ts
from tidelake.errors import CollectionNotFound, NotYetClosed, UpperMismatch, UsageError
from tidelake.spark.statements import changing
from tiers import examples

pytestmark = pytest.mark.usefixtures("small_tasks")

ID = pa.field("id", pa.int64(), nullable=False)
ORDERS = pa.schema([ID, ("customer", pa.int64()), ("price", pa.float64())])
CUSTOMERS = pa.schema([ID, ("name", pa.string())])


@pytest.fixture
def lake(tmp_path: Path) -> Any:
    with tidelake.open(tmp_path / "lake") as opened:
        yield opened


@pytest.fixture
def shop(lake: Any) -> Any:
    orders = lake.create("orders", ORDERS, key=["id"])
    customers = lake.create("customers", CUSTOMERS, key=["id"])
    orders.append(pa.table({"id": [1, 2, 3], "customer": [1, 1, 2], "price": [1.0, 2.0, 30.0]}))
    customers.append(pa.table({"id": [1, 2], "name": ["Ann", "Bob"]}))
    orders.append(pa.table({"id": [4, 1], "customer": [2, 1], "price": [8.0, 1.0], "_diff": [2, -1]}))
    return lake


def rows(frame: Any) -> Counter[Any]:
    return Counter(map(tuple, frame.collect()))


def contents(collection: Any) -> Counter[Any]:
    found: Counter[Any] = Counter()
    for row in collection.snapshot().to_arrow().to_pylist():
        *values, _time, count = row.values()
        found[tuple(values)] += count
    return found


def test_a_change_has_an_author_and_a_message(spark: Any, shop: Any) -> None:
    given = {"author": "ann", "message": "order 7"}
    for text in ("INSERT INTO orders VALUES (9, 1, 1.5)", "DELETE FROM orders WHERE id = 9"):
        ts.sql(spark, text, lake=shop, **given)
        (last,) = shop.collection("orders").commits(1)
        assert (last.author, last.message) == ("ann", "order 7")
    ts.upsert(
        shop.collection("customers"), spark.createDataFrame([(1, "Ada")], "id bigint, name string"), **given
    )
    assert shop.collection("customers").commits(1)[0].author == "ann"
    with pytest.raises(UsageError, match="author and message are for statements that change"):
        ts.sql(spark, "SELECT * FROM orders", lake=shop, **given)


def test_a_query_joins_collections_views_and_what_the_text_defines(spark: Any, shop: Any) -> None:
    def views() -> set[str]:
        # Not by the catalog: it fails if another test has made a table whose options Spark forgets.
        return {one.viewName for one in spark.sql("SHOW VIEWS").collect()}

    before = views()
    spark.createDataFrame([(2, "view")], "id bigint, name string").createOrReplaceTempView("customers")
    try:
        text = """
            WITH big AS (SELECT * FROM orders WHERE price > 1)
            SELECT '{braces}', c.name, o.id FROM big o JOIN customers c ON c.id = o.customer
            WHERE o.id < :most
        """
        found = ts.sql(spark, text, lake=shop, args={"most": 4})
        assert rows(found) == {("{braces}", "view", 3): 1}  # the view hides the collection
    finally:
        spark.catalog.dropTempView("customers")
    assert rows(found) == {("{braces}", "view", 3): 1}
    text = "SELECT c.name, sum(o.price) FROM Orders o JOIN customers c ON c.id = o.customer GROUP BY c.name"
    assert rows(ts.sql(spark, text, lake=shop)) == {("Ann", 2.0): 1, ("Bob", 46.0): 1}
    assert views() == before


def test_tables_are_of_one_time_unless_one_names_its_own(spark: Any, shop: Any) -> None:
    both = "SELECT (SELECT count(*) FROM orders), (SELECT count(*) FROM orders VERSION AS OF 1)"
    assert rows(ts.sql(spark, both, lake=shop, as_of=0)) == {(3, 4): 1}
    feed = "SELECT id, _change_type FROM table_changes('orders', 1, 1)"
    assert rows(ts.sql(spark, feed, lake=shop)) == {(1, "delete"): 1, (4, "insert"): 2}


def test_what_is_not_named_is_not_read(spark: Any, shop: Any) -> None:
    frame = ts.sql(spark, "SELECT name FROM customers WHERE id = 2 AND length(name) = 3", lake=shop)
    assert rows(frame) == {("Bob",): 1}
    plan = frame._jdf.queryExecution().analyzed().toString()
    assert "name" in plan and "id#" in plan
    outer = "SELECT c.id FROM orders o LEFT JOIN customers c ON c.id = o.customer + 1 WHERE c.id IS NULL"
    assert rows(ts.sql(spark, outer, lake=shop)) == {(None,): 3}


def test_a_column_that_a_parameter_names_is_that_of_the_table_inside(spark: Any, lake: Any) -> None:
    for name, value in (("t", 10), ("d", 20)):
        lake.create(name, {"k": "int64", "c": "int64"}, key=["k"]).append(pa.table({"k": [1], "c": [value]}))
    inside = "(SELECT 1 FROM d WHERE IDENTIFIER(:c) = 10)"
    ts.sql(spark, f"DELETE FROM t WHERE EXISTS {inside}", lake=lake, args={"c": "c"})
    assert contents(lake["t"]) == {(1, 10): 1}
    assert rows(ts.sql(spark, f"SELECT k FROM t WHERE EXISTS {inside}", lake=lake, args={"c": "c"})) == {}


@pytest.mark.parametrize(
    ("text", "kind", "match"),
    [
        ("DROP TABLE orders", UsageError, "spark.sql"),
        ("INSERT OVERWRITE orders SELECT 1, 2, 3", UsageError, r"ts\.replace"),
        ("INSERT INTO nope SELECT 1", CollectionNotFound, "orders"),
        ("INSERT INTO orders SELECT 1, 2", UsageError, "2 columns for 3"),
        ("INSERT INTO orders (id, nope) SELECT 1, 2", UsageError, "no one column 'nope'"),
        ("INSERT INTO orders (id, ID) SELECT 1, 2", UsageError, "two values"),
        ("INSERT INTO orders VALUES ('1', 2, 3)", UsageError, r"CAST\(\.\.\. AS bigint\)"),
        ("UPDATE orders SET nope = 1", UsageError, "no one column 'nope'"),
        ("SELECT * FROM table_changes('nope', 1)", CollectionNotFound, "orders"),
        ("SELECT * FROM orders VERSION AS OF 9", NotYetClosed, "9"),
    ],
)
def test_what_cannot_be_done_says_what_to_do(spark: Any, shop: Any, text: str, kind: Any, match: str) -> None:
    before = contents(shop["orders"]), shop["orders"].upper
    with pytest.raises(kind, match=match):
        ts.sql(spark, text, lake=shop)
    assert (contents(shop["orders"]), shop["orders"].upper) == before


def test_rows_are_inserted_updated_and_deleted_by_one_commit_each(spark: Any, shop: Any) -> None:
    orders = shop["orders"]
    steps = [
        ("INSERT INTO orders VALUES (5, 1, 1.5), (6, 2, 2)", {(5, 1, 1.5): 1, (6, 2, 2.0): 1}),
        ("INSERT INTO orders (price, ID) SELECT 7, 7", {(7, None, 7.0): 1}),
        ("UPDATE orders o SET price = price * 2, o.customer = 9 WHERE o.id IN (4, 5)", None),
        ("DELETE FROM orders WHERE id IN (SELECT id FROM orders VERSION AS OF 0)", None),
    ]
    expected = contents(orders)
    for text, added in steps:
        before = orders.upper
        (told,) = ts.sql(spark, text, lake=shop).collect()
        assert orders.upper.elements[0] == before.elements[0] + 1
        assert told.upper == orders.domain.text(orders.upper)
        if added is not None:
            expected.update(added)
            assert contents(orders) == expected
    assert contents(orders) == {(4, 9, 16.0): 2, (5, 9, 3.0): 1, (6, 2, 2.0): 1, (7, None, 7.0): 1}
    assert ts.sql(spark, "DELETE FROM orders WHERE id = 999", lake=shop).first().updates == 0
    assert orders.upper.elements[0] == before.elements[0] + 1  # nothing to do is no commit


@pytest.mark.promise(
    "The tables of a text are those that Spark's parser finds in it, where there is one; what "
    "sqlglot reads otherwise is read whole",
    rule="`spark/statements/parsing.py`",
)
def test_what_only_sparks_parser_knows_is_carried_out(spark: Any, shop: Any) -> None:
    copy = shop.create("copy", CUSTOMERS, key=["id"])
    both = {(1, "Ann"): 1, (2, "Bob"): 1}
    odd = shop.create("odd", {"id": "int64", "a`b": "int64", "at": "timestamp[us, UTC]"}, key=["id"])
    odd.append(odd.schema.empty_table())
    for text in (
        "TABLE customers",
        "SELECT * FROM (TABLE customers) x",
        "SELECT x.id, customers.name FROM (TABLE customers) x, customers WHERE x.id = customers.id",
        "WITH customers AS (TABLE customers), w AS (TABLE customers) SELECT * FROM w",
        "SELECT id, name FROM customers WHERE id IN (SELECT id FROM (TABLE customers))",
        "SELECT * FROM customers WHERE FALSE UNION ALL TABLE customers",
        "SELECT * FROM IDENTIFIER('customers')",
        "SELECT min(id), name FROM customers FOR VERSION AS OF 0 GROUP BY name, window(now(), '1 day')",
    ):
        assert rows(ts.sql(spark, text, lake=shop)) == both, text
    hidden = "WITH customers AS (SELECT 5 AS id, 'x' AS name), w AS (TABLE customers) SELECT * FROM w"
    assert rows(ts.sql(spark, hidden, lake=shop)) == {(5, "x"): 1}
    changes = "SELECT id FROM table_changes('customers', 0) GROUP BY id, window(now(), '1 day')"
    assert rows(ts.sql(spark, changes, lake=shop)) == {(1,): 1, (2,): 1}
    for text in (
        "INSERT INTO copy TABLE customers",
        "DELETE FROM copy WHERE id IN (SELECT id FROM (TABLE customers) c)",
        "INSERT INTO copy (name, id) "
        "SELECT name, id FROM customers GROUP BY id, name, window(now(), '1 day')",
        "MERGE INTO odd t USING (TABLE customers) s ON t.id = s.id "
        "WHEN NOT MATCHED THEN INSERT (`id`, t.`a``b`) VALUES (s.id, 7)",
    ):
        ts.sql(spark, text, lake=shop)
        assert contents(copy) == ({} if text.startswith("DELETE") else both)
    assert contents(odd) == {(1, 7, None): 1, (2, 7, None): 1}


def test_a_change_that_only_sparks_parser_knows_is_carried_out(spark: Any, shop: Any) -> None:
    twos = "(SELECT id FROM customers WHERE id = 2 GROUP BY id, window(now(), '1 day'))"
    for text, left in (
        (f"UPDATE customers AS c SET name = 'Bo' WHERE c.id IN {twos}", {(1, "Ann"): 1, (2, "Bo"): 1}),
        (f"MERGE INTO customers t USING {twos} s ON t.id = s.id WHEN MATCHED THEN UPDATE SET name = 'B'",
         {(1, "Ann"): 1, (2, "B"): 1}),
        (f"DELETE FROM customers WHERE id IN {twos}", {(1, "Ann"): 1}),
    ):  # fmt: skip
        ts.sql(spark, text, lake=shop)
        assert contents(shop["customers"]) == left
    with pytest.raises(UsageError):
        ts.sql(
            spark,
            f"MERGE WITH SCHEMA EVOLUTION INTO customers t USING {twos} s ON t.id = s.id "
            "WHEN NOT MATCHED THEN INSERT *",
            lake=shop,
        )
    assert contents(shop["customers"]) == {(1, "Ann"): 1}


def test_an_overflow_of_a_change_has_a_remedy_that_is_true(spark: Any, shop: Any) -> None:
    before = contents(shop["orders"])
    for value, remedy in (("id + 9223372036854775807", r"CAST\(n AS decimal"), ("id / 0", "nullif")):
        with pytest.raises(UsageError, match=f"nothing was written; .*{remedy}") as told:
            ts.sql(spark, f"UPDATE orders SET customer = CAST({value} AS bigint)", lake=shop)
        assert "ansi" not in str(told.value) and "try_" not in str(told.value)
    assert contents(shop["orders"]) == before


@pytest.mark.promise(
    "A statement that reads its own collection, by name or through a view, changes what was there "
    "just before the commit; a view of the past, or of the format, is refused (not under Spark "
    "Connect)",
    rule="`spark/statements/views.py`; `spark/reading/newest.py`",
    also=[
        "::test_a_statement_that_reads_its_own_table_through_a_view_holds_at_the_upper_it_read",
        "::test_a_statement_that_reads_its_own_table_through_a_view_of_the_format_is_refused",
        "::test_two_threads_number_rows_through_a_view_without_a_number_twice",
    ],
)
def test_an_insert_that_reads_its_own_table_is_made_again(
    spark: Any, lake: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    seq = lake.create("Seq", {"id": "int64", "by": "string"}, key=["id"])
    seq.append(pa.table({"id": [1], "by": ["a"]}))
    write, meddled = changing.write, []

    def late(*args: Any, **options: Any) -> Any:
        if not meddled:
            meddled.append(seq.append(pa.table({"id": [2], "by": ["other"]})))
        return write(*args, **options)

    monkeypatch.setattr(changing, "write", late)
    ts.sql(spark, "INSERT INTO Seq SELECT max(id) + 1, 'me' FROM seq", lake=lake)
    assert contents(seq) == {(1, "a"): 1, (2, "other"): 1, (3, "me"): 1}
    # Another insert does not wait for its turn.
    meddled.clear()
    ts.sql(spark, "INSERT INTO Seq SELECT max(id) + 10, 'me' FROM seq VERSION AS OF 0", lake=lake)
    assert contents(seq)[(11, "me")] == 1


@pytest.mark.full
@pytest.mark.parametrize("text", ["SELECT id FROM seq", "SELECT id FROM table_changes('seq', 0)", ""])
def test_a_statement_that_reads_its_own_table_through_a_view_holds_at_the_upper_it_read(
    spark: Any, lake: Any, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    seq = lake.create("seq", {"id": "int64"}, key=["id"])
    seq.append(pa.table({"id": [1]}))

    def viewed() -> None:
        frame = ts.sql(spark, text, lake=lake) if text else ts.snapshot(spark, seq)
        frame.createOrReplaceTempView("v")

    viewed()
    write, meddled = changing.write, []

    def late(*args: Any, **options: Any) -> Any:
        if not meddled:
            meddled.append(seq.append(pa.table({"id": [2]})))
        return write(*args, **options)

    monkeypatch.setattr(changing, "write", late)
    insert = "INSERT INTO seq SELECT (SELECT max(id) + 1 FROM v)"
    for one in (
        insert,
        "UPDATE seq SET id = (SELECT max(id) + 1 FROM v) WHERE id = 1",
        "MERGE INTO seq t USING (SELECT max(id) + 1 AS id FROM v) s ON t.id = s.id "
        "WHEN NOT MATCHED THEN INSERT *",
    ):
        with pytest.raises(UpperMismatch, match=r"a view shows 'seq' as it was: make the view again"):
            ts.sql(spark, one, lake=lake)
        assert contents(seq) == {(1,): 1, (2,): 1}
    viewed()
    ts.sql(spark, insert, lake=lake)
    assert contents(seq) == {(1,): 1, (2,): 1, (3,): 1}
    # Contents of a time that was asked for are no question of the newest ones.
    ts.snapshot(spark, seq, 0).createOrReplaceTempView("v")
    ts.sql(spark, "INSERT INTO seq SELECT max(id) + 10 FROM v", lake=lake)
    assert contents(seq)[(11,)] == 1


@pytest.mark.full
def test_a_statement_that_reads_its_own_table_through_a_view_of_the_format_is_refused(
    spark: Any, tmp_path: Path
) -> None:
    with tidelake.open(tmp_path / "lake") as lake:
        seq = lake.create("seq", {"id": "int64"}, key=["id"])
        seq.append(pa.table({"id": [1]}))
        lake.create("other", {"id": "int64"}, key=["id"]).append(pa.table({"id": [7]}))
        place = str(tmp_path / "lake" / "seq")
        spark.read.format("tidelake").load(place).createOrReplaceTempView("v")
        spark.sql(f"CREATE OR REPLACE TEMP VIEW u USING tidelake OPTIONS (path '{place}', lower '0')")
        spark.sql("CREATE OR REPLACE TEMP VIEW w AS SELECT id FROM (SELECT * FROM u) WHERE id > 0")
        for text in (
            "INSERT INTO seq SELECT (SELECT max(id) + 1 FROM v)",
            "INSERT INTO seq SELECT max(id) + 1 FROM w",
            "DELETE FROM seq WHERE id IN (SELECT id FROM w)",
            "MERGE INTO seq t USING v ON t.id = v.id + 1 WHEN NOT MATCHED THEN INSERT *",
        ):
            with pytest.raises(UsageError, match=r"view of the format reads 'seq', .*: name the collection"):
                ts.sql(spark, text, lake=lake)
        assert contents(seq) == {(1,): 1}
        # Those of another collection, or of a time that was asked for, say nothing of the newest contents.
        ts.sql(spark, "INSERT INTO other SELECT max(id) + 1 FROM v", lake=lake)
        assert contents(lake["other"]) == {(7,): 1, (2,): 1}
        spark.read.format("tidelake").option("versionAsOf", 0).load(place).createOrReplaceTempView("v")
        ts.sql(spark, "INSERT INTO seq SELECT max(id) + 10 FROM v", lake=lake)
        assert contents(seq) == {(1,): 1, (11,): 1}


@pytest.mark.full
def test_two_threads_number_rows_through_a_view_without_a_number_twice(spark: Any, lake: Any) -> None:
    seq = lake.create("seq", {"id": "int64"}, key=["id"])
    seq.append(pa.table({"id": [0]}))

    def number(thread: int) -> None:
        for _ in range(3):
            while True:
                ts.sql(spark, "SELECT id FROM seq", lake=lake).createOrReplaceTempView(f"v{thread}")
                try:
                    ts.sql(spark, f"INSERT INTO seq SELECT max(id) + 1 FROM v{thread}", lake=lake)
                    break
                except UpperMismatch:
                    continue

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(number, range(2)))
    assert contents(seq) == {(n,): 1 for n in range(7)}


@pytest.mark.promise(
    "Values without names go to columns in the order in which these were declared, or nowhere",
    rule="`_in_order` in `spark/statements/changing.py`, ids of columns in `schema_from_arrow`",
)
def test_values_without_names_go_to_the_columns_as_declared_or_nowhere(spark: Any, lake: Any) -> None:
    schema = pa.schema([("v", pa.int64()), ("id", pa.int64())])
    made = lake.create("t", schema, key=["id"])
    for text in ("VALUES (5, 1)", "SELECT 5 AS v, 1 AS id"):
        with pytest.raises(UsageError, match=r"name them, INSERT INTO t \(`id`, `v`\), or write BY NAME"):
            ts.sql(spark, f"INSERT INTO t {text}", lake=lake)
    ts.sql(spark, "INSERT INTO t (v, id) VALUES (5, 1)", lake=lake)
    ts.sql(spark, "INSERT INTO t BY NAME SELECT 6 AS v, 2 AS id", lake=lake)
    ts.sql(spark, "INSERT INTO t SELECT * FROM t WHERE id = 2", lake=lake)
    assert contents(made) == {(1, 5): 1, (2, 6): 2}


@pytest.mark.full
def test_numbers_that_do_not_fit_are_refused_and_nothing_is_written(spark: Any, shop: Any) -> None:
    before = contents(shop["orders"])
    for value in ("1.5", "1e30D", "99999999999999999999"):
        with pytest.raises(Exception, match="does not fit column 'customer'"):
            ts.sql(spark, f"UPDATE orders SET customer = {value}", lake=shop)
    assert contents(shop["orders"]) == before


@pytest.mark.full
def test_a_merge_into_an_empty_collection_inserts(spark: Any, lake: Any) -> None:
    new = lake.create("new", CUSTOMERS, key=["id"], time="ms")
    text = """
        MERGE INTO new USING (SELECT 1 AS id, 'Ann' AS name) s ON new.id = s.id
        WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *
    """
    for _ in range(2):
        ts.sql(spark, text, lake=lake)
        assert contents(new) == {(1, "Ann"): 1}


def test_a_collection_without_a_closed_time_is_no_source_and_the_error_says_what_to_do(
    spark: Any, lake: Any
) -> None:
    new = lake.create("new", CUSTOMERS, key=["id"])
    merge = """
        MERGE INTO new t USING (SELECT s.* FROM (SELECT 1 AS id, 'Ann' AS name) s ANTI JOIN new USING (id)) s
        ON t.id = s.id WHEN NOT MATCHED THEN INSERT *
    """
    remedy = "collection 'new' has no closed time yet.*append rows to it first, or an empty table"
    with pytest.raises(NotYetClosed, match=remedy):
        ts.sql(spark, "SELECT * FROM new", lake=lake)
    with pytest.raises(Exception, match=remedy):
        spark.read.format("tidelake").option("path", lake.url).option("collection", "new").load().collect()
    for _ in range(2):
        ts.sql(spark, merge, lake=lake)
        assert contents(new) == {(1, "Ann"): 1}


def test_a_source_with_several_rows_for_one_is_refused(spark: Any, shop: Any) -> None:
    source = "(SELECT 2 AS id UNION ALL SELECT 2) s ON t.id = s.id"
    with pytest.raises(UsageError, match="several rows of the source"):
        ts.sql(spark, f"MERGE INTO orders t USING {source} WHEN MATCHED THEN UPDATE SET price = 0", lake=shop)
    ts.sql(spark, f"MERGE INTO orders t USING {source} WHEN MATCHED THEN DELETE", lake=shop)
    assert 2 not in [row[0] for row in contents(shop["orders"])]


@pytest.mark.full
def test_a_change_is_made_again_if_another_writer_was_first(
    spark: Any, shop: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders, write, meddled = shop["orders"], changing.write, []

    def late(*args: Any, **options: Any) -> Any:
        if len(meddled) < meddled_most[0]:
            meddled.append(orders.append(pa.table({"id": [8], "customer": [1], "price": [5.0]})))
        return write(*args, **options)

    monkeypatch.setattr(changing, "write", late)
    meddled_most = [1]
    ts.sql(spark, "UPDATE orders SET price = price + 1 WHERE id = 8", lake=shop)
    assert contents(orders)[(8, 1, 6.0)] == 1
    meddled_most = [99]
    with pytest.raises(UpperMismatch):
        ts.sql(spark, "DELETE FROM orders WHERE id = 8", lake=shop)
    assert contents(orders)[(8, 1, 5.0)] == 5


MERGES = [
    "WHEN MATCHED AND s.b IS NULL THEN DELETE WHEN MATCHED AND t.a < s.b THEN UPDATE SET a = s.b "
    "WHEN NOT MATCHED AND s.b > 0 THEN INSERT (k, a) VALUES (s.k, s.b)",
    "WHEN MATCHED THEN UPDATE SET a = coalesce(t.a, 0) + s.b WHEN NOT MATCHED THEN INSERT (k) VALUES (s.k)",
    "WHEN MATCHED AND t.a = s.b THEN DELETE WHEN NOT MATCHED THEN INSERT (a, k) VALUES (CASE WHEN s.b > 1 "
    "THEN 1 ELSE s.b END, s.k)",
]
STARS = "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
CHANGES = [
    f"MERGE INTO t USING (SELECT k, b AS a FROM s) s ON t.k = s.k {STARS}",
    f"MERGE INTO t USING (SELECT k, b AS a FROM s) s ON s.k = t.k AND t.a > s.a {STARS}",
    "UPDATE t SET a = a + 1 WHERE k > 1",
    "UPDATE t SET a = (SELECT max(b) FROM s), k = k + 10 WHERE a IS NULL OR k IN (SELECT k FROM s)",
    "DELETE FROM t WHERE a > 0 OR NOT EXISTS (SELECT 1 FROM s WHERE s.k = t.k)",
    *(f"MERGE INTO t USING s ON t.k = s.k {actions}" for actions in MERGES),
]
KEYED = pa.schema([("x", pa.float64()), ("y", pa.string()), ("v", pa.int64())])
SOURCE = "x double, y string, v bigint"
NAN = float("nan")
SOURCES = [
    # NaN is one value, and both zeros are one key.
    [(NAN, "a", 7), (-0.0, "b", 8), (5.0, "new", 9), (1.0, "A", 10)],
    # Null equals nothing.
    [(None, "c", 7), (1.0, None, 8)],
    # Two rows of one key: they match a row, or none.
    [(0.0, "b", 7), (-0.0, "b", 8)],
    [(9.0, "z", 7), (9.0, "z", 7)],
    [],
]
MATCHES = [
    f"USING source s ON t.x = s.x AND s.y = t.y {STARS}",
    f"USING source AS s ON (t.X = S.x) AND (T.y = s.Y) {STARS}",
    f"USING source s ON t.x = s.x AND t.y = s.y AND s.v < 8 {STARS}",
    f"USING source s ON t.x = s.x {STARS}",
    f"USING source s ON t.x = s.x AND t.y = s.y OR s.v = 9 {STARS}",
    f"USING source s ON t.x <=> s.x AND t.y <=> s.y {STARS}",
    f"USING (SELECT x, y, cast(v AS int) v FROM source) s ON t.x = s.x AND t.y = s.y {STARS}",
    f"USING (SELECT cast(x AS float) x, y, v FROM source) s ON t.x = s.x AND t.y = s.y {STARS}",
    f"USING (SELECT v, y, x FROM source) s ON t.x = s.x AND t.y = s.y {STARS}",
    f"USING (SELECT *, 1 AS other FROM source) s ON t.x = s.x AND t.y = s.y {STARS}",
    "USING source s ON t.x = s.x AND t.y = s.y WHEN MATCHED THEN UPDATE SET *",
    "USING source s ON t.x = s.x AND t.y = s.y WHEN NOT MATCHED THEN INSERT *",
    "USING source s ON t.x = s.x AND t.y = s.y WHEN MATCHED AND s.v > 7 THEN DELETE "
    "WHEN MATCHED THEN UPDATE SET v = t.v + s.v WHEN NOT MATCHED THEN INSERT (x, y) VALUES (s.x, s.y)",
]


def merged(spark: Any, lake: Any, rows: list[Any], text: str) -> tuple[Any, Any]:
    """What is there after a merge, and what it told; or the name of its error."""
    if "t" in lake:
        lake.drop("t")
    made = lake.create("t", KEYED, key=["x", "y"], allow_recreate=True)
    values = [
        *((NAN, "a", 1, 1), (0.0, "b", 2, 2), (0.0, "b", 3, 1), (1.0, "A", None, 1)),
        *((None, "c", 4, 1), (1.0, None, 5, 1), (2.0, "a", 6, 1)),
    ]
    columns = [*KEYED, pa.field("_diff", pa.int64())]
    arrays = [pa.array(a, f.type) for a, f in zip(zip(*values, strict=True), columns, strict=True)]
    made.append(pa.Table.from_arrays(arrays, schema=pa.schema(columns)))
    given = pa.Table.from_pylist([dict(zip(KEYED.names, row, strict=True)) for row in rows], KEYED)
    # Of a table of Arrow Spark knows the size.
    spark.createDataFrame(given, SOURCE).createOrReplaceTempView("source")
    try:
        told = tuple(ts.sql(spark, f"MERGE INTO t {text}", lake=lake).first())
    except UsageError as error:
        return str(error), contents_as_text(made)
    return told, contents_as_text(made)


def contents_as_text(collection: Any) -> Counter[str]:
    return Counter({str(row): count for row, count in contents(collection).items()})


@pytest.mark.promise(
    "A `MERGE` of few rows, which looks keys up, does what it does with Spark's join: also for "
    "null, NaN and both zeros in keys, several rows of a key, and a source with equal keys",
    rule="`spark/statements/matching.py`",
    also=["::test_changes_are_those_that_duckdb_makes", "::test_a_merge_of_few_rows_looks_their_keys_up"],
)
@pytest.mark.full
@pytest.mark.parametrize("text", MATCHES)
def test_a_merge_of_few_rows_does_what_spark_does_with_all_rows(spark: Any, lake: Any, text: str) -> None:
    for source in SOURCES:
        few = merged(spark, lake, source, text)
        spark.conf.set("spark.tidelake.driverBytesMax", "0")
        try:
            assert few == merged(spark, lake, source, text), source
        finally:
            spark.conf.unset("spark.tidelake.driverBytesMax")
            spark.catalog.dropTempView("source")


def test_a_merge_of_few_rows_looks_their_keys_up(
    spark: Any, shop: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: Any, **__: Any) -> Any:
        raise AssertionError

    # Spark reads the target nowhere.
    monkeypatch.setattr(changing, "snapshot", refused)
    orders = shop["orders"]
    source = "(SELECT 2L AS id, 5L AS customer, 2.5D AS price UNION ALL SELECT 7L, 5L, 3.5D) s"
    expected = contents(orders) + Counter({(2, 5, 2.5): 1, (7, 5, 3.5): 1})
    del expected[(2, 1, 2.0)]
    told = ts.sql(spark, f"MERGE INTO orders t USING {source} ON t.id = s.id {STARS}", lake=shop).first()
    assert (contents(orders), told.updates, told.upper) == (expected, 3, str(orders.upper))


VALUES = st.none() | st.integers(-2, 3)
TARGET = st.lists(st.tuples(st.integers(0, 4), VALUES), max_size=6, unique_by=lambda row: row[0])


@pytest.mark.promise(
    "`UPDATE`, `DELETE` and `MERGE` of `ts.sql` change the contents just before their commit, as "
    "other engines would, or nothing",
    rule="`spark/statements/changing.py`",
    also=[
        "::test_a_change_is_made_again_if_another_writer_was_first",
        "::test_a_source_with_several_rows_for_one_is_refused",
    ],
)
@pytest.mark.full
@pytest.mark.grows
@settings(max_examples=examples(15), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(TARGET, TARGET, st.sampled_from(CHANGES))
def test_changes_are_those_that_duckdb_makes(spark: Any, tmp_path: Path, t: Any, s: Any, text: str) -> None:
    duckdb = pytest.importorskip("duckdb")
    with duckdb.connect() as plain, tidelake.open(tmp_path / "lake") as lake:
        for name, columns, given_rows in (("t", "ka", t), ("s", "kb", s)):
            plain.execute(f"CREATE TABLE {name} ({columns[0]} BIGINT, {columns[1]} BIGINT)")
            if given_rows:
                plain.executemany(f"INSERT INTO {name} VALUES (?, ?)", given_rows)
            schema = pa.schema([(column, pa.int64()) for column in columns])
            if name in lake:
                lake.drop(name)
            made = lake.create(name, schema, key=["k"], allow_recreate=True)
            arrays = zip(*given_rows, strict=True) if given_rows else ([], [])
            table = pa.Table.from_arrays([pa.array(a, pa.int64()) for a in arrays], schema=schema)
            made.append(table.append_column("_time", pa.array([0] * len(table), pa.int64())), upper=1)
        plain.execute(text)
        ts.sql(spark, text, lake=lake)
        assert contents(lake["t"]) == Counter(plain.execute("SELECT k, a FROM t").fetchall())


CHANGES_OF_STAGED = [
    ("DELETE FROM t WHERE id = 1", {}),
    ("UPDATE t SET v = v + 1 WHERE id = 1", {(1, 12): 1}),
    (
        "MERGE INTO t USING (SELECT 1 AS id, 5 AS v) s ON t.id = s.id WHEN MATCHED THEN UPDATE SET t.v = s.v",
        {(1, 5): 1},
    ),
    ("DELETE FROM t WHERE v = (SELECT max(v) FROM t)", {}),
    ("UPDATE t SET v = (SELECT sum(o.v) FROM t o) + 1", {(1, 12): 1}),
    (
        "MERGE INTO t USING (SELECT id, v + 1 AS w FROM t) s ON t.id = s.id "
        "WHEN MATCHED THEN UPDATE SET v = s.w",
        {(1, 12): 1},
    ),
    ("INSERT INTO t SELECT id + 1, v + 1 FROM t", {(1, 11): 1, (2, 12): 1}),
    (
        "DELETE FROM t WHERE (SELECT max(v) FROM t FOR VERSION AS OF 4) = 10 AND EXISTS "
        "(SELECT 1 FROM t AS o WHERE o.id = t.id AND o.v >= 10)",
        {},
    ),
]


@pytest.mark.promise(
    "A statement reads the collection that it changes as it is just before the change, staged rows included, "
    "wherever the text names it; `lake.sql` and `ts.sql` alike",
    rule="`own` of `table_reads` in `lake/api/tablereads.py`",
)
@pytest.mark.full
@pytest.mark.parametrize(("text", "left"), CHANGES_OF_STAGED)
@pytest.mark.parametrize("late", [False, True])
def test_changes_take_what_is_staged_up_to_their_time(
    spark: Any, lake: Any, tmp_path: Path, monkeypatch: Any, text: str, left: dict[Any, int], late: bool
) -> None:
    staged = pa.table({"id": [1, 1], "v": [10, 11], "_diff": [-1, 1], "_time": [6, 6]})
    with tidelake.open(tmp_path / "other") as other:
        for one in (lake, other):
            made = one.create("t", pa.schema([ID, ("v", pa.int64())]), key=["id"])
            made.append(pa.table({"id": [1], "v": [10]}), time=4)
        other["t"].stage(staged)
        other.sql(text, time=10)
        assert contents(other["t"]) == left
    t = lake["t"]
    if late:
        carried_out = changing.write

        def staged_before(*args: Any, **kwargs: Any) -> Any:
            monkeypatch.setattr(changing, "write", carried_out)
            t.stage(staged)
            return carried_out(*args, **kwargs)

        monkeypatch.setattr(changing, "write", staged_before)
    else:
        t.stage(staged)
    ts.sql(spark, text, lake=lake, time=10)
    assert contents(t) == left

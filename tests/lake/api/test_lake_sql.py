"""`Lake.sql`: collections as tables of DuckDB, at one instant, behind walls."""

import datetime
import os
import random
import stat
import subprocess
import sys
import tempfile
import threading
import uuid
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lakes import SMALL_PARTS

import tidelake
from tidelake.errors import (
    Closed,
    CollectionNotFound,
    HistoryCompacted,
    InvalidUpdates,
    NotYetClosed,
    UsageError,
)
from tidelake.lake.api import tablereads
from tiers import examples

duckdb = pytest.importorskip("duckdb")

ORDERS = pa.schema(
    [pa.field("id", pa.int64(), nullable=False), ("customer", pa.int64()), ("price", pa.float64())]
)
CUSTOMERS = pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string())])


@pytest.fixture
def lake():
    with tidelake.open(f"memory://{uuid.uuid4().hex}") as opened:
        yield opened


@pytest.fixture
def shop(lake):
    orders = lake.create("orders", ORDERS, key=["id"])
    customers = lake.create("customers", CUSTOMERS, key=["id"])
    orders.append(pa.table({"id": [1, 2, 3], "customer": [1, 1, 2], "price": [1.0, 2.0, 30.0]}))
    customers.append(pa.table({"id": [1, 2], "name": ["Ann", "Bob"]}))
    orders.append(pa.table({"id": [4, 1], "customer": [2, 1], "price": [8.0, 1.0], "_diff": [2, -1]}))
    return lake


def rows(answer):
    return [tuple(row.values()) for row in answer.to_arrow().to_pylist()]


def test_a_query_joins_collections_by_name(shop):
    found = shop.sql(
        "SELECT c.name, sum(o.price) AS total FROM orders o JOIN Customers c ON c.id = o.customer "
        "GROUP BY c.name ORDER BY c.name"
    )
    assert rows(found) == [("Ann", 2.0), ("Bob", 46.0)]  # a row of multiplicity 2 counts twice


def test_a_table_has_the_columns_of_its_collection(shop):
    assert shop.sql("FROM orders").schema.names == ["id", "customer", "price"]
    assert shop.sql("SELECT count(*) FROM orders").to_arrow().to_pydict() == {"count_star()": [4]}


def test_tables_are_of_the_time_asked_for_unless_one_names_its_own(shop):
    counts = "SELECT (SELECT count(*) FROM orders), (SELECT count(*) FROM orders FOR VERSION AS OF 1)"
    assert rows(shop.sql(counts, as_of=0)) == [(3, 4)]
    assert rows(shop.sql(counts)) == [(4, 4)]
    assert rows(shop.sql("SELECT count(*) FROM orders", as_of=0)) == [(3,)]
    assert rows(shop.sql("SELECT count(*) FROM orders VERSION AS OF 0")) == [(3,)]


def test_changes_are_those_between_two_times_with_both(shop):
    found = shop.sql(
        "SELECT id, _change_type, _commit_version FROM table_changes('orders', 1, 1) ORDER BY id"
    )
    assert rows(found) == [(1, "delete", 1), (4, "insert", 1), (4, "insert", 1)]
    assert rows(shop.sql("SELECT count(*) FROM table_changes('orders', 0)")) == [(6,)]


def test_instants_of_clocks(lake):
    minute = 60_000
    readings = lake.create("readings", CUSTOMERS, key=["id"], time="ms")
    readings.append(pa.table({"id": [1], "name": ["a"], "_time": [0]}), upper=minute)
    readings.append(pa.table({"id": [2], "name": ["b"], "_time": [minute]}), upper=2 * minute)
    at = "FROM readings FOR TIMESTAMP AS OF '1970-01-01 00:00:59Z'"
    assert rows(lake.sql(f"SELECT id {at}")) == [(1,)]
    assert rows(lake.sql("SELECT id FROM readings", as_of="1970-01-01 00:00:59Z")) == [(1,)]
    assert len(rows(lake.sql("SELECT id FROM readings", as_of="now"))) == 2
    changed = "SELECT id FROM table_changes('readings', '1970-01-01 00:01Z')"
    assert rows(lake.sql(changed)) == [(2,)]
    with pytest.raises(UsageError, match="zone"):
        lake.sql("SELECT id FROM readings TIMESTAMP AS OF '1970-01-01 00:00:59'")


def test_a_transaction_is_in_all_tables_or_in_none(lake):
    for name in ("a", "b"):
        lake.create(name, CUSTOMERS, key=["id"])
    lake.write({"a": pa.table({"id": [0], "name": ["x"]}), "b": pa.table({"id": [0], "name": ["x"]})})
    stop, failed = threading.Event(), []

    def write():
        with tidelake.open(lake.url) as other:
            for i in range(1, 10_000):
                if stop.is_set():
                    return
                other.write(
                    {"a": pa.table({"id": [i], "name": ["x"]}), "b": pa.table({"id": [i], "name": ["x"]})}
                )

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(5):
            ((torn,),) = rows(
                lake.sql("SELECT count(*) FROM a FULL JOIN b USING (id) WHERE a.id IS NULL OR b.id IS NULL")
            )
            failed.append(torn)
    finally:
        stop.set()
        writer.join()
    assert not any(failed)


@pytest.mark.promise(
    "Tables of a statement are of one instant: a transaction is in all of them or in none",
    rule="`lake/api/tablereads.py`",
    also=[
        "::test_a_transaction_is_in_all_tables_or_in_none",
        "::test_tables_are_of_the_time_asked_for_unless_one_names_its_own",
    ],
)
def test_a_transaction_between_two_looks_is_in_neither_table(lake, monkeypatch):
    for name in ("a", "b"):
        lake.create(name, CUSTOMERS, key=["id"])
    new = pa.table({"id": [1], "name": ["x"]})
    lake.write({"a": new, "b": new})
    look, looked = tablereads.last_time_and_group, []

    def meddled(collection):
        found = look(collection)
        if not looked:
            lake.write({"a": new, "b": new})
        looked.append(collection.name)
        return found

    monkeypatch.setattr(tablereads, "last_time_and_group", meddled)
    counts = "SELECT (SELECT count(*) FROM a), (SELECT count(*) FROM b)"
    assert rows(lake.sql(counts)) == [(1, 1)]
    assert looked == ["a", "b"]
    assert rows(lake.sql(counts)) == [(2, 2)]


def test_a_number_is_no_common_time_of_tables_that_count_in_different_units(lake):
    lake.create("a", CUSTOMERS, key=["id"]).append(pa.table({"id": [1], "name": ["x"]}))
    lake.create("b", CUSTOMERS, key=["id"], time="ms").append(
        pa.table({"id": [1], "name": ["x"], "_time": [5]}), upper=6
    )
    with pytest.raises(UsageError, match="count counter, ms"):
        lake.sql("FROM a, b", as_of=0)
    assert rows(lake.sql("SELECT count(*) FROM a FOR VERSION AS OF 0, b FOR VERSION AS OF 5")) == [(1,)]
    assert rows(lake.sql("SELECT count(*) FROM a, b")) == [(1,)]


def test_names_of_any_kind(lake):
    for name in ("Größe 😀", "a.b", 'say "x"', "Orders", "orders"):
        lake.create(name, CUSTOMERS, key=["id"]).append(pa.table({"id": [len(name)], "name": [name]}))
    for name in ("Größe 😀", "a.b", 'say "x"', "Orders", "orders"):
        quoted = name.replace('"', '""')
        assert rows(lake.sql(f'SELECT "name" FROM "{quoted}"')) == [(name,)]
    assert rows(lake.sql("SELECT name FROM a.b")) == [("a.b",)]
    with pytest.raises(UsageError, match="could be 'Orders', 'orders'"):
        lake.sql('FROM "ORDERS"')


def test_parameters(shop):
    assert rows(shop.sql("SELECT id FROM orders WHERE price = ?", args=[30.0])) == [(3,)]
    assert rows(shop.sql("SELECT id FROM orders WHERE price = $p", args={"p": 30.0})) == [(3,)]
    assert rows(shop.sql("SELECT count(*) FROM orders WHERE $p = '1 OR 1=1'", args={"p": "x"})) == [(0,)]


@pytest.mark.parametrize(
    ("text", "kind", "match"),
    [
        ("SELECT * FROM order", CollectionNotFound, "orders"),
        ("SELECT * FROM table_changes('order', 1)", CollectionNotFound, "orders"),
        (
            "SELECT prise FROM orders",
            UsageError,
            "no table .* here has a column 'prise': 'orders' has 'price'",
        ),
        ("SELECT o.prise FROM orders o", UsageError, "'o' has no column 'prise': 'orders' has 'price', "),
        ("SELECT price FROM (SELECT id FROM orders)", UsageError, '^DuckDB: .*column "price" not found'),
        ("SELECT o.PRICE FROM (SELECT id FROM orders) o", UsageError, '^DuckDB: .*column named "PRICE"'),
        ('SELECT "a""b" FROM orders', UsageError, "has a column 'a\"b'"),
        ("DELETE FROM order", CollectionNotFound, "orders"),
        ("INSERT INTO orders SELECT * FROM order", CollectionNotFound, "orders"),
        ("CREATE TABLE x AS SELECT 1", UsageError, "no statement for a lake: take SELECT.*lake.create"),
        ("SHOW orders", UsageError, "take SELECT.*DESCRIBE"),
        ("EXPLAIN DELETE FROM orders", UsageError, "EXPLAIN of a query"),
        ("EXPLAIN ANALYZE DELETE FROM orders", UsageError, "EXPLAIN of a query"),
        ("DESCRIBE nope", CollectionNotFound, "orders"),
        ("SELECT 1; DROP TABLE orders", UsageError, "2 statements"),
        ("SELECT * FROM orders FOR VERSION AS OF 7", NotYetClosed, "7"),
        ("SELECT * FROM orders FOR VERSION AS OF 'x'", UsageError, "not a number"),
        ("SELECT * FROM orders FOR TIMESTAMP AS OF '2026-01-01 00:00Z'", UsageError, "no clock"),
        ("SELECT 1 / CAST('x' AS INT) FROM orders", UsageError, "DuckDB"),
    ],
)
def test_what_cannot_be_answered_says_why(shop, text, kind, match):
    with pytest.raises(kind, match=match):
        shop.sql(text).to_arrow()


def test_errors_of_reads_are_those_of_reads(shop):
    shop["orders"].append(pa.table({"id": [9], "customer": [1], "price": [1.0], "_diff": [-1]}))
    with pytest.raises(InvalidUpdates, match="multiplicity -1"):
        shop.sql("SELECT sum(price) FROM orders").to_arrow()
    assert rows(shop.sql("SELECT count(*) FROM orders WHERE id < 5")) == [(4,)]
    shop["customers"].append(pa.table({"id": [3], "name": ["Eve"]}))
    shop["customers"].advance_since(1)
    with pytest.raises(HistoryCompacted):
        shop.sql("SELECT count(*) FROM customers", as_of=0).to_arrow()
    shop.create("empty", CUSTOMERS, key=["id"])
    with pytest.raises(NotYetClosed, match="collection 'empty' has no closed time yet"):
        shop.sql("FROM empty")
    shop.close()
    with pytest.raises(Closed):
        shop.sql("FROM orders")


HOSTILE = [
    "SELECT * FROM read_csv('{path}')",
    "SELECT * FROM read_text('{path}')",
    "SELECT * FROM read_blob('{path}')",
    "SELECT * FROM read_json('{path}')",
    "SELECT * FROM read_parquet('{path}')",
    "SELECT * FROM parquet_metadata('{path}')",
    "SELECT * FROM sniff_csv('{path}')",
    "SELECT * FROM query('SELECT * FROM read_text(''{path}'')')",
    "SELECT * FROM '{path}'",
    'SELECT * FROM "{path}"',
    "SELECT * FROM glob('{folder}/*')",
    "SELECT * FROM hostile_variable",
    "WITH x AS MATERIALIZED (SELECT * FROM read_text('{path}')) SELECT * FROM x",
    "SELECT getenv('HOME')",
    "COPY (SELECT 1) TO '{folder}/out.csv'",
    "COPY orders TO '{folder}/out.csv'",
    "EXPORT DATABASE '{folder}/out'",
    "ATTACH '{folder}/out.db'",
    "INSTALL httpfs",
    "LOAD '{path}'",
    "SET enable_external_access = true",
    "PRAGMA enable_external_access = true",
    "RESET lock_configuration",
    "CALL pragma_version()",
    "SELECT 1; SET enable_external_access = true",
    "SELECT 1 -- ;\n; ATTACH '{folder}/out.db'",
]


@pytest.mark.promise(
    "A text of `Lake.sql` reaches collections and nothing else", rule="`lake/api/embedded.py`"
)
@pytest.mark.parametrize("text", HOSTILE)
def test_a_hostile_text_reaches_nothing_but_collections(shop, tmp_path, text):
    secret = tmp_path / "secret.csv"
    secret.write_text("secret\n1\n")
    hostile_variable = pa.table({"secret": [1]})  # noqa: F841  # what DuckDB finds in Python, if it looks
    with pytest.raises((UsageError, CollectionNotFound)) as caught:
        shop.sql(text.format(path=secret, folder=tmp_path)).to_arrow()
    assert "secret\n" not in str(caught.value)
    assert [one.name for one in tmp_path.iterdir()] == ["secret.csv"]


def test_an_answer_is_a_stream_and_may_be_left_early(lake):
    big = lake.create("big", CUSTOMERS, key=["id"])
    big.append(pa.table({"id": range(300_000), "name": ["x"] * 300_000}))
    answer = lake.sql("SELECT id + 0 AS id, name FROM big")
    assert answer.read_next_batch().num_rows < 300_000
    answer.close()
    assert sum(batch.num_rows for batch in lake.sql("SELECT id FROM big")) == 300_000


def test_a_table_may_be_read_twice(shop):
    text = "WITH o AS (SELECT id FROM orders) SELECT count(*) FROM o a, o b, orders c"
    assert rows(shop.sql(text)) == [(64,)]


@pytest.mark.promise(
    "DuckDB reads no other column than the one named: names that it takes for one are refused with both",
    rule="`check_names` in `data/answer/importable.py`",
)
def test_names_that_differ_only_in_case_are_refused_with_both(lake):
    schema = pa.schema([("id", pa.int64()), ("Code", pa.string()), ("code", pa.string()), ("Ö", pa.int64())])
    items = lake.create("items", schema.append(pa.field("ö", pa.int64())), key=["id"])
    items.append(pa.table({"id": [1], "Code": ["UPPER"], "code": ["lower"], "Ö": [5], "ö": [6]}))
    both = "DuckDB takes columns 'Code' and 'code' for one.*rename one by evolve"
    for text in ('SELECT "code" FROM items', "SELECT id FROM items WHERE CODE = 'lower'", "FROM items"):
        with pytest.raises(UsageError, match=both):
            lake.sql(text)
    for made in (items, items.snapshot()):
        with pytest.raises(UsageError, match=both):
            made.to_duckdb()
    assert rows(lake.sql('SELECT id, "ö" FROM items WHERE "Ö" = 5')) == [(1, 6)]
    assert items.to_duckdb(columns=["code"]).fetchall() == [("lower",)]
    nested = pa.struct([("A", pa.int64()), ("a", pa.int64())])
    made = lake.create("nested", pa.schema([("id", pa.int64()), ("s", pa.list_(nested))]), key=["id"])
    made.append(pa.table({"id": [1], "s": pa.array([[{"A": 1, "a": 2}]], pa.list_(nested))}))
    with pytest.raises(UsageError, match="fields in column 's', 'A' and 'a'"):
        lake.sql("SELECT s FROM nested")


@pytest.mark.promise(
    "An answer of `Lake.sql` has nothing of the machine's settings, and what it spills only its "
    "user can read",
    rule="`lake/api/embedded.py`",
    also=["::test_what_is_spilled_is_in_a_private_directory_that_goes"],
)
def test_no_setting_of_the_machine_is_in_an_answer(tmp_path):
    seen = pa.array([datetime.datetime(2024, 1, 1, 23, 30, tzinfo=datetime.UTC)], pa.timestamp("us", "UTC"))
    with tidelake.open(tmp_path / "lake") as lake:
        visits = lake.create("visits", pa.schema([("id", pa.int64()), ("seen", seen.type)]), key=["id"])
        visits.append(pa.table({"id": [1], "seen": seen}))
    code = """if True:
        import sys, tidelake
        with tidelake.open(sys.argv[1]) as lake:
            print(lake.sql(
                "SELECT seen, seen::DATE::VARCHAR, hour(seen), year(seen) FROM visits"
            ).to_arrow())"""
    env = {**os.environ, "TZ": "Asia/Kolkata", "LC_ALL": "th_TH.UTF-8", "LANG": "th_TH.UTF-8"}
    there = subprocess.check_output(
        [sys.executable, "-c", code, str(tmp_path / "lake")], env=env, text=True, timeout=600
    )
    for said in ("timestamp[us, tz=UTC]", '"2024-01-01"', "23", "2024", "UTC"):
        assert said in there


def test_what_is_spilled_is_in_a_private_directory_that_goes(shop, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = os.umask(0)
    try:
        answer = shop.sql("SELECT id FROM orders")
        (private,) = Path(tmp_path).iterdir()
        assert stat.S_IMODE(private.stat().st_mode) == 0o700
        rows(answer)
        assert list(tmp_path.iterdir()) == []
        shop.sql("SELECT id FROM orders").close()
        shop.sql("SELECT id FROM orders")  # forgotten before anything was read
        with pytest.raises(UsageError):
            shop.sql("SELECT nope FROM orders")
        assert list(tmp_path.iterdir()) == []
    finally:
        os.umask(before)


def test_what_tells_of_tables_is_a_query_too(shop):
    shop.create("a b", CUSTOMERS, key=["id"]).append(pa.table({"id": [1], "name": ["x"]}))
    assert rows(shop.sql("show tables;")) == [("a b",), ("customers",), ("orders",)]
    for text in ("DESCRIBE orders", "/* x */ desc SELECT * FROM orders", "SELECT * FROM (DESCRIBE orders)"):
        assert [row[0] for row in rows(shop.sql(text))] == ["id", "customer", "price"]
    (name,) = [row for row in rows(shop.sql('SUMMARIZE "a b"')) if row[0] == "name"]
    assert name[2:4] == ("x", "x")
    assert "ARROW_SCAN" in rows(shop.sql("EXPLAIN SELECT id FROM orders WHERE id > ?", args=[1]))[0][1]
    assert "2 rows" in rows(shop.sql("EXPLAIN ANALYZE SELECT name FROM customers"))[0][1]
    tables = "TABLE customers UNION ALL SELECT * FROM (TABLE customers) ORDER BY 1"
    assert rows(shop.sql(tables)) == [(1, "Ann"), (1, "Ann"), (2, "Bob"), (2, "Bob")]
    assert len(rows(shop.sql("WITH c AS (TABLE customers) FROM c"))) == 2
    # The columns that a pivot does not name are groups of it.
    for text in ("PIVOT orders ON id USING sum(price)", "FROM (PIVOT orders ON id USING sum(price))"):
        found = shop.sql(text).to_arrow()
        assert found.column_names == ["customer", "2", "3", "4"] and found.num_rows == 2
    assert len(rows(shop.sql("UNPIVOT customers ON name INTO NAME n VALUE v"))) == 2


def test_names_are_compared_as_duckdb_does(shop):
    assert rows(shop.sql('SELECT "ID" FROM "Orders" WHERE CUSTOMER = 1')) == [(2,)]
    shop.sql('UPDATE "ORDERS" SET "Price" = 0 WHERE Id = 2')
    assert rows(shop.sql("SELECT price FROM orders WHERE id = 2")) == [(0.0,)]
    # Of other letters, case matters to DuckDB.
    shop.create("Öl", CUSTOMERS, key=["id"]).append(pa.table({"id": [1], "name": ["x"]}))
    with pytest.raises(CollectionNotFound):
        shop.sql("FROM öl")


# What a text needs of its tables: the same answer as DuckDB gives on whole ones.

FIELDS = [
    *(("k", pa.int64()), ("n", pa.int32()), ("s", pa.string()), ("f", pa.float64()), ("r", pa.float32())),
    *(("d", pa.decimal128(8, 2)), ("b", pa.bool_()), ("day", pa.date32()), ("at", pa.timestamp("ms"))),
]
SCHEMA = pa.schema(FIELDS)
LITERALS = {
    "k": ["-1", "2", "1.5", "99999999999"],
    "n": ["0", "3", "2147483648"],
    "s": ["'a'", "''", "'ä'"],
    "f": ["0", "0.5", "0.1", "'nan'::DOUBLE"],
    "r": ["0.1", "1.5", "2"],
    "d": ["1", "0.005", "-1.50"],
    "b": ["TRUE", "FALSE"],
    "day": ["DATE '1970-01-02'"],
    "at": ["TIMESTAMP '1970-01-02 00:00:00'"],
}
JOINS = ["", *(f"{kind}JOIN" for kind in ("", "LEFT ", "RIGHT ", "FULL ", "SEMI ", "ANTI ", "CROSS "))]


def random_table(rng):
    def value(kind):
        if rng.random() < 0.2:
            return None
        small = rng.randrange(-2, 4)
        if pa.types.is_string(kind):
            return rng.choice(["", "a", "ab", "b", "B", "ä"])
        if pa.types.is_floating(kind):
            return rng.choice([float(small), small + 0.5, 0.1, float("nan"), float("inf"), -0.0])
        if pa.types.is_boolean(kind):
            return bool(small % 2)
        if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
            return pa.scalar(small * (1 if pa.types.is_date(kind) else 86_400_000), kind).as_py()
        return small

    count = rng.randrange(12)
    return pa.table({name: pa.array([value(kind) for _ in range(count)], kind) for name, kind in FIELDS})


def random_condition(rng, alias):
    column, literals = rng.choice(list(LITERALS.items()))
    name = f"{alias}.{column}" if rng.random() < 0.9 else column
    one = rng.choice(literals)
    made = rng.choice(
        [
            *(f"{name} {sign} {one}" for sign in ("=", "<>", "<", "<=", ">", ">=")),
            *(f"{one} < {name}", f"{name} IS NULL", f"{name} IS NOT NULL"),
            *(f"{name} IN ({', '.join(literals)})", f"{name} NOT IN ({one}, NULL)"),
            f"{name} BETWEEN {one} AND {literals[0]}",
            *((f"{name} LIKE 'a%'", f"{name} LIKE 'a_'") if column == "s" else ()),
        ]
    )
    return f"NOT ({made})" if rng.random() < 0.2 else made


def random_query(rng):
    join = rng.choice(JOINS)
    aliases = ["x"] if join in ("", "SEMI JOIN", "ANTI JOIN") else ["x", "y"]
    on = "" if join == "CROSS JOIN" else " ON x.k = y.k"
    source = f"a x {join} b y{on}" if join else "a x"
    conditions = [random_condition(rng, rng.choice(aliases)) for _ in range(rng.randrange(1, 4))]
    where = rng.choice([" AND ", " AND ", " OR "]).join(conditions)
    shown = rng.choice(["*", "count(*)", ", ".join(f"{one}.k, {one}.s" for one in aliases)])
    text = f"SELECT {shown} FROM {source} WHERE {where}"
    return rng.choice([text, f"WITH q AS ({text}) SELECT * FROM q", f"SELECT count(*) FROM ({text}) q"])


@pytest.mark.promise(
    "A statement of SQL gives the answer that it gives on whole tables, though only some columns "
    "and parts of its tables are read",
    rule="`data/sql/needs.py`",
    also=[
        "data/sql/test_sql_needs.py::test_no_filter_goes_to_the_side_that_an_outer_join_fills_with_nulls",
        "data/sql/test_sql_needs.py::test_conditions_that_all_engines_understand_alike_are_taken",
        "data/sql/test_sql_needs.py::test_columns_that_are_not_named_are_left_out",
    ],
)
@pytest.mark.grows
@settings(max_examples=examples(40))
@given(st.integers(0, 2**32).map(random.Random))
def test_a_narrowed_table_gives_the_answer_of_the_whole_one(rng):
    tables = {name: random_table(rng) for name in ("a", "b")}
    with (
        tidelake.open(f"memory://{uuid.uuid4().hex}", config=SMALL_PARTS) as lake,
        duckdb.connect() as plain,
    ):
        for name, table in tables.items():
            lake.create(name, SCHEMA, key=["k", "s"]).append(table)
            whole = lake.sql(f"SELECT * FROM {name}").to_arrow()
            assert whole.num_rows == table.num_rows
            plain.register(name, whole)
        for _ in range(6):
            text = random_query(rng)
            try:
                expected = plain.sql(text).fetchall()
            except duckdb.Error:
                with pytest.raises(UsageError):
                    lake.sql(text).to_arrow()
                continue
            found = duckdb.from_arrow(lake.sql(text).to_arrow()).fetchall()
            assert sorted(map(repr, found)) == sorted(map(repr, expected)), text

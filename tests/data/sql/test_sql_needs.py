"""What a statement needs of its tables: only what is certain, and never too little."""

import pyarrow as pa
import pytest

from tidelake.data.kernel.types import schema_from_arrow
from tidelake.data.sql.needs import needs_of
from tidelake.data.sql.statement import statement

ORDERS = schema_from_arrow(
    pa.schema(
        [
            *(("id", pa.int64()), ("name", pa.string()), ("price", pa.float64()), ("rate", pa.float32())),
            *(("sum", pa.decimal128(10, 2)), ("day", pa.date32()), ("paid", pa.bool_())),
            *(("at", pa.timestamp("us", "UTC")), ("seen", pa.timestamp("us")), ("user", pa.string())),
            ("item", pa.struct([("price", pa.int64())])),
        ]
    ),
    ["id"],
)
CUSTOMERS = schema_from_arrow(pa.schema([("id", pa.int64()), ("city", pa.string())]), ["id"])


def needs(text, engine="spark"):
    found = statement(text, engine)
    schemas = {i: ORDERS if t.name == "orders" else CUSTOMERS for i, t in enumerate(found.tables)}
    return needs_of(found, schemas)


def where(condition, engine="spark", rest="FROM orders o"):
    return needs(f"SELECT id {rest} WHERE {condition}", engine)[0].where


@pytest.mark.parametrize("engine", ["spark", "duckdb"])
@pytest.mark.parametrize(
    ("condition", "taken"),
    [
        ("id = 5", '("id" = 5)'),
        ("5 < o.id", '(5 < "id")'),
        ("-5 <= id AND name = 'a b'", '(-5 <= "id") AND ("name" = \'a b\')'),
        ("(id = 1 AND name LIKE 'a%')", '("id" = 1) AND ("name" LIKE \'a%\')'),
        ("id IN (1, 2) OR NOT (name IS NULL)", '(("id" IN (1, 2)) OR (NOT ("name" IS NULL)))'),
        ("id NOT BETWEEN 1 AND 3", '(NOT ("id" BETWEEN 1 AND 3))'),
        ("price > 1.5 AND price < 0.1", '("price" > 1.5)'),  # 0.1 is no double
        ("rate = 0.25 AND rate = 16777217", '("rate" = 0.25)'),
        ("sum = 0.1", '("sum" = 0.1)'),
        ("day >= DATE '2026-01-31'", "(\"day\" >= DATE '2026-01-31')"),
        ("paid AND paid <> FALSE", '"paid" AND ("paid" <> FALSE)'),
        # Left to the engine.
        ("id = 1.5", None),
        ("id = 5 + 1", None),
        ("id = '5'", None),
        ("id = 99999999999999999999", None),
        ("price = 1e3", None),
        ("sum = 1234567890123456", None),
        ("name LIKE '%a'", None),
        ("name LIKE 'a\\\\%'", None),
        ("name = 'a\\\\b'", None),
        ("lower(name) = 'a'", None),
        ("o.item.price = 5", None),
        ("item.price = 5", None),
        ("day = '2026-01-31'", None),
        ("at = '2026-01-31'", None),
        ("at = TIMESTAMP '2026-01-31 00:00:00'", None),
        ("other.id = 5", None),
        ("id = 5 IS NULL", None),
        ("EXISTS (SELECT 1 FROM customers c WHERE c.id = o.id)", None),
    ],
)
def test_conditions_that_all_engines_understand_alike_are_taken(condition, taken, engine):
    assert where(condition, engine) == taken


def test_what_only_one_engine_means_so():
    assert where("name = 'it''s'") is None  # two texts, which Spark joins
    assert where("name = 'it''s'", "duckdb") == "(\"name\" = 'it''s')"
    assert where('name = "id"') is None  # Spark can be told that this is a column
    assert where("name = 'x' AND \"user\" = 'y'") is None
    assert where("name = 'x' AND \"user\" = 'y'", "duckdb") == "(\"name\" = 'x') AND (\"user\" = 'y')"
    assert where("ID = 5") is None  # Spark can be told that this is another column
    assert where("ID = 5", "duckdb") == '("id" = 5)'
    assert where("seen = TIMESTAMP '2026-01-31 00:00:00'") is None  # of the session's zone
    assert where("seen = TIMESTAMP '2026-01-31 00:00:00'", "duckdb") is not None
    zoned = "at > {} '2026-01-31 12:00:00.5+02:00'"
    assert where(zoned.format("TIMESTAMP")) == "(\"at\" > TIMESTAMP '2026-01-31 12:00:00.5+02:00')"
    assert where(zoned.format("TIMESTAMPTZ"), "duckdb") is not None


SIDES = {
    "orders o JOIN customers c ON o.id = c.id": (True, True),
    "orders o CROSS JOIN customers c": (True, True),
    "orders o, customers c": (True, True),
    "orders o NATURAL JOIN customers c": (True, True),
    "orders o LEFT JOIN customers c ON o.id = c.id": (True, False),
    "orders o RIGHT JOIN customers c ON o.id = c.id": (False, False),
    "orders o FULL JOIN customers c ON o.id = c.id": (False, False),
    "orders o JOIN customers c ON o.id = c.id LEFT JOIN customers d ON true": (True, True),
    "orders o JOIN customers c ON o.id = c.id RIGHT JOIN customers d ON true": (False, False),
    "orders o JOIN customers c ON o.id = c.id FULL JOIN customers d ON true": (False, False),
    "(SELECT 1) x LEFT JOIN orders o ON true JOIN customers c ON true": (False, True),
}


@pytest.mark.parametrize("engine", ["spark", "duckdb"])
@pytest.mark.parametrize("source", SIDES)
def test_no_filter_goes_to_the_side_that_an_outer_join_fills_with_nulls(source, engine):
    found = statement(f"SELECT 1 FROM {source} WHERE o.id = 1 AND c.id = 2", engine)
    schemas = {i: ORDERS if t.name == "orders" else CUSTOMERS for i, t in enumerate(found.tables)}
    taken = needs_of(found, schemas)
    by_alias = {t.alias: taken[i].where is not None for i, t in enumerate(found.tables)}
    assert (by_alias["o"], by_alias["c"]) == SIDES[source]


@pytest.mark.parametrize(
    "text",
    [
        "SELECT id FROM orders o ASOF JOIN customers c ON o.id >= c.id WHERE c.id = 1 AND o.id = 1",
        "SELECT id FROM orders o POSITIONAL JOIN customers c WHERE c.id = 1 AND o.id = 1",
        "SELECT id FROM orders o WHERE o.id = 1 USING SAMPLE 10",
        "SELECT id FROM orders o TABLESAMPLE 10 PERCENT WHERE o.id = 1",
        "SELECT id FROM orders AS o(a, id) WHERE o.id = 1",
        "SELECT price + 1 AS id FROM orders WHERE id = 1",
        "SELECT * FROM table_changes('orders', 1) o WHERE o.price = 1",
    ],
)
def test_filters_stay_where_they_would_change_which_rows_meet(text):
    assert all(one.where is None for one in needs(text, "duckdb").values())


@pytest.mark.parametrize("engine", ["spark", "duckdb"])
@pytest.mark.parametrize(
    ("text", "columns"),
    [
        ("SELECT name FROM orders", ("name",)),
        ("SELECT NAME FROM orders o WHERE price > 1 GROUP BY name", ("name", "price")),
        ("SELECT count(*) FROM orders", ("id",)),
        ("SELECT user FROM orders", ("user",)),
        ("SELECT o.item.price FROM orders o", ("price", "item")),
        ("SELECT c.* FROM orders o JOIN customers c ON o.id = c.id", ("id",)),
        ("SELECT name FROM orders o JOIN customers c USING (id)", ("id", "name")),
        ("SELECT * FROM orders", None),
        ("SELECT o.* FROM orders o", None),
        ("SELECT count(DISTINCT *) FROM orders", None),
        ("SELECT name FROM orders o NATURAL JOIN customers c", None),
        ("SELECT o FROM orders o", None),
        ("SELECT x FROM orders AS o(x)", None),
        ("SELECT name FROM (SELECT * FROM orders)", None),
        ("SELECT _change_type FROM table_changes('orders', 1)", ("id",)),
    ],
)
def test_columns_that_are_not_named_are_left_out(text, columns, engine):
    assert needs(text, engine)[0].columns == columns


@pytest.mark.parametrize(
    "text",
    [
        "SELECT `(id)?+.+` FROM orders",
        "FROM orders |> WHERE id = 1 |> SELECT name",
        "SELECT name FROM orders WHERE ${more} AND id = 1",
    ],
)
def test_a_table_stays_whole_where_spark_may_mean_more_than_the_parser(text):
    found = needs(text)[0]
    assert (found.columns, found.where) == (None, None)


@pytest.mark.promise(
    "A statement that may choose columns otherwise than by names in its text, such as "
    "`IDENTIFIER(:c)`, reads whole tables: no column of an outer table is taken for one that was "
    "left unread",
    rule="`_names_its_columns` in `data/sql/needs.py`",
    also=[
        "::test_a_table_stays_whole_where_spark_chooses_columns_otherwise",
        "::test_names_are_found_whatever_their_case_and_characters",
        "spark/statements/test_spark_sql.py::test_a_column_that_a_parameter_names_is_that_of_the_table_inside",
    ],
)
@pytest.mark.parametrize(
    "text",
    [
        "SELECT COLUMNS('n.*') FROM orders",
        "SELECT orders.COLUMNS('n.*') FROM orders",
        "SELECT name FROM orders WHERE COLUMNS('p.*') > 1",
        "SELECT * FROM orders PIVOT (sum(price) FOR name IN ('a', 'b'))",
        "SELECT #1 FROM orders",
        "SELECT x FROM (orders o JOIN customers c ON true) AS j(x, y)",
        "SELECT * EXCLUDE (id) FROM orders",
        "SELECT count(* EXCLUDE (id)) FROM orders",
        "SELECT max(x) FROM orders, query_table('tidelake_table_0')",
        "SELECT name FROM orders o POSITIONAL JOIN customers c",
        "SELECT made_by_a_user(id) FROM orders",
    ],
)
def test_a_table_stays_whole_where_columns_are_not_chosen_by_name(text):
    assert {one.columns for one in needs(text, "duckdb").values()} == {None}


@pytest.mark.parametrize(
    "text",
    [
        "SELECT id FROM orders WHERE IDENTIFIER(:c) = 10",
        "SELECT orders.IDENTIFIER('na' || 'me') FROM orders",
        "SELECT 1 FROM orders o WHERE EXISTS (SELECT 1 FROM customers c WHERE identifier('city') = 'x')",
        "SELECT id FROM orders WHERE id IN (SELECT id FROM IDENTIFIER(:t))",
        "SELECT struct(*) FROM orders",
        "INSERT INTO customers TABLE orders",
        "SELECT * EXCEPT (id) FROM orders",
        "SELECT transform(xs, x -> IDENTIFIER('id')) FROM orders",
        "SELECT made_by_a_user(id) FROM orders",
        "SELECT max(x) FROM made_by_a_user(TABLE(orders)), orders",
    ],
)
def test_a_table_stays_whole_where_spark_chooses_columns_otherwise(text):
    assert {one.columns for one in needs(text).values()} == {None}


def test_names_are_found_whatever_their_case_and_characters():
    schema = schema_from_arrow(
        pa.schema([("id", pa.int64()), ("a b", pa.int64()), ("größe", pa.int64()), ("x", pa.int64())]), ["id"]
    )
    for text in ("SELECT 1 FROM orders WHERE `\u0131d` = 1", "SELECT 1 FROM orders WHERE \u0130D = 1"):
        found = needs_of(statement(text, "spark"), {0: schema})
        assert found[0].columns in (("id", "a b", "größe"), None)
        # In double quotes, which Spark can be told to take for those of names.
    found = needs_of(statement('SELECT "a b", "x" FROM orders', "spark"), {0: schema})
    assert found[0].columns == ("a b", "größe", "x")

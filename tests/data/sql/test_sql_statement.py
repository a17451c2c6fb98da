"""Which tables a statement names, and the text with other names for them."""

import pytest

from tidelake.data.sql.statement import VersionClause, statement
from tidelake.errors import UsageError


def names(text, engine="spark"):
    return [table.name for table in statement(text, engine).tables]


@pytest.mark.parametrize("engine", ["spark", "duckdb"])
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("SELECT 1", []),
        ("SELECT * FROM a", ["a"]),
        ("FROM a SELECT x", ["a"]),
        ("SELECT * FROM a JOIN b USING (id), c", ["a", "b", "c"]),
        (
            "SELECT (SELECT max(x) FROM b) FROM a WHERE EXISTS (SELECT 1 FROM c WHERE c.x = a.x)",
            ["b", "a", "c"],
        ),
        ("SELECT x FROM a UNION ALL SELECT x FROM b ORDER BY x;", ["a", "b"]),
        ("SELECT 'é😀', x FROM /* ü😀 */ a -- FROM b\n", ["a"]),
        ("SELECT * FROM s.a", ["s.a"]),
        ("SELECT * FROM range(10)", []),
        ("VALUES (1)", []),
        # A name of WITH hides a table where it can be seen, whatever its case.
        ("WITH a AS (SELECT 1) SELECT * FROM A, b", ["b"]),
        ("WITH a AS (SELECT * FROM a) SELECT * FROM a", ["a"]),
        ("WITH a AS (SELECT * FROM b), b AS (SELECT * FROM a) SELECT * FROM a, b", ["b"]),
        ("WITH RECURSIVE a AS (SELECT 1 AS x UNION ALL SELECT x + 1 FROM a WHERE x < 3) SELECT * FROM a", []),
        ("SELECT * FROM (WITH a AS (SELECT 1) SELECT * FROM a) q JOIN a ON true", ["a"]),
        ("WITH a AS (SELECT 1) SELECT * FROM (SELECT * FROM a) q", []),
        ("WITH a AS (SELECT 1) SELECT * FROM s.a", ["s.a"]),
    ],
)
def test_tables_are_named_where_a_name_of_with_does_not_hide_them(text, expected, engine):
    assert names(text, engine) == expected


def test_quotes_are_those_of_the_engine():
    assert names("SELECT * FROM `a b.c`") == ["a b.c"]
    assert names('SELECT * FROM "a b.c"', "duckdb") == ["a b.c"]


def test_a_table_in_a_hint_is_no_table_of_its_own():
    assert names("SELECT /*+ BROADCAST(b) */ * FROM a JOIN b USING (id)") == ["a", "b"]


@pytest.mark.parametrize(
    ("clause", "version"),
    [
        ("VERSION AS OF 3", ("version", "3")),
        ("FOR VERSION AS OF 3", ("version", "3")),
        ("for version as of '(3, 4)'", ("version", "(3, 4)")),
        ("TIMESTAMP AS OF '2026-11-01 12:00Z'", ("timestamp", "2026-11-01 12:00Z")),
        ("FOR TIMESTAMP AS OF TIMESTAMP '2026-11-01 12:00Z'", ("timestamp", "2026-11-01 12:00Z")),
        ("FOR SYSTEM_TIME AS OF 'yesterday'", ("timestamp", "yesterday")),
    ],
)
def test_versions_are_taken_out_of_the_text(clause, version):
    found = statement(f"SELECT o.x FROM orders {clause} o, orders {clause}, orders", "spark")
    assert [t.version for t in found.tables] == [VersionClause(*version), VersionClause(*version), None]
    assert found.replaced({0: "{t0}", 1: "{t1}"}) == "SELECT o.x FROM {t0} o, {t1} AS `orders`, orders"


def test_changes_are_a_table_function():
    found = statement(
        "SELECT * FROM table_changes('orders', 1, 5) c, TABLE_CHANGES('o.x', 'yesterday')", "spark"
    )
    assert [(t.name, t.changes) for t in found.tables] == [
        ("orders", ("1", "5")),
        ("o.x", ("yesterday", None)),
    ]
    assert found.replaced({0: "a", 1: "b"}) == "SELECT * FROM a c, b AS `table_changes`"


def test_all_but_names_of_tables_is_left_as_it_was_written():
    text = "select  /* 'FROM a' */ \"it's\",\n  nvl(a.`x y`, 1L) FROM   a -- end\n WHERE x rlike r'\\d'"
    found = statement(text, "spark")
    assert found.replaced({0: "T"}) == text.replace("FROM   a", "FROM   T AS `a`")
    assert found.replaced({}) == text


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("SELECT FROM WHERE", "cannot be parsed as SQL of spark"),
        ("SELECT 1; SELECT 2", "has 2 statements"),
        ("", "has 0 statements"),
        ("SELECT * FROM a TIMESTAMP AS OF current_timestamp()", "must be a literal"),
        ("SELECT * FROM a TIMESTAMP AS OF 'a\\'b'", "must be a literal"),
        ("SELECT * FROM table_changes('a')", "write table_changes"),
        ("SELECT * FROM table_changes(a, 1)", "write table_changes"),
        ("SELECT * FROM a TABLESAMPLE (10 PERCENT)", "give it an alias"),
        ("SELECT '\ud800'", "not valid text"),
        ("SELECT " + "(" * 5000 + "1" + ")" * 5000, "nested too deeply|cannot be parsed"),
        (" " * 1_000_001, "1,000,001 characters"),
        (7, "not the text"),
    ],
)
def test_what_is_not_understood_is_refused(text, reason):
    with pytest.raises(UsageError, match=reason):
        statement(text, "spark")


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("INSERT INTO a SELECT * FROM b", "insert"),
        ("UPDATE a SET x = 1", "update"),
        ("DELETE FROM a WHERE x = 1", "delete"),
        ("MERGE INTO a USING b ON a.x = b.x WHEN MATCHED THEN DELETE", "merge"),
        ("(SELECT 1)", "query"),
        ("SELECT 1 EXCEPT SELECT 2", "query"),
        ("SET x = 1", "other"),
        ("CREATE TABLE x AS SELECT 1", "other"),
        ("EXPLAIN SELECT 1", "other"),
        ("/* x */" * 10_000 + "SHOW TABLES", "other"),
    ],
)
def test_the_kind_of_a_statement(text, kind):
    assert statement(text, "spark").kind == kind

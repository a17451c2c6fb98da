"""INSERT, UPDATE, DELETE and MERGE, cut into clauses as they were written."""

import pytest

from tidelake.data.sql.changes import change, insertion
from tidelake.data.sql.statement import statement
from tidelake.errors import UsageError


def text_of(text, span):
    return None if span is None else text[span.start : span.end].strip()


def inserted(text):
    found = insertion(statement(text, "spark"))
    name = statement(text, "spark").tables[found.target].name
    return name, found.columns, found.by_name, text_of(text, found.before), text_of(text, found.query)


def given(text, action):
    if action.columns is None:
        return None
    return {name: text_of(text, value) for name, value in zip(action.columns, action.values, strict=True)}


def changed(text):
    found = change(statement(text, "spark"))
    actions = [(a.kind, a.matched, text_of(text, a.condition), given(text, a)) for a in found.actions]
    return actions, text_of(text, found.source), text_of(text, found.on)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("INSERT INTO t SELECT * FROM s;", ("t", None, False, "", "SELECT * FROM s")),
        (
            "insert into table t VALUES (1, ')'), (2, 'x')",
            ("t", None, False, "", "VALUES (1, ')'), (2, 'x')"),
        ),
        ("INSERT INTO t (`a)`, b) (SELECT 1, 2)", ("t", ("a)", "b"), False, "", "(SELECT 1, 2)")),
        ("INSERT INTO t BY NAME SELECT 1 AS a", ("t", None, True, "", "SELECT 1 AS a")),
        (
            "WITH s AS (SELECT 1) INSERT INTO t SELECT * FROM s, t u",
            ("t", None, False, "WITH s AS (SELECT 1)", "SELECT * FROM s, t u"),
        ),
    ],
)
def test_an_insert_is_cut_into_its_target_and_its_query(text, expected):
    assert inserted(text) == expected


def test_an_update_gives_values_to_columns():
    text = (
        "UPDATE t AS u SET a = CASE WHEN b = 1 THEN 'x, y = z' ELSE f(c, d) END, u.`b c` = b + 1 -- WHERE\n"
        " WHERE a IN (SELECT x FROM s WHERE y = 2) AND b = 1"
    )
    ((kind, matched, condition, values),), source, on = changed(text)
    assert (kind, matched, source, on) == ("update", True, None, None)
    assert condition == "a IN (SELECT x FROM s WHERE y = 2) AND b = 1"
    assert values["a"] == "CASE WHEN b = 1 THEN 'x, y = z' ELSE f(c, d) END"
    assert values["b c"].startswith("b + 1")
    assert changed("UPDATE t SET a = DATE '2026-01-01'")[0] == [
        ("update", True, None, {"a": "DATE '2026-01-01'"})
    ]


def test_a_delete_has_a_condition_or_none():
    assert changed("DELETE FROM t") == ([("delete", True, None, {})], None, None)
    assert changed("DELETE FROM t AS d WHERE d.`where` = 'WHERE'")[0][0][2] == "d.`where` = 'WHERE'"


def test_a_merge_has_actions_in_order():
    text = """
        MERGE INTO t USING (SELECT * FROM a JOIN b ON a.x = b.x) AS s
        ON t.id = s.id AND CASE WHEN s.x = 1 THEN TRUE ELSE FALSE END
        WHEN MATCHED AND s.gone AND (s.y = 1 OR s.y = 2) THEN DELETE
        WHEN MATCHED AND t.`when` < s.at THEN UPDATE SET *
        WHEN MATCHED THEN UPDATE SET x = CASE WHEN s.x IS NULL THEN t.x ELSE s.x END, t.y = 2
        WHEN NOT MATCHED BY TARGET AND s.x > 1 THEN INSERT (id, `x y`) VALUES (s.id, f(s.x, 1))
        WHEN NOT MATCHED THEN INSERT *
    """
    actions, source, on = changed(text)
    assert source == "(SELECT * FROM a JOIN b ON a.x = b.x) AS s"
    assert on == "t.id = s.id AND CASE WHEN s.x = 1 THEN TRUE ELSE FALSE END"
    assert actions == [
        ("delete", True, "s.gone AND (s.y = 1 OR s.y = 2)", {}),
        ("update", True, "t.`when` < s.at", None),
        ("update", True, None, {"x": "CASE WHEN s.x IS NULL THEN t.x ELSE s.x END", "y": "2"}),
        ("insert", False, "s.x > 1", {"id": "s.id", "x y": "f(s.x, 1)"}),
        ("insert", False, None, None),
    ]


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("INSERT OVERWRITE t SELECT 1", r"ts\.replace"),
        ("INSERT INTO t PARTITION (x = 1) SELECT 1", "write INSERT INTO"),
        ("UPDATE t SET item.x = 1", "whole struct"),
        ("UPDATE t SET x = 1 FROM s WHERE s.id = t.id", "MERGE INTO"),
        ("DELETE FROM t VERSION AS OF 3", "newest contents|cannot be parsed"),
        ("MERGE INTO t USING s ON t.x = s.x WHEN NOT MATCHED BY SOURCE THEN DELETE", r"ts\.replace"),
        ("MERGE INTO t USING s ON t.x = s.x WHEN MATCHED THEN INSERT *", "a matched row|cannot be parsed"),
        (
            "MERGE INTO t USING s ON t.x = s.x WHEN NOT MATCHED THEN INSERT (a, b) VALUES (1)",
            "one value for each",
        ),
    ],
)
def test_what_other_tables_have_names_the_helper(text, match):
    cut = inserted if text.startswith("INSERT") else changed
    with pytest.raises(UsageError, match=match):
        cut(text)

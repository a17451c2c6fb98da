"""A plan over contents is the query over them; what is not understood is refused by name."""

from pathlib import Path

import pytest
from plan_reference import evaluated
from query_cases import ROWS, TABLES, Databases

from tidelake.errors import UsageError
from tidelake.views.plan import Count, FromCollection, Join, Redo, recomputes_whole
from tidelake.views.query.compile import compiled
from tidelake.views.query.grouping import grouping_sets

duckdb = pytest.importorskip("duckdb")
_TEXTS = (Path(__file__).parent / "queries.sql").read_text(encoding="utf-8").splitlines()
QUERIES = [line for line in _TEXTS if not line.startswith("--")]


@pytest.fixture(scope="module")
def databases():
    made = Databases(duckdb)
    for name, rows in ROWS.items():
        made.fill(name, rows)
    yield made
    made.close()


@pytest.mark.promise(
    "The plan of a query over contents is the query over them, with nulls, duplicates, NaN and "
    "ties; also sub-queries that name columns of the query around, for which there is nothing",
    rule="`correlated` in `views/query/subqueries.py`, `with_domain` in `views/query/groups.py`",
    also=["views/query/test_random_queries.py"],
)
@pytest.mark.parametrize("query", QUERIES)
def test_a_plan_answers_as_the_engine_does(query, databases):
    found, wanted = databases.answers(query)
    assert found == wanted


@pytest.mark.promise(
    "What a view cannot have is refused when it is made, by name, with what to write instead",
    rule="`check_arguments`, `Engine.check_calls`",
)
@pytest.mark.promise(
    "A query is what DuckDB reads: where the parser reads something else, it is refused",
    rule="`difference` in `views/query/engine.py`",
)
@pytest.mark.parametrize(
    ("query", "named", "instead"),
    [
        ("SELECT now()", "now()", "a column that has the value"),
        ("SELECT current_date", "current_date", "a column"),
        ("SELECT current_localtimestamp()", "current_localtimestamp()", "a column"),
        ("SELECT random() FROM a", "random()", "a column"),
        ("SELECT ago(INTERVAL 1 DAY)", "ago()", "a column with the time"),
        ("SELECT age(w) FROM t", "age()", "age(later, earlier)"),
        ("SELECT version()", "version()", "a column"),
        ("SELECT approx_count_distinct(k) FROM a", "approx_count_distinct()", "count(DISTINCT x)"),
        ("SELECT kahan_sum(f) FROM a", "kahan_sum()", "exact"),
        ("SELECT first(x) FROM a", "first()", "first(x ORDER BY x)"),
        ("SELECT list(x) FROM a", "array_agg()", "array_agg(x ORDER BY x)"),
        ("SELECT any_value(x) FROM a", "any_value()", "min(x)"),
        ("SELECT string_agg(s, ',') OVER () FROM a", "string_agg()", "ORDER BY"),
        ("SELECT string_agg(s) AS c FROM a", "string_agg()", "string_agg(x ORDER BY x)"),
        ("SELECT r FROM range(0, (SELECT max(k) FROM a)) g(r)", "SELECT MAX(k) FROM a", "unnest(range(...))"),
        ("SELECT c FROM (VALUES ((SELECT max(k) FROM a))) v(c)", "SELECT MAX(k) FROM a", "in FROM"),
        ("SELECT [i FOR i IN l IF i > 1] AS c FROM t", "i FOR i IN l IF i > 1", "list_filter"),
        ("SELECT l.len() AS c FROM t", "l.len()", "around its argument"),
        ("SELECT unnest(p), i FROM t", "unnest() of a struct", "such as s.a"),
        ("SELECT unnest([p], recursive := true), i FROM t", "unnest() of a struct", "such as s.a"),
        ("SELECT COLUMNS('k|x') FROM a", "COLUMNS('k|x')", "name the columns"),
        ("SELECT k FROM main.a", "'main.a' in FROM", "without a schema"),
        ("SELECT json_extract(s, '$.b') AS j FROM a", "json_extract(s, '$.b')", "->"),
        (
            "SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY x) AS m FROM a",
            "(ORDER BY x)",
            "quantile_cont",
        ),
        ("SELECT row_number() OVER () FROM a", "row_number()", "ORDER BY"),
        ("SELECT last_value(x) OVER (ORDER BY k) FROM a", "last_value()", "ROWS"),
        ("SELECT * FROM a LIMIT 3", "LIMIT without ORDER BY", "ORDER BY"),
        ("SELECT * FROM a ORDER BY k LIMIT 10%", "LIMIT in percent", "QUALIFY"),
        ("SELECT * FROM a USING SAMPLE 10%", "SAMPLE", "WHERE"),
        ("SELECT a.k FROM a POSITIONAL JOIN e", "POSITIONAL", "row_number()"),
        (
            "WITH RECURSIVE r AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM r WHERE i < 5) FROM r",
            "recursive",
            "joins",
        ),
        ("SELECT k FROM a UNION ALL BY NAME SELECT x FROM e", "BY_NAME", "order"),
        ("SELECT * FROM nowhere", "nowhere", "there is no collection of this name"),
        ("SELECT k, k FROM a", "two columns 'k'", "AS"),
        ("SELECT INTERVAL 1 DAY AS i FROM a", "INTERVAL", "CAST(... AS VARCHAR)"),
        ("SELECT s COLLATE NOCASE AS s FROM a", "COLLATE", "lower(x)"),
        ("SELECT k FROM a WHERE (k, x) NOT IN (SELECT k, x FROM e)", "NOT IN", "NOT EXISTS"),
        ("SELECT * FROM read_csv('x.csv')", "read_csv()", "a column"),
        ("SELECT $1 + k FROM a", "the parameter", "the value"),
        ("SELECT k FROM a; SELECT x FROM a", "several", "keep one"),
        ("DELETE FROM a", "SELECT", ""),
        ("SELECT nope FROM a", "nope", ""),
        ("SELECT 'é' || log2(x) AS l FROM a", "not understood: 'log2(x)'", "ln(x) / ln(2)"),
    ],
)
def test_what_is_not_understood_is_refused_with_what_to_write(query, named, instead):
    with pytest.raises(UsageError) as refused:
        compiled(query, TABLES.get)
    assert named in str(refused.value)
    assert instead in str(refused.value)


@pytest.mark.promise(
    "A sub-query that is a value and has two rows is an error",
    rule="`_scalar` in `views/query/subqueries.py`",
)
def test_a_scalar_sub_query_with_two_rows_is_an_error(databases):
    with pytest.raises(duckdb.Error, match="more than one row"):
        databases.answers("SELECT k, (SELECT y FROM b WHERE b.k = a.k) AS y FROM a")


def test_stages_are_made_once_and_read_the_columns_that_they_use():
    plan = compiled("SELECT x.k, count(*) AS n FROM a x JOIN a y ON x.k = y.k GROUP BY x.k", TABLES.get)
    assert [type(stage) for stage in plan.stages] == [FromCollection, Join, Count]
    assert plan.stages[0].names == ("k",)
    assert plan.stages[1].inputs == (0, 0)
    assert [(column.name, column.type) for column in plan.columns] == [("k", "INTEGER"), ("n", "BIGINT")]


def test_a_window_and_its_condition_are_one_stage():
    query = "SELECT k, x FROM a QUALIFY row_number() OVER (PARTITION BY k ORDER BY x DESC) <= 2"
    (_, redo) = compiled(query, TABLES.get).stages
    assert isinstance(redo, Redo)
    assert redo.keys == ("c0",)
    assert redo.where == '(g."w0" <= 2)'
    assert redo.calls[0].over == 'ORDER BY i0."c1" DESC, i0."c0", i0."c1"'


@pytest.mark.parametrize(
    ("query", "whole"),
    [
        ("SELECT max(x) FROM a", False),
        ("SELECT k, x FROM a ORDER BY x LIMIT 3", False),
        ("SELECT count(DISTINCT x), max(k), sum(f) FROM a", False),
        ("SELECT median(x) FROM a", True),
        ("SELECT rank() OVER (ORDER BY x) FROM a", True),
        ("SELECT k, median(x) FROM a GROUP BY k", False),
    ],
)
def test_a_plan_says_what_is_recomputed_whole(query, whole):
    assert any(recomputes_whole(stage) for stage in compiled(query, TABLES.get).stages) == whole


def test_the_parser_warns_of_no_any_value(caplog):
    for over in ("", " OVER (PARTITION BY k)"):
        compiled(f"SELECT any_value(x ORDER BY x){over} AS v FROM a", TABLES.get)
    assert not caplog.records


def test_a_limit_says_what_breaks_ties():
    assert compiled("SELECT k FROM a ORDER BY x LIMIT 2", TABLES.get).notes == (
        "LIMIT: where ORDER BY leaves ties, the other columns decide, the first one first",
    )


def test_rows_that_are_owed_count_in_sums_and_are_none_elsewhere(databases):
    databases.fill("e", [(1, 5, -2), (1, 6, 3), (2, 1, -1)])
    try:
        plan = compiled("SELECT k, sum(x) AS s, count(*) AS n FROM e GROUP BY k", TABLES.get)
        assert evaluated(plan, databases.plans) == {(1, 8, 1): 1}
        plan = compiled("SELECT k, max(x) AS m, min(x) AS l FROM e GROUP BY k", TABLES.get)
        assert evaluated(plan, databases.plans) == {(1, 6, 6): 1}
    finally:
        databases.fill("e", [])


def test_floats_that_are_computed_have_no_negative_zero():
    plan = compiled("SELECT f * -1 AS g, f FROM a", TABLES.get)
    assert plan.stages[-1].select == ('((i0."c2" * -1) + CAST(0 AS DOUBLE))', 'i0."c2"')


@pytest.mark.parametrize(
    ("call", "repeats"), [("max(x)", False), ("count(DISTINCT s)", None), ("median(x)", True)]
)
def test_a_stage_says_whether_repeated_rows_matter(call, repeats):
    last = compiled(f"SELECT k, {call} AS c FROM a GROUP BY k", TABLES.get).stages[-1]
    assert getattr(last, "repeats", None) is repeats


@pytest.mark.parametrize(
    ("call", "text"),
    [
        ("list(x ORDER BY f)", 'ARRAY_AGG(i0."c1" ORDER BY i0."c2", i0."c1")'),
        ("arg_max(x, f)", 'ARG_MAX(i0."c1", i0."c2" ORDER BY i0."c1", i0."c2")'),
        ("stddev(f)", 'STDDEV(i0."c2" ORDER BY i0."c2")'),
    ],
)
def test_an_aggregate_that_shows_an_order_has_a_total_one(call, text):
    last = compiled(f"SELECT k, {call} AS c FROM a GROUP BY k", TABLES.get).stages[-1]
    assert isinstance(last, Redo)
    assert [one.function for one in last.calls] == [text]


@pytest.mark.parametrize(
    ("group", "sets"),
    [
        ("a, b WITH ROLLUP", [["a", "b"], ["a"], []]),
        ("a, b WITH CUBE", [["a", "b"], ["a"], ["b"], []]),
        ("a, b GROUPING SETS ((b), (a), ())", [["b"], ["a"], []]),
        ("a, GROUPING SETS ((b), ())", [["a", "b"], ["a"]]),
    ],
)
def test_grouping_sets_behind_the_keys_are_all_that_is_grouped_by(group, sets):
    import sqlglot

    node = sqlglot.parse_one(f"SELECT 1 FROM t GROUP BY {group}", dialect="spark").args["group"]
    assert grouping_sets(node, lambda one: one.sql()) == sets

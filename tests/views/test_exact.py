"""The judge of views: at every time the contents are those of the query, however a span is cut."""

import random

import pytest
from plan_reference import fill, text
from span_histories import (
    DATABASE,
    TABLES,
    TIMES,
    State,
    answer,
    at,
    contents_of,
    history,
    refreshes,
    rows_of,
    schema_of,
    span,
)

from tidelake.errors import RefreshFailed
from tidelake.views.plan import Join
from tidelake.views.query.compile import compiled
from tidelake.views.reach import needs
from tidelake.views.spans import SpanTooLarge
from tiers import rounds

QUERIES = [
    "SELECT k, x * 2 AS z FROM a WHERE x > 1 OR k IS NULL",
    "SELECT a.k, x, y FROM a JOIN b ON a.k = b.k",
    "SELECT p.k, q.x, r.x AS z FROM a p, a q, a r WHERE p.k = q.k AND q.x = r.k AND p.x <= r.x",
    "SELECT k, count(*) AS n, count(x) AS c, sum(x) AS s, avg(x) AS m FROM a GROUP BY k",
    "SELECT k, sum(y) AS s, avg(y) AS m FROM b GROUP BY k",
    "SELECT count(*) AS n, sum(x) AS s FROM a",
    "SELECT count(*) AS n FROM a WHERE x > 100",
    "SELECT DISTINCT k FROM a",
    "SELECT k FROM a UNION SELECT k FROM b",
    "SELECT k FROM a EXCEPT SELECT k FROM b",
    "SELECT k FROM a INTERSECT ALL SELECT k FROM b",
    "SELECT a.k, x, s FROM a LEFT JOIN c ON a.k = c.k AND x > 1",
    "SELECT a.k, x, c.k AS ck, s FROM a FULL JOIN c ON a.k = c.k",
    "SELECT k, max(x) AS hi, min(x) AS lo FROM a GROUP BY k HAVING max(x) > 1",
    "SELECT max(x) AS hi, count(DISTINCT k) AS n FROM a",
    "SELECT k, x, row_number() OVER (PARTITION BY k ORDER BY x, f) AS r FROM a",
    "SELECT k, x FROM a QUALIFY row_number() OVER (PARTITION BY k ORDER BY x DESC, f) <= 2",
    "SELECT k, x FROM a WHERE k IN (SELECT k FROM b)",
    "SELECT k, x FROM a WHERE x NOT IN (SELECT k FROM b)",
    "SELECT k, x FROM a WHERE EXISTS (SELECT 1 FROM b WHERE b.k = a.k AND b.y > a.x)",
    "SELECT k, (SELECT count(*) FROM b WHERE b.k = a.k) AS n FROM a",
    "SELECT k, s FROM c WHERE k > (SELECT avg(k) FROM b)",
    "SELECT k, string_agg(s, ',' ORDER BY s) AS t FROM c GROUP BY k",
    "SELECT v.k, x FROM a JOIN (VALUES (1, 2), (3, 4)) v(k, z) ON a.k = v.k",
    "SELECT k, count(*) FILTER (WHERE x > 1) AS n FROM a GROUP BY k",
    "WITH t AS (SELECT k, count(*) AS n FROM a GROUP BY k) SELECT t.n, count(*) AS m FROM t GROUP BY t.n",
    "WITH t AS (SELECT k, count(*) AS n FROM a GROUP BY k) SELECT b.k, y, n FROM b LEFT JOIN t ON b.k = t.k",
    "SELECT k FROM a UNION ALL SELECT 7 AS k",
    "SELECT DISTINCT m.hi FROM (SELECT k, max(x) AS hi FROM a GROUP BY k) m JOIN c ON c.k = m.k",
]
# In each run; the others take time to compile.
SOME = {3, 5, 9, 12, 16, 20}
EACH = [
    sql if number in SOME else pytest.param(sql, marks=pytest.mark.full) for number, sql in enumerate(QUERIES)
]
FLOATS = ["SELECT k, sum(f) AS s FROM a GROUP BY k", "SELECT sum(f) AS s FROM a"]


def given(rng, *, negative=False):
    return {name: history(rng, name, negative=negative) for name in TABLES}


def cuts(rng, birth):
    return sorted({TIMES, *(rng.randrange(birth + 1, TIMES) for _ in range(rng.randrange(1, 4)))})


@pytest.mark.promise(
    "At every closed time the contents of a view are its query over the contents of its inputs at "
    "that time, with multiplicities",
    rule="`views/rules.py`",
)
@pytest.mark.promise(
    "The updates of one refresh are those of many, row for row",
    rule="`views/rules.py`",
    also=["::test_a_sum_of_floats_is_the_same_however_a_span_is_cut"],
)
@pytest.mark.grows
@pytest.mark.parametrize("sql", EACH)
def test_contents_are_those_of_the_query_at_every_time(sql, rng):
    plan = compiled(sql, schema_of)
    for _ in rounds(fast=1, full=8, soak=100):
        tables, birth = given(rng), rng.choice((0, 0, 2))
        keyed = rng.choice(((), ("a",), ("b", "c")))
        several = refreshes(plan, tables, cuts(rng, birth), birth, keyed=keyed)
        assert several == span(plan, tables, None, TIMES, birth), "the updates depend on the cuts"
        for time in range(birth, TIMES):
            assert at(several, time) == answer(sql, tables, time), (time, tables)


@pytest.mark.parametrize("sql", ["SELECT count(*) AS n, sum(x) AS s FROM a", "SELECT max(x) AS m FROM a"])
def test_the_only_group_is_there_before_the_only_time_at_which_rows_come(sql):
    tables = {"a": [(1, 2, 0.5, 3, 1), (2, 5, 0.5, 3, 1)], "b": [], "c": []}
    found = refreshes(compiled(sql, schema_of), tables, [TIMES], 0)
    for time in range(TIMES):
        assert at(found, time) == answer(sql, tables, time)


@pytest.mark.promise(
    "While rows are there less than no times, the contents are those that the stages of the plan "
    "say, and a group that owes rows remembers its sums",
    rule="`views/rules.py`",
    also=["::test_a_group_that_owes_a_row_remembers_its_sum"],
)
@pytest.mark.grows
@pytest.mark.parametrize("sql", EACH)
def test_while_rows_are_missing_the_contents_are_those_of_the_stages(sql, rng):
    plan = compiled(sql, schema_of)
    for _ in rounds(fast=1, full=4, soak=50):
        tables = given(rng, negative=True)
        found = refreshes(plan, tables, cuts(rng, 0), 0)
        assert found == span(plan, tables, None, TIMES, 0), "the updates depend on the cuts"
        for time in range(TIMES):
            assert at(found, time) == whole(plan, tables, time), (time, tables)


MOST = "SELECT k, max(x) AS hi FROM a GROUP BY k"
FIRST = "SELECT k, x, f FROM a QUALIFY row_number() OVER (PARTITION BY k ORDER BY x {}, f) <= 1"
WHOLE = "SELECT max(x) AS hi, count(DISTINCT k) AS n, median(x) AS m FROM a"
# Updates of `a` without `k`, which is 1; (x, f, time, multiplicity). Each breaks some rule that is left out.
RARE = {
    "a row that is owed is no first one": (MOST, [(9, 0.5, 0, -1), (3, 0.5, 0, 1), (5, 0.5, 1, 1)]),
    "an owed row comes": (MOST, [(9, 0.5, 0, -1), (5, 0.5, 0, 1), (9, 0.5, 1, 1)]),
    "the first one goes": (MOST, [(9, 0.5, 0, -1), (5, 0.5, 0, 1), (3, 0.5, 0, 1), (5, 0.5, 1, -1)]),
    "only owed rows": (MOST, [(9, 0.5, 0, -1), (9, 0.5, 1, 1), (4, 0.5, 1, 1)]),
    "a row is owed": (
        MOST,
        [(5, 0.5, 0, 1), (9, 0.5, 1, -1), (6, 0.5, 2, 1), (7, 0.5, 3, 1), (2, 1.5, 3, -1)],
    ),
    "one more is owed": (MOST, [(9, 0.5, 0, -1), (5, 0.5, 0, 1), (6, 0.5, 1, 1), (7, 0.5, 2, 1)]),
    "equal but for a column": (MOST, [(5, 0.5, 0, 1), (5, 1.5, 0, -1), (4, 0.5, 1, 1), (3, 0.5, 2, 1)]),
    "nothing but NULL": (MOST, [(None, 0.5, 1, 1), (None, 1.5, 2, 1), (None, 0.5, 3, -1)]),
    "ties behind": (FIRST.format("DESC"), [(5, 1.5, 0, 1), (6, 1.5, 0, 1), (6, 0.5, 1, 1), (6, 0.5, 2, -1)]),
    "ties before": (FIRST.format("ASC"), [(5, 1.5, 0, 1), (6, 1.5, 0, 1), (5, 0.5, 1, 1), (5, 0.5, 2, -1)]),
    "NULL first": (FIRST.format("NULLS FIRST"), [(5, 1.5, 0, 1), (None, 0.5, 1, 2), (None, 0.5, 2, -2)]),
    "no row at first": (WHOLE, [(5, 0.5, 2, 2), (7, 0.5, 3, 1), (9, 0.5, 3, -1)]),
    "no row at first, sums": ("SELECT count(*) AS n, sum(x) AS s FROM a", [(5, 0.5, 2, 1), (5, 0.5, 3, -1)]),
    "no row at first, constant": ("SELECT k FROM a UNION ALL SELECT 7", [(5, 0.5, 2, 1)]),
    "one time, at which the view does not begin": (WHOLE, [(5, 0.5, 2, 1)]),
    "a call that is not needed": (
        "SELECT s, o FROM c, (SELECT 7 AS o FROM (SELECT median(x) FROM a))",
        [(5, 0.5, 0, 1), (6, 0.5, 0, 1), (7, 0.5, 2, 1)],
    ),
    "less than none of one": (
        "SELECT k FROM a INTERSECT ALL SELECT k FROM c",
        [(5, 0.5, 0, -1), (5, 0.5, 2, 2)],
    ),
    "NULL as a key": ("SELECT x, max(f) AS hi FROM a GROUP BY x", [(None, 1.5, 0, 2), (None, 0.5, 1, 1)]),
    "NULL as a key, sums": (
        "SELECT x, count(*) AS n FROM a GROUP BY x",
        [(None, 1.5, 0, 2), (None, 0.5, 1, 1)],
    ),
    "twice": ("SELECT x, row_number() OVER (ORDER BY x) AS r FROM a", [(5, 0.5, 0, 2), (6, 0.5, 1, 3)]),
    "less than none": ("SELECT k, count(*) AS n FROM a GROUP BY k", [(5, 0.5, 0, -1), (5, 0.5, 2, 2)]),
    "three of one": (
        "SELECT p.k, r.f FROM a p, a q, a r WHERE p.k = q.k AND q.x = r.f AND p.x <= r.x",
        [(9, 2.0, 0, 1), (2, 0.5, 1, 1), (2, 0.5, 2, 1)],
    ),
    "above another": (
        f"SELECT DISTINCT m.hi FROM ({MOST}) m JOIN c ON c.k = m.k",
        [(5, 0.5, 0, 1), (9, 0.5, 0, -1), (6, 0.5, 2, 1)],
    ),
}


@pytest.mark.full
@pytest.mark.parametrize("name", RARE)
def test_contents_are_exact_in_rare_cases(name):
    sql, rows = RARE[name]
    plan, times = compiled(sql, schema_of), range(1, 5)
    tables = {
        "a": [(1, *row) for row in rows],
        "b": [],
        "c": [(1, "s", 0, 1), (1, "s", 1, -1), (1, "s", 3, 1)],
    }
    wanted = span(plan, tables, None, 4, 0)
    assert [at(wanted, time) for time in range(4)] == [whole(plan, tables, time) for time in range(4)]
    for cuts_, keyed in (([*times], ()), ([1, 4], ("a", "c")), ([2, 4], ())):
        assert refreshes(plan, tables, cuts_, 0, keyed=keyed) == wanted, (cuts_, keyed)
    # What is kept is computed.
    later = span(plan, tables, 2, 4, 0)
    assert later == {row: many for row, many in wanted.items() if row[-1] >= 2}


def test_a_join_finds_nulls_that_are_equal():
    plan = compiled("SELECT a.k, y FROM a JOIN b ON a.k IS NOT DISTINCT FROM b.k", schema_of)
    tables = {"a": [(None, 1, 0.5, 0, 1), (None, 2, 0.5, 2, 1)], "b": [(None, None, 1, 1)], "c": []}
    for keyed in ((), ("a", "b")):
        assert refreshes(plan, tables, [1, 2, 3], 0, keyed=keyed) == {(None, None, 1): 1, (None, None, 2): 1}


def whole(plan, tables, time):
    """The answer of the stages over whole contents."""
    connection = DATABASE.connection
    for name, columns in TABLES.items():
        fill(connection, name, columns, contents_of(tables[name], time))
    return {row[:-1]: row[-1] for row in rows_of(connection.sql(text(plan)).to_arrow_table())}


@pytest.mark.full
@pytest.mark.parametrize("sql", FLOATS)
def test_a_sum_of_floats_is_the_same_however_a_span_is_cut(sql):
    rng, plan = random.Random(4), compiled(sql, schema_of)
    for _ in range(3):
        tables = given(rng)
        assert refreshes(plan, tables, [1, 2, 3, 4, 5, 6], 0) == span(plan, tables, None, TIMES, 0)


@pytest.mark.parametrize("call", ["sum(f)", "avg(f)", "sum(DISTINCT f)", "sum(x)", "count(*)", "max(f)"])
def test_a_condition_of_an_aggregate_that_is_null_is_not_met(call):
    sql = f"SELECT k, {call} FILTER (WHERE x > 1) AS s FROM a GROUP BY k"
    tables = {name: [] for name in TABLES} | {"a": [(1, None, 0.5, 0, 1), (1, 2, 4.0, 1, 1)]}
    found = refreshes(compiled(sql, schema_of), tables, [1, 2], 0)
    assert [at(found, time) for time in range(2)] == [answer(sql, tables, time) for time in range(2)]


@pytest.mark.promise(
    "A pair of a join is shown from the later of its two times on, also if both come in one refresh",
    rule="`Rules._join`",
    also=["::test_both_sides_of_a_join_change_in_one_refresh"],
)
def test_a_join_shows_a_pair_from_the_later_of_its_times_on():
    plan = compiled("SELECT a.k FROM a JOIN b ON a.k = b.k", schema_of)
    tables = {"a": [(1, 1, 0.5, 1, 1)], "b": [(1, None, 0, 1)]}
    assert span(plan, tables, None, 2, 0) == {(1, 1): 1}


def test_both_sides_of_a_join_change_in_one_refresh():
    plan = compiled("SELECT a.k FROM a JOIN b ON a.k = b.k", schema_of)
    tables = {"a": [(1, 1, 0.5, 2, 1)], "b": [(1, None, 1, 1)]}
    assert refreshes(plan, tables, [1, 3], 0) == {(1, 2): 1}


def test_a_group_that_owes_a_row_remembers_its_sum():
    plan = compiled("SELECT k, count(*) AS n, sum(x) AS s FROM a GROUP BY k", schema_of)
    tables = {"a": [(1, 5, None, 0, 1), (1, 2, None, 1, -1), (1, 2, None, 2, 2)]}
    found = refreshes(plan, tables, [1, 2, 3], 0)
    assert [at(found, time) for time in range(3)] == [{(1, 1, 5): 1}, {}, {(1, 2, 7): 1}]


def test_rows_that_cancel_each_other_change_no_sum():
    plan = compiled("SELECT b.y, count(*) AS n FROM a JOIN b ON a.x = b.k GROUP BY b.y", schema_of)
    moved = [(1, 1, 0.5, 0, 1), (1, 1, 0.5, 1, -1), (1, 2, 0.5, 1, 1)]
    tables, state = {"a": moved, "b": [(1, None, 0, 1), (2, None, 0, 1)]}, State(plan)
    assert refreshes(plan, tables, [1, 2], 0, state=state) == {(None, 1, 0): 1}
    (sums,) = (table for kept, table in state.tables.items() if kept.sums)
    assert sums["_time"].to_pylist() == [0]


def test_a_row_that_is_there_too_often_is_not_expanded():
    plan = compiled("SELECT k, median(x) AS m FROM a GROUP BY k", schema_of)
    with pytest.raises(RefreshFailed, match=r"more than 1,000,000 times"):
        span(plan, {"a": [(1, 2, None, 0, 10**9)]}, None, 1, 0)


def test_what_does_not_change_is_not_computed():
    plan = compiled("SELECT a.k, y FROM a JOIN b ON a.k = b.k", schema_of)
    tables = {"a": [(1, 1, 0.5, 0, 1)], "b": [(1, None, 0, 1)]}
    assert span(plan, tables, 1, 2, 0) == {}


def test_names_of_columns_of_the_rules_are_free():
    plan = compiled('SELECT k AS _t, x AS _m, f AS "_P" FROM a', schema_of)
    assert span(plan, {"a": [(1, 2, 0.5, 0, 1)]}, None, 1, 0) == {(1, 2, "0.5", 0): 1}


def test_a_span_in_which_a_group_is_computed_too_often_is_to_be_cut():
    plan = compiled("SELECT k, max(x) AS hi FROM a GROUP BY k", schema_of)
    tables = {"a": [(1, 2, None, time, 1) for time in range(4)]}
    with pytest.raises(SpanTooLarge):
        span(plan, tables, None, 4, 0, pairs_max=3)
    assert span(plan, tables, 1, 2, 0, pairs_max=0) == span(plan, tables, 1, 2, 0)
    # Of four groups, each is computed once.
    tables = {"a": [(time, 2, None, time, 1) for time in range(4)]}
    assert span(plan, tables, None, 4, 0, pairs_max=4) == span(plan, tables, None, 4, 0)


@pytest.mark.promise(
    "A join reads of the time before only what changed rows may meet; a span in which groups would "
    "be computed again too often is cut, with the same updates",
    rule="`reads_before`, `SpanTooLarge`",
    also=[
        "::test_a_span_in_which_a_group_is_computed_too_often_is_to_be_cut",
        "views/test_view_races.py::test_a_span_that_is_too_large_is_cut",
    ],
)
def test_a_join_reads_before_the_span_only_what_meets_a_change():
    plan = compiled("SELECT a.k FROM a JOIN b ON a.k = b.k", schema_of)
    (stage,) = (one for one in plan.stages if isinstance(one, Join))
    assert [(need.place, need.given) for need in needs(stage, 0)] == [(1, 0)]
    assert [(need.place, need.given) for need in needs(stage, 1)] == [(0, 1)]

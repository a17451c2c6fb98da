"""Groups whose first rows say all: exact although rows of them go, come back, tie, and owe rows."""

import random

import pytest
import span_histories
from span_histories import TABLES, answer, at, history, refreshes, schema_of

from tidelake.views.database import Database
from tidelake.views.leading import leading
from tidelake.views.plan import Redo
from tidelake.views.query.compile import compiled

pytest.importorskip("duckdb")

OVER = "OVER (PARTITION BY k ORDER BY x DESC, f)"
QUERIES = {
    "SELECT k, max(x) AS m FROM a GROUP BY k": [1],
    "SELECT k, min(x) AS l, max(f) AS m FROM a GROUP BY k": [1, 1],
    f"SELECT k, x FROM a QUALIFY row_number() {OVER} <= 2": [2],
    f"SELECT k, x, rank() {OVER} AS r FROM a QUALIFY r < 3 AND r <= 7": [2],
    f"SELECT k, x FROM a QUALIFY 1 = rank() {OVER}": [1],
    f"SELECT k, x FROM a QUALIFY rank() {OVER} <= -2": [-2],
    # All rows are needed.
    "SELECT k, x FROM a QUALIFY rank() OVER (PARTITION BY k ORDER BY to_months(x)) <= 2": [],
    "SELECT k, x FROM a QUALIFY rank() OVER (ORDER BY [to_days(x)]) <= 2": [],
    "SELECT k, min(x) AS l, max(x) AS m, max(f) AS n FROM a GROUP BY k": [],
    "SELECT k, max(x) FILTER (WHERE f > 1) AS m FROM a GROUP BY k": [],
    "SELECT k, max(x) AS m, count(*) AS n FROM a GROUP BY k": [],
    f"SELECT k, x FROM a QUALIFY row_number() {OVER} <= 2 OR x = 3": [],
    f"SELECT k, x FROM a QUALIFY row_number() {OVER} >= 2": [],
    f"SELECT k, x FROM a QUALIFY dense_rank() {OVER} <= 2": [],
    "SELECT k, x FROM a QUALIFY count(*) OVER (PARTITION BY k) <= 2": [],
}


@pytest.mark.parametrize("sql", QUERIES)
def test_how_many_rows_of_a_group_say_all(sql):
    stages = [stage for stage in compiled(sql, schema_of).stages if isinstance(stage, Redo)]
    assert [[one.most for one in leading(stage)] for stage in stages] == [QUERIES[sql]]


@pytest.mark.parametrize("sql", [sql for sql, places in QUERIES.items() if places])
def test_what_comes_to_the_front_is_there(sql):
    plan = compiled(sql, schema_of)
    for seed in range(5):
        rng = random.Random(seed)
        given = {name: history(rng, name) for name in TABLES}
        # Many rows of one group, of which the first ones go in the last span, each at its own time.
        rows = [(1, x, f) for x in (3, 2, 1, None) for f in (0.5, 1.5, None)]
        given["a"] += [(*row, 0, 1) for row in rows]
        given["a"] += [(*row, 3 + n % 3, -1) for n, row in enumerate(rows[: rng.randrange(9)])]
        found = refreshes(plan, given, [rng.choice([1, 2, 3]), 6], 0)
        for time in range(6):
            assert at(found, time) == answer(sql, given, time), (seed, time)


def test_values_that_are_equal_as_others_compare_as_the_query_compares_them():
    sql = "SELECT x FROM a QUALIFY rank() OVER (ORDER BY to_months(k) + to_days(x)) <= 2"
    # Two months, 59 days, a month and a day; then without the last.
    given = {"b": [], "c": [], "a": [(2, 0, 0.5, 0, 1), (0, 59, 0.5, 0, 1), (1, 1, 0.5, 0, 1)]}
    given["a"] += [(1, 1, 0.5, 1, -1), (0, 58, 0.5, 2, 1)]
    found = refreshes(compiled(sql, schema_of), given, [1, 2, 3], 0)
    for time in range(3):
        assert at(found, time) == answer(sql, given, time)


@pytest.mark.parametrize("order", ["x = 2 OR f > 1", "x = 2", "NOT x = 3", "x IS NOT DISTINCT FROM 2"])
def test_an_order_by_a_condition_is_compared_as_a_whole(order):
    sql = f"SELECT x, f FROM a QUALIFY rank() OVER (ORDER BY {order}) <= 1"
    given = {"b": [], "c": [], "a": [(1, 2, 0.5, 0, 1), (1, 3, 1.5, 0, 1), (1, 1, 0.5, 1, 1)]}
    given["a"] += [(1, 1, 0.5, 2, -1), (1, 2, 0.5, 3, -1), (1, 2, 1.5, 4, 1)]
    found = refreshes(compiled(sql, schema_of), given, [1, 2, 3, 4, 5], 0)
    for time in range(5):
        assert at(found, time) == answer(sql, given, time)


class Counted(Database):
    """Tells how many rows its tables have."""

    def fill(self, table, columns, query, most=None):
        self.rows[table] = super().fill(table, columns, query, most)
        return self.rows[table]


@pytest.mark.promise(
    "A maximum, or the first rows of a group, are computed again only where these may change",
    rule="`Rules.moved`",
)
def test_groups_whose_first_rows_stay_are_not_computed_again(monkeypatch):
    database, plan = Counted(), compiled(f"SELECT k, x FROM a QUALIFY row_number() {OVER} <= 2", schema_of)
    database.rows = {}
    monkeypatch.setattr(span_histories, "DATABASE", database)
    # Behind the second place; at it; of a group with few rows; NULL.
    changes = {(1, 4): 0, (2, 5): 1, (3, 6): 1, (1, None): 1}
    for (k, x), computed in changes.items():
        given = {"b": [], "c": [], "a": [(k, x, 0.5, 0, 1) for k, x in [(1, 6), (1, 5), (1, 4), (1, None)]]}
        given["a"] += [(2, 6, 0.5, 0, 1), (2, 5, 0.5, 0, 1), (2, 4, 0.5, 0, 1), (3, 7, 0.5, 0, 1)]
        given["a"] += [(k, x, 0.5, 1, -1 if k < 3 else 1)]
        found = refreshes(plan, given, [1, 2], 0)
        assert database.rows["m1_0"] == computed
        assert at(found, 1) == answer(f"SELECT k, x FROM a QUALIFY row_number() {OVER} <= 2", given, 1)


@pytest.mark.parametrize("sql", list(QUERIES)[:3])
def test_rows_that_are_owed_behind_the_first_are_no_new_ones_when_repaid(sql):
    given = {"b": [], "c": [], "a": [(1, 3, 0.5, 0, 1), (1, 1, 0.5, 0, -2)]}
    given["a"] += [(1, 3, 0.5, 1, -1), (1, 1, 0.5, 1, 2), (1, 2, 0.5, 2, 1)]
    found = refreshes(compiled(sql, schema_of), given, [1, 2, 3], 0)
    for time in (1, 2):
        assert at(found, time) == answer(sql, given, time)

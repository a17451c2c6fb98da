"""The stages of a plan mean what their docstrings say."""

import pytest
from plan_reference import evaluated, fill

from tidelake.views.plan import (
    Call,
    Constant,
    Count,
    Equal,
    FromCollection,
    Join,
    LinearSum,
    Map,
    PlanColumn,
    Redo,
    Union,
    ViewPlan,
    inputs,
    quoted,
    recomputes_whole,
)

duckdb = pytest.importorskip("duckdb")
K, X, N = PlanColumn("k", "INTEGER"), PlanColumn("x", "INTEGER"), PlanColumn("n", "HUGEINT")
ROWS = [(1, 10, 2), (1, None, 1), (None, 5, 1), (2, 7, -1)]
A = FromCollection("a", (K, X), ("k", "x"))
PASS = ('i0."k"', 'i0."x"')


def _answer(*stages):
    with duckdb.connect() as connection:
        fill(connection, "a", {"k": "INTEGER", "x": "INTEGER"}, ROWS)
        return evaluated(ViewPlan(stages, stages[-1].columns), connection)


def test_a_map_keeps_debts_and_subtracts():
    assert _answer(A, Map(0, PASS, 'i0."x" > 5', (K, X), -1)) == {(1, 10): -2, (2, 7): 1}


def test_a_map_may_repeat_rows():
    assert _answer(A, Map(0, ("unnest([i0.k, 9])",), "i0.x = 10", (K,))) == {(1,): 2, (9,): 2}


def test_a_union_adds_and_a_stage_may_be_there_twice():
    assert _answer(A, Union((0, 0), (K, X)))[1, 10] == 4
    assert not _answer(A, Map(0, PASS, None, (K, X), -1), Union((0, 1), (K, X)))


def test_a_join_multiplies_and_null_meets_null_only_if_asked():
    select = ('i0."k"', 'i1."x"')
    plain = Join((0, 0), (Equal(0, "k", 1, "k"),), 'i0."x" = 10', select, (K, X))
    assert _answer(A, plain) == {(1, 10): 4, (1, None): 2}
    nulls = Join((0, 0), (Equal(0, "k", 1, "k", True),), 'i0."x" = 5', select, (K, X))
    assert _answer(A, nulls) == {(None, 5): 1}


def test_a_count_has_a_row_as_often_as_it_says():
    sums = (LinearSum("n", "1"), LinearSum("v", 'CASE WHEN i0."x" IS NULL THEN 0 ELSE 1 END'))
    distinct = Count(0, ("k",), sums, 'CASE WHEN g."n" > 0 THEN 1 END', ('g."k"', 'g."v"'), (K, N))
    assert _answer(A, distinct) == {(1, 2): 1, (None, 1): 1}
    assert _answer(A, Count(0, ("k",), sums, 'g."n"', ('g."k"',), (K,))) == {(1,): 3, (None,): 1}


def test_without_keys_there_is_always_one_group():
    none = Map(0, PASS, "FALSE", (K, X))
    one = Count(1, (), (LinearSum("n", "1"),), "1", ('g."n"',), (N,))
    assert _answer(A, none, one) == {(0,): 1}
    top = Redo(1, (), True, (Call("m", 'max(i0."x")'),), None, ('g."m"',), (X,))
    assert _answer(A, none, top) == {(None,): 1}


def test_redo_sees_each_row_as_often_as_it_is_there():
    listed = Call("l", 'count(i0."x")')
    groups = Redo(0, ("k",), True, (listed,), 'g."l" > 1', ('g."k"', 'g."l"'), (K, N))
    assert _answer(A, groups) == {(1, 2): 1}
    number = Call("r", "row_number()", 'ORDER BY i0."x"')
    windows = Redo(0, ("k",), False, (number,), 'g."r" <= 2', ('g."k"', 'g."x"'), (K, X))
    assert _answer(A, windows) == {(1, 10): 2, (None, 5): 1}


def test_a_constant_is_there_without_inputs():
    assert _answer(Constant("SELECT * FROM (VALUES (1), (1)) v", (K,))) == {(1,): 2}


def test_a_plan_knows_its_collections_and_what_is_recomputed_whole():
    whole = Redo(0, (), False, (), None, PASS, (K, X))
    plan = ViewPlan((A, whole), (K, X))
    assert plan.collections == ("a",)
    assert [recomputes_whole(stage) for stage in plan.stages] == [False, True]
    assert not recomputes_whole(Redo(0, (), False, (), None, PASS, (K, X), rows_max=10))
    assert [*map(inputs, (A, whole, Union((0, 1), (K, X))))] == [(), (0,), (0, 1)]
    assert quoted('a"b') == '"a""b"'

"""Sums of floats are the exact sum, rounded once; sums of decimals are exact."""

import math
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidelake.views.floats import float_parts, float_total
from tidelake.views.functions import linear
from tiers import examples

duckdb = pytest.importorskip("duckdb")
PARTS = float_parts("x", "x IS NOT NULL")
NAMES = [f"a{i}" for i in range(len(PARTS))]
_SUMS = ", ".join(f"sum(m * {part}) AS {name}" for part, name in zip(PARTS, NAMES, strict=True))
TEXT = f"SELECT {float_total(NAMES)} FROM (SELECT {_SUMS} FROM (SELECT unnest($x) AS x, unnest($m) AS m))"


@pytest.fixture(scope="module")
def connection():
    with duckdb.connect() as connection:
        connection.execute(
            "PREPARE summed AS " + TEXT.replace("$x", "$1::DOUBLE[]").replace("$m", "$2::BIGINT[]")
        )
        yield connection


def _sum(connection, values, times=None):
    times = times or [1] * len(values)
    listed = ", ".join(f"'{value!r}'::DOUBLE" for value in values)
    return connection.execute(f"EXECUTE summed([{listed}], {times})").fetchone()[0]


@pytest.mark.promise(
    "A sum of floats is the exact sum, rounded once; NaN and infinities can be taken back",
    rule="`views/floats.py`",
    also=["views/test_floats.py"],
)
@pytest.mark.parametrize(
    "values",
    [
        [1e16, 1.1, -1e16] * 10,
        [0.1] * 3 + [-0.3, 2.5e-7],
        [5e-324],
        [5e-324, -5e-324],
        [sys.float_info.max, -sys.float_info.max, 1e-300],
        [sys.float_info.min, -5e-324],
        [1.0, 2.0**-53, 2.0**-120],
        [1.0, 2.0**-53],
        [1.0 + 2.0**-52, 2.0**-53],
        [-1.0, -(2.0**-53), -(2.0**-1074)],
        [2.0**k for k in range(-1074, 1000, 37)],
        [-(2.0**k) for k in range(-1074, 1000, 37)],
        [1e31, 1.1, -1e31],
    ],
)
def test_the_sum_is_exact(connection, values):
    assert _sum(connection, values) == math.fsum(values)
    assert _sum(connection, values[::-1]) == math.fsum(values)


def test_what_is_no_number_is_counted(connection):
    assert _sum(connection, [math.inf, 1.0]) == math.inf
    assert _sum(connection, [-math.inf, 1.0]) == -math.inf
    assert math.isnan(_sum(connection, [math.inf, -math.inf]))
    assert math.isnan(_sum(connection, [math.nan, 1.0]))
    assert _sum(connection, [math.nan, math.inf, 1.5, math.nan], [1, 0, 1, -1]) == 1.5


def test_a_sum_of_nothing_is_no_negative_zero(connection):
    assert str(_sum(connection, [-0.0, 5.0, -5.0])) == "0.0"


def test_retractions_leave_nothing_behind(connection):
    assert _sum(connection, [0.1, 1e300, 0.1], [10**9, 0, 1 - 10**9]) == 0.1


@settings(max_examples=examples(150))
@given(values=st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=12))
def test_the_sum_of_any_floats_is_that_of_fsum(connection, values):
    values = [value / 16 for value in values]
    assert _sum(connection, values) == math.fsum(values)


def test_a_decimal_of_any_size_is_summed():
    with duckdb.connect() as engine:
        for digits, scale in ((d, s) for d in (1, 4, 9, 12, 18, 19, 38) for s in range(0, d + 1, 1 + d // 9)):
            found, type_ = (
                linear("sum", "x", f"DECIMAL({digits},{scale})", "true"),
                f"DECIMAL({digits},{scale})",
            )
            sums = ", ".join(f"sum({value}) AS a{n}" for n, value in enumerate(found.values))
            result = found.of([f"a{n}" for n in range(len(found.values))])
            largest = f"{'9' * (digits - scale)}.{'9' * scale}"
            given = f"SELECT unnest(['{largest}', '-{largest}'])::{type_} AS x"
            query = f"SELECT count(*) FROM (SELECT x, {sums} FROM ({given}) GROUP BY x) WHERE {result} = x"
            assert engine.sql(query).fetchall() == [(2,)], type_

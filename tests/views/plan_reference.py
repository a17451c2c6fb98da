"""What a plan means: its stages carried out one after the other over whole tables, with multiplicities.

Each stage becomes a part of one query, with its columns and `__m`, the multiplicity. Nothing is incremental.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tidelake.views.plan import (
    Constant,
    Count,
    FromCollection,
    Join,
    Map,
    Redo,
    Stage,
    Union,
    ViewPlan,
    quoted,
)


def fill(connection: Any, name: str, columns: Mapping[str, str], rows: Iterable[Sequence[object]]) -> None:
    """Make a table of rows, of which the last item is the multiplicity."""
    told = ", ".join(f"{quoted(column)} {type_}" for column, type_ in columns.items())
    connection.execute(f"CREATE OR REPLACE TABLE {quoted(name)} ({told}, __m BIGINT)")
    if given := [list(row) for row in rows]:
        marks = ", ".join("?" * (len(columns) + 1))
        connection.executemany(f"INSERT INTO {quoted(name)} VALUES ({marks})", given)


def evaluated(plan: ViewPlan, connection: Any) -> Counter[tuple[Any, ...]]:
    """The answer of a plan: rows and their multiplicities.

    Args:
        plan: any plan.
        connection: a database with a table for each collection of the plan, as `fill` makes them.
    """
    rows = connection.execute(text(plan)).fetchall()
    return counted((row[:-1], row[-1]) for row in rows)


def text(plan: ViewPlan) -> str:
    """The answer of a plan as one query: columns, and `__m`."""
    stages = []
    for number, stage in enumerate(plan.stages):
        names = [quoted(column.name) for column in stage.columns]
        stages.append(
            f"__s{number} AS MATERIALIZED (SELECT {', '.join(names)}, CAST(sum(__m) AS BIGINT) AS __m "
            f"FROM ({_sql(stage)}) AS __t({', '.join([*names, '__m'])}) GROUP BY ALL HAVING sum(__m) <> 0)"
        )
    return f"WITH {', '.join(stages)} SELECT * FROM __s{len(plan.stages) - 1}"


def counted(rows: Iterable[tuple[tuple[Any, ...], int]]) -> Counter[tuple[Any, ...]]:
    """Rows as keys that are equal to themselves, also those with NaN."""
    found: Counter[tuple[Any, ...]] = Counter()
    for row, times in rows:
        found[tuple(_plain(value) for value in row)] += times
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return "NaN" if value != value else value + 0.0
    if isinstance(value, list):
        return tuple(_plain(item) for item in value)
    if isinstance(value, dict):
        return tuple((key, _plain(item)) for key, item in value.items())
    return value


def _sql(stage: Stage) -> str:
    match stage:
        case FromCollection(collection, _, names):
            return f"SELECT {', '.join(map(quoted, names))}, __m FROM {quoted(collection)}"
        case Constant(sql):
            return f"SELECT *, 1 FROM ({sql})"
        case Map(number, select, where, _, sign):
            return f"SELECT {', '.join(select)}, {sign} * i0.__m FROM __s{number} i0 WHERE {where or 'TRUE'}"
        case Union(numbers):
            return " UNION ALL ".join(f"SELECT * FROM __s{number}" for number in numbers)
        case Join(numbers, equals, where, select):
            tables = ", ".join(f"__s{number} i{i}" for i, number in enumerate(numbers))
            product = " * ".join(f"i{i}.__m" for i in range(len(numbers)))
            conditions = [equal.sql for equal in equals] + ([f"({where})"] if where else [])
            return (
                f"SELECT {', '.join(select)}, {product} FROM {tables} "
                f"WHERE {' AND '.join(conditions) or 'TRUE'}"
            )
        case Count(number, keys, sums, times, select):
            inner = [quoted(key) for key in keys]
            inner += [f"coalesce(sum(i0.__m * ({s.value})), 0) AS {quoted(s.name)}" for s in sums]
            groups = f"SELECT {', '.join(inner)} FROM __s{number} i0 {_grouped(keys)}"
            return f"SELECT {', '.join(select)}, {times} FROM ({groups}) g WHERE {times} > 0"
        case Redo(number, keys, aggregate, calls, where, select):
            whole = f"(SELECT * FROM (SELECT *, unnest(range(__m)) AS __n FROM __s{number} WHERE __m > 0))"
            if aggregate:
                inner = [quoted(key) for key in keys]
                inner += [f"{call.function} AS {quoted(call.name)}" for call in calls]
                groups = f"SELECT {', '.join(inner)} FROM {whole} i0 {_grouped(keys)}"
            else:
                by = f"PARTITION BY {', '.join('i0.' + quoted(key) for key in keys)} " if keys else ""
                inner = ["i0.*"]
                inner += [f"{call.function} OVER ({by}{call.over}) AS {quoted(call.name)}" for call in calls]
                groups = f"SELECT {', '.join(inner)} FROM {whole} i0"
            return f"SELECT {', '.join(select)}, 1 FROM ({groups}) g WHERE {where or 'TRUE'}"


def _grouped(keys: tuple[str, ...]) -> str:
    return f"GROUP BY {', '.join('i0.' + quoted(key) for key in keys)}" if keys else ""

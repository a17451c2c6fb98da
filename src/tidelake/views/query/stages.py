"""Stages as they are made: each with the types that DuckDB gives its columns, equal ones once.

Owns numbers of stages, names and types of their columns, and what is composed of the seven kinds: distinct
rows, rows that have a partner, rows that have none. Must not know SQL's syntax.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from math import prod

from tidelake.errors import UsageError
from tidelake.views.functions import is_float
from tidelake.views.leading import ordered
from tidelake.views.plan import (
    Call,
    Columns,
    Constant,
    Count,
    Equal,
    FromCollection,
    Join,
    LinearSum,
    Map,
    PlanColumn,
    Redo,
    Stage,
    Union,
    quoted,
)
from tidelake.views.query.analyzer import Analyzer

ROWS = LinearSum("n", "CAST(1 AS HUGEINT)")
IS_THERE = 'CASE WHEN g."n" > 0 THEN 1 ELSE 0 END'
_REFERENCE = re.compile(r'[ig]\d*\."(?:[^"]|"")*"')


def ref(name: str, number: int = 0) -> str:
    """A column of an input, as text."""
    return f"i{number}.{quoted(name)}"


def of_group(name: str) -> str:
    """What a group knows, as text."""
    return f"g.{quoted(name)}"


class Stages:
    """Stages under construction."""

    def __init__(self, analyzer: Analyzer) -> None:
        self.analyzer = analyzer
        self.made: list[Stage] = []
        self._numbers: dict[Stage, int] = {}

    def columns(self, number: int) -> Columns:
        """The columns of a stage."""
        return self.made[number].columns

    def type_of(self, number: int, name: str) -> str:
        """DuckDB's name of the type of a column."""
        return next(column.type for column in self.columns(number) if column.name == name)

    def source(self, collection: str, columns: Columns) -> int:
        """The contents of a collection."""
        names = tuple(column.name for column in columns)
        return self._add(FromCollection(collection, _numbered([c.type for c in columns]), names))

    def constant(self, sql: str) -> int:
        """Rows that depend on no collection."""
        self.analyzer.check_calls(sql)
        found = self.analyzer.described(sql)
        return self._add(Constant(sql, _numbered([column.type for column in found])))

    def map(self, number: int, select: Sequence[str], where: str | None = None, sign: int = 1) -> int:
        """Project and filter. Nothing is made if all columns are taken as they are."""
        same = [ref(column.name) for column in self.columns(number)]
        if where is None and sign == 1 and [*select] == same:
            return number
        columns, select = self._typed(select, f"__s{number} i0", where)
        return self._add(Map(number, select, where, columns, sign))

    def union(self, numbers: Sequence[int]) -> int:
        """Add contents whose columns have the same types."""
        if len(numbers) == 1:
            return numbers[0]
        return self._add(Union(tuple(numbers), _numbered([c.type for c in self.columns(numbers[0])])))

    def minus(self, number: int, less: int) -> int:
        """Contents without others."""
        return self.union([number, self.map(less, [ref(c.name) for c in self.columns(less)], None, -1)])

    def join(
        self, numbers: Sequence[int], equals: Sequence[Equal], where: str | None, select: Sequence[str]
    ) -> int:
        """Join; see `Join`."""
        tables = ", ".join(f"__s{number} i{i}" for i, number in enumerate(numbers))
        conditions = [equal.sql for equal in equals] + ([f"({where})"] if where else [])
        columns, select = self._typed(select, tables, " AND ".join(conditions) or None)
        return self._add(Join(tuple(numbers), tuple(equals), where, select, columns))

    def count(
        self,
        number: int,
        keys: Sequence[str],
        sums: Sequence[LinearSum] = (ROWS,),
        times: str = IS_THERE,
        select: Sequence[str] = (),
    ) -> int:
        """GroupingSet of which sums are known; without `select`, their keys."""
        select = select or [of_group(key) for key in keys] or ["TRUE"]
        inner = [ref(key) for key in keys] + [f"sum({one.value}) AS {quoted(one.name)}" for one in sums]
        groups = f"(SELECT {', '.join(inner)} FROM __s{number} i0 {_grouped(keys)}) g"
        columns, select = self._typed(select, groups, f"({times}) > 0")
        return self._add(Count(number, tuple(keys), tuple(sums), times, select, columns))

    def redo(
        self,
        number: int,
        keys: Sequence[str],
        calls: Sequence[Call],
        select: Sequence[str],
        *,
        aggregate: bool,
        where: str | None = None,
        repeats: bool = True,
        rows_max: int | None = None,
    ) -> int:
        """GroupingSet that need all their rows; see `Redo`."""
        if aggregate:
            inner = [ref(key) for key in keys] + [f"{c.function} AS {quoted(c.name)}" for c in calls]
            groups = f"(SELECT {', '.join(inner)} FROM __s{number} i0 {_grouped(keys)}) g"
        else:
            by = f"PARTITION BY {', '.join(map(ref, keys))} " if keys else ""
            inner = ["i0.*"]
            inner += [f"{c.function} OVER ({by}{untied(c.over)}) AS {quoted(c.name)}" for c in calls]
            groups = f"(SELECT {', '.join(inner)} FROM __s{number} i0) g"
        columns, select = self._typed(select, groups, where)
        if rows_max is None:
            rows_max = self.rows_most(number)
        stage = Redo(number, tuple(keys), aggregate, tuple(calls), where, select, columns, repeats, rows_max)
        value = ordered(calls) if self.analyzer.dialect == "duckdb" else None
        if value is not None:
            # Of what no collection keeps, some values are equal that differ as bytes: a month and 30 days.
            (found,) = self.analyzer.described(f"SELECT {value} FROM __s{number} i0")
            stage = replace(stage, compares_as_bytes=not _NOT_KEPT.search(found.type))
        return self._add(stage)

    def distinct(self, number: int) -> int:
        """Each row once."""
        return self.count(number, [column.name for column in self.columns(number)])

    def exists(self, number: int) -> int:
        """One row if there is any, else none."""
        return self.count(number, ())

    def rows_most(self, number: int) -> int | None:
        """The most rows that a stage can have by its construction; None: there is no such limit."""
        match self.made[number]:
            case Count(keys=(), times="1") | Redo(keys=(), aggregate=True):
                return 1
            case Map(input=read, select=select) if not any("unnest" in text.lower() for text in select):
                return self.rows_most(read)
            case Redo(input=read):
                return self.rows_most(read)
            case Join(inputs=read) | Union(inputs=read) as stage:
                rows = [self.rows_most(one) for one in read]
                known = [one for one in rows if one is not None]
                if len(known) < len(rows):
                    return None
                return sum(known) if isinstance(stage, Union) else prod(known)
            case _:
                return None

    def common(self, one: str, other: str) -> str | None:
        """The type in which values of two types are compared; None: the engine knows better."""
        if one == other:
            return one
        if not any(family.match(one) and family.match(other) for family in _FAMILIES):
            return None
        text = f"SELECT CASE WHEN TRUE THEN CAST(NULL AS {one}) ELSE CAST(NULL AS {other}) END"
        return self.analyzer.described(text)[0].type

    def _add(self, stage: Stage) -> int:
        if stage in self._numbers:
            return self._numbers[stage]
        number = len(self.made)
        self.analyzer.define(f"__s{number}", {column.name: column.type for column in stage.columns})
        self.made.append(stage)
        self._numbers[stage] = number
        return number

    def _typed(
        self, select: Sequence[str], tables: str, where: str | None
    ) -> tuple[Columns, tuple[str, ...]]:
        """Names and types of what is selected; floats that are computed have no negative zero."""
        listed = ", ".join(f"{text} AS c{i}" for i, text in enumerate(select))
        sql = f"SELECT {listed} FROM {tables}" + (f" WHERE {where}" if where else "")
        columns = self.analyzer.described(sql)
        if len(columns) != len(select):
            raise UsageError("a view cannot have unnest() of a struct: name its fields, such as s.a, s.b")
        texts = tuple(
            f"(({text}) + CAST(0 AS {column.type}))"
            if is_float(column.type) and not _REFERENCE.fullmatch(text)
            else text
            for text, column in zip(select, columns, strict=True)
        )
        return columns, texts


_FAMILIES = (
    re.compile(r"U?(TINY|SMALL|BIG|HUGE)INT|U?INTEGER|INT$|DECIMAL\(.*|FLOAT|DOUBLE"),
    re.compile(r"DATE|TIMESTAMP(_S|_MS|_NS)?$"),
)
TIES = "$ties"


def untied(over: str) -> str:
    """The text of a window before it is known which columns break ties."""
    return over.replace(f", {TIES}", "")


def _grouped(keys: Sequence[str]) -> str:
    return f"GROUP BY {', '.join(map(ref, keys))}" if keys else ""


def _numbered(types: Sequence[str]) -> Columns:
    return tuple(PlanColumn(f"c{i}", type_) for i, type_ in enumerate(types))


# A tree of groups by the hash of the row: a change reads one group of each level.
BUCKETS = 4096
FAN_OUT = 64

_NOT_KEPT = re.compile(
    r"\b(INTERVAL|MAP|BIT|ENUM|UUID|UNION|TIMETZ|TIME WITH TIME ZONE|VARIANT|UHUGEINT|GEOMETRY)\b"
)


def check_kept(columns: Columns, what: str) -> None:
    """Check that a collection can have columns of these types.

    Raises:
        UsageError: names one that it cannot, and the remedy.
    """
    for column in columns:
        if found := _NOT_KEPT.search(column.type):
            raise UsageError(
                f"{what} {column.name!r} has type {column.type}, and no collection keeps {found[0]}: write "
                f"CAST(... AS VARCHAR), or an expression of another type"
            )

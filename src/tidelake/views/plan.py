"""What a view computes: stages, each a function from the contents of its inputs at a time to contents.

Owns the seven kinds of stages and what each means; they are values. Must not know how a query becomes stages,
nor how a refresh carries them out.

Contents are a map from rows to whole numbers: a row with 3 is there three times, one with -1 owes a row. A
stage is *pointwise*: its output at a time is a function of its inputs at that time, which the docstring of
its class gives.

**Expressions** are texts in DuckDB's dialect. They name the columns of the n-th input of their stage
`i0."name"`, `i1."name"`, ..., and what a group knows of itself `g."name"`; names are always in double quotes.
An expression is deterministic, and has no aggregate, window or sub-query, but where a class says so. The text
of a `select` fits the type of its column; it needs no alias.

**Sharing.** The inputs of a stage are numbers of earlier stages. Equal stages are one stage, so a query that
uses a sub-query twice computes it once, and a self join names one stage twice.
"""

from dataclasses import dataclass, field
from typing import TypeAlias


@dataclass(frozen=True)
class PlanColumn:
    """A column of a stage.

    The name is without quotes, and unique in its stage, also without regard to case. The type is DuckDB's,
    such as `DECIMAL(10,2)` or `STRUCT(a INTEGER)`.
    """

    name: str
    type: str


Columns: TypeAlias = tuple[PlanColumn, ...]


@dataclass(frozen=True)
class FromCollection:
    """The contents of a collection, of which the query uses these columns; at least one.

    Attributes:
        collection: how the query calls it.
        columns: of the stage; their names differ from all that a stage may call a sum or a result.
        names: how the collection calls them, in order.
    """

    collection: str
    columns: Columns
    names: tuple[str, ...]


@dataclass(frozen=True)
class Constant:
    """Rows that depend on no input, each once: the answer of a query without tables.

    They are there from the first time of the view on.
    """

    sql: str
    columns: Columns


@dataclass(frozen=True)
class Map:
    """`SELECT select FROM i0 WHERE where`, multiplicities times `sign`. Linear.

    Attributes:
        select: an expression for each column. It may be `unnest(list)`, which repeats a row for each item;
            several of them in one stage advance together.
        where: a condition; None: all rows. It is checked before `select` is computed.
        sign: 1, or -1 to subtract.
    """

    input: int
    select: tuple[str, ...]
    where: str | None
    columns: Columns
    sign: int = 1


@dataclass(frozen=True)
class Union:
    """The sum of the inputs, by position of their columns. Linear. A stage may be there twice."""

    inputs: tuple[int, ...]
    columns: Columns


@dataclass(frozen=True)
class Equal:
    """An equality that a join asks for, between columns of one type of two of its inputs.

    The inputs are numbers within the join, such as 0 for `i0`, the left one less than the right one. With
    `nulls`, NULL equals NULL (IS NOT DISTINCT FROM instead of =).
    """

    left: int
    left_column: str
    right: int
    right_column: str
    nulls: bool = False

    @property
    def sql(self) -> str:
        """The condition as text."""
        is_ = "IS NOT DISTINCT FROM" if self.nulls else "="
        return f"i{self.left}.{quoted(self.left_column)} {is_} i{self.right}.{quoted(self.right_column)}"


@dataclass(frozen=True)
class Join:
    """`SELECT select FROM i0, i1, ... WHERE equals AND where`; multiplicities are multiplied. Multilinear.

    Attributes:
        inputs: at least two stages; one may be there twice (a self join).
        equals: the equalities by which rows can be looked up; not empty unless the query has a cross product
            or compares otherwise.
        where: the rest of the condition; None: there is none.
    """

    inputs: tuple[int, ...]
    equals: tuple[Equal, ...]
    where: str | None
    select: tuple[str, ...]
    columns: Columns


@dataclass(frozen=True)
class LinearSum:
    """An accumulator of a group: the sum of an expression over its rows, times their multiplicity.

    The name, without quotes, differs from all keys and other sums of its stage. The value is of type HUGEINT,
    and never NULL.
    """

    name: str
    value: str


@dataclass(frozen=True)
class Count:
    """Groups of `i0` by `keys`, of which only sums are known: Abelian.

    The group of a key is there while any of its sums is not zero. Without keys there is one group at all
    times, also over nothing; its row is born at the first time of the view. The output has, for each group,
    the row `select` as often as `times` says; no row if that is zero, less, or NULL. `select` is only
    computed where there is a row.

    Attributes:
        keys: names of columns of it. Keys are equal if they are NOT DISTINCT.
        sums: accumulators; the state of the stage is these by key, each as long as it or another one is not
            zero.
        times: an expression over `g`: the number of rows of the group (`g` has the keys and the sums by
            name).
    """

    input: int
    keys: tuple[str, ...]
    sums: tuple[LinearSum, ...]
    times: str
    select: tuple[str, ...]
    columns: Columns


@dataclass(frozen=True)
class Call:
    """An aggregate, or a window function, that needs the rows of a group.

    Attributes:
        name: of its result, without quotes; differs from all columns of the input and other calls.
        function: text over `i0`, such as `max(i0."x")` or `string_agg(i0."s", ',' ORDER BY i0."s")`.
        over: what stands in OVER (...) behind PARTITION BY, such as `ORDER BY i0."x" ROWS 1 PRECEDING`.
    """

    name: str
    function: str
    over: str = ""


@dataclass(frozen=True)
class Redo:
    """Groups of `i0` by `keys` that need all their rows: what changes in a group computes the group again.

    As `aggregate`: `SELECT select FROM (SELECT keys, calls FROM i0 GROUP BY keys) g WHERE where`. Without
    keys there is one group at all times, also over nothing, as in `Count`. Else, as windows: `SELECT select
    FROM (SELECT i0.*, function OVER (PARTITION BY keys over) ... FROM i0) g WHERE where`. A row with
    multiplicity 3 is three rows to the functions, one with zero or less none. A condition over `g` is checked
    before `select` is computed. Calls are such that their results depend on the multiset of rows only.

    Attributes:
        keys: names of columns of it; equal if they are NOT DISTINCT. Without keys the whole input is one
            group.
        calls: functions; without any, the distinct keys, or all rows.
        where: a condition over `g`, which has the keys (with windows, all columns of the input) and the
            calls.
        repeats: whether it matters how often a row is there; if not, it can be taken once.
        rows_max: the most rows that the input can have by its construction; None: no such limit is known.
        compares_as_bytes: whether values of its order compare as their bytes; it is told by the rest.
    """

    input: int
    keys: tuple[str, ...]
    aggregate: bool
    calls: tuple[Call, ...]
    where: str | None
    select: tuple[str, ...]
    columns: Columns
    repeats: bool = True
    rows_max: int | None = None
    compares_as_bytes: bool = field(default=True, repr=False)


Stage: TypeAlias = FromCollection | Constant | Map | Union | Join | Count | Redo


@dataclass(frozen=True)
class ViewPlan:
    """A query as stages.

    Attributes:
        stages: each after its inputs; no two are equal. The last one is the answer.
        columns: of the answer, with the names that the query gives them.
        notes: what the plan decided where SQL leaves a choice, for people.
    """

    stages: tuple[Stage, ...]
    columns: Columns
    notes: tuple[str, ...] = ()

    @property
    def collections(self) -> tuple[str, ...]:
        """The names of the collections that it reads."""
        return tuple(dict.fromkeys(s.collection for s in self.stages if isinstance(s, FromCollection)))


def inputs(stage: Stage) -> tuple[int, ...]:
    """The numbers of the stages that a stage reads, in the order of `i0`, `i1`, ..."""
    match stage:
        case FromCollection() | Constant():
            return ()
        case Map() | Count() | Redo():
            return (stage.input,)
        case Union() | Join():
            return stage.inputs


def count_at(plan: ViewPlan, number: int) -> Count:
    """A stage that is a count."""
    match plan.stages[number]:
        case Count() as stage:
            return stage
        case stage:
            raise AssertionError(f"stage {number} is no count: {stage}")


def collection_at(plan: ViewPlan, number: int) -> FromCollection:
    """A stage that is a collection."""
    match plan.stages[number]:
        case FromCollection() as stage:
            return stage
        case stage:
            raise AssertionError(f"stage {number} is no collection: {stage}")


def recomputes_whole(stage: Stage) -> bool:
    """Whether each change of the input makes the stage read all of it."""
    return isinstance(stage, Redo) and not stage.keys and stage.rows_max is None


def quoted(name: str) -> str:
    """A name as DuckDB reads it back."""
    return '"' + name.replace('"', '""') + '"'

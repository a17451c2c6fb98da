"""What a part of a query sees: the tables of WITH, and the columns of the queries around it.

Owns how a name finds its column, also through the query around; must not know what is computed.

A sub-query that names columns of the query around it (its *free* columns) is computed for each combination of
values that they have there: its *domain*. The domain is a stage with distinct rows; it is the first input of
the sub-query, and its columns are part of each grouping, partition and set of distinct rows in it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from sqlglot import exp

from tidelake.errors import UsageError
from tidelake.views.query.frame import Expr, Relation, column, id_of, ids
from tidelake.views.query.stages import Stages

Query = Any  # a tree of sqlglot's that is a query


@dataclass(frozen=True)
class QueryStage:
    """A query as a stage, with the names that the query and the stage give its columns.

    The domain has, by the id of a free column, the column of the stage that has its value. It is `single` if
    there is one row for each row of the domain, whatever the contents.
    """

    stage: int
    names: tuple[str, ...]
    columns: tuple[str, ...]
    domain: Mapping[str, str]
    single: bool = False


@dataclass(frozen=True)
class Cte:
    """A query of WITH, and what it sees."""

    query: Query
    names: tuple[str, ...]
    env: "Surroundings"


@dataclass(frozen=True, eq=False)
class Surroundings:
    """What a query sees beside its own FROM.

    Attributes:
        ctes: the queries of WITH, by their names in lower case.
        outer: the frame of the query around it.
        around: what that query sees.
        free: the ids in `outer` that it is known to use.
        stage: their distinct values, with a column for each; None: there are none.
        attempt: tells the attempts to find the free columns apart.
    """

    ctes: Mapping[str, Cte] = field(default_factory=dict)
    outer: Relation | None = None
    around: "Surroundings | None" = None
    free: tuple[str, ...] = ()
    stage: int | None = None
    attempt: object = None

    def begin(self, stages: Stages) -> Relation:
        """A frame with the domain, if there is one."""
        frame = Relation(stages)
        if self.stage is not None:
            frame.domain = dict(zip(self.free, frame.add(self.stage), strict=True))
        return frame


class Free(Exception):
    """A query names a column of the query around it that is not in its domain yet."""

    def __init__(self, attempt: object, id_: str) -> None:
        super().__init__(id_)
        self.attempt, self.id = attempt, id_


class Compiler(Protocol):
    """What the parts of the compiler ask of the whole."""

    stages: Stages
    notes: dict[str, None]
    schema_of: Callable[[str], Mapping[str, str] | None]

    def query(self, node: Query, env: Surroundings) -> QueryStage:
        """Make the stages of a query."""
        ...


def resolve(frame: Relation, env: Surroundings, node: Expr) -> Expr:
    """The column that a name means, as an expression over ids.

    Raises:
        UsageError: there is none, or more than one.
        Free: it is one of the query around.
    """
    parts = [str(part.name) for part in node.parts]
    if (found := _own(frame, parts)) is not None:
        return found
    if env.outer is None or env.around is None:
        raise UsageError(f"the query names {'.'.join(parts)!r}, which is no column of its tables")
    outer = resolve(env.outer, env.around, node)
    for id_ in ids(outer):
        if id_ not in frame.domain:
            raise Free(env.attempt, id_)
    return outer.copy().transform(lambda one: column(frame.domain[i]) if (i := _id(one)) else one)


def _id(node: Expr) -> str | None:
    return id_of(node) if isinstance(node, exp.Column) else None


def _own(frame: Relation, parts: list[str]) -> Expr | None:
    """A name within a frame: a column, a column of a table, or fields of either."""
    if len(parts) > 1 and frame.has_table(parts[0]):
        id_, rest = frame.find(parts[0], parts[1]), parts[2:]
        if id_ is None:
            raise UsageError(f"table {parts[0]!r} has no column {parts[1]!r}")
    else:
        id_, rest = frame.find("", parts[0]), parts[1:]
        if id_ is None:
            if len(parts) == 1 and frame.has_table(parts[0]):
                raise UsageError(
                    f"{parts[0]!r} is a table: write the columns that are meant, not the whole row"
                )
            return None
    found = column(id_)
    for name in rest:
        found = exp.Dot(this=found, expression=exp.Identifier(this=name, quoted=True))
    return found

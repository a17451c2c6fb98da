"""What is asked for of a new view, and the definition that it becomes.

Owns which collections a query may name, and when they may be inputs of one view. Must not know what has the
name that the view is to take.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import pyarrow as pa

from tidelake.data.kernel.types import row_schema
from tidelake.errors import CollectionNotFound, UsageError
from tidelake.lake.api.collection import Collection
from tidelake.lake.api.handle import shard_of
from tidelake.lake.api.naming import Naming
from tidelake.lake.arguments.names import check_list, check_name
from tidelake.lake.arguments.spans import WindowLike, window
from tidelake.model.time import TimeDomain, parts
from tidelake.views.definition import Definition, SourceColumn, ViewSource, identity
from tidelake.views.engine import Engine
from tidelake.views.inputs import plan_of
from tidelake.views.order import stood_on
from tidelake.views.shared import Shared


@dataclass(frozen=True)
class ViewRequest:
    """The arguments of `Lake.view`.

    Raises:
        UsageError: one is of another type.
    """

    sql: str
    key: Sequence[str] | None = None
    every: WindowLike | None = None
    max_lag: WindowLike | None = None
    together: str = ""
    replace: bool = False
    allow_recreate: bool = False
    replaces: str = ""
    index: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.sql, str):
            raise UsageError(f"sql={self.sql!r} must be a text, not {type(self.sql).__name__}")
        if self.key is not None:
            check_list(self.key, "key")
        if self.together:
            check_name(self.together, "together")


def defined(
    lake: Naming, name: str, wanted: ViewRequest, engine: Engine
) -> tuple[Definition, pa.Schema, TimeDomain]:
    """The definition of a view of this name, with the columns and times that it has.

    Raises:
        UsageError: the query cannot be a view, or not one of these collections.
    """
    named = _Named(lake, engine)
    plan = engine.compiled(wanted.sql, named.schema_of)
    used = [named.found[one] for one in plan.collections]
    if not used:
        raise UsageError("the query reads no collection, and a view is made of collections: name one in FROM")
    _check_units([one for one, _ in used])
    sources = tuple(source for _, source in used)
    if wanted.replaces:
        _check_apart(lake, name, wanted.replaces, sources)
    domain = used[0][0].domain
    every = window(wanted.every, domain, "every", "for all times") or 1
    definition = Definition(
        wanted.sql,
        engine.version,
        -(-max(_since(one) for one, _ in used) // every) * every,
        sources,
        identity(plan),
        every,
        window(wanted.max_lag, domain, "max_lag", "for no limit"),
        engine.dialect,
        wanted.replaces,
        engine.settings,
        wanted.together,
        wanted.index,
    )
    plan_of(name, definition, engine, plan)
    return definition, engine.schema_of(plan.columns), domain


@dataclass(frozen=True)
class _Named:
    """The collections that a text may name, as it is compiled."""

    lake: Naming
    engine: Engine
    found: dict[str, tuple[Collection, ViewSource]] = field(default_factory=dict)

    def schema_of(self, name: str) -> dict[str, str] | None:
        if name not in self.found:
            one = self._opened(name)
            if one is None:
                return None
            self.found[name] = (one, _source(self.engine, name, one))
        return {column.name: column.engine_type for column in self.found[name][1].columns}

    def _opened(self, name: str) -> Collection | None:
        """The collection of a name; if none has just this, without regard to case, as DuckDB does."""
        with suppress(CollectionNotFound):
            return self.lake.collection(name)
        like = [one for one in self.lake.list() if one.lower() == name.lower()]
        if len(like) > 1:
            raise UsageError(
                f"the query reads {name!r}, which may be {' or '.join(map(repr, like))}: write one"
            )
        return self.lake.collection(like[0]) if like else None


def _source(engine: Engine, name: str, one: Collection) -> ViewSource:
    state = shard_of(one).version().state
    of = Definition.of(one.name, state)
    if of is not None and of.index:
        # It is made again, under another id, when columns of its collection change.
        raise UsageError(
            f"{one.name!r} is an index: name its collection in its place, and rows are looked up in the index"
        )
    try:
        types = engine.types_of(row_schema(state.schema))
    except UsageError as error:
        reason = str(error).rpartition(": ")[0]
        raise UsageError(f"collection {name!r}: {reason}: no view can read this collection") from error
    columns = tuple(SourceColumn(c.name, c.id, str(c.type), types[c.name]) for c in state.schema.columns)
    return ViewSource(name, one.id, columns, tuple(sorted(state.erasures)))


def _check_units(used: Sequence[Collection]) -> None:
    for one in used:
        if not one.domain.total_order:
            raise UsageError(
                f"times of {one.name!r} are of unit {one.domain}: a view needs times with an order"
            )
        if one.domain != used[0].domain:
            raise UsageError(
                f"times of {used[0].name!r} are of unit {used[0].domain}, those of {one.name!r} of "
                f"{one.domain}: the inputs of a view need the same"
            )


def _check_apart(lake: Naming, name: str, replaced: str, sources: Sequence[ViewSource]) -> None:
    """Check that a view does not stand on the one whose place it takes: that is dropped then."""
    for source in sources:
        over = (one.id for view in stood_on(Shared(lake), [source]) for one in view.definition.sources)
        if replaced in (source.id, *over):
            raise UsageError(
                f"view {name!r} cannot stand on what it takes the place of: its query reads {source.name!r}, "
                "which is that view or stands on it: give the new one another name"
            )


def _since(one: Collection) -> int:
    for since in one.since:
        return parts(since)[0]
    raise UsageError(f"{one.name!r} is closed for good, and has given up its history: nothing can be read")

"""What a refresh stands on: its view and inputs, found by their ids, its plan, and its holds on the inputs.

Owns the errors of inputs that have become something else. Must not know what a refresh computes.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import lru_cache

from tidelake.errors import CollectionDropped, CollectionNotFound, HistoryCompacted, RebuildNeeded, UsageError
from tidelake.lake.api.collection import Collection
from tidelake.lake.api.handle import shard_of
from tidelake.lake.api.naming import Naming
from tidelake.model.frontier import Frontier
from tidelake.state.core.owned import INDEX, indexes_of, owner_of
from tidelake.views.definition import Definition, ViewSource, current_names, identity
from tidelake.views.engine import Engine, Engines
from tidelake.views.plan import FromCollection, ViewPlan
from tidelake.views.shared import Shared
from tidelake.views.workroom import workroom


@dataclass(frozen=True)
class Input:
    """An input as it is now.

    Attributes:
        collection: opened by its id.
        names: the present names of its columns, by those in the query.
        upper: its upper.
        indexes: of it, that the view looks rows up in; `names` are of the columns that they have, too.
    """

    collection: Collection
    names: dict[str, str]
    upper: Frontier
    indexes: tuple["Input", ...] = ()

    def key_in(self, stage: FromCollection) -> tuple[str, ...]:
        """Its key, as columns of a stage; empty: the stage or the collection lacks one of these."""
        pairs = zip(stage.names, stage.columns, strict=True)
        called = {self.names.get(name): column.name for name, column in pairs}
        key = self.collection.key
        return tuple(called[name] for name in key) if {*key} <= {*called} and None not in called else ()


@dataclass(frozen=True)
class View:
    """A view that is to be refreshed.

    Its collection takes writes of the view. Indexes of its inputs are refreshed before it.
    """

    collection: Collection
    definition: Definition
    indexes: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        """The id of its collection."""
        return self.collection.id

    @property
    def name(self) -> str:
        """Its name."""
        return self.collection.name

    @property
    def over(self) -> tuple[str, ...]:
        """The ids of what it stands on."""
        return (*(source.id for source in self.definition.sources), *self.indexes)


def named(lake: Naming, name: str) -> tuple[Collection, Definition]:
    """The view of a name.

    Raises:
        UsageError: the collection is no view.
    """
    one = lake.collection(name)
    definition = Definition.of(name, one.state())
    if definition is None:
        raise UsageError(f"collection {name!r} is no view: lake.view makes one")
    return one, definition


def only(engine: Engine) -> Engines:
    """One engine for the views of its dialect."""
    return lambda definition: engine if definition.dialect == engine.dialect else None


def engine_of(name: str, definition: Definition, engines: Engines | None) -> Engine:
    """The engine of a view.

    Raises:
        UsageError: it is not among them; says which functions take it.
    """
    engine = None if engines is None else engines(definition)
    if engine is None:
        raise UsageError(
            f"view {name!r} is a query in the SQL of {definition.engine}, which has to compute it: "
            f"tidelake.{definition.dialect} has refresh, verify, explain and rebuild for it"
        )
    return engine


@contextmanager
def engines_or_own(lake: Naming, engines: Engines | None) -> Iterator[Engines]:
    """The engines that are given; if none are, DuckDB."""
    if engines is not None:
        yield engines
        return
    with workroom(lake).database() as database:
        yield only(database)


@contextmanager
def with_engine(
    lake: Naming, name: str, engines: Engines | None
) -> Iterator[tuple[Collection, Definition, Engine]]:
    """The view of a name, and its engine; errors as of `named` and `engine_of`."""
    with engines_or_own(lake, engines) as known:
        view, definition = named(lake, name)
        yield view, definition, engine_of(name, definition, known)


def opened(shared: Shared, view: str, source: ViewSource) -> Input:
    """An input, found by its id.

    Raises:
        RebuildNeeded: it was dropped; a column has gone or changed; or rows of it were erased.
    """
    try:
        found = shared.open(source.id, source.name)
    except (CollectionDropped, CollectionNotFound) as error:
        raise RebuildNeeded(view, f"its input {source.name!r} was dropped") from error
    version = shared.version(found)
    return Input(found, current_names(view, source, version.state), version.upper)


def plan_of(view: str, definition: Definition, engine: Engine, plan: ViewPlan | None = None) -> ViewPlan:
    """The stages of a view, which may be known just now.

    Raises:
        RebuildNeeded: this process has another engine, or makes other stages of the query.
    """
    if engine.version != definition.engine:
        raise RebuildNeeded(view, f"it was made with {definition.engine}, and here is {engine.version}")
    plan = _compiled(_Query(definition, engine, plan))
    if identity(plan) != definition.plan:
        raise RebuildNeeded(view, "this version of Tidelake computes its query in other stages")
    return plan


@dataclass(frozen=True)
class _Query:
    definition: Definition
    engine: Engine = field(compare=False)
    plan: ViewPlan | None = field(compare=False)


@lru_cache(maxsize=1024)
def _compiled(query: _Query) -> ViewPlan:
    return query.plan or query.engine.compiled(query.definition.sql, query.definition.schema_of)


def keep_holds(view: View, inputs: Iterable[Input], upper: Frontier) -> None:
    """Let the inputs keep history from the last time before `upper` on: the next refresh reads from there.

    Raises:
        RebuildNeeded: an input has given it up already.
    """
    definition = view.definition
    name, since = owner_of(view.id), definition.first_needed(upper)
    token = INDEX if definition.index else name
    for one in inputs:
        held = shard_of(one.collection).known().critical.get(name)
        if held is not None and since <= held.since:
            continue
        try:
            if held is None and definition.is_behind(since, one.upper):
                # It may not hold it any more. What is still there is enough for this refresh.
                if not one.collection.since <= since:
                    raise HistoryCompacted(since, one.collection.since)
                continue
            hold = one.collection.critical_hold(name, token, since)
            if hold.since < since:
                hold.compare_and_downgrade_since(token, (token, since))
        except HistoryCompacted as error:
            reason = f"its input {one.collection.name!r} no longer has the history from {since} on"
            if definition.max_lag is not None:
                reason += f", which it holds while it is not behind by more than {definition.max_lag}"
            raise RebuildNeeded(view.name, reason) from error
        except UsageError:
            # Another process has dropped the hold, with the view.
            shard_of(view.collection).alive()
            raise


def let_go(shared: Shared, view: View) -> None:
    """Drop the holds on inputs that the view is further behind than it may be."""
    definition = view.definition
    if definition.max_lag is None:
        return
    since = definition.first_needed(view.collection.upper)
    for source in definition.sources:
        with suppress(CollectionNotFound):
            one = shared.open(source.id, source.name)
            if definition.is_behind(since, shared.version(one).upper):
                for held in (one, *opened_indexes(shared, one)):
                    drop_hold(held, view)


def drop_hold(of: Collection, view: View) -> None:
    """Drop the hold of a view, if there is one."""
    if owner_of(view.id) in of.state().critical:
        of.critical_hold(owner_of(view.id)).drop()


def opened_indexes(shared: Shared, of: Collection) -> Iterator[Collection]:
    """The indexes of a collection that are there, under their present names."""
    for id_ in indexes_of(shared.version(of).state):
        with suppress(CollectionDropped, CollectionNotFound):
            yield shared.open(id_, shared.names.get(id_, f"an index of {of.name}"))

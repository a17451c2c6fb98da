"""Indexes of inputs: which of them a view looks rows up in, in the place of rows that it would keep itself.

An index is a view of all of its collection by another key. It changes where rows are read, never what is
computed: one that does not have the times of a refresh is left out. Must not know who stores what is kept.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from tidelake.errors import CollectionDropped, RebuildNeeded, UsageError
from tidelake.lake.api.collection import Collection
from tidelake.lake.api.naming import Naming
from tidelake.model.frontier import Frontier
from tidelake.state.core.owned import owner_of
from tidelake.views.definition import Definition, current_names
from tidelake.views.engine import Engine
from tidelake.views.inputs import Input, View, drop_hold, keep_holds, opened, opened_indexes
from tidelake.views.plan import FromCollection, ViewPlan, quoted
from tidelake.views.reach import KeptStage, Reach
from tidelake.views.request import ViewRequest
from tidelake.views.shared import Shared


def with_indexes(
    shared: Shared,
    view: View,
    inputs: Mapping[str, Input],
    span: tuple[Frontier, Frontier],
    reach_of: Callable[[Mapping[str, Input]], Reach],
) -> tuple[dict[str, Input], Reach, list[KeptStage]]:
    """The inputs with the indexes that a view needs and that have the times of a span, each of them held.

    Returns:
        The inputs; where rows of stages are found now; and what need not be kept since an index has come.
    """
    found = {name: replace(one, indexes=()) for name, one in inputs.items()}
    reach, freed = reach_of(found), list[KeptStage]()
    for name, one in inputs.items():
        for index in _candidates(shared, one):
            with_it = {**found, name: replace(found[name], indexes=(*found[name].indexes, index))}
            wider = reach_of(with_it)
            fewer = {*reach.kept()} - {*wider.kept()}
            has_times = view.definition.seen(span[1]) <= index.upper
            was_held = owner_of(view.id) in shared.version(index.collection).state.critical
            if fewer and has_times and is_held(view, index, span[0]):
                found, reach = with_it, wider
                freed += () if was_held else fewer
            elif was_held:
                drop_hold(index.collection, view)
    return found, reach, freed


def is_held(view: View, index: Input, upper: Frontier) -> bool:
    """Whether an index is there, and keeps what the next refresh of a view with this upper reads."""
    try:
        keep_holds(view, [index], upper)
    except (CollectionDropped, RebuildNeeded):
        return False
    return True


def is_stale(shared: Shared, view: View) -> bool:
    """Whether an index is no longer as its collection, which has other columns, or from which was erased."""
    definition = view.definition
    if not definition.index:
        return False
    try:
        (source,) = definition.sources
        one = opened(shared, view.name, source)
    except RebuildNeeded:
        return source.id in shared.names
    columns = shared.version(one.collection).state.schema.columns
    known = {(column.id, column.name, column.type) for column in source.columns}
    return known != {(column.id, column.name, str(column.type)) for column in columns}


def _candidates(shared: Shared, one: Input) -> Iterator[Input]:
    """The indexes of an input, with the columns that the view knows and that have their types in it."""
    state, schema = shared.version(one.collection).state, one.collection.schema
    for index in opened_indexes(shared, one.collection):
        version = shared.version(index)
        try:
            definition = Definition.of(index.name, version.state)
            has = {} if definition is None else current_names(index.name, definition.sources[0], state)
        except RebuildNeeded:
            # It says so at its refresh.
            continue
        types = index.schema
        called = {now: was for was, now in has.items() if types.field(was).type == schema.field(now).type}
        names = {name: called[now] for name, now in one.names.items() if now in called}
        yield Input(index, names, version.upper)


def reach_of(plan: ViewPlan, engine: Engine, inputs: Mapping[str, Input]) -> Reach:
    """Where rows of the stages of a plan are found."""
    keys, indexes = dict[int, tuple[str, ...]](), dict[int, tuple[tuple[str, ...], ...]]()
    for number, stage in enumerate(plan.stages):
        if isinstance(stage, FromCollection):
            one = inputs[stage.collection]
            keys[number] = one.key_in(stage)
            indexes[number] = tuple(index.key_in(stage) for index in one.indexes)
    return Reach(plan, keys, engine.has_sort_keys, indexes)


def index_of(collection: str, by: Sequence[str]) -> ViewRequest:
    """What an index is: a view of all rows of a collection, by other columns."""
    return ViewRequest(f"SELECT * FROM {quoted(collection)}", [*by], allow_recreate=True, index=True)


def key_now(of: Collection, index: View) -> list[str | None]:
    """The key of an index, as its collection calls these columns now; None: it has one no more."""
    (source,) = index.definition.sources
    now = {column.id: column.name for column in of.state().schema.columns}
    ids = {column.name: column.id for column in source.columns}
    return [now.get(ids[one]) if of.id == source.id else one for one in index.collection.key]


def index_as_now(lake: Naming, index: View) -> ViewRequest:
    """An index of the same collection, by the same columns, under the names that these have now.

    Raises:
        UsageError: a column is gone.
    """
    (source,) = index.definition.sources
    of = lake.collection(lake.names().get(source.id, source.name))
    by = key_now(of, index)
    if None in by:
        gone = index.collection.key[by.index(None)]
        raise UsageError(f"{of.name!r} has lost column {gone!r}, the key of index {index.name!r}: drop that")
    return index_of(of.name, [one for one in by if one is not None])

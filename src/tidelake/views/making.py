"""Making a view: of a query, in the place of another view, or once more.

Owns when a view may take a name. Must not know what a definition is made of.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial, reduce

from tidelake.errors import (
    CollectionDropped,
    CollectionExists,
    CollectionNotFound,
    RefreshFailed,
    TidelakeError,
    UsageError,
)
from tidelake.lake.api.collection import Collection
from tidelake.lake.api.handle import shard_of
from tidelake.lake.api.naming import Naming
from tidelake.lake.arguments.names import check_list, check_name
from tidelake.model.frontier import Frontier
from tidelake.model.time import TimeDomain
from tidelake.state.core.state import Owned
from tidelake.state.life import holds
from tidelake.views.definition import Definition
from tidelake.views.engine import Engine, Engines
from tidelake.views.explaining import last_refresh
from tidelake.views.indexes import index_as_now, index_of, is_stale, key_now
from tidelake.views.inputs import View, opened_indexes, with_engine
from tidelake.views.order import stood_on, view_of, views_of
from tidelake.views.refresh import refreshed
from tidelake.views.refreshed import Refreshed
from tidelake.views.request import ViewRequest, defined
from tidelake.views.shared import Shared
from tidelake.views.workroom import workroom

_BESIDE = " (rebuilding)"


def make(lake: Naming, name: str, wanted: ViewRequest, engine: Engine | None = None) -> Collection:
    """Make a view, open it if it is there as wanted, or put it in the place of another; see `Lake.view`.

    Its query is in the SQL of the engine; default: DuckDB.
    """
    if engine is None:
        with workroom(lake).database() as database:
            return make(lake, name, wanted, database)
    definition, schema, domain = defined(lake, name.removesuffix(_BESIDE), wanted, engine)
    if (there := _found(lake, name)) is not None:
        return _there(lake, there, definition, wanted, engine)
    ids = list[str]()

    def owned(id_: str) -> Owned:
        ids.append(id_)
        return definition.owned(id_)

    until = _until(lake, name, definition, domain)
    try:
        made = lake._create_owned(
            name,
            schema,
            key=[schema.names[0]] if wanted.key is None else list(wanted.key),
            time=domain,
            owned=owned,
            since=Frontier.of(definition.birth),
            allow_recreate=wanted.allow_recreate,
        )
        _bring(lake, made, engine, until)
    except BaseException:
        # If others stand on it already, or the store is away, it stays, and says so at the next refresh.
        with suppress(TidelakeError):
            for id_ in ids:
                lake._dropped(id_, name, force=False, forget=not wanted.allow_recreate)
        raise
    return made


def _bring(lake: Naming, made: Collection, engine: Engine, until: Frontier | None = None) -> None:
    """Refresh a new view alone, as far as those that change with it are."""
    shared = Shared(lake)
    view = view_of(shared, made.id, made.name)
    if view is not None:
        until = until or _until(lake, view.name, view.definition, made.domain, made.id)
        refreshed(shared, [view], engine, until=until)


def _found(lake: Naming, name: str) -> Collection | None:
    """The collection of a name; None: there is none, or it is being dropped."""
    with suppress(CollectionDropped):
        return lake.collection(name) if name in lake else None
    return None


def _there(
    lake: Naming, view: Collection, asked: Definition, wanted: ViewRequest, engine: Engine
) -> Collection:
    """A collection that is there, if it is the view that was asked for; or the view, in its place."""
    name, state = view.name, view.state()
    definition = Definition.of(name, state)
    has_key = wanted.key is None or [*wanted.key] == [*view.key]
    if definition is not None and has_key and _same(definition, asked):
        if state.upper <= Frontier.of(definition.birth):
            # The process that made it died, or its inputs had no times yet.
            _bring(lake, view, engine)
        return view
    if definition is None:
        raise CollectionExists(f"collection {name!r} exists and is no view: give the view another name")
    if not wanted.replace:
        raise CollectionExists(
            f"collection {name!r} exists and is a view of another query or key, or of other collections: "
            "give the view another name, or replace=True"
        )
    return _in_place(lake, view, wanted, engine)


def _same(one: Definition, other: Definition) -> bool:
    """Whether two definitions mean one view; since when does not matter."""
    ids = [[source.id for source in definition.sources] for definition in (one, other)]
    told = [
        (of.sql, of.dialect, of.settings, of.every, of.max_lag, of.together, of.index) for of in (one, other)
    ]
    return ids[0] == ids[1] and told[0] == told[1]


def _until(lake: Naming, name: str, new: Definition, domain: TimeDomain, id_: str = "") -> Frontier | None:
    """How far a new view may be computed that is to change with others: as far as they are. None: with none.

    Raises:
        UsageError: it cannot change with them.
    """
    if not new.together:
        return None
    shared = Shared(lake)
    views = views_of(shared)
    same = [view for view in views.values() if view.definition.together == new.together]
    others = [view for view in same if view.id not in (new.replaces, id_)]
    name = next((view.name for view in same if view.id == new.replaces), name)
    what = f"view {name!r} cannot change together with {', '.join(repr(one.name) for one in others)}"
    if any((one.collection.domain, one.definition.alike) != (domain, new.alike) for one in others):
        raise UsageError(f"{what}: give all of them one every=..., one dialect, and one unit of times")
    ids = {one.id for one in others}
    for stands in stood_on(shared, new.sources, ids):
        if any(source.id in ids for source in stands.definition.sources):
            raise UsageError(
                f"{what}: it stands on {stands.name!r}, which stands on one of them; let that one change "
                "with them, too"
            )
    uppers = [shared.version(one.collection).upper for one in others]
    return reduce(Frontier.meet, uppers) if uppers else None


def _in_place(lake: Naming, old: Collection, wanted: ViewRequest, engine: Engine) -> Collection:
    """Make a view beside another one, and give it the name in one commit, when it is as far.

    Raises:
        CollectionExists: the name that the new one has meanwhile is taken.
        UsageError: it cannot be as far, since an input is not.
    """
    name, beside = old.name, old.name + _BESIDE
    is_joined = False
    if (left := _found(lake, beside)) is not None:
        there = Definition.of(beside, left.state())
        if there is None or (there.replaces != old.id and not _has_replaced(old, left.id)):
            raise CollectionExists(
                f"the new view is called {beside!r} until it is ready, and a collection is: rename that"
            )
        # A process died here, or makes the same index now.
        is_joined = (
            wanted.index and there.replaces == old.id and _fits(lake, View(left, there), wanted, engine)
        )
        if not is_joined:
            lake._dropped(left.id, beside, force=True)
    new: Collection | None = None
    try:
        new = make(lake, beside, replace(wanted, allow_recreate=True, replaces=old.id), engine)
        if is_joined or (wanted.replace and not old.upper <= new.upper):
            # The old one was refreshed meanwhile.
            _bring(lake, new, engine)
        reached, now = old.upper, new.upper
        if wanted.replace and not reached <= now:
            raise UsageError(
                f"view {name!r} is closed up to {reached}, and an input of its new query up to {now} "
                "only: write or seal that first, or give the view another name"
            )
        # Its retention is the user's, and not of its history.
        kept = old.state().retention
        shard_of(new).run(partial(holds.set_retention, retention=kept))
        if not lake._swapped({name: old.id, beside: new.id}) and lake.id_of(name) != new.id:
            raise CollectionExists(f"another call has replaced view {name!r} meanwhile: call again")
    except BaseException as error:
        with suppress(TidelakeError):
            if new is not None and lake.id_of(beside) == new.id:
                lake._dropped(new.id, beside, force=True)
        if isinstance(error, RefreshFailed):
            raise RefreshFailed(name, error.stage, error.reason) from error
        raise
    lake._dropped(old.id, beside, force=True)
    return lake.collection(name)


def _has_replaced(view: Collection, id_: str) -> bool:
    """Whether a view has taken the name of the one of this id."""
    definition = Definition.of(view.name, view.state())
    return definition is not None and definition.replaces == id_


def _fits(lake: Naming, index: View, wanted: ViewRequest, engine: Engine) -> bool:
    """Whether an index that is being made is the one that is wanted."""
    told = [*index.collection.key], index.definition.sql, index.definition.engine
    return told == (wanted.key, wanted.sql, engine.version) and not is_stale(Shared(lake), index)


def _at_its_name(shared: Shared, beside: View) -> Collection | None:
    """What has the name that a view gives to another one, or takes from it, while it is made again."""
    if not beside.name.endswith(_BESIDE):
        return None
    return _found(shared.lake, beside.name.removesuffix(_BESIDE))


def is_left(shared: Shared, view: View) -> bool:
    """Whether another view has taken the name of a view; then it is dropped: a process died before it did."""
    with suppress(TidelakeError):
        # What has the name says so at its turn.
        new = _at_its_name(shared, view)
        if new is not None and _has_replaced(new, view.id):
            shared.lake._dropped(view.id, view.name, force=True)
            shared.changed(view.collection)
            return True
    return False


def rebuild(lake: Naming, name: str, engines: Engines | None = None) -> Collection:
    """Make a view again beside its readers, and let it take the name; see `Lake.rebuild`."""
    with with_engine(lake, name, engines) as (old, definition, engine):
        _check_names(lake, name, definition)
        return _again(lake, old, definition, engine)


def _check_names(lake: Naming, name: str, definition: Definition) -> None:
    """Check that a query finds its inputs by the names that it gives them.

    Raises:
        UsageError: one has another name now.
    """
    names = lake.names()
    there = {one.lower() for one in names.values()}
    for source in () if definition.index else definition.sources:
        if source.name.lower() not in there and source.id in names:
            raise UsageError(
                f"the query of view {name!r} reads {source.name!r}, called {names[source.id]!r} now: "
                f"make it of the new names with lake.view({name!r}, sql, replace=True)"
            )


def _again(lake: Naming, old: Collection, definition: Definition, engine: Engine) -> Collection:
    told = definition.every, definition.max_lag, definition.together
    wanted = index_as_now(lake, View(old, definition)) if definition.index else None
    return _in_place(lake, old, wanted or ViewRequest(definition.sql, old.key, *told), engine)


def made_again(shared: Shared, views: Sequence[View], engine: Engine) -> list[Refreshed]:
    """An index made again, if it can no longer be what it was made as; else nothing is done.

    It means all of its collection, so that it takes the columns that this has now.
    """
    view = views[0]
    if not is_stale(shared, view):
        return []
    lake, name = shared.lake, view.name
    old = _at_its_name(shared, view)
    if old is not None and old.id == view.definition.replaces:
        # It is amid this itself.
        return [Refreshed(name, view.collection.upper, view.collection.upper, already=True)]
    try:
        made = _again(lake, view.collection, view.definition, engine)
    except (CollectionDropped, CollectionExists, CollectionNotFound):
        # Another refresh may do the same at the same time.
        if name not in lake or lake.id_of(name) == view.id:
            raise
        made = lake.collection(name)
    for source in view.definition.sources:
        # It tells which indexes it has.
        shared.changed(shared.open(source.id, source.name))
        shared.open(source.id, source.name)
    done = last_refresh(made)
    return [replace(done, view=name) if done else Refreshed(name, made.upper, made.upper, already=True)]


def _as_now(shared: Shared, index: View) -> Collection:
    with with_engine(shared.lake, index.name, None) as (old, definition, engine):
        return _again(shared.lake, old, definition, engine) if is_stale(shared, index) else old


def make_index(lake: Naming, collection: str, by: Sequence[str]) -> Collection:
    """Make an index, or open it if it is there; see `Lake.index`."""
    check_list(by, "by")
    of = lake.collection(collection)
    names, wrong = of.schema.names, ""
    for column in (one for one in by if one not in names):
        wrong = f"it has no column {column!r}, but {', '.join(names)}"
    if not by or len({*by}) < len(by):
        wrong = "give each column once"
    if not wrong and {*of.key} <= {*by}:
        wrong = f"its own key ({', '.join(of.key)}) finds these rows, without an index"
    if wrong:
        raise UsageError(f"by={[*by]!r} for {collection!r}: {wrong}")
    shared, wanted = Shared(lake), index_of(collection, by)
    for one in opened_indexes(shared, shared.open(of.id, collection)):
        there = view_of(shared, one.id, one.name)
        if there is not None and key_now(of, there) == [*by]:
            return _as_now(shared, there)
    name = f"{collection} by {', '.join(by)}"
    check_name(name, "name of an index")
    if name in lake:
        raise CollectionExists(f"collection {name!r} exists and is not this index: rename it")
    return make(lake, name, wanted)

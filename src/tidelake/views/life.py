"""The life of a view: made, refreshed with what it stands on, verified, explained, made again.

Owns what a user may ask of views, and in which order several are refreshed. A view is dropped as any
collection (`Lake.drop`), and its holds on its inputs with it.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pyarrow.compute as pc

from tidelake.data.answer.rows import Rows
from tidelake.data.answer.tablerows import expanded
from tidelake.data.kernel.types import row_schema
from tidelake.errors import (
    Closed,
    CollectionExists,
    CollectionInUse,
    CollectionNotFound,
    RebuildNeeded,
    RefreshFailed,
    TidelakeError,
    UsageError,
)
from tidelake.lake.api.collection import Collection
from tidelake.lake.api.embedded import Scan
from tidelake.lake.api.handle import shard_of, times_of
from tidelake.lake.api.naming import Naming
from tidelake.lake.arguments.spans import WindowLike, window
from tidelake.model.frontier import Frontier
from tidelake.model.instants import TimeLike
from tidelake.model.schema import DIFF
from tidelake.model.time import parts
from tidelake.state.core.owned import is_owner, is_part
from tidelake.state.life.copying import CopyRecord
from tidelake.views.definition import Definition, SourceColumn, ViewSource, identity
from tidelake.views.explaining import Explained, explained
from tidelake.views.plan import FromCollection
from tidelake.views.query.compile import compiled
from tidelake.views.refresh import Refreshed, let_go, opened, plan_of, refreshed
from tidelake.views.rules import REPEATS_MAX
from tidelake.views.spans import Database, answer_schema, differing, engine_version, types_of
from tidelake.views.state import states_of
from tidelake.views.verifying import Verified, compared


@dataclass(frozen=True)
class _Named:
    """The collections that a text may name, as it is compiled."""

    lake: Naming
    database: Database
    found: dict[str, tuple[Collection, ViewSource]] = field(default_factory=dict)

    def schema_of(self, name: str) -> dict[str, str] | None:
        if name not in self.found:
            one = self._opened(name)
            if one is None:
                return None
            self.found[name] = (one, _source(self.database, name, one))
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


@dataclass(frozen=True)
class ViewRequest:
    """The arguments of `Lake.view`."""

    sql: str
    key: Sequence[str] | None = None
    every: WindowLike | None = None
    max_lag: WindowLike | None = None
    replace: bool = False
    allow_recreate: bool = False


def make(lake: Naming, name: str, wanted: ViewRequest) -> Collection:
    """Make a view, open it if it is there as wanted, or put it in the place of another; see `Lake.view`."""
    with Database() as database:
        named = _Named(lake, database)
        plan = compiled(wanted.sql, named.schema_of)
        used = [named.found[one] for one in plan.collections]
        if not used:
            raise UsageError(
                "the query reads no collection, and a view is made of collections: name one in FROM"
            )
        _check_units([one for one, _ in used])
        domain = used[0][0].domain
        every = window(wanted.every, domain, "every", "for all times") or 1
        schema = answer_schema(database, plan.columns)
        definition = Definition(
            wanted.sql,
            engine_version(),
            -(-max(_since(one) for one, _ in used) // every) * every,
            tuple(source for _, source in used),
            identity(plan),
            every,
            window(wanted.max_lag, domain, "max_lag", "for no limit"),
        )
        if name in lake:
            return _there(lake, name, definition, wanted)
        made = lake._create_owned(
            name,
            schema,
            key=[schema.names[0]] if wanted.key is None else list(wanted.key),
            time=domain,
            owned=definition.owned,
            since=Frontier.of(definition.birth),
            allow_recreate=wanted.allow_recreate,
        )
        try:
            refreshed(lake, made, definition, database, plan)
        except (RefreshFailed, UsageError):
            # If others stand on it already, it stays, and says so at their next refresh.
            with suppress(CollectionInUse):
                lake._dropped(made.id, name, force=False)
            raise
    return made


def _source(database: Database, name: str, one: Collection) -> ViewSource:
    state = shard_of(one).version().state
    engine = types_of(database, row_schema(state.schema))
    columns = tuple(SourceColumn(c.name, c.id, str(c.type), engine[c.name]) for c in state.schema.columns)
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


def _since(one: Collection) -> int:
    for since in one.since:
        return parts(since)[0]
    raise UsageError(f"{one.name!r} is closed for good, and has given up its history: nothing can be read")


def _there(lake: Naming, name: str, asked: Definition, wanted: ViewRequest) -> Collection:
    """The collection of this name, if it is the view that was asked for; or the view, in its place."""
    view = lake.collection(name)
    definition = Definition.of(name, view.state())
    if definition is not None and _same(definition, asked):
        return view
    if definition is None:
        raise CollectionExists(f"collection {name!r} exists and is no view: give the view another name")
    if not wanted.replace:
        raise CollectionExists(
            f"collection {name!r} exists and is a view of another query, or of other collections: give the "
            "view another name, or replace=True"
        )
    return _in_place(lake, view, wanted)


def _same(one: Definition, other: Definition) -> bool:
    """Whether two definitions mean one view; since when does not matter."""
    ids = [[source.id for source in definition.sources] for definition in (one, other)]
    told = [(definition.sql, definition.every, definition.max_lag) for definition in (one, other)]
    return ids[0] == ids[1] and told[0] == told[1]


def _in_place(lake: Naming, old: Collection, wanted: ViewRequest) -> Collection:
    """Make a view beside another one, and give it the name in one commit, when it is as far.

    Raises:
        CollectionExists: the name that the new one has meanwhile is that of no view.
        UsageError: it cannot be as far, since an input is not.
    """
    name, beside = old.name, f"{old.name} (rebuilding)"
    if beside in lake:
        if Definition.of(beside, lake.collection(beside).state()) is None:
            raise CollectionExists(
                f"the new view is called {beside!r} until it is ready, and a collection is: rename that"
            )
        # A process died here.
        lake.drop(beside, force=True)
    try:
        new = make(lake, beside, replace(wanted, allow_recreate=True))
        if wanted.replace and not old.upper <= new.upper:
            # The old one was refreshed meanwhile.
            refresh(lake, beside)
    except RefreshFailed as error:
        raise RefreshFailed(name, error.stage, error.reason) from error
    reached, now = old.upper, new.upper
    if wanted.replace and not reached <= now:
        lake.drop(beside, force=True)
        raise UsageError(
            f"view {name!r} is closed up to {reached}, and an input of its new query up to {now} "
            "only: write or seal that first, or give the view another name"
        )
    lake.rename_all({name: beside, beside: name})
    lake.drop(beside, force=True)
    return lake.collection(name)


def refresh(lake: Naming, name: str | None) -> list[Refreshed]:
    """Refresh a view with the views that it stands on, or all; see `Lake.refresh`."""
    wanted = [lake.collection(name)] if name is not None else [*lake.collections()]
    if name is not None:
        _named(lake, name)
    else:
        release(lake)
    done, failed = list[Refreshed](), list[TidelakeError]()
    for _, one in fresh(lake, wanted):
        done.append(one) if isinstance(one, Refreshed) else failed.append(one)
    if failed:
        raise failed[0]
    return done


def fresh(
    lake: Naming, wanted: Iterable[Collection], due: Callable[[str], bool] = lambda _: True
) -> Iterator[tuple[str, Refreshed | TidelakeError]]:
    """Refresh the views among some collections, with those that they stand on, each behind these.

    A view that fails stops no other one.

    Args:
        lake: that has them.
        wanted: collections; those that are no views are left out.
        due: whether a view of this name is to be refreshed now.

    Yields:
        The name of each view, and what was done or why it could not be.
    """
    views = list[tuple[Collection, Definition]]()
    for one in wanted:
        try:
            definition = Definition.of(one.name, one.state())
        except CollectionNotFound:
            continue
        except RebuildNeeded as error:
            yield one.name, error
            continue
        if definition is not None:
            views.append((one, definition))
    if not views:
        return
    with Database() as database:
        for view, definition in _in_order(lake, views):
            if not due(view.name):
                continue
            try:
                done: Refreshed | TidelakeError = refreshed(lake, view, definition, database)
            except Closed:
                raise
            except TidelakeError as error:
                done = error
            let_go(lake, view, definition)
            yield view.name, done


def _in_order(
    lake: Naming, wanted: Sequence[tuple[Collection, Definition]]
) -> list[tuple[Collection, Definition]]:
    """The views with those that they stand on, each behind these. One log scan for each input."""
    known, done = {view.id: (view, definition) for view, definition in wanted}, dict[str, None]()

    def visit(view: Collection, definition: Definition) -> None:
        for source in definition.sources:
            if source.id not in known:
                _look(lake, source, known)
            if source.id in known and source.id not in done:
                visit(*known[source.id])
        done[view.id] = None

    for view, definition in wanted:
        if view.id not in done:
            visit(view, definition)
    return [known[id_] for id_ in done]


def _look(lake: Naming, source: ViewSource, known: dict[str, tuple[Collection, Definition]]) -> None:
    """Note an input that is a view; what stands on one that is gone says so at its refresh."""
    with suppress(CollectionNotFound, RebuildNeeded):
        found = lake.same_collection(source.id, source.name)
        definition = Definition.of(source.name, found.state())
        if definition is not None:
            known[source.id] = (found, definition)


def release(lake: Naming) -> None:
    """Drop what views that are gone kept, and their holds: a process died as it dropped them."""
    states = [(one, one.state()) for one in lake.collections()]
    owners = {state.owned.by for _, state in states if state.owned is not None and not is_part(state)}
    for one, state in states:
        if state.owned is not None and state.owned.by not in owners:
            lake._dropped(one.id, one.name, force=True)
            continue
        # A copy has the holds of its source, and is no copy any more once it is changed.
        gone = [hold for hold in state.critical if is_owner(hold) and hold not in owners]
        for hold in gone if CopyRecord.of(state) is None else ():
            one.critical_hold(hold).drop()


def _named(lake: Naming, name: str) -> tuple[Collection, Definition]:
    """The view of a name.

    Raises:
        UsageError: the collection is no view.
    """
    one = lake.collection(name)
    definition = Definition.of(name, one.state())
    if definition is None:
        raise UsageError(f"collection {name!r} is no view: lake.view makes one")
    return one, definition


def verify(lake: Naming, name: str, at: TimeLike | None) -> Verified:
    """Compare a view with its query over the contents of its inputs; see `Lake.verify`."""
    view, definition = _named(lake, name)
    time = view.last_time() if at is None else times_of(view).read(at, "at")
    seen = definition.as_of(parts(time)[0])
    plan, tables = compiled(definition.sql, definition.schema_of), {}
    used = {
        (one.collection, of) for one in plan.stages if isinstance(one, FromCollection) for of in one.names
    }
    for source in definition.sources:
        one = opened(lake, name, source)
        missing = [column.name for column in source.columns if column.name not in one.names]
        kept = [column.name for column in source.columns if column.name in one.names]
        tables[source.name] = _whole(one.collection, [one.names[c] for c in kept], kept, seen)
        for column in missing:
            if (source.name, column) in used:
                raise RebuildNeeded(name, f"column {column!r} of {source.name!r} was dropped or changed")
    stored = Scan(view.schema, lambda: _repeated(name, view.snapshot(time), view.schema))
    return compared(name, time, *differing(definition.sql, tables, stored))


def _whole(of: Collection, columns: list[str], called: list[str], time: object) -> Scan:
    schema = pa.schema(
        [of.schema.field(old).with_name(new) for old, new in zip(columns, called, strict=True)]
    )
    return Scan(schema, lambda: _repeated(of.name, of.snapshot(time, columns=columns), schema))  # type: ignore[arg-type]


def _repeated(name: str, rows: Rows, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Each row of a collection as often as its multiplicity says.

    Raises:
        UsageError: a row is there too often to be written out.
    """
    width = len(schema)
    for batch in rows:
        most = pc.max(batch.column(DIFF)).as_py() or 0
        if most > REPEATS_MAX:
            raise UsageError(
                f"collection {name!r} has a row {most:,} times, and verify repeats each row: it takes rows "
                f"that are there at most {REPEATS_MAX:,} times"
            )
        for piece in expanded(batch):
            yield pa.RecordBatch.from_arrays(piece.columns[:width], schema=schema)


def explain(lake: Naming, name: str) -> Explained:
    """What a view computes in which stages, waits for and keeps; see `Lake.explain`."""
    view, definition = _named(lake, name)
    found = [opened(lake, name, source) for source in definition.sources]
    return explained(view, definition, plan_of(name, definition), found, states_of(lake, view.id))


def rebuild(lake: Naming, name: str) -> Collection:
    """Make a view again beside its readers, and let it take the name; see `Lake.rebuild`."""
    old, definition = _named(lake, name)
    wanted = ViewRequest(definition.sql, old.key, definition.every, definition.max_lag)
    return _in_place(lake, old, wanted)

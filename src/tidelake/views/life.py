"""The life of views that are there: refreshed with what they stand on, verified, explained, let go.

Owns what a user may ask of them. A view is dropped as any
collection (`Lake.drop`), and its holds on its inputs with it.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from tidelake.data.answer.rows import Rows
from tidelake.data.answer.tablerows import expanded
from tidelake.errors import (
    Closed,
    RebuildNeeded,
    TidelakeError,
    UsageError,
    ViewsFailed,
)
from tidelake.lake.api.collection import Collection
from tidelake.lake.api.handle import shard_of, times_of
from tidelake.lake.api.naming import Naming
from tidelake.model.instants import TimeLike
from tidelake.model.query import AsOf
from tidelake.model.schema import DIFF
from tidelake.model.time import Time, parts
from tidelake.state.core.owned import is_owner, is_part, owner_of
from tidelake.state.life.copying import CopyRecord
from tidelake.views.database import Database
from tidelake.views.definition import Definition
from tidelake.views.engine import Engine, Engines, StoredScan
from tidelake.views.explaining import Explained, explained
from tidelake.views.inputs import (
    View,
    engine_of,
    engines_or_own,
    let_go,
    named,
    opened,
    opened_indexes,
    plan_of,
    with_engine,
)
from tidelake.views.making import is_left, made_again
from tidelake.views.order import in_order, view_of, with_all_together
from tidelake.views.plan import FromCollection
from tidelake.views.refresh import announce, refreshed
from tidelake.views.refreshed import Refreshed
from tidelake.views.rules import REPEATS_MAX
from tidelake.views.shared import Shared
from tidelake.views.state import states_of
from tidelake.views.verifying import Verified, compared, too_often


def refresh(lake: Naming, names: Sequence[str] | None, engines: Engines | None = None) -> list[Refreshed]:
    """Refresh views with those that they stand on, or all; see `Lake.refresh` and `refreshes`."""
    done, failed = list[Refreshed](), dict[str, TidelakeError]()
    for view, one in refreshes(lake, names, engines):
        if isinstance(one, Refreshed):
            done.append(one)
        else:
            failed[view] = one
    if len(failed) > 1:
        raise ViewsFailed(failed)
    for error in failed.values():
        raise error
    return done


def refreshes(
    lake: Naming, names: Sequence[str] | None, engines: Engines | None = None
) -> Iterator[tuple[str, Refreshed | TidelakeError]]:
    """Refresh views with those that they stand on, or all, as `fresh`."""
    shared, wanted = Shared(lake), list[Collection]()
    for name in names or ():
        view, definition = named(lake, name)
        if engines is not None or definition.dialect != Database.dialect:
            engine_of(name, definition, engines)
        wanted.append(view)
    if names is None:
        wanted = [*lake._each(shared.open)]
        release(lake, wanted)
    return fresh(shared, wanted, engines=engines)


def fresh(
    shared: Shared,
    wanted: Iterable[Collection],
    due: Callable[[str], bool] = lambda _: True,
    engines: Engines | None = None,
) -> Iterator[tuple[str, Refreshed | TidelakeError]]:
    """Refresh the views among some collections, with those that they stand on, each behind these.

    A view that fails stops no other one, but those that change together with it. Those are left out that are
    not `due`, or whose engine is not there; the default is DuckDB.

    Yields:
        The name of each view, and what was done or why it could not be.
    """
    views = dict[str, View]()
    for one in wanted:
        try:
            found = view_of(shared, one.id, one.name)
        except RebuildNeeded as error:
            yield one.name, error
            continue
        if found is not None:
            views[one.id] = found
    if not views:
        return
    all_ = with_all_together(shared, views)
    ordered = in_order({id_: view for id_, view in all_.items() if not is_left(shared, view)})
    with engines_or_own(shared.lake, engines) as known:
        for view in itertools.chain.from_iterable(ordered):
            if (engine := known(view.definition)) is not None:
                announce(shared, view, engine)
        for views_ in ordered:
            engine = known(views_[0].definition)
            if engine is None or not all(due(view.name) for view in views_):
                continue
            try:
                done: list[Refreshed] | TidelakeError
                done = made_again(shared, views_, engine) or refreshed(shared, views_, engine)
            except Closed:
                raise
            except TidelakeError as error:
                done = error
            for place, view in enumerate(views_):
                let_go(shared, view)
                yield view.name, done if isinstance(done, TidelakeError) else done[place]


def release(lake: Naming, opened_: Iterable[Collection] | None = None) -> None:
    """Drop what views that are gone kept, and their holds: a process died as it dropped them."""
    states = [(one, shard_of(one).known()) for one in opened_ or lake.collections()]
    owners = {state.owned.by for _, state in states if state.owned is not None and not is_part(state)}
    for one, state in states:
        if state.owned is not None and state.owned.by not in owners:
            lake._dropped(one.id, one.name, force=True)
            continue
        # A copy has the holds of its source, and is no copy any more once it is changed.
        gone = [hold for hold in state.critical if is_owner(hold) and hold not in owners]
        for hold in gone if CopyRecord.of(state) is None else ():
            one.critical_hold(hold).drop()


def verify(lake: Naming, name: str, at: TimeLike | None, engines: Engines | None = None) -> Verified:
    """Compare a view with its query over the contents of its inputs; see `Lake.verify`."""
    with with_engine(lake, name, engines) as (view, definition, engine):
        return _verified(Shared(lake), view, definition, engine, at)


def _verified(
    shared: Shared, view: Collection, definition: Definition, engine: Engine, at: TimeLike | None
) -> Verified:
    name = view.name
    time = view.last_time() if at is None else times_of(view).read(at, "at")
    seen = definition.as_of(parts(time)[0])
    plan, tables = plan_of(name, definition, engine), {}
    used = {
        (one.collection, of) for one in plan.stages if isinstance(one, FromCollection) for of in one.names
    }
    for source in definition.sources:
        one = opened(shared, name, source)
        missing = [column.name for column in source.columns if column.name not in one.names]
        kept = [column.name for column in source.columns if column.name in one.names]
        tables[source.name] = _whole(one.collection, [one.names[c] for c in kept], kept, seen)
        for column in missing:
            if (source.name, column) in used:
                raise RebuildNeeded(name, f"column {column!r} of {source.name!r} was dropped or changed")
    # Key columns stand first in a collection.
    columns = [column.name for column in plan.columns]
    stored = _whole(view, columns, columns, time)
    found = compared(name, time, *engine.differing(definition.sql, tables, stored))
    return found if found.equal else replace(found, notes=plan.notes)


def _whole(of: Collection, columns: list[str], called: list[str], time: Time) -> StoredScan:
    """Columns of a collection under other names, each row as often as it is there."""
    schema = pa.schema(
        [of.schema.field(old).with_name(new) for old, new in zip(columns, called, strict=True)]
    )

    def batches() -> Iterator[pa.RecordBatch]:
        return _repeated(of.name, of.snapshot(time, columns=columns), schema)

    return StoredScan(schema, batches, of, columns, [AsOf(time)])


def _repeated(name: str, rows: Rows, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Each row of a collection as often as its multiplicity says.

    Raises:
        UsageError: a row is there too often to be written out.
    """
    width = len(schema)
    for batch in rows:
        most = pc.max(batch.column(DIFF)).as_py() or 0
        if most > REPEATS_MAX:
            raise UsageError(too_often(name, f"{most:,}"))
        for piece in expanded(batch):
            yield pa.RecordBatch.from_arrays(piece.columns[:width], schema=schema)


def explain(lake: Naming, name: str, engines: Engines | None = None) -> Explained:
    """What a view computes in which stages, waits for and keeps; see `Lake.explain`."""
    with with_engine(lake, name, engines) as (view, definition, engine):
        shared = Shared(lake)
        found = [opened(shared, name, source) for source in definition.sources]
        plan, kept = plan_of(name, definition, engine), states_of(lake, view.id)
        indexes = itertools.chain.from_iterable(opened_indexes(shared, one.collection) for one in found)
        kept += [one for one in indexes if owner_of(view.id) in one.state().critical]
        return explained(view, definition, plan, found, kept)

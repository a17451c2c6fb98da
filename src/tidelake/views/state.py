"""What a view keeps beside itself, as collections: made, read, written, and made again.

Each is a function of the inputs at every time, as the view is. So it is written before the view, by a commit
of its own: until the view has caught up, it only has later times as well. Must not know what is in it.

INVARIANT: what is read is exact, or it is made again from the inputs first.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from hashlib import blake2b

import pyarrow as pa
import pyarrow.compute as pc

from tidelake.data.kernel.types import UNFIT
from tidelake.errors import CollectionDropped, CollectionExists, CollectionNotFound, UpperMismatch
from tidelake.lake.api.collection import Collection
from tidelake.lake.api.embedded import Scan
from tidelake.lake.api.handle import shard_of
from tidelake.lake.api.naming import Naming
from tidelake.model.frontier import Frontier
from tidelake.model.schema import DIFF
from tidelake.model.time import parts
from tidelake.state.core.owned import owner_of
from tidelake.state.core.state import Owned
from tidelake.views.definition import Definition
from tidelake.views.plan import PlanColumn, ViewPlan
from tidelake.views.reach import KeptStage, columns_of
from tidelake.views.spans import Database, answer_schema, stored_type

FORMAT = 1
_TIME = "_time"
_NO_KEY = "s"
# A look-up of one key costs about as much as reading so many rows of all.
_ROWS_PER_KEY = 8
# So often the history that no refresh reads any more is given up: each time is a commit.
_TRIMMED_EVERY = 16
_NAME_MAX = 200
Made = Callable[[Sequence[KeptStage]], Mapping[KeptStage, pa.Table]]
"""Computes what is kept, as of just before a span, from the inputs."""


class ViewState:
    """What one view keeps.

    Args:
        lake: that has it.
        view: the view.
        definition: of the view.
        plan: of the view.
        kept: all of it.
    """

    def __init__(
        self,
        lake: Naming,
        view: Collection,
        definition: Definition,
        plan: ViewPlan,
        kept: Sequence[KeptStage],
    ) -> None:
        self._lake, self._view, self._plan, self._kept = lake, view, plan, kept
        self._owner = owner_of(view.id)
        self._told = {
            one: json.dumps({"format": FORMAT, "plan": definition.plan, "keeps": str(one)}, sort_keys=True)
            for one in kept
        }
        self._found: dict[KeptStage, Collection] = {}

    def ready(self, time: int, make: Made | None, database: Database) -> None:
        """Open all of it, for reads at a time; what is missing or cannot be read there is made.

        Args:
            time: the last one before the span, or the first one of the view.
            make: tells what there is at the time; None: nothing, as the view begins there.
            database: tells types.
        """
        missing = [one for one in self._kept if not self._is_open(one, time, has=make is not None)]
        made = make(missing) if missing and make is not None else {}
        for one in missing:
            self._found[one] = self._made(one, time, database)
        for one, rows in made.items():
            at = pa.array([time] * rows.num_rows, pa.int64())
            timed = rows.set_column(rows.schema.get_field_index(_TIME), _TIME, at)
            self._append(one, timed, Frontier.past(time))

    def read(self, kept: KeptStage, keys: pa.Table | None, time: int) -> Scan:
        """Its rows at a time, with these values in columns, or also others; None: all."""
        called = self._called(kept)
        named = None if keys is None else keys.rename_columns([called[one] for one in keys.column_names])
        return contents_of(self._found[kept], [*called.values()], named, time)

    def append(self, updates: Mapping[KeptStage, pa.Table], upper: Frontier) -> None:
        """Write the updates of a span, as far as they are not there."""
        for one, table in updates.items():
            self._append(one, table, upper)

    def _append(self, kept: KeptStage, updates: pa.Table, upper: Frontier) -> None:
        of, called = self._found[kept], self._called(kept)
        updates = updates.rename_columns([*called.values(), _TIME, DIFF])
        if _NO_KEY in of.key:
            updates = updates.append_column(_NO_KEY, pa.array([0] * updates.num_rows, pa.int8()))
        at = shard_of(of).known().upper
        while at < upper:
            fresh = updates.filter(pc.greater_equal(updates[_TIME], parts(at.elements[0])[0]))
            try:
                of.compare_and_append(fresh, at, upper)
            except UpperMismatch:
                # Another refresh was faster, with the same rows.
                at = of.upper
            else:
                return

    def _is_open(self, kept: KeptStage, time: int, *, has: bool) -> bool:
        """Whether it can be read at a time, which it `has`; then it is open."""
        if kept in self._found:
            return True
        name = self._name(kept)
        if not has and name not in self._lake:
            # As a rule; the error would look for names that are like this one.
            return False
        try:
            found = self._lake.collection(name)
        except (CollectionNotFound, CollectionDropped):
            return False
        state, wanted = shard_of(found).known(), Owned(self._owner, self._told[kept])
        at = Frontier.of(time)
        if state.owned != wanted or not state.since <= at or (has and not at < state.upper):
            self._lake._dropped(found.id, name, force=True)
            return False
        shard_of(found).writes_as = self._owner
        self._found[kept] = found
        if has and state.seqno % _TRIMMED_EVERY == 0:
            found.advance_since(time)
        return True

    def _made(self, kept: KeptStage, time: int, database: Database) -> Collection:
        """An empty collection for it."""
        name, called = self._name(kept), self._called(kept)
        columns = columns_of(self._plan, kept)
        told = tuple(PlanColumn(called[one.name], stored_type(one.type)) for one in columns)
        schema = answer_schema(database, told)
        able = [one.name for one in schema if not pa.types.is_nested(one.type)]
        key = [called[one] for one in kept.by if called[one] in able] or able[:1]
        if not key:
            schema, key = schema.append(pa.field(_NO_KEY, pa.int8())), [_NO_KEY]
        with suppress(CollectionExists):
            # Another refresh may make it at the same time.
            self._lake._create_owned(
                name,
                schema,
                key=key,
                time=self._view.domain,
                owned=lambda _: Owned(self._owner, self._told[kept]),
                since=Frontier.of(time),
                allow_recreate=True,
            )
        made = self._lake.collection(name)
        shard_of(made).writes_as = self._owner
        return made

    def _called(self, kept: KeptStage) -> dict[str, str]:
        """How the collection calls the columns: by number, since a collection has names of its own."""
        return {column.name: f"s{n}" for n, column in enumerate(columns_of(self._plan, kept))}

    def _name(self, kept: KeptStage) -> str:
        """The name of the collection: of the id of the view, since the view may be renamed."""
        name = f"{self._owner}: {kept}"
        if len(name.encode()) <= _NAME_MAX:
            return name
        return f"{name[:100]} {blake2b(name.encode(), digest_size=8).hexdigest()}"


def contents_of(of: Collection, names: Sequence[str], keys: pa.Table | None, time: int) -> Scan:
    """Columns of the rows of a collection at a time.

    Args:
        of: the collection.
        names: of its columns.
        keys: at least the rows with these values in key columns are wanted; other columns are left out. None:
            all rows are.
        time: that is read.
    """
    updates = of.update_schema
    schema = pa.schema([updates.field(name) for name in (*names, *of.domain.columns, DIFF)])
    wanted = None if keys is None else _keys(of, keys)
    state = shard_of(of).known()
    rows = state.spine.totals.rows + state.staged.totals.rows
    if wanted is None or wanted.num_rows * _ROWS_PER_KEY > rows:
        return Scan(schema, lambda: iter(of.snapshot(time, columns=names)))
    found = of.lookup(wanted, time, columns=names)
    return Scan(schema, lambda: iter(found.to_batches()))


def _keys(of: Collection, keys: pa.Table) -> pa.Table | None:
    """The keys of the collection that are among values of columns.

    Returns:
        None, if these are not all of its key, or one of them fits no key: a finer time, a longer binary.
    """
    if not {*of.key} <= {*keys.column_names}:
        return None
    kept = keys.select(list(of.key))
    for name in of.key:
        if not of.schema.field(name).nullable:
            # It has no such row, and refuses to look for one.
            kept = kept.filter(pc.is_valid(kept[name]))
    try:
        return kept.cast(pa.schema([of.schema.field(name).with_nullable(True) for name in of.key]))
    except UNFIT:
        return None


def states_of(lake: Naming, view_id: str) -> list[Collection]:
    """The collections that a view keeps, by name."""
    found = []
    for one in lake.collections():
        owned = one.state().owned
        if owned is not None and owned.by == owner_of(view_id) and one.id != view_id:
            found.append(one)
    return found

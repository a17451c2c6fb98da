"""What a view keeps beside itself, as collections: made, read, written, and made again.

Each is a function of the inputs at every time, as the view is. So it is written before the view, by a commit
of its own: until the view has caught up, it only has later times as well. Must not know what is in it.

INVARIANT: what is read is exact, or it is made again from the inputs first.
"""

import json
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing, suppress
from functools import partial
from hashlib import blake2b
from itertools import chain

import pyarrow as pa
import pyarrow.compute as pc

from tidelake.data.kernel.encode import encode_key
from tidelake.data.kernel.types import UNFIT
from tidelake.errors import (
    CollectionDropped,
    CollectionExists,
    CollectionNotFound,
    InvalidUpdates,
    RefreshFailed,
    UpperMismatch,
)
from tidelake.lake.api.collection import Collection
from tidelake.lake.api.embedded import Scan
from tidelake.lake.api.handle import shard_of
from tidelake.lake.api.naming import Naming
from tidelake.model.frontier import Frontier
from tidelake.model.query import AsOf
from tidelake.model.schema import DIFF
from tidelake.model.selection import ReadOptions
from tidelake.model.time import TIME_MAX, parts
from tidelake.shard.engine.overlap import sequential
from tidelake.shard.reading.lookup import beginning, few, keys_of
from tidelake.shard.reading.query import read
from tidelake.state.core.owned import owner_of
from tidelake.state.core.state import Owned
from tidelake.views.definition import Definition
from tidelake.views.engine import Engine, Found, KeyRows, Output, StoredScan
from tidelake.views.plan import PlanColumn, ViewPlan
from tidelake.views.reach import KeptStage, columns_of
from tidelake.views.spans import stored_type
from tidelake.views.workroom import workroom

FORMAT = 1
_TIME = "_time"
_NO_KEY, _ORDER = "s", "o"
# So many rows of a key are kept in an order, in which the first ones are found.
_MANY_ROWS = 16_384
_CHUNK_ROWS = 1_024, 8_192
# The first rows of a key are read by a stream for each.
_STREAMS_MAX = 64
# A look-up of one key costs about as much as reading so many rows of all: of a million rows, four if each has
# its own key (0.6 and 0.15 microseconds), twelve if ten have one (1.8 and 0.13).
_ROWS_PER_KEY = 8
# So often the history that no refresh reads any more is given up: each time is a commit.
_TRIMMED_EVERY = 16
_NAME_MAX = 200
Made = Callable[[Sequence[KeptStage]], Mapping[KeptStage, Output]]
"""Computes what is kept, as of just before a span, from the inputs."""


class ViewState:
    """What one view keeps."""

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
        self._begin = 0

    def ready(self, time: int, make: Made | None, engine: Engine) -> None:
        """Open all of it, for reads at the last time before the span; what cannot be read there is made.

        `make` is None where the view begins: what is kept is made then when it is written for the first time.
        """
        missing = [one for one in self._kept if not self._is_open(one, time, has=make is not None)]
        made = make(missing) if missing and make is not None else {}
        self._begin = time
        for one, rows in made.items():
            self._append(one, rows.having(_TIME, time, pa.int64()), Frontier.past(time), engine)

    def read(self, kept: KeptStage, keys: KeyRows | None, time: int, first: int | None = None) -> Scan:
        """Its rows at a time, with these values in columns, or also others; None: all.

        With `first`, only so many rows of a key that are there, with those beside them and all that are equal
        in the order, need to be among them. Then keys that are likely to have many rows come first.
        """
        called, of = self._called(kept), self._found[kept]
        named = None if keys is None else keys.rename_columns([called[one] for one in keys.column_names])
        return contents_of(of, [*called.values()], named, time, first if _ORDER in of.schema.names else None)

    def has(self, object_name: str) -> bool:
        """Whether an object of the store is part of what is kept."""
        return any(object_name.startswith(f"{one.id}/") for one in self._found.values())

    def append(self, updates: Mapping[KeptStage, Output], upper: Frontier, engine: Engine) -> None:
        """Write the updates of a span, as far as they are not there."""
        for one, table in updates.items():
            self._append(one, table, upper, engine)

    def drop(self, freed: Sequence[KeptStage]) -> None:
        """Drop what need no longer be kept."""
        for name in map(self._name, freed):
            with suppress(CollectionNotFound):
                self._lake._dropped(self._lake.id_of(name), name, force=True)

    def _append(self, kept: KeptStage, updates: Output, upper: Frontier, engine: Engine) -> None:
        called = self._called(kept)
        order = [] if kept.order is None else [_ORDER]
        updates = updates.called([*called.values(), *order, _TIME, DIFF])
        if kept not in self._found:
            self._found[kept] = self._made(kept, updates, engine)
        of = self._found[kept]
        if order and _ORDER not in of.schema.names:
            updates = updates.without(_ORDER)
        if _NO_KEY in of.key:
            updates = updates.having(_NO_KEY, 0, pa.int8())
        at = shard_of(of).known().upper
        while at < upper:
            try:
                updates.within(_TIME, parts(at.elements[0])[0], TIME_MAX).append_to(of, at, upper)
            except UpperMismatch:
                # Another refresh was faster, with the same rows.
                at = of.upper
            except InvalidUpdates as error:
                reason = str(error)
                for column, stored in called.items():
                    reason = reason.replace(repr(stored), repr(column))
                raise RefreshFailed(self._view.name, str(kept), reason) from error
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
            found = self._opened(name)
        except (CollectionNotFound, CollectionDropped):
            return False
        state, wanted = shard_of(found).known(), Owned(self._owner, self._told[kept])
        at = Frontier.of(time)
        if state.owned != wanted or not state.since <= at or (has and not at < state.upper):
            self._lake._dropped(found.id, name, force=True)
            return False
        self._found[kept] = found
        if has and state.seqno % _TRIMMED_EVERY == 0:
            found.advance_since(time)
        return True

    def _made(self, kept: KeptStage, first: Output, engine: Engine) -> Collection:
        """An empty collection for it; in an order, if it begins with many rows of one key."""
        name, called = self._name(kept), self._called(kept)
        columns = columns_of(self._plan, kept)
        told = tuple(PlanColumn(called[one.name], stored_type(one.type)) for one in columns)
        schema = engine.schema_of(told)
        able = [one.name for one in schema if not pa.types.is_nested(one.type)]
        key = [called[one] for one in kept.by if called[one] in able] or able[:1]
        if kept.order is not None and len(key) == len(kept.by) and _has_many_of_one(first.table, key):
            # Rows of a key are sorted by the other columns.
            schema = pa.schema([pa.field(_ORDER, pa.binary()), *schema])
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
                since=Frontier.of(self._begin),
                allow_recreate=True,
            )
        return self._opened(name)

    def _opened(self, name: str) -> Collection:
        """A collection for writing, as it is now."""
        found = workroom(self._lake).opened(name, name, partial(self._lake.collection, name))
        shard_of(found).writes_as = self._owner
        return found

    def _called(self, kept: KeptStage) -> dict[str, str]:
        """How the collection calls the columns: by number, since a collection has names of its own."""
        return {column.name: f"s{n}" for n, column in enumerate(columns_of(self._plan, kept))}

    def _name(self, kept: KeptStage) -> str:
        """The name of the collection: of the id of the view, since the view may be renamed."""
        name = f"{self._owner}: {kept}"
        if len(name.encode()) <= _NAME_MAX:
            return name
        return f"{name[:100]} {blake2b(name.encode(), digest_size=8).hexdigest()}"


def contents_of(
    of: Collection, names: Sequence[str], keys: KeyRows | None, time: int, first: int | None = None
) -> Scan:
    """Columns of the rows of a collection at a time.

    At least the rows with the values of `keys` in key columns are wanted, or the `first` of them in their
    order, as `ViewState.read` says; other columns are left out.
    """
    updates = of.update_schema
    schema = pa.schema([updates.field(name) for name in (*names, *of.domain.columns, DIFF)])
    wanted = _keys(of, keys) if isinstance(keys, pa.Table) else None
    if wanted is None or _is_much(of, wanted):
        why = (
            "" if wanted is None else f": a key, of {wanted.num_rows:,}, has fewer than {_ROWS_PER_KEY} rows"
        )
        batches = partial(of.snapshot, time, columns=names)
        read = [AsOf(time)]
        return StoredScan(schema, lambda: iter(batches()), of, names, read, keys=keys, how=f"all{why}")
    if first is not None:
        return _first_of(of, names, wanted, time, first)
    found = of.lookup(wanted, time, columns=names, times="int64")
    return Found(schema, lambda: iter(found.to_batches()), f"by {wanted.num_rows:,} keys")


def _is_much(of: Collection, wanted: pa.Table) -> bool:
    """Whether it costs less to read all rows than to look for some keys."""
    state = shard_of(of).known()
    rows = state.spine.totals.rows + state.staged.totals.rows
    return bool(wanted.num_rows * _ROWS_PER_KEY > rows)


def _first_of(of: Collection, names: Sequence[str], wanted: pa.Table, time: int, first: int) -> Scan:
    """The first rows of some keys, one after the other, as long as they have many; of the others all."""
    place, found = 0, list[pa.RecordBatch]()
    options = ReadOptions(columns=[_ORDER, *names])
    least, most = _CHUNK_ROWS
    chunk = max(least, min(most, 4 * first))
    is_whole, asked = False, read(shard_of(of), AsOf(time), options)
    given = keys_of(wanted, asked.spec)
    starts = encode_key(given.slice(0, _STREAMS_MAX), asked.spec.schema).to_pylist()
    asked = few(asked, chunk, starts)
    # Threads would decode ahead what is not taken.
    with sequential():
        for start in starts:
            place += 1
            rows, is_whole = _begun(beginning(asked, start), first)
            found += rows
            if is_whole and sum(one.num_rows for one in rows) < chunk:
                # Likely the others have no more.
                break
    # No row may come twice, so of the others no more are read than what they have.
    rest = of.lookup(wanted.slice(place), time, columns=names, times="int64")
    shown = rest.schema.names
    how = f"the first ones of {place:,} keys, all of {wanted.num_rows - place:,}"
    return Found(rest.schema, lambda: chain((one.select(shown) for one in found), rest.to_batches()), how)


def _has_many_of_one(rows: pa.Table, key: Sequence[str]) -> bool:
    """Whether a key has so many rows that it costs too much to read all of them."""
    if rows.num_rows < _MANY_ROWS:
        return False
    counted = rows.group_by(list(key)).aggregate([([], "count_all")])
    return bool(pc.max(counted["count_all"]).as_py() >= _MANY_ROWS)


def _begun(batches: Generator[pa.RecordBatch], first: int) -> tuple[list[pa.RecordBatch], bool]:
    """The begin of a stream in an order, with the first rows that are there; and whether it is all of it."""
    found, there, last, tied = list[pa.RecordBatch](), 0, None, 0
    with closing(batches):
        for batch in batches:
            found.append(batch)
            order = batch.column(_ORDER)
            there += pc.sum(pc.greater(batch.column(DIFF), 0)).as_py()
            # Rows that equal the last one may go on, and may have begun in an earlier batch.
            last, before = order[-1], last
            tied = pc.sum(pc.equal(order, last)).as_py() + (tied if last == before else 0)
            if there - tied >= first:
                return found, False
    return found, True


def _keys(of: Collection, keys: pa.Table) -> pa.Table | None:
    """The keys of the collection that are among values of columns.

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

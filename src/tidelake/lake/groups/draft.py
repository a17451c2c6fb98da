"""What a transaction will do, as its caller puts it together: nothing is stored or joined here.

Owns what may be in one transaction; `tidelake.lake.groups.transactions` commits it.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

import pyarrow as pa

from tidelake.data.ingest.astable import as_table
from tidelake.data.ingest.events import EventColumns
from tidelake.data.kernel.consolidate import copied
from tidelake.errors import (
    UpperMismatch,
    UsageError,
)
from tidelake.handle import Handle
from tidelake.lake.arguments.keys import deletion
from tidelake.lake.arguments.times import FrontierLike, Times, times_for
from tidelake.model.frontier import Frontier
from tidelake.model.instants import TimeLike
from tidelake.model.time import TimeDomain, parts
from tidelake.shard.engine.shard import Shard
from tidelake.shard.writing.batches import check_once
from tidelake.shard.writing.derived import ContentChange, RowChanges
from tidelake.shard.writing.memberwrite import (
    MemberWrite,
    Offered,
    check_fits,
    has_times,
    offered_of,
)
from tidelake.shard.writing.replacement import check_total
from tidelake.state.core.owned import not_for
from tidelake.state.group.deciding import seal_back

_ALONE = (
    "{name!r} is upserted, replaced or deleted from by the transaction: it gets no other rows, use another "
    "transaction"
)
_TWO_TIMES = "time={time}, but the table has times of its own: leave one of them out"


class Draft:
    """The writes and seals of a transaction.

    Args:
        open_: opens a collection by its name.

    Attributes:
        shards: the collections that take part, by name.
        rows: what is written, in order.
        lowers: by name of the collection, the upper that it must have.
        seals: by name, the upper that it gets.
        kind: whether rows are written or staged; None: there are none yet.
    """

    def __init__(self, open_: Callable[[str], Shard]) -> None:
        self._open = open_
        self.shards: dict[str, Shard] = {}
        self.rows: list[MemberWrite] = []
        self.lowers: dict[str, Frontier] = {}
        self.seals: dict[str, Frontier] = {}
        self.kind: Literal["write", "stage"] | None = None

    def shard(self, name: str) -> Shard:
        """A collection, which takes part from now on."""
        if name not in self.shards:
            self.shards[name] = self._open(name)
            self.shards[name].title = name
        return self.shards[name]

    def write(
        self,
        kind: Literal["write", "stage"],
        name: str,
        updates: object,
        *,
        time: TimeLike | None = None,
        lower: FrontierLike | None = None,
        upper: FrontierLike | None = None,
    ) -> None:
        """Add updates, whose collection may have an interval of its own; see `Transaction.write`."""
        bounds = self._bounds(name, lower, upper)
        self._add(kind, name, updates, time, bounds[1])
        self._keep(name, *bounds)

    def seal(self, name: str, lower: FrontierLike | None, upper: FrontierLike) -> None:
        """Close times of a collection."""
        self._keep(name, *self._bounds(name, lower, upper))

    def change(
        self,
        name: str,
        change: ContentChange,
        *,
        time: TimeLike | None = None,
        lower: FrontierLike | None = None,
        upper: FrontierLike | None = None,
    ) -> None:
        """Add a change of the contents; its collection gets no other rows. See `Transaction.upsert`."""
        shard = self.shard(name)
        if isinstance(change, RowChanges):
            if change.columns is not None:
                change.columns.check(shard.alive().schema, shard.spec.domain)
            change = replace(change, table=_kept(change.table))
        if self.kind == "stage":
            raise UsageError("a transaction either writes or stages: use two")
        if any(entry.name == name for entry in self.rows):
            raise UsageError(_ALONE.format(name=name))
        if time is not None:
            check_total(shard.spec)
            if has_times(shard, change):
                raise UsageError(_TWO_TIMES.format(time=time))
            change = replace(change, time=parts(times_for(shard).at(time, "time"))[0])
        bounds = self._bounds(name, lower, upper)
        self._append(shard, MemberWrite(name, change, bounds[1]), "write")
        self._keep(name, *bounds)

    def depends(self) -> bool:
        """Whether a write depends on contents (an upsert, a replace or a delete)."""
        return any(isinstance(entry.given, ContentChange) for entry in self.rows)

    def own_times(self) -> bool:
        """Whether rows have times of their own."""
        return any(has_times(self.shards[entry.name], entry.given) for entry in self.rows)

    @property
    def closes_together(self) -> bool:
        """Whether it closes times of the whole group, not only those of collections with an upper."""
        return self.kind == "write" and any(entry.upper is None for entry in self.rows)

    def all_lowers(self, lower: Frontier | None) -> dict[str, Frontier]:
        """By name of the collection, the upper that it must have; `lower` is that of all others."""
        return self.lowers if lower is None else dict.fromkeys(self.shards, lower) | self.lowers

    def in_unit(
        self, at: TimeLike | None, lower: FrontierLike | None, upper: FrontierLike | None
    ) -> tuple[int | None, Frontier | None, Frontier | None]:
        """A time, lower and upper of all of it, in the unit of the collections, which is one."""
        if not self.shards:
            return None, None, None
        times = times_for(next(iter(self.shards.values())))
        if not times.domain.total_order:
            # No group takes this collection, and says why.
            times = Times(TimeDomain(), times.now_ms)
        return (
            None if at is None else parts(times.at(at, "time"))[0],
            None if lower is None else times.bound(lower, "lower"),
            None if upper is None else times.bound(upper, "upper"),
        )

    def check_times(self, time: int | None) -> None:
        """Refuse rows with times beside rows without; `time` is that of the latter."""
        timed = {has_times(self.shards[entry.name], entry.given) for entry in self.rows}
        if len(timed) > 1:
            raise UsageError("some rows of the transaction have _time, others do not: give all of them times")
        if self.kind == "stage" and False in timed:
            raise UsageError("staged rows need _time")
        if True in timed and time is not None:
            raise UsageError(f"time={time}, but the rows have times of their own: leave one of them out")

    def check_bounds(self, lower: Frontier | None) -> None:
        """Refuse uppers that are wrong or would go back, before anything joins; `decide` asks again."""
        lowers = self.all_lowers(lower)
        for name in {**lowers, **self.seals}:
            shard = self.shards[name]
            upper = shard.version().upper
            if lowers.get(name) not in (None, upper):
                raise shard.named(UpperMismatch(lowers[name], upper, name))
            seal = self.seals.get(name)
            back = None if seal is None else seal_back(name, seal, upper, shard.spec.domain)
            if back is not None:
                raise back

    def check_fits(self) -> None:
        """Refuse collections that another program owns, and tables whose columns do not fit."""
        for shard in self.shards.values():
            strange = not_for(shard.known(), shard.writes_as)
            if strange is not None:
                raise shard.named(strange)
        for entry in self.rows:
            check_fits(self.shards[entry.name], entry.given)

    def _bounds(
        self, name: str, lower: FrontierLike | None, upper: FrontierLike | None
    ) -> tuple[Frontier | None, Frontier | None]:
        times = times_for(self.shard(name))
        start = None if lower is None else times.bound(lower, f"lower of {name!r}")
        end = None if upper is None else times.bound(upper, f"upper of {name!r}")
        if start is not None and self.lowers.get(name, start) != start:
            raise UsageError(f"collection {name!r} was given lower={self.lowers[name]} before, now {start}")
        known = self.lowers.get(name) if start is None else start
        if known is not None and end is not None and not known <= end:
            raise UsageError(f"lower {known} of {name!r} is not at or before its upper {end}")
        return start, end

    def _keep(self, name: str, lower: Frontier | None, upper: Frontier | None) -> None:
        if lower is not None:
            self.lowers[name] = lower
        if upper is not None:
            self.seals[name] = upper.join(self.seals.get(name, upper))

    def _add(
        self,
        kind: Literal["write", "stage"],
        name: str,
        updates: object,
        time: TimeLike | None = None,
        upper: Frontier | None = None,
    ) -> None:
        if self.kind not in (None, kind):
            raise UsageError("a transaction either writes or stages: use two")
        if any(isinstance(entry.given, ContentChange) for entry in self.rows if entry.name == name):
            raise UsageError(_ALONE.format(name=name))
        shard = self.shard(name)
        offered = offered_of(shard, updates)
        if offered is not None:
            if time is not None:
                raise UsageError(
                    f"time={time}, but batches and uploads have times of their own: leave it out"
                )
            before = [one for entry in self.rows if isinstance(one := entry.given, Offered)]
            parts = [part.name for one in (*before, offered) for part in one.parts]
            check_once(parts, "an upload")
        given = offered or _timed(shard, _kept(updates), time)
        self._append(shard, MemberWrite(name, given, upper), kind)

    def _append(self, shard: Shard, entry: MemberWrite, kind: Literal["write", "stage"]) -> None:
        if entry.upper is not None and not has_times(shard, entry.given):
            raise UsageError(
                f"upper={entry.upper} of {entry.name!r} needs times: give time= or a column _time, or leave "
                "it out"
            )
        self.kind = kind
        self.rows.append(entry)


class Drafting(Handle):
    """What a user puts into a transaction before it is committed."""

    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        self._ended = False

    def _open_draft(self) -> Draft:
        if self._ended:
            raise UsageError("the transaction has ended: begin another one")
        return self._draft

    def write(
        self,
        name: str,
        updates: object,
        *,
        time: TimeLike | None = None,
        lower: FrontierLike | None = None,
        upper: FrontierLike | None = None,
    ) -> None:
        """Add updates of a collection. They get the time of the transaction, unless they have their own.

        A collection may be written to several times, at different times, and each collection in an interval
        of its own.

        Args:
            name: name of the collection.
            updates: a table or stream as for `Collection.append`; or a `Batch`, the bytes that an `uploader`
                of the collection returned, or a list of these, which have their own times. If no `upper` is
                given, the times before a batch's upper are closed as well.
            time: the time of all rows of the table, instead of a column `_time`.
            lower: commit only if the collection's upper equals this; otherwise `UpperMismatch`.
            upper: all rows are before it. The commit closes the times before it, of this collection only; if
                no `upper` is given, times of the whole group are closed. Needs rows with times.

        Raises:
            UsageError: a batch or upload is for another collection, or is given twice; or the collection was
                given another `lower`.
        """
        self._open_draft().write("write", name, updates, time=time, lower=lower, upper=upper)

    def upsert(
        self,
        name: str,
        table: object,
        *,
        order_by: str | None = None,
        delete_column: str | None = None,
        time: TimeLike | None = None,
        lower: FrontierLike | None = None,
        upper: FrontierLike | None = None,
    ) -> None:
        """Replace the rows of the table's keys with its rows; other keys stay. See `Collection.upsert`.

        Old rows are looked up at the commit, and again, without limit, each time others write to the
        collection before the commit is decided. The transaction can write nothing else to this collection.

        Args:
            name: name of the collection.
            table: key and value columns. Without `_time` all rows are at `time`, or the transaction's time.
            order_by: as for `Collection.upsert`.
            delete_column: as for `Collection.upsert`.
            time: as for `write`.
            lower: as for `write`.
            upper: as for `write`.

        Raises:
            UsageError: the collection gets other rows already.
        """
        change = RowChanges(table, EventColumns(order_by, delete_column))
        self._open_draft().change(name, change, time=time, lower=lower, upper=upper)

    def replace(
        self,
        name: str,
        table: object,
        *,
        time: TimeLike | None = None,
        lower: FrontierLike | None = None,
        upper: FrontierLike | None = None,
    ) -> None:
        """Replace the contents with the rows of a table, at `time` or the time of the transaction.

        The old contents are read at the commit, and again after others write, as by `upsert`.

        Args:
            name: name of the collection.
            table: key and value columns.
            time: as for `write`.
            lower: as for `write`.
            upper: as for `write`.

        Raises:
            UsageError: the collection gets other rows already.
        """
        change = RowChanges(table, None)
        self._open_draft().change(name, change, time=time, lower=lower, upper=upper)

    def delete(
        self,
        name: str,
        keys: object = None,
        *,
        where: str | None = None,
        time: TimeLike | None = None,
        lower: FrontierLike | None = None,
        upper: FrontierLike | None = None,
    ) -> None:
        """Remove rows, by their keys or by a condition. See `Collection.delete`.

        The rows are looked up at the commit, and again after others write, as by `upsert`.

        Args:
            name: name of the collection.
            keys: as for `Collection.delete`.
            where: as for `Collection.delete`.
            time: as for `write`.
            lower: as for `write`.
            upper: as for `write`.

        Raises:
            UsageError: neither `keys` nor `where` is given, or both; or the collection gets other rows
                already.
        """
        draft = self._open_draft()
        change = deletion(keys, where, None, lambda: draft.shard(name).alive().schema)
        draft.change(name, change, time=time, lower=lower, upper=upper)

    def stage(self, name: str, updates: object) -> None:
        """Stage updates at open times, which stay open. The updates need `_time`."""
        self._open_draft().write("stage", name, updates)

    def seal(self, name: str, upper: FrontierLike, *, lower: FrontierLike | None = None) -> None:
        """Close the times of one collection before a frontier. The commit is refused if it would go back.

        With `lower`, commit only if the collection's upper equals it; otherwise `UpperMismatch`.
        """
        self._open_draft().seal(name, lower, upper)


def _timed(shard: Shard, table: pa.Table, time: TimeLike | None) -> pa.Table:
    """The table with a time for all of its rows, if one is given."""
    if time is None:
        return table
    if has_times(shard, table):
        raise UsageError(_TWO_TIMES.format(time=time))
    at = parts(times_for(shard).at(time, "time"))[0]
    (column,) = shard.spec.domain.columns
    return table.append_column(column, pa.repeat(pa.scalar(at, pa.int64()), table.num_rows))


def _kept(updates: object) -> pa.Table:
    """Copy the rows: the caller may change his arrays before the commit."""
    given = as_table(updates)
    return pa.Table.from_batches(list(map(copied, given.to_batches())), given.schema)

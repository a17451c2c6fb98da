"""What a transaction writes to a collection: tables, stored updates, and changes of the contents; as values.

Owns how they are read and checked before anything is stored; `tidelake.shard.writing.parking` stages them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TypeAlias

import pyarrow as pa

from tidelake.data.ingest.astable import as_table
from tidelake.data.ingest.events import EventColumns, read_events
from tidelake.data.query.selection import bind
from tidelake.model.batch import Part, Run
from tidelake.model.frontier import Frontier
from tidelake.model.selection import ReadOptions
from tidelake.shard.engine.shard import Shard
from tidelake.shard.runs.upload import normalized
from tidelake.shard.writing.batch import Batch
from tidelake.shard.writing.batches import check_once, check_own, uploaded
from tidelake.shard.writing.derived import ContentChange, Deletion, RowChanges
from tidelake.shard.writing.replacement import check_total
from tidelake.shard.writing.uploads import remade


@dataclass(frozen=True)
class Offered:
    """Updates that are stored already: batches, and uploads of workers. They may be tried again if refused.

    Attributes:
        runs: all runs.
        checked: a frontier; all times are known to be at or after it.
        upper: the upper that the batches among them close times up to.
        batches: handles of the batches, which a transaction uses up.
        read_at: the updates depend on contents, which were read when the group was in this state or a later
            one: the decision is refused if the group let rows in for the collection after it. None: they
            depend on none.
    """

    runs: tuple[Run, ...]
    checked: Frontier
    upper: Frontier
    batches: tuple[Batch, ...] = ()
    read_at: int | None = None

    @property
    def parts(self) -> tuple[Part, ...]:
        """All parts of the runs."""
        return tuple(chain.from_iterable(run.parts for run in self.runs))


Given: TypeAlias = pa.Table | Offered | ContentChange


@dataclass(frozen=True)
class MemberWrite:
    """One of the writes of a transaction.

    Attributes:
        name: the collection, as the transaction calls it.
        given: what it writes.
        upper: a frontier that all times must be before; None: there is none.
    """

    name: str
    given: Given
    upper: Frontier | None = None


def offered_of(shard: Shard, given: object) -> Offered | None:
    """Read a batch, the bytes of an upload, or a list of these; None if `given` is none of them.

    Raises:
        UsageError: one is for another collection, or is given twice.
        CorruptionError, FormatTooNew: the bytes are damaged, or of a newer version.
    """
    found: Sequence[object] = given if isinstance(given, list | tuple) else [given]
    if not found or not all(isinstance(one, Batch | bytes) for one in found):
        return None
    batches = tuple(one for one in found if isinstance(one, Batch))
    check_own(shard, batches)
    runs, checked = uploaded(shard, [one for one in found if isinstance(one, bytes)])
    minimum = Frontier.of(shard.spec.domain.minimum)
    upper = minimum
    for batch in batches:
        runs += batch.hollow.runs
        checked = minimum
        # A closed upper counts as none: it would close the whole group for good, which users must ask for.
        upper = upper if batch.bounds.upper.closed else upper.join(batch.bounds.upper)
    offered = Offered(runs, checked, upper, batches)
    check_once([part.name for part in offered.parts], "an upload")
    return offered


def has_times(shard: Shard, given: Given) -> bool:
    """Whether the rows have times of their own."""
    match given:
        case Offered():
            return True
        case RowChanges(columns=EventColumns()):
            return given.time is not None or has_times(shard, as_table(given.table))
        case pa.Table():
            return bool(set(shard.spec.domain.columns) & set(given.column_names))
        case _:
            return given.time is not None


def check_fits(shard: Shard, given: Given) -> None:
    """Refuse a table whose columns do not fit the collection. Looks at no rows. Usually no store call.

    Raises:
        InvalidUpdates: a column does not fit; names it.
    """
    if isinstance(given, Offered):
        return
    if not isinstance(given, pa.Table | RowChanges):
        check_total(shard.spec)
        if isinstance(given, Deletion):
            bind(ReadOptions(where=given.where), shard.version().spec.schema)
        return
    table = as_table(given.table if isinstance(given, RowChanges) else given).slice(0, 0)
    at = None if has_times(shard, table) else shard.spec.domain.minimum
    columns = given.columns if isinstance(given, RowChanges) else None

    def fits() -> None:
        spec = shard.version_of(shard.known()).spec
        if columns is None:
            normalized(spec, table, at)
            return
        columns.check(spec.schema, spec.domain)
        read_events(
            table, spec.schema, spec.domain, columns, time=at, optional=spec.optional, dropped=spec.dropped
        )

    remade(shard, fits)

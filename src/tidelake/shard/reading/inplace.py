"""Divides a snapshot into parts that other readers may read as they lie there, and rows that stand apart.

Owns the choice of these parts, and of the rows in them that a reader must skip. Must not know the readers,
nor the form in which they are told.

INVARIANT: the rows of `parts` that are not `gone`, each once, and the rows `apart`, each as often as its
diff says, are the snapshot. A part is read in place if it is stored, all of it is seen at the time, and it
takes nothing back; its columns have the types of now, and a column has one name in all parts, which is no
other column's. Of each key that has other rows, or rows that are there several times, all rows stand apart.
"""

from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidelake.data.kernel.encode import encode_key
from tidelake.data.keys.keyset import KeySet
from tidelake.data.part.scan import places_in, read_part
from tidelake.model.batch import Part, Run
from tidelake.model.query import AsOf
from tidelake.model.schema import DIFF, Schema
from tidelake.model.selection import Selection
from tidelake.shard.engine.spec import ShardSpec
from tidelake.shard.engine.version import Version
from tidelake.shard.runs.read import rows, sources_of
from tidelake.shard.runs.scope import Scope, Source
from tidelake.store.protocols import BlobStore

Places = npt.NDArray[np.int64]
# Whose name the columns with times and diffs have.
_NO_COLUMN = -1


@dataclass(frozen=True)
class Division:
    """The runs of a snapshot: parts that may be read in place, and the runs without them.

    Attributes:
        names: by the id of a column, the name that it has in the parts.
    """

    parts: tuple[Part, ...]
    others: list[Source]
    needed: list[Source]
    names: Mapping[int, str]

    @property
    def rows_in_place(self) -> int:
        """Rows of the parts."""
        return sum(part.rows for part in self.parts)

    @property
    def rows_apart(self) -> int:
        """Rows that stand apart at least, as far as the state tells."""
        several = sum(part.diff_sum - part.rows for part in self.parts)
        return several + sum(source.run.rows for source in self.others)


@dataclass(frozen=True)
class InPlace:
    """A snapshot for other readers.

    Attributes:
        gone: by the name of a part, the numbers of the rows to leave out, ascending.
        apart: the other rows of the snapshot, with the newest columns, sorted and consolidated.
    """

    parts: tuple[Part, ...]
    gone: Mapping[str, Places]
    apart: Iterator[pa.RecordBatch]


def divide(version: Version, time: int, *, plain: bool) -> Division:
    """Divide the runs of a snapshot of the newest version. No store call."""
    needed, _ = sources_of(version.state, AsOf(time))
    stored = [
        part
        for source in needed
        if plain and not source.run.truncated and source.less is None
        for part in source.run.parts
        if part.inline is None and not part.negative_rows and _last(part) <= time
    ]
    names = _names(version.spec, stored)
    taken = tuple(part for part in stored if part.schema_id in names)
    held = {part.name for part in taken}
    others = [
        replace(source, run=Run(left, source.run.truncated))
        for source in needed
        if (left := tuple(part for part in source.run.parts if part.name not in held))
    ]
    called = {column.id: column.name for column in version.spec.schema.columns}
    return Division(taken, others, needed, called | {k: v for one in names.values() for k, v in one.items()})


def in_place(version: Version, blobs: BlobStore, time: int, division: Division) -> InPlace:
    """The snapshot, from its division. Reads the rows that stand apart, and the keys around them."""
    spec, query = version.spec, AsOf(time)
    if not division.parts:
        return InPlace((), {}, rows(spec, blobs, division.needed, query))
    keys = _keys(spec, blobs, time, division)
    if keys is None:
        return InPlace(division.parts, {}, iter(()))
    scope, gone = Scope(spec, among=keys), dict[str, Places]()
    for part in filter(scope.may_hold, division.parts):
        with blobs.open(part.name) as file:
            found = places_in(file, part, spec.written_under(part.schema_id), spec.domain, keys)
        if len(found):
            gone[part.name] = found
    return InPlace(division.parts, gone, rows(spec, blobs, division.needed, query, among=keys))


def _last(part: Part) -> int:
    last = part.seen_times[1]
    return last if isinstance(last, int) else last[0]


def _names(spec: ShardSpec, parts: Iterable[Part]) -> dict[int, dict[int, str]]:
    """The schemas whose parts any reader reads right, each with the names of its columns by their ids.

    Of schemas that differ in a column's name, those are taken whose parts have the most rows. To many readers
    names that differ by case only are one name.
    """
    rows = Counter[int]()
    for part in parts:
        rows[part.schema_id] += part.rows
    types = {column.id: column.type for column in spec.schema.columns}
    owners = {column.name.casefold(): column.id for column in spec.schema.columns}
    owners |= dict.fromkeys((*spec.domain.columns, DIFF), _NO_COLUMN)
    names, found = dict[int, str](), dict[int, dict[int, str]]()
    for id_, _ in rows.most_common():
        columns = spec.written_under(id_).columns
        owned = {one.name.casefold(): one.id for one in columns}
        if len(owned) == len(columns) and all(
            types.get(one.id, one.type) == one.type
            and owners.get(one.name.casefold(), one.id) == one.id
            and names.get(one.id, one.name) == one.name
            for one in columns
        ):
            found[id_] = {one.id: one.name for one in columns}
            names |= found[id_]
            owners |= owned
    return found


def _keys(spec: ShardSpec, blobs: BlobStore, time: int, division: Division) -> KeySet | None:
    """The keys with rows that cannot be read in place; None if there are none."""
    names = tuple(column.name for column in spec.schema.key)
    found = [
        encode_key(batch, spec.schema)
        for batch in rows(spec, blobs, division.others, AsOf(time), selection=Selection(columns=names))
        if batch.num_rows
    ]
    for part in division.parts:
        if part.diff_sum != part.rows:
            schema = spec.written_under(part.schema_id)
            found += [encode_key(batch, schema) for batch in _several(spec, blobs, part, schema)]
    distinct = pa.chunked_array(found, pa.binary()).unique()
    return KeySet(distinct.take(pc.sort_indices(distinct))) if len(distinct) else None


def _several(spec: ShardSpec, blobs: BlobStore, part: Part, schema: Schema) -> Generator[pa.RecordBatch]:
    """The rows of a part that are there several times: keys and diffs."""
    names = [*(column.name for column in schema.key), DIFF]
    with blobs.open(part.name) as file:
        for batch in read_part(
            file, part, schema, spec.domain, batch_rows=spec.config.row_group_rows, columns=names
        ):
            kept = batch.filter(pc.not_equal(batch.column(DIFF), 1))
            if kept.num_rows:
                yield kept

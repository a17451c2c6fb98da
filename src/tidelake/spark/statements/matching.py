"""Which rows of its target a MERGE can match, if few rows are its source: those of the source's keys.

Owns when the condition of a MERGE says so. Then this process takes the source and looks its keys up, instead
of having Spark read and join the whole target; and it makes the updates itself where whole rows are replaced.

INVARIANT: a row of the target that is left out matches no row of the source.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import types as t
from sqlglot import exp

from tidelake.data.ingest.convert import convert
from tidelake.data.kernel.encode import encode_key
from tidelake.data.kernel.sums import opposite
from tidelake.data.kernel.types import schema_from_arrow
from tidelake.data.sql.statement import Statement
from tidelake.lake.api.collection import Collection
from tidelake.model.frontier import Frontier
from tidelake.model.schema import DIFF
from tidelake.model.time import Time
from tidelake.spark.columns import frame_arrow, frame_schema, holds
from tidelake.spark.versions import arrow_schema
from tidelake.spark.writing.running import LOOKED_UP_BYTES, fetched
from tidelake.state.write.staging import Seen

# What comes to this process and goes back to Spark unchanged.
_PLAIN = (
    t.BooleanType,
    t.IntegralType,
    t.FractionalType,
    t.StringType,
    t.BinaryType,
    t.DateType,
    t.TimestampType,
    t.TimestampNTZType,
)


@dataclass(frozen=True)
class ChangedContents:
    """The contents that a statement changes.

    Attributes:
        upper: before the change.
        seen: the state.
        at: the time of the change.
        as_of: the time as of which they are read; None: there are none.
        staged: whether something is staged, which the read takes in.
    """

    upper: Frontier
    seen: Seen
    at: int
    as_of: Time | None
    staged: bool


@dataclass(frozen=True)
class KeyEquality:
    """What the condition of a MERGE says of keys.

    Attributes:
        columns: the columns of the source that equal the key columns where a row matches, in their order.
        is_all: whether it says nothing else.
    """

    columns: tuple[str, ...]
    is_all: bool


@dataclass(frozen=True)
class Matchable:
    """The source of a MERGE, and the rows of the target that it can match.

    Attributes:
        source: its rows.
        schema: its columns in Spark.
        keys: the encoded key of each row of the source.
        target: the rows of these keys: the columns of the collection, times and `_diff`.
        target_keys: their encoded keys.
    """

    source: pa.Table
    schema: t.StructType
    keys: pa.Array
    target: pa.Table
    target_keys: pa.Array

    @property
    def once(self) -> bool:
        """Whether the source has each key once: then it matches no row of the target twice."""
        return len(self.keys.unique()) == len(self.keys)


def key_equality(parsed: Statement, target: str, source: str, key: Sequence[str]) -> KeyEquality | None:
    """What the condition of a MERGE says of keys; None if it does not name all key columns."""
    if target.casefold() == source.casefold():
        return None
    condition = parsed.tree.args["on"].unnest()
    terms = [one.unnest() for one in condition.flatten()] if isinstance(condition, exp.And) else [condition]
    equal: dict[str, str] = {}
    for term in terms:
        if isinstance(term, exp.EQ):
            for one, other in ((term.left, term.right), (term.right, term.left)):
                if _is_of(one, target) and _is_of(other, source):
                    equal.setdefault(one.name.casefold(), other.name)
    wanted = [name.casefold() for name in key]
    if not set(wanted) <= set(equal):
        return None
    return KeyEquality(tuple(equal[name] for name in wanted), len(terms) == len(wanted))


def matchable(
    collection: Collection, source: DataFrame, equality: KeyEquality | None, contents: ChangedContents
) -> Matchable | None:
    """What a MERGE can match; None if its condition does not say, or the source is not small."""
    if equality is None or not _fits(collection, source, equality.columns):
        return None
    batches = fetched(source)
    if batches is None:
        return None
    rows = pa.Table.from_batches(batches, None if batches else arrow_schema(source.schema))
    schema = schema_from_arrow(collection.schema, collection.key)
    key = pa.schema([collection.schema.field(name) for name in collection.key])
    asked = pa.Table.from_arrays(
        [_named(rows, name).cast(one.type) for name, one in zip(equality.columns, key, strict=True)],
        key.names,
    )
    # Null equals nothing, so no row with one is in the target's.
    target = collection.update_schema.empty_table()
    if contents.as_of is not None:
        keys, at = asked.drop_null(), contents.as_of
        target = collection.lookup(keys, at, staged=contents.staged, times="int64")
    return Matchable(rows, source.schema, encode_key(asked, schema), target, encode_key(target, schema))


def replacements(
    collection: Collection, found: Matchable, *, updates: bool, inserts: bool
) -> pa.Table | None:
    """The updates of a MERGE that replaces whole rows, and whose condition is that keys are equal.

    Returns:
        Rows with the columns of the collection and `_diff`, of Spark's types; None if values have to be
        converted, or a row of the target may match several of the source.
    """
    own = frame_arrow(collection.schema)
    given = {field.name.casefold(): field.dataType for field in found.schema}
    if not found.once or any(
        given.get(field.name.casefold()) != field.dataType for field in frame_schema(collection.schema)
    ):
        return None
    wanted = pa.schema([*(field.with_nullable(True) for field in own), (DIFF, pa.int64())])
    new = pa.Table.from_arrays([_named(found.source, name) for name in own.names], own.names)
    pieces: list[pa.Table] = []
    if updates:
        count = found.target.column(DIFF)
        came = new.take(pc.index_in(found.target_keys, value_set=found.keys))
        pieces.append(found.target.select(own.names).append_column(DIFF, opposite(count)))
        pieces.append(came.append_column(DIFF, count))
    if inserts:
        alone = pc.invert(pc.is_in(found.keys, value_set=found.target_keys))
        fresh = new.filter(alone)
        pieces.append(fresh.append_column(DIFF, pa.repeat(pa.scalar(1, pa.int64()), fresh.num_rows)))
    batches = [convert(batch, wanted) for piece in pieces for batch in piece.to_batches()]
    return pa.Table.from_batches(batches, wanted)


def _named(rows: pa.Table, name: str) -> pa.ChunkedArray:
    """A column by its name, of which Spark ignores the case."""
    (found,) = (one for one in rows.column_names if one.casefold() == name.casefold())
    return rows.column(found)


def _is_of(node: exp.Expr, alias: str) -> bool:
    """Whether it is a column of the table with an alias, and no field of one."""
    return isinstance(node, exp.Column) and [part.name.casefold() for part in node.parts[:-1]] == [
        alias.casefold()
    ]


def _fits(collection: Collection, source: DataFrame, keys: Sequence[str]) -> bool:
    """Whether the source can come here, and its keys equal ours for Spark iff they are the same key for us.

    Both take NaN for one value and -0.0 for 0.0 (`tidelake.data.kernel.encode`), and text by its bytes.
    """
    given = {field.name.casefold(): field.dataType for field in source.schema}
    own = {name.casefold() for name in collection.schema.names}
    if len(given) < len(source.columns) or len(own) < len(collection.schema.names):
        return False
    if not all(map(_is_plain, given.values())):
        return False
    for name, key in zip(keys, collection.key, strict=True):
        column = pa.schema([collection.schema.field(key)])
        kind = given.get(name.casefold())
        # Other types are not the same in Spark.
        same = frame_arrow(column).field(0).type == column.field(0).type
        if kind is None or not same or not holds(frame_schema(column)[0].dataType, kind):
            return False
    return collection.state().spine.totals.size_bytes <= LOOKED_UP_BYTES


def _is_plain(kind: t.DataType) -> bool:
    return isinstance(kind, _PLAIN) and (not isinstance(kind, t.StringType) or kind == t.StringType())

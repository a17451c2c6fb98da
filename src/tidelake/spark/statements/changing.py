"""Statements that change a collection, as updates in one commit.

Owns which updates a statement means. The rows to be changed are read at the last closed time, and the commit
is refused if anything was written since; then all of it is done again. Spark evaluates every expression.

INVARIANT: what is committed is the statement carried out on the contents just before the commit; of an INSERT
that does not read its own collection, those that it reads of others.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

import pyarrow as pa
from pyspark.errors import ArithmeticException
from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql import types as t

from tidelake.data.ingest.convert import convert
from tidelake.data.sql.changes import (
    Action,
    Insertion,
    RowChange,
    TextSpan,
    change,
    in_order,
    insertion,
    places,
)
from tidelake.data.sql.statement import Statement, quoted, shown
from tidelake.errors import UpperMismatch, UsageError
from tidelake.feeds.loop import CommitPoint, TriedWrite, committed
from tidelake.feeds.reports import WriteReport
from tidelake.lake.api.collection import Collection
from tidelake.lake.arguments.tokens import noted
from tidelake.model import time as times
from tidelake.model.frontier import Frontier
from tidelake.model.schema import DIFF
from tidelake.model.time import Time
from tidelake.spark.columns import check_case, frame_arrow, frame_schema
from tidelake.spark.envelopes.updates import Updates
from tidelake.spark.reading.frames import snapshot
from tidelake.spark.statements.assigning import assigned
from tidelake.spark.statements.matching import (
    ChangedContents,
    KeyEquality,
    Matchable,
    key_equality,
    matchable,
    replacements,
)
from tidelake.spark.statements.tables import SqlTables, mark, piece
from tidelake.spark.statements.views import uppers_shown
from tidelake.spark.versions import arrow_schema, frame_of, spark_schema
from tidelake.spark.writing.commit import write
from tidelake.spark.writing.running import few_bytes, taken
from tidelake.state.write.staging import Seen

_TARGET, _SOURCE = "target", "source"
_COUNT = "_tidelake_diff"  # a name that no column can have


def changed(parsed: Statement, tables: SqlTables) -> DataFrame:
    """Carry out a statement that changes a collection; see `tidelake.spark.sql`."""
    if tables.as_of is not None:
        raise UsageError("as_of is for queries: a statement that changes rows reads the newest ones")
    try:
        if parsed.kind == "insert":
            return _inserted(parsed, tables)
        if tables.args is not None and not isinstance(tables.args, Mapping):
            raise UsageError(
                "args of a statement that changes rows is a dict: write :name, not ?, in the text"
            )
        asked = change(parsed)
        collection = tables.target(parsed, asked.target)
        return committed(_TriedStatement(collection, lambda: _Attempt(parsed, asked, tables).done()))
    except ArithmeticException as error:
        # Spark advises what would store null, or other numbers.
        what = re.split(r"\. |\n", str(error))[0]
        remedy = "compute in a wider type, such as CAST(n AS decimal(38, 0))"
        remedy = "divide by nullif(n, 0)" if "DIVIDE_BY_ZERO" in what else remedy
        raise UsageError(
            f"{shown(parsed.text)}: {what}: nothing was written; {remedy}, or leave such rows out"
        ) from error


@dataclass
class _TriedStatement(TriedWrite[DataFrame]):
    """A statement on the newest rows of its target."""

    target: Collection
    attempt: Callable[[], DataFrame]
    tries_max: int | None = 5

    def newest(self) -> CommitPoint:
        """As `TriedWrite`; the attempt says it if all times are closed."""
        state = self.target.state()
        return CommitPoint(state.upper, state.seqno)

    def once(self, at: CommitPoint) -> DataFrame:  # noqa: ARG002
        """As `TriedWrite`."""
        return self.attempt()


def _inserted(parsed: Statement, tables: SqlTables) -> DataFrame:
    asked = insertion(parsed)
    collection = tables.target(parsed, asked.target)
    others = [one for i, one in enumerate(parsed.tables) if i != asked.target and one.version is None]
    named = any(tables.means(one, collection) for one in others)

    def attempt() -> DataFrame:
        read = _contents_read(tables, collection) if named else None
        return _insert(parsed, asked, tables, collection, read)

    return committed(_TriedStatement(collection, attempt))


def _insert(
    parsed: Statement,
    asked: Insertion,
    tables: SqlTables,
    collection: Collection,
    read: ChangedContents | None,
) -> DataFrame:
    """Insert the rows of a query: only on the contents that it reads.

    None: at the upper that a view shows, or whenever if no view reads the collection.
    """
    own = None if read is None else (collection, read.at)
    frames = tables.frames(parsed, apart=[asked.target], own=own)
    text = piece(parsed, frames, asked.before) + piece(parsed, frames, asked.query)
    rows = tables.run(text, frames)
    upper = _upper_read(rows, collection, None if read is None else read.upper)
    schema = frame_schema(collection.schema)
    names = rows.columns if asked.by_name else list(asked.columns or schema.names)
    if len(rows.columns) != len(names):
        raise UsageError(
            f"{shown(parsed.text)} has {len(rows.columns)} columns for {len(names)} of {collection.name!r}: "
            f"name those that are given, of {', '.join(schema.names)}"
        )
    if asked.columns is None and not asked.by_name and not in_order(collection.state().schema, rows.columns):
        listed = ", ".join(quoted(name, "spark") for name in schema.names)
        raise UsageError(
            f"{shown(parsed.text)}: keys come first in {collection.name!r}, unlike where it was made: "
            f"name them, INSERT INTO {collection.name} ({listed}), or write BY NAME"
        )
    given = {field.name: i for i, field in enumerate(_fields(schema, names, collection))}
    kinds, rows = [field.dataType for field in rows.schema], rows.toDF(*_numbered(len(names)))
    made = [
        f.lit(None).cast(one.dataType).alias(one.name)
        if one.name not in given
        else assigned(f.col(f"c{given[one.name]}"), kinds[given[one.name]], one)
        for one in schema
    ]
    new = rows.select(*made)
    if upper is not None:
        time = _next_time(tables, collection, upper) if read is None else read.at
        new = new.withColumn(collection.domain.columns[0], f.lit(time).cast("bigint"))
    seen = None if read is None else read.seen
    return _told(tables, collection, _written(tables, collection, new, upper, read=seen))


def _upper_read(rows: DataFrame, collection: Collection, upper: Frontier | None) -> Frontier | None:
    """The upper at which the rows of a query hold, if they depend on the contents of the collection."""
    for seen in uppers_shown(rows, collection):
        upper = _open_upper(collection) if upper is None else upper
        if seen != upper:
            remedy = (
                f"a view shows {collection.name!r} as it was: make the view again, or name the collection in "
                "the statement"
            )
            raise UpperMismatch(seen, upper, remedy=remedy).of(collection.domain.unit)
    return upper


def _open_upper(collection: Collection) -> Frontier:
    """The upper, before anything is read: whatever is written after it makes the commit fail."""
    if not collection.domain.total_order:
        raise UsageError(
            f"times of {collection.domain} have no next one: write rows with times and _diff by ts.append"
        )
    upper = collection.upper
    if upper.closed:
        raise UsageError(f"all times of {collection.name!r} are closed: nothing can be changed any more")
    return upper


def _next_time(tables: SqlTables, collection: Collection, upper: Frontier) -> Time:
    """The time of a change: the caller's, or the first that is open and, for a clock, not before its time."""
    given = tables.at(collection)
    return times.join(upper.elements[0], collection.distributed.commit_time()) if given is None else given


def _contents_read(tables: SqlTables, collection: Collection) -> ChangedContents:
    """What is read: all that is there at the time of the change, also if it is staged."""
    upper = _open_upper(collection)
    state = collection.distributed.newest_state()
    if state.upper != upper:
        raise UpperMismatch(upper, state.upper).of(collection.domain.unit)
    time = times.parts(_next_time(tables, collection, upper))[0]
    seen = Seen(state.seqno, time)
    if len(state.staged):
        return ChangedContents(upper, seen, time, time, staged=True)
    is_empty = upper.less_equal(collection.domain.minimum)
    last = None if is_empty else upper.just_before().elements[0]
    return ChangedContents(upper, seen, time, last, staged=False)


class _Attempt:
    """One try of an UPDATE, a DELETE or a MERGE."""

    def __init__(self, parsed: Statement, asked: RowChange, tables: SqlTables) -> None:
        self._parsed, self._asked, self._tables = parsed, asked, tables
        self._collection = collection = tables.target(parsed, asked.target)
        self._read = _contents_read(tables, collection)
        self._upper = self._read.upper
        self._schema = frame_schema(collection.schema)
        check_case(tables.spark, self._schema.names)
        self._frames = tables.frames(parsed, apart=[asked.target], own=(collection, self._read.at))
        self._alias = quoted(parsed.tables[asked.target].alias, "spark")
        self._from = f"{mark(_TARGET)} AS {self._alias}"
        self._source: DataFrame | None = None
        self._equality: KeyEquality | None = None
        self._found: Matchable | None = None
        if asked.source is not None:
            self._source = tables.run(f"SELECT * FROM {self._text(asked.source)}", self._frames)
            _upper_read(self._source, collection, self._upper)
            aliases = (parsed.tables[asked.target].alias, self._source_alias)
            self._equality = key_equality(parsed, *aliases, collection.key)
            self._found = matchable(collection, self._source, self._equality, self._read)

    def done(self) -> DataFrame:
        """Commit the updates; nothing is written if there are none."""
        few = self._replacements()
        if few is None:
            self._frames[_TARGET] = self._contents()
            if self._source is not None:
                # A source that gives other rows when it is read again must be read once.
                self._frames[_SOURCE] = (
                    self._source.localCheckpoint()
                    if self._found is None
                    else frame_of(self._tables.spark, self._found.source, self._source.schema)
                )
                self._check_matches()
            rows = reduce(DataFrame.unionByName, self._updates())
            _upper_read(rows, self._collection, self._upper)
            few = self._gathered(rows)
        column, time = self._collection.domain.columns[0], self._read.at
        if few is None:
            return self._done(rows.withColumn(column, f.lit(time).cast("bigint")))
        few = few.append_column(column, pa.repeat(pa.scalar(time, pa.int64()), few.num_rows))
        empty = frame_of(self._tables.spark, few.slice(0, 0), spark_schema(few.schema))
        batches = few.combine_chunks().to_batches()
        return self._done(empty, batches)

    def _done(self, rows: DataFrame, few: Sequence[pa.RecordBatch] | None = None) -> DataFrame:
        report = _written(self._tables, self._collection, rows, self._upper, few, read=self._read.seen)
        return _told(self._tables, self._collection, report)

    def _replacements(self) -> pa.Table | None:
        """The updates of a MERGE that replaces and adds whole rows; None if it is another one."""
        kinds = {one.kind for one in self._asked.actions}
        whole = all(one.columns is None and one.condition is None for one in self._asked.actions)
        if self._found is None or self._equality is None or not self._equality.is_all or not whole:
            return None
        return replacements(
            self._collection, self._found, updates="update" in kinds, inserts="insert" in kinds
        )

    def _gathered(self, rows: DataFrame) -> pa.Table | None:
        """What Spark makes of few rows, in this process: Spark takes joins of small tables for large."""
        few = None if self._found is None else taken(rows, few_bytes(self._frames[_SOURCE]))
        if few is None:
            return None
        here = pa.Table.from_batches(few, None if few else arrow_schema(rows.schema))
        return here.rename_columns(rows.columns)

    def _updates(self) -> Iterator[DataFrame]:
        before: list[str] = []
        for matched in (True, False):
            before.clear()
            for action in (one for one in self._asked.actions if one.matched == matched):
                own = "TRUE" if action.condition is None else self._condition(action.condition)
                where = " AND ".join([own, *(f"NOT coalesce({one}, FALSE)" for one in before)])
                yield self._changed(action, where) if matched else self._new(action, where)
                before.append(own)

    def _changed(self, action: Action, where: str) -> DataFrame:
        """The rows that go, and those that come for them."""
        old = [f"{self._alias}.{quoted(name, 'spark')}" for name in self._schema.names]
        texts, fields = self._values(action) if action.kind == "update" else ([], [])
        source = self._from
        if self._asked.on is not None:
            kind = "LEFT SEMI JOIN" if self._only_deletes else "JOIN"
            source = f"{self._from} {kind} {self._other} ON {self._condition(self._asked.on)}"
        shown = ", ".join([*old, f"{self._alias}.{_COUNT}", *texts])
        frame = self._tables.run(f"SELECT {shown} FROM {source} WHERE {where}", self._frames)
        kinds = [field.dataType for field in frame.schema]
        frame = frame.toDF(*_numbered(len(kinds)))
        width = len(self._schema)
        count = f.col(f"c{width}")
        places = {field.name: width + 1 + i for i, field in enumerate(fields)}
        gone = [f.col(f"c{i}").alias(field.name) for i, field in enumerate(self._schema)]
        if action.kind == "delete":
            return frame.select(*gone, (-count).alias(DIFF))
        came = [
            gone[i]
            if field.name not in places
            else assigned(f.col(f"c{places[field.name]}"), kinds[places[field.name]], field)
            for i, field in enumerate(self._schema)
        ]
        both = f.array(f.struct(*gone, (-count).alias(DIFF)), f.struct(*came, count.alias(DIFF)))
        return frame.select(f.explode(both).alias("u")).select("u.*")

    def _new(self, action: Action, where: str) -> DataFrame:
        """Rows of the source that match none of the target."""
        texts, fields = self._values(action)
        on = self._condition(self._asked.on) if self._asked.on is not None else "FALSE"
        source = f"{self._other} LEFT ANTI JOIN {self._from} ON {on}"
        frame = self._tables.run(f"SELECT {', '.join(texts)} FROM {source} WHERE {where}", self._frames)
        kinds, places = (
            [field.dataType for field in frame.schema],
            {one.name: i for i, one in enumerate(fields)},
        )
        frame = frame.toDF(*_numbered(len(kinds)))
        made = [
            f.lit(None).cast(one.dataType).alias(one.name)
            if one.name not in places
            else assigned(f.col(f"c{places[one.name]}"), kinds[places[one.name]], one)
            for one in self._schema
        ]
        return frame.select(*made, f.lit(1).cast("bigint").alias(DIFF))

    def _check_matches(self) -> None:
        """Refuse a source of which several rows would change one row of the target."""
        matched = [one for one in self._asked.actions if one.matched]
        if not matched or self._only_deletes or self._asked.on is None:
            return
        if self._found is not None and self._found.once:
            return
        conditions = [one.condition for one in matched]
        either = " OR ".join(
            "TRUE" if one is None else f"coalesce({self._condition(one)}, FALSE)" for one in conditions
        )
        columns = ", ".join(f"{self._alias}.{quoted(name, 'spark')}" for name in self._schema.names)
        on = self._condition(self._asked.on)
        text = (
            f"SELECT 1 FROM {self._from} JOIN {self._other} ON {on} WHERE {either} GROUP BY {columns} "
            "HAVING count(*) > 1 LIMIT 1"
        )
        if self._tables.run(text, self._frames).head(1):
            raise UsageError(
                "several rows of the source match one row of the target, which would become several: give "
                "the source one row for each key, or use ts.upsert(..., order_by=...)"
            )

    def _values(self, action: Action) -> tuple[list[str], list[t.StructField]]:
        """The texts of new values, and the columns that they are for."""
        if action.columns is None:
            source = quoted(self._source_alias, "spark")
            return [f"{source}.{quoted(name, 'spark')}" for name in self._schema.names], list(self._schema)
        fields = _fields(self._schema, list(action.columns), self._collection)
        return [f"({self._text(value)}\n)" for value in action.values], fields

    def _contents(self) -> DataFrame:
        """The rows of the target that may match, and how often each is there."""
        names = [quoted(name, "spark") for name in self._schema.names]
        if self._found is not None:
            schema = self._collection.update_schema
            rows = [convert(batch, frame_arrow(schema)) for batch in self._found.target.to_batches()]
            here = pa.Table.from_batches(rows, frame_arrow(schema))
            frame = frame_of(self._tables.spark, here, frame_schema(schema))
        elif self._read.as_of is None:
            empty = self._tables.spark.createDataFrame([], self._schema)
            frame = empty.withColumn(DIFF, f.lit(0).cast("bigint"))
        else:
            frame = snapshot(
                self._tables.spark,
                self._collection,
                self._read.as_of,
                hold_for=self._tables.hold_for,
                staged=self._read.staged,
            )
        return frame.select(*names, f.col(DIFF).alias(_COUNT))

    def _condition(self, span: TextSpan) -> str:
        return f"({self._text(span)}\n)"

    def _text(self, span: TextSpan) -> str:
        return piece(self._parsed, self._frames, span)

    @property
    def _only_deletes(self) -> bool:
        """Whether all matched rows go: then it does not matter how often they match."""
        matched = [one for one in self._asked.actions if one.matched]
        return len(matched) == 1 and matched[0].kind == "delete" and matched[0].condition is None

    @property
    def _source_alias(self) -> str:
        return str(self._parsed.tree.args["using"].alias_or_name) or _SOURCE

    @property
    def _other(self) -> str:
        return f"{mark(_SOURCE)} AS {quoted(self._source_alias, 'spark')}"


def _fields(schema: t.StructType, names: list[str], collection: Collection) -> list[t.StructField]:
    """The columns of these names, which may differ in case. Raises as `places`."""
    return [schema[i] for i in places(schema.names, names, collection.name, str.casefold)]


def _numbered(count: int) -> list[str]:
    return [f"c{i}" for i in range(count)]


def _written(
    tables: SqlTables,
    collection: Collection,
    rows: DataFrame,
    lower: Frontier | None = None,
    few: Sequence[pa.RecordBatch] | None = None,
    *,
    read: Seen | None = None,
) -> WriteReport:
    with noted(tables.author, tables.message):
        title = f"tidelake: write to {collection.name}"
        at = tables.at(collection) if lower is None else None
        return write(collection, rows, Updates(at), lower=lower, title=title, few=few, read=read)


def _told(tables: SqlTables, collection: Collection, report: WriteReport) -> DataFrame:
    upper = collection.domain.text(report.appended.upper)
    told = pa.table({"updates": [report.updates], "upper": [upper]})
    return frame_of(tables.spark, told, spark_schema(told.schema))

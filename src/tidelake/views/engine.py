"""What computes a view: an engine that carries texts out over named tables, and speaks one dialect.

Owns the words between a refresh and an engine; must not know any engine.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from tidelake.data.ingest.updates import normalize
from tidelake.lake.api.collection import Collection
from tidelake.lake.api.embedded import Batches, Scan
from tidelake.lake.api.handle import shard_of
from tidelake.lake.groups.transactions import Transaction
from tidelake.model.frontier import Frontier
from tidelake.model.query import AsOf, Updates
from tidelake.views.definition import Definition
from tidelake.views.plan import Columns, ViewPlan
from tidelake.views.reach import Need

Schemas: TypeAlias = Callable[[str], Mapping[str, str] | None]
"""The columns of a collection, with the engine's names of their types; None: there is no such one."""

Named: TypeAlias = Sequence[tuple[str, str, str]]
"""Columns by name, and under which name and type they come."""


class KeyRows(Protocol):
    """Values to look for, as `pa.Table`, which is one."""

    @property
    def num_rows(self) -> int:
        """How many there are."""
        ...

    @property
    def column_names(self) -> list[str]:
        """The columns to look in."""
        ...

    def select(self, columns: list[str]) -> "KeyRows":
        """Some of the columns."""
        ...

    def rename_columns(self, names: list[str]) -> "KeyRows":
        """The same under other names."""
        ...


class Found(Scan):
    """Rows of a collection, and how they are found, for people."""

    def __init__(self, schema: pa.Schema, batches: Batches, how: str) -> None:
        super().__init__(schema, batches)
        self.how = how


class StoredScan(Found):
    """Rows of a collection, which an engine may read as a stream, or by means of its own.

    Attributes:
        of: the collection.
        names: the columns.
        asked: what is read of it, one after the other; and updates that are yet to be committed.
        keys: only rows with these values are needed; the stream has all.
        every: updates are moved to the next multiple of it.
        first: earlier updates are moved to this time.
    """

    def __init__(
        self,
        schema: pa.Schema,
        batches: Batches,
        of: Collection,
        names: Sequence[str],
        asked: "Sequence[AsOf | Updates | Output]",
        *,
        keys: KeyRows | None = None,
        every: int = 1,
        first: int = 0,
        how: str = "",
    ) -> None:
        super().__init__(schema, batches, how)
        self.of, self.names, self.asked, self.keys = of, names, asked, keys
        self.every, self.first = every, first


class Output(Protocol):
    """Rows that an engine has computed for a collection: columns, `_time` and `_diff`."""

    @property
    def num_rows(self) -> int:
        """How many there are."""
        ...

    @property
    def table(self) -> pa.Table:
        """The rows, in the memory of this process."""
        ...

    def called(self, names: Sequence[str]) -> "Output":
        """The same under other names."""
        ...

    def without(self, name: str) -> "Output":
        """Without a column."""
        ...

    def having(self, name: str, value: int, type_: pa.DataType) -> "Output":
        """With one value in a column, which may be a new one."""
        ...

    def within(self, name: str, first: int, last: int) -> "Output":
        """Those whose time is neither before one time nor past another one."""
        ...

    def normalized(self, of: Collection) -> "Output":
        """As a read of the collection shows them, once they are written.

        Raises:
            InvalidUpdates: it cannot have one of them; other processes find this when they write it.
        """
        ...

    def append_to(self, of: Collection, lower: Frontier, upper: Frontier) -> None:
        """Write them by compare-and-append."""
        ...

    def write_in(self, transaction: Transaction, of: Collection, lower: Frontier, upper: Frontier) -> None:
        """Add them to a transaction."""
        ...


@dataclass(frozen=True)
class LocalOutput:
    """Rows in the memory of this process; see `Output`."""

    table: pa.Table

    @property
    def num_rows(self) -> int:
        """See `Output`."""
        return int(self.table.num_rows)

    def called(self, names: Sequence[str]) -> "LocalOutput":
        """See `Output`."""
        return LocalOutput(self.table.rename_columns(list(names)))

    def without(self, name: str) -> "LocalOutput":
        """See `Output`."""
        return LocalOutput(self.table.drop_columns([name]))

    def having(self, name: str, value: int, type_: pa.DataType) -> "LocalOutput":
        """See `Output`."""
        column = pa.repeat(pa.scalar(value, type_), self.num_rows)
        place = self.table.schema.get_field_index(name)
        if place < 0:
            return LocalOutput(self.table.append_column(name, column))
        return LocalOutput(self.table.set_column(place, name, column))

    def within(self, name: str, first: int, last: int) -> "LocalOutput":
        """See `Output`."""
        times = self.table[name]
        wanted = pc.and_(pc.greater_equal(times, first), pc.less_equal(times, last))
        return LocalOutput(self.table.filter(wanted))

    def normalized(self, of: Collection) -> "LocalOutput":
        """See `Output`."""
        return LocalOutput(normalize(self.table, shard_of(of).known().schema, of.domain))

    def append_to(self, of: Collection, lower: Frontier, upper: Frontier) -> None:
        """See `Output`."""
        of.compare_and_append(self.table, lower, upper)

    def write_in(self, transaction: Transaction, of: Collection, lower: Frontier, upper: Frontier) -> None:
        """See `Output`."""
        transaction.write(of.name, self.table, lower=lower, upper=upper)


class Outgrown(Exception):
    """A span has more rows than the process of an engine is to hold; `by` carries it out instead."""

    def __init__(self, by: "Engine") -> None:
        super().__init__()
        self.by = by


class Engine(Protocol):
    """Carries texts out. Tables that it makes are there until `clear`.

    Any of its methods that makes a table may raise `Outgrown`.
    """

    @property
    def place(self) -> str:
        """Where rows are computed, as `explain` shows it; empty: always in this process."""
        ...

    @property
    def holds_rows(self) -> bool:
        """Whether what it computes is in the memory of this process."""
        ...

    @property
    def dialect(self) -> str:
        """Of the queries that it answers."""
        ...

    @property
    def version(self) -> str:
        """Its name, and its version."""
        ...

    @property
    def settings(self) -> tuple[tuple[str, str], ...]:
        """What of it a user can set, and changes what a query means: names and values."""
        ...

    @property
    def has_sort_keys(self) -> bool:
        """Whether it tells an order as bytes (`create_sort_key`), and first values (`max(x, n)`)."""
        ...

    @property
    def errors(self) -> tuple[type[Exception], ...]:
        """What it raises if it cannot compute a text."""
        ...

    def compiled(self, sql: str, schema_of: Schemas) -> ViewPlan:
        """The plan of a query; see `tidelake.views.query.compile`."""
        ...

    def types_of(self, schema: pa.Schema) -> dict[str, str]:
        """Its types of the columns of a collection, by name."""
        ...

    def schema_of(self, columns: Columns) -> pa.Schema:
        """Columns as a collection has them."""
        ...

    def empty(self, table: str, columns: Columns) -> None:
        """Make a table without rows."""
        ...

    def fill(self, table: str, columns: Columns, query: str, most: int | None = None) -> int:
        """Make a table of a query, cast to columns by position; returns how many rows it has.

        With `most`, it has no more, and this may be returned instead.
        """
        ...

    def call(self, table: str, query: str) -> None:
        """Give a query a name."""
        ...

    def take(self, table: str, columns: Columns, scan: Scan, time: int | None) -> int:
        """Make a table of a stream of rows with `_time` and `_diff`; returns how many it has.

        Columns are by position. All rows get a `time`; None: they keep theirs, and equal rows of one time are
        added if that moves no rows.
        """
        ...

    def read(self, table: str, columns: Named, timed: Named, order: str | None) -> Output:
        """The rows of a table that was made: columns, an expression over `i0` as `o`, times and counts."""
        ...

    def values(self, table: str, need: Need) -> KeyRows:
        """The distinct values that are looked for, as `tidelake.views.reach.distinct` says."""
        ...

    def times(self, table: str, column: str) -> list[int]:
        """The values of a column of a table that was made, ascending. No job if it `holds_rows`."""
        ...

    def answer(self, query: str) -> pa.Table:
        """The rows of a query."""
        ...

    def clear(self) -> None:
        """Remove all tables. What was read of them stays until `release`."""
        ...

    def release(self) -> None:
        """Let go of what was read."""
        ...

    def differing(
        self, text: str, tables: Mapping[str, StoredScan], stored: StoredScan
    ) -> tuple[int, pa.Table, pa.Table]:
        """A user's query over whole tables, by the engine alone, beside what is stored of its answer.

        Returns:
            The number of its rows, the rows that are not stored, and the stored rows that it has not. NaN is
            one value, and -0.0 is 0.0.

        Raises:
            UsageError: the engine refuses it; has its reason.
        """
        ...


Engines: TypeAlias = Callable[[Definition], Engine | None]
"""The engine that a view needs; None: it is not here."""


def reason(error: Exception) -> str:
    """What an engine says, in one line, without places in a text that no user wrote."""
    said = str(error).partition("\n\nLINE ")[0].partition(" SQLSTATE: ")[0]
    return " ".join(said.split())

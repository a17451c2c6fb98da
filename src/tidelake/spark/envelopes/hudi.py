"""The CDC of a Hudi table, as Spark reads it with `hoodie.datasource.query.incremental.format` = `cdc`.

Owns its columns, which all are texts: `op` (i, u, d), `ts_ms` (the instant of the commit, such as
20260131120000123), and the rows as JSON in `before` and `after`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import types as t

from tidelake.cdc.core.ops import UNKNOWN, Terms
from tidelake.cdc.parse.parser import ChangeParser
from tidelake.errors import InvalidUpdates, UsageError
from tidelake.feeds.debezium import Debezium, Target
from tidelake.feeds.reading import ArrowMap
from tidelake.lake.api.collection import Collection
from tidelake.model.frontier import Frontier
from tidelake.spark.envelopes.debezium import EventFrames
from tidelake.spark.tasks import one_thread

_COLUMNS = ("op", "ts_ms", "before", "after")
_TIME = "ts_ms"
_TERMS = Terms(
    event="row of Hudi's CDC",
    ops={"c": "i"},
    known="i, u and d",
    whole="set hoodie.table.cdc.supplemental.logging.mode=DATA_BEFORE_AFTER at the table, or "
    "old_rows='stored'",
    no_time=f"{_TIME!r} is no instant of Hudi, such as 20260131120000123",
)


class HudiParser(ChangeParser):
    """Reads the texts that `_texts` makes."""

    @property
    def terms(self) -> Terms:
        """Those of Hudi."""
        return _TERMS

    def origin(self, line: bytes | None) -> bytes | None:
        """A text with the `op` that the row has."""
        for made, given in ((b'{"op":"c"', b'{"op":"i"'), (b'{"op":"' + UNKNOWN.encode(), b'{"op":"')):
            if line is not None and line.startswith(made):
                return given + line.removeprefix(made)
        return line


@dataclass(frozen=True)
class Hudi(Debezium):
    """Each row is one of a Hudi table's CDC.

    The collection's times are a counter, and the time of a row is its commit's instant as a number, such as
    20260131120000123. An instant says no zone, so it is no time of a clock.

    Attributes:
        time: must not be given.
        encodings: encodings of columns in the rows, such as `at=us`; see `tidelake.data.json.encoding`.
    """

    parses: ClassVar[type[ChangeParser]] = HudiParser
    refuses: ClassVar[frozenset[str]] = frozenset({"time", "idle"})

    def time_of(self, collection: Target) -> str:
        """The field of the time."""
        if self.time is not None:
            raise UsageError(f"time={self.time!r}: the time of Hudi's CDC is {_TIME!r}, so leave it out")
        if collection.domain.unit != "counter":
            raise UsageError(
                f"the instants of Hudi are texts without a zone, and the times of collection "
                f"{collection.name!r} are {collection.domain.unit} since 1970: use one of time 'counter'"
            )
        return _TIME

    @property
    def by_transaction(self) -> bool:
        """False: all rows of a commit have its instant."""
        return False


@dataclass(frozen=True)
class HudiFrames(EventFrames):
    """Each row is one of a Hudi table's CDC."""

    def check(self, frame: t.StructType, collection: Collection) -> None:
        """As `Envelope`."""
        kinds = {field.name: field.dataType for field in frame}
        for name in _COLUMNS:
            if not isinstance(kinds.get(name), t.StringType):
                raise InvalidUpdates(
                    f"the CDC of Hudi has the columns {', '.join(map(repr, _COLUMNS))}, all of type string: "
                    f"{name!r} is {kinds[name].simpleString() if name in kinds else 'missing'}"
                )
        super().check(t.StructType([t.StructField("value", t.StringType())]), collection)

    def prepare(self, frame: DataFrame, collection: Collection) -> DataFrame:
        """As `Envelope`: the columns, or with `old_rows="stored"` the parsed events."""
        chosen = frame.select(*_COLUMNS)
        if self.feed.old_rows == "events":
            return chosen
        texts = chosen.mapInArrow(_Texts(None), "value string")
        return super().prepare(texts, collection)

    def work(self, collection: Collection, columns: Sequence[str], lower: Frontier) -> ArrowMap:
        """As `Envelope`."""
        if _TIME not in columns:
            return super().work(collection, columns, lower)
        return _Texts(super().work(collection, ("value",), lower), tuple(columns))


@dataclass(frozen=True)
class _Texts:
    """In a worker: make Debezium's texts of rows, and do the work of the envelope with them.

    Attributes:
        work: takes a column `value` of texts; None: the texts are the result.
        columns: names of the input columns, in order.
    """

    work: ArrowMap | None
    columns: tuple[str, ...] = _COLUMNS

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """As `ArrowMap`."""
        one_thread()
        named = (batch.rename_columns(list(self.columns)) for batch in batches)
        texts = (pa.RecordBatch.from_arrays([_texts(batch)], names=["value"]) for batch in named)
        return texts if self.work is None else self.work(texts)


def _texts(batch: pa.RecordBatch) -> pa.Array:
    """One text for each row; what is not as it should be stays as it is, for the parser to refuse.

    Other words than Hudi's are marked as unknown, because some of them are Debezium's.
    """
    op, time, before, after = (batch.column(name).cast(pa.string()) for name in _COLUMNS)
    # Older versions of Hudi write seconds only, and take these for the last millisecond.
    whole = pc.match_substring_regex(time, "^[0-9]{17}$")
    seconds = pc.match_substring_regex(time, "^[0-9]{14}$")
    number = pc.case_when(
        pc.make_struct(whole, seconds),
        time,
        pc.binary_join_element_wise(time, "999", ""),
        pa.scalar(None, pa.string()),
    )
    op = pc.fill_null(op, "")
    unknown = pc.binary_join_element_wise(UNKNOWN, op, "")
    kind = pc.if_else(pc.is_in(op, value_set=pa.array(["u", "d"])), op, unknown)
    kind = pc.if_else(pc.equal(op, "i"), "c", kind)
    quoted = pc.replace_substring(pc.replace_substring(kind, "\\", "\\\\"), '"', '\\"')
    null = pa.scalar("null")
    return pc.binary_join_element_wise(
        *('{"op":"', quoted),
        *('","before":', pc.coalesce(before, null), ',"after":', pc.coalesce(after, null)),
        *(',"ts_ms":', pc.coalesce(number, null), "}", ""),
    )

"""Change events of many tables, as Spark brings them; `tidelake.feeds.tables` commits each micro-batch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame

from tidelake.cdc.parse.parser import Late
from tidelake.feeds.batches import Identity, Progress
from tidelake.feeds.survey import Surveyed
from tidelake.feeds.tables import IntoTables, Made
from tidelake.feeds.tabletargets import table_targets
from tidelake.lake.api.lake import Lake
from tidelake.lake.arguments.spans import DurationLike
from tidelake.lake.groups.groupwriter import GroupWriter
from tidelake.spark.envelopes.debezium import of_kafka
from tidelake.spark.writing.exactly_once import Sink
from tidelake.spark.writing.microbatch import planned_by
from tidelake.spark.writing.tablelines import lines_of

DEFAULT_WRITER = "spark-tables"


@dataclass(frozen=True)
class IntoTableFrames(IntoTables):
    """Writes frames of change events to the collections of their tables."""

    def rows(
        self, frame: DataFrame, query: str, batch: int, expected_bytes: int | None
    ) -> tuple[Made, Identity]:
        """As `Into`: what reads the lines."""
        known = Identity.told(planned_by(frame, query, batch))
        options = self.targets.options
        paths = [tuple(str(one).split(".")) for one in (options.get("time"), options.get("order_by")) if one]
        survey = None
        if options.get("time") is None:
            survey = Surveyed.of(self.targets.register, placed=of_kafka(frame.schema))
        return (lambda many: lines_of(frame, expected_bytes, survey, paths, by_tasks=many)), known


def tables_sink(
    lake: Lake,
    into: str,
    *,
    time_unit: str = "counter",
    names: Mapping[str, str] | None = None,
    keys: Mapping[str, Sequence[str]] | Sequence[str] | None = None,
    time: str | None = None,
    late: Late = "refuse",
    order_by: str | None = None,
    encodings: str = "",
    rejects: str | None = None,
    idle: DurationLike | None = None,
    writer: str = DEFAULT_WRITER,
    take_over: bool = False,
    progress: Progress | None = None,
) -> Sink[Any, GroupWriter]:
    """A function for `foreachBatch` that writes the change events of many tables, exactly once.

    Each table has a collection, `INTO.SCHEMA.TABLE`, or `INTO.DATABASE.TABLE` for sources without schemas.
    All of them are in one group: a micro-batch is one commit of all tables, which closes the same times in
    all. The collection INTO is the register: it has a row for each table, with the name of its collection,
    and with the columns as the source described them last.

    The collection of a table is created when its first event is seen, from the schema beside the payload.
    When that schema changes, the collection follows: columns are added, become wider or nullable; one that
    the source dropped stays, and is null. Another change is an error, and nothing of the micro-batch is
    committed.

    Old rows are looked up, as by the envelope `debezium` with `old_rows="stored"`: so truncations are carried
    out, and values that the source left out are those of the row before.

    Args:
        lake: the lake.
        into: name of the register.
        time_unit: `"counter"`, `"ms"` or `"us"`: what the times of new collections count.
        names: names of collections by table (`"schema.table"`), instead of the ones above. Those that exist
            must count time in this unit, and may not be in another group.
        keys: key columns of new collections, by table, or the same for all; default: those of the keys of the
            messages, if these have schemas.
        time: as for the envelope `debezium`, like the next ones.
        late: likewise.
        order_by: likewise.
        encodings: likewise, for the columns of all tables.
        rejects: likewise.
        idle: likewise.
        writer: name of the stream's record in the register. Each stream needs its own name.
        take_over: take over a name that another query, that is another checkpoint, has used.
        progress: called after each micro-batch, in the driver.

    Raises (out of the query, as text; the error itself is in `Sink.error`):
        InvalidUpdates: an event cannot be read. The micro-batch was not committed, all earlier ones were.
        IncompatibleSchema: a column of a table changed in a way that its collection cannot follow.
        UsageError: a table has no collection, and none can be created; or the writer name belongs to another
            checkpoint.
        WriterFenced: the same query was started elsewhere.
    """
    options = {
        "time": time,
        "late": late,
        "order_by": order_by,
        "encodings": encodings,
        "rejects": rejects,
        "idle": idle,
    }
    tables = table_targets(lake, into, time_unit=time_unit, names=names, keys=keys, options=options)
    return Sink(IntoTableFrames(tables), writer, take_over, progress)

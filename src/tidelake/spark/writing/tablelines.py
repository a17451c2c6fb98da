"""The lines of a micro-batch of change events of several tables in Spark.

Owns where the work on them is done: few lines are fetched once; otherwise Spark keeps the lines with their
tables on disk, and its tasks work on one table after the other.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.storagelevel import StorageLevel

from tidelake.cdc.core.tablename import Table
from tidelake.cdc.core.topicpartition import TopicPartition
from tidelake.cdc.debezium.decoded import Path
from tidelake.cdc.parse.routes import TableColumns
from tidelake.feeds.answers import Answer
from tidelake.feeds.heldrows import HeldRows
from tidelake.feeds.reading import AS_TEXT, NOTE, PLACES
from tidelake.feeds.storing import check_parsed, event_schema
from tidelake.feeds.survey import Surveyed
from tidelake.feeds.tablelines import ANY_UPPER, FewLines, Lines, TablePlan, TableTarget
from tidelake.spark.columns import frame_arrow, frame_schema
from tidelake.spark.envelopes.debezium import EventFrames, lines_arrow, of_kafka, texts
from tidelake.spark.envelopes.surveylines import ROUTED, SEEN, SURVEYED, TABLE, RouteLines, seen_of
from tidelake.spark.tasks import OneThread
from tidelake.spark.versions import to_arrow
from tidelake.spark.writing.running import fetched, rows_of
from tidelake.spark.writing.transactions import held_frame, seen_column, surveyed_lines


def lines_of(
    frame: DataFrame,
    expected_bytes: int | None,
    survey: Surveyed | None = None,
    paths: Collection[Path] = (),
    *,
    by_tasks: bool = False,
) -> Lines:
    """The lines of a micro-batch.

    Args:
        frame: with columns as the envelope `debezium` takes texts.
        expected_bytes: the size of the last micro-batch, used if Spark has no estimate.
        survey: the survey that will be asked for; None: none will be.
        paths: where numbers are that the envelope reads.
        by_tasks: leave them to the tasks, however few they are.
    """
    lines = texts(frame, placed=of_kafka(frame.schema))
    keyed = "key" in frame.columns
    few = None if by_tasks else fetched(lines, expected_bytes)
    return SparkLines(lines, survey, keyed=keyed) if few is None else FewLines(few, keyed=keyed, paths=paths)


class SparkLines:
    """Lines in Spark, with the columns of `AS_TEXT`, and those of `PLACES` of messages."""

    taken_bytes: int | None = None

    def __init__(self, lines: DataFrame, survey: Surveyed | None, *, keyed: bool = False) -> None:
        self.keyed = keyed
        self._survey = survey
        self.placed = PLACES[0] in lines.columns
        self._kept = self._routed = _routed(lines, survey)
        self._added: DataFrame | None = None

    @cached_property
    def seen(self) -> Sequence[TableColumns]:
        """As `Lines`. Runs a job, which decodes the lines."""
        several = [self._routed, *([] if self._added is None else [self._added])]
        return seen_of(row[0] for one in several for row in _told(one, SEEN).distinct().collect())

    def survey(self, work: Surveyed) -> pa.Table:
        """As `Lines`. Runs a job."""
        if work == self._survey and self._kept is self._routed:
            return work.unpacked(bytes(row[0]) for row in _told(self._routed, SURVEYED).collect())
        return surveyed_lines(self._kept.drop(*ROUTED.names), work)

    def leave_out(self, seen: Mapping[TopicPartition, int]) -> int:
        """As `Lines`. Runs a job."""
        is_seen = seen_column(seen)
        self._kept = self._routed.where(~is_seen)
        count: int = self._routed.where(is_seen).count()
        return count

    def add(self, held: HeldRows) -> None:
        """As `Lines`. To be called once."""
        if held.told.any:
            lines = self._kept.select(*AS_TEXT)
            self._added = _routed(held_frame(held, lines.sparkSession, lines.schema), None)
            self._kept = self._kept.unionByName(self._added, allowMissingColumns=True)

    def rest(self) -> Iterator[pa.RecordBatch]:
        """As `Lines`."""
        return iter(to_arrow(self._of("")).to_batches())

    def count(self, table: Table) -> int:
        """As `Lines`. Runs a job."""
        return self._of(table.joined).count()

    def check(self, plan: TablePlan, lower: int) -> None:
        """As `Lines`. Runs a job."""
        schema = frame_arrow(event_schema(plan.shape.schema))
        parse = OneThread(plan.parse(lower, schema))
        read = self._of(plan.table.joined).mapInArrow(parse, frame_schema(schema))
        check_parsed(to_arrow(read.where(f.col(NOTE).isNotNull())))

    def answers(self, targets: Sequence[TableTarget]) -> list[Answer]:
        """As `Lines`."""
        found = list(map(self._answer, targets))
        self.taken_bytes = sum(answer.taken_bytes for answer in found)
        return found

    def close(self) -> None:
        """As `Lines`."""
        self._routed.unpersist()
        if self._added is not None:
            self._added.unpersist()

    def _answer(self, target: TableTarget) -> Answer:
        collection, frames = target.collection, EventFrames(target.envelope)
        rows = rows_of(self._of(target.table.joined), frames, collection, by_tasks=True)
        return rows.answer(frames.work(collection, rows.names, ANY_UPPER))

    def _of(self, table: str) -> DataFrame:
        return self._kept.where(f.col(TABLE) == table).select(*AS_TEXT)


def _routed(lines: DataFrame, survey: Surveyed | None) -> DataFrame:
    """Lines with their tables, which Spark keeps on disk."""
    output = pa.schema([*lines_arrow(lines), *ROUTED])
    work = RouteLines(tuple(lines.columns), None if survey is None else survey.packed)
    return lines.mapInArrow(work, frame_schema(output)).persist(StorageLevel.DISK_ONLY)


def _told(routed: DataFrame, name: str) -> DataFrame:
    return routed.where(f.col(name).isNotNull()).select(name)

"""The envelope `snapshot`: the rows are the new contents, and only differences are written.

It has two steps. First the tasks store the rows as they come. Then key ranges of these rows and of the
contents are compared, each by a task that needs no rows of Spark. So nothing is shuffled, and rows are
compared by the collection's rules, not by Spark's.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as t

from tidelake.data.kernel.types import update_schema
from tidelake.errors import UsageError
from tidelake.feeds.answers import Answer, answered, answers_from_bytes, answers_to_bytes, total
from tidelake.feeds.reading import ArrowMap
from tidelake.feeds.rows import commit_time, one_time
from tidelake.lake.api.collection import Collection
from tidelake.lake.api.handle import times_of
from tidelake.model.frontier import Frontier
from tidelake.model.schema import DIFF
from tidelake.shard.writing.replacement import Replacement
from tidelake.spark.columns import check_frame
from tidelake.spark.envelopes.updates import StoreRows
from tidelake.spark.tasks import run_tasks, slots
from tidelake.spark.uploads import answer_schema, collect


@dataclass(frozen=True)
class Snapshot:
    """The rows are the complete new contents. See `tidelake.Collection.replace`.

    The frame has the key and value columns, by name in any order, and optionally `_diff`, the multiplicity.
    Columns that a change of the schema added may be missing, and are null.

    Attributes:
        time: time of the change, a number or a text such as `"now"`; None: the time of the commit.
    """

    time: str | int | None = None

    @property
    def rebases(self) -> bool:
        """False: the difference depends on the contents, also on what another writer commits."""
        return False

    def check(self, frame: t.StructType, collection: Collection) -> None:
        """As `Envelope`."""
        if not collection.domain.total_order:
            raise UsageError(
                f"a snapshot needs times that follow each other, and those of {collection.domain} do not: "
                "append updates"
            )
        if isinstance(self.time, str):
            # All rows have one time, so it names no column.
            times_of(collection).at(self.time, "time")
        schema = pa.schema([*collection.schema, collection.update_schema.field(DIFF)])
        check_frame(frame, schema, optional=(DIFF, *collection.distributed.uploader().spec.optional))

    def prepare(self, frame: DataFrame, collection: Collection) -> DataFrame:  # noqa: ARG002
        """As `Envelope`: the tasks take the columns as they are."""
        return frame

    def spread(self, prepared: DataFrame, collection: Collection) -> DataFrame:  # noqa: ARG002
        """No shuffle: rows are compared only after they are stored."""
        return prepared

    def looks_up_bytes(self, collection: Collection) -> int:  # noqa: ARG002
        """0: storing the rows reads nothing."""
        return 0

    def work(self, collection: Collection, columns: Sequence[str], lower: Frontier) -> ArrowMap:  # noqa: ARG002
        """As `Envelope`: store the rows, all at time 0."""
        uploader = collection.distributed.uploader()
        whole = update_schema(uploader.spec.schema, collection.domain)
        wanted = [field for field in whole if field.name in columns]
        return StoreRows(
            uploader.to_bytes(),
            tuple(columns),
            pa.schema(wanted),
            time=collection.domain.columns[0],
            stamp=0,
            counted=DIFF in columns,
        )

    def difference(
        self, collection: Collection, stored: Answer, lower: Frontier, spark: SparkSession | None
    ) -> Answer:
        """As `Compared`."""
        count = 1 if spark is None else slots(spark)
        at, todo = self._planned(collection, stored, lower, count)
        tasks = [task.to_bytes() for task in todo]
        if spark is None:
            rows = (batch for task in tasks for batch in _Compare()(task))
            answer = total(answers_from_bytes([answers_to_bytes(rows)]))
        else:
            answer = collect(run_tasks(spark, tasks, _Compare(), answer_schema()))
        if answer.counts.updates or self.time is not None:
            answer.see_times(at, at)
        answer.count(events=stored.counts.updates)
        return answer

    def _planned(
        self, collection: Collection, stored: Answer, lower: Frontier, count: int
    ) -> tuple[int, list[Replacement]]:
        """The time of the change, and the tasks that compute the difference."""
        given = one_time(self.time, (), collection)
        at = commit_time(collection, lower) if given is None else given
        return at, collection.distributed.replacements(stored.uploads, time=at, parallelism=count)

    def discard(self, collection: Collection, stored: Answer) -> None:
        """As `Compared`."""
        collection.distributed.discard_uploaded(stored.uploads)


@dataclass(frozen=True)
class _Compare:
    """In a worker: compare one key range."""

    def __call__(self, task: bytes) -> Iterator[pa.RecordBatch]:
        def work(answer: Answer) -> bytes:
            upload, updates = Replacement.from_bytes(task).upload()
            answer.count(updates=updates)
            return upload

        return answered(work)

"""What Spark says of a micro-batch. Must not know how one is committed."""

import json
import re
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from tidelake.cdc.core.topicpartition import TopicPartition
from tidelake.errors import UsageError
from tidelake.feeds.note import BatchNote
from tidelake.spark.envelopes.debezium import of_kafka

QUERY_ID = "sql.streaming.queryId"
_PLANNED = "planned at "
# Spark's entry in the checkpoint for a planned micro-batch: the metadata come first.
_MOMENT = re.compile(r'"batchTimestampMs":(\d+)')


def query_of(frame: DataFrame) -> str:
    """The id of the streaming query that a micro-batch belongs to."""
    try:
        found = frame.sparkSession.sparkContext.getLocalProperty(QUERY_ID)
    except PySparkException:
        raise UsageError(
            "Spark Connect does not say which query a micro-batch belongs to: give sink(..., query='...'), a "
            "text that goes with the checkpoint, or use writeStream.format('tidelake')"
        ) from None
    if not found:
        raise UsageError("this is no micro-batch of a streaming query: use tidelake.spark.write")
    return str(found)


def planned_by(frame: DataFrame, query: str, batch: int) -> BatchNote:
    """The moment at which Spark planned a micro-batch, from its checkpoint, and the current run of the query.

    A repeated batch has the same moment, and another batch never has it. Empty if Spark does not give them.
    """
    try:
        running = _running(frame, query)
        moment = running.offsetLog().get(batch).get().metadataOpt().get().batchTimestampMs()
        return BatchNote(f"{_PLANNED}{moment}", str(running.runId().toString()))
    except (PySparkException, Py4JError, AttributeError):
        # This is not public in Spark: another version may keep it elsewhere.
        return BatchNote()


def planned_places(frame: DataFrame, query: str, batch: int) -> frozenset[TopicPartition]:
    """The partitions of Kafka that a micro-batch is made of, from its checkpoint, with or without messages.

    Empty if it is of another source, or if Spark does not give them.
    """
    if not of_kafka(frame.schema):
        return frozenset()
    try:
        offsets = _running(frame, query).offsetLog().get(batch).get().offsets()
        sources = [offsets.apply(i) for i in range(offsets.size())]
        texts = [source.get().json() for source in sources if source.isDefined()]
    except (PySparkException, Py4JError, AttributeError):
        # As in `planned_by`: then the partitions are known from their messages.
        return frozenset()
    found: set[TopicPartition] = set()
    for topics in map(json.loads, texts):
        if isinstance(topics, dict) and all(isinstance(one, dict) for one in topics.values()):
            found.update(
                TopicPartition(topic, int(partition)) for topic, ends in topics.items() for partition in ends
            )
    return frozenset(found)


def _running(frame: DataFrame, query: str) -> Any:
    """The running query, in Spark's own JVM."""
    context = frame.sparkSession.sparkContext
    found = frame.sparkSession._jsparkSession.sharedState().activeStreamingQueries()
    return found.get(context._jvm.java.util.UUID.fromString(query))  # type: ignore[union-attr]


def planned_in(checkpoint: str | None, batch: int) -> BatchNote:
    """The moment at which Spark planned a micro-batch, as `planned_by`, for a process without the query.

    Returns:
        Empty if this process cannot read it: it is on another file system, or not an option of the stream.
    """
    if checkpoint is None:
        return BatchNote()
    place = re.sub(r"^file:(//(?=/))?", "", checkpoint)
    try:
        found = _MOMENT.search((Path(place) / "offsets" / str(batch)).read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return BatchNote()
    return BatchNote() if found is None else BatchNote(_PLANNED + found[1])

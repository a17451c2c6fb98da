"""A streaming read as plain values, from the options of the format and the collection that they name."""

from collections.abc import Mapping
from dataclasses import dataclass

from tidelake.errors import UsageError
from tidelake.lake.api.handle import times_of
from tidelake.lake.arguments.times import ReadTimes
from tidelake.spark.source.offsets import LATEST, SNAPSHOT, Start
from tidelake.spark.source.options import HOLD_FOR_S, RowShape, stream_read_options
from tidelake.spark.source.place import opened
from tidelake.spark.source.times import frontier_of


@dataclass(frozen=True)
class StreamRead:
    """What a query reads.

    Attributes:
        url: URL of the lake.
        collection: name of the collection.
        start: the snapshot of the last closed time and then all updates; or only updates from now on; or
            updates at or after a frontier.
        max_rows: the most updates of a batch; but a single time and the snapshot are never split.
        max_times: the most distinct times of a batch.
        shape: the rows and columns.
        parallelism: the most partitions of a batch; None: by size. Small batches have fewer.
        hold_for_s: how long after its end the query can be started again from its checkpoint.
        poll_s: shortest pause between two checks for new updates.
    """

    url: str
    collection: str
    start: Start = SNAPSHOT
    max_rows: int | None = None
    max_times: int | None = None
    shape: RowShape = RowShape("updates")  # noqa: RUF009  # it is frozen
    parallelism: int | None = None
    hold_for_s: float = HOLD_FOR_S
    poll_s: float = 0.1


def stream_read(options: Mapping[str, str]) -> StreamRead:
    """Parse options. A few store calls, to find the collection and the unit of its times."""
    asked = stream_read_options(options)
    if asked.hold_for_s is None:
        raise UsageError(
            "option holdFor=none: a stream holds the history that it may have to read again; write a span "
            "such as 24h, for how long it may be stopped"
        )
    with opened(options) as (lake, collection):
        domain = collection.domain
        if not domain.total_order:
            raise UsageError(
                f"times of {collection.name!r} are of unit {domain}, and a stream needs times of a total "
                "order: read it in batches, with lower and upper"
            )
        return StreamRead(
            lake.url,
            collection.name,
            _start(asked.starting_at, times_of(collection)),
            asked.rows_max,
            asked.times_max,
            asked.shape,
            asked.parallelism,
            asked.hold_for_s,
        )


def _start(text: str | None, times: ReadTimes) -> Start:
    """Parse `snapshot`, `latest`, or a time or frontier to start at, as for option `lower`."""
    if text is None or text.strip().lower() == SNAPSHOT:
        return SNAPSHOT
    if text.strip().lower() == LATEST:
        return LATEST
    try:
        return frontier_of(text, times, "startingAt")
    except UsageError as error:
        raise UsageError(f"{error}; or write snapshot or latest") from error

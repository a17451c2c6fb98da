"""DataFrames into open times: staged once, sealed later; and micro-batches that seal as they go.

Owns the way from a DataFrame to one stage: workers upload what they sort, and the driver stages once. Rows
that come after their times were closed are refused, or staged in another collection.

INVARIANT: of a micro-batch each row is in one of the two collections. Which one is decided by where the first
one's upper was, and the commit that stages the others remembers that: a batch that is repeated is parted at
the same time.
"""

import re
from dataclasses import dataclass, replace

from pyspark.sql import DataFrame

from tidelake.errors import UpdateNotBeyondLower, UsageError
from tidelake.lake.collection import Collection
from tidelake.lake.writer import Writer
from tidelake.model.frontier import Frontier
from tidelake.spark.envelopes.envelope import Envelope
from tidelake.spark.envelopes.named import EnvelopeLike, named
from tidelake.spark.envelopes.updates import Half, StoreRows, Updates
from tidelake.spark.tasks import ArrowMap, described
from tidelake.spark.uploads import Answer
from tidelake.spark.writing.commit import Numbered, open_upper
from tidelake.spark.writing.running import Rows, rows_of
from tidelake.spark.writing.token import TokenWriter

PARTED = " parted at "
_PARTED = re.compile(rf"{PARTED}(\d+), (\d+) late$")


def stage(
    collection: Collection,
    frame: DataFrame,
    token: str | None = None,
    *,
    envelope: EnvelopeLike = "updates",
    **options: object,
) -> bool:
    """Stage a DataFrame in one commit: durable at once, and in the collection when its times are sealed.

    Any times at or after the upper; stagers do not conflict with each other. Workers upload, the driver
    stages once. See `Collection.stage`.

    Args:
        collection: to stage in.
        frame: evaluated once.
        token: a text of the caller's for this very call. One whose token is in succeeds without doing
            anything, whatever its rows are.
        envelope: what the rows mean: `"updates"` or `"append"`, with times of their own.
        **options: for the name of an envelope, what it takes, such as `time="ts"`.

    Returns:
        False if nothing had to be kept: the token is in, or there are no rows.

    Raises:
        InvalidUpdates: columns do not fit (nothing ran), or values do not. Nothing is kept.
        UpdateNotBeyondLower: a time is closed; names the first. Nothing is kept.
        UsageError: the rows have no times, or mean something that depends on what is there.
        WriterFenced: another process is writing under the same token, and began later.
    """
    made = named(envelope, options)
    if isinstance(made, Updates) and not collection.domain.total_order:
        made = replace(made, interval=(open_upper(collection), Frontier()))
    if token is not None and collection.token_record(token) is not None:
        return False
    rows = _rows(collection, frame, made)
    with described(frame.sparkSession, f"tidelake: stage in {collection.name}"):
        answer = rows.answer(_work(collection, made, rows))
    if token is None:
        return collection.stage_uploaded(answer.uploads)
    numbered = TokenWriter(collection, token).open()
    return numbered.writer.stage_uploaded(answer.uploads, sequence=numbered.sequence)


@dataclass(frozen=True)
class Watermark:
    """When a stream seals, and what becomes of rows that come later than that.

    Attributes:
        delay: in units of the times: all times that lie further than this before the latest one are sealed.
        late: the collection where rows are staged whose times are closed; None: they are refused.
    """

    delay: int
    late: Collection | None = None

    def after(self, answer: Answer) -> Frontier | None:
        """How far a micro-batch seals, as far as its own times say; earlier ones have sealed by theirs."""
        if answer.time_upper is None or answer.time_upper < self.delay:
            return None
        return Frontier.of(answer.time_upper - self.delay)


@dataclass(frozen=True)
class StagedBatch:
    """What a micro-batch did.

    Attributes:
        rows: that were staged.
        late: that came too late, and are staged in the other collection.
        taken_bytes: of all of them, in memory.
    """

    rows: int
    late: int
    taken_bytes: int


def stage_batch(
    collection: Collection,
    frame: DataFrame,
    envelope: Envelope,
    mark: Watermark,
    numbered: Numbered,
    *,
    expected_bytes: int | None = None,
) -> StagedBatch:
    """Stage a micro-batch, and seal at the watermark that it moves, in one commit; then what came too late.

    `expected_bytes` is how large it may be, if Spark does not know.

    Raises:
        UpdateNotBeyondLower: a row is late, and there is no collection for such rows. Nothing is kept.
    """
    rows = _rows(collection, frame, envelope, expected_bytes)
    writer, number = numbered.writer, numbered.sequence
    while True:
        upper = open_upper(collection)
        half = None if mark.late is None else Half(_least(upper), late=False)
        title = f"tidelake: batch {number} staged in {collection.name}"
        with described(frame.sparkSession, title):
            answer = rows.answer(_work(collection, envelope, rows, half))
        parted = "" if half is None else f"{PARTED}{half.at}, {answer.late} late"
        content = numbered.content(answer) + parted
        try:
            writer.stage_uploaded(answer.uploads, seal=mark.after(answer), sequence=number, content=content)
        except UpdateNotBeyondLower:
            # With a place for late rows: somebody else has sealed meanwhile.
            if half is None or open_upper(collection) == upper:
                raise
            continue
        late = _finish(rows, envelope, mark, writer, content)
        return StagedBatch(answer.rows, late, answer.taken_bytes)


def finish_batch(
    collection: Collection,
    frame: DataFrame,
    envelope: Envelope,
    mark: Watermark,
    writer: Writer,
) -> int:
    """Stage what came too late of a micro-batch that is in, unless it is staged; how many rows it is."""
    content = writer.last_content or ""
    if not _late(content):
        return 0
    return _finish(_rows(collection, frame, envelope), envelope, mark, writer, content)


def _late(content: str) -> tuple[int, int] | None:
    """Where a micro-batch was parted, and how many of its rows were late; None if none was."""
    found = _PARTED.search(content)
    return None if found is None or not int(found[2]) else (int(found[1]), int(found[2]))


def _finish(rows: Rows, envelope: Envelope, mark: Watermark, writer: Writer, content: str) -> int:
    """Stage the late rows of the writer's last micro-batch, unless they are staged."""
    late, number = _late(content), writer.last_sequence
    if late is None or number is None:
        return 0
    if mark.late is None:
        raise UsageError(
            f"{late[1]} rows of micro-batch {number} came too late, and are to be staged in another "
            "collection: start the query with the side that it had"
        )
    beside = mark.late.writer(writer.name, owner=writer.owner, take_over=True)
    if beside.last_sequence is not None and number <= beside.last_sequence:
        return 0
    answer = rows.answer(_work(mark.late, envelope, rows, Half(late[0], late=True)))
    beside.stage_uploaded(answer.uploads, sequence=number, content=content)
    return late[1]


def _rows(
    collection: Collection, frame: DataFrame, envelope: Envelope, expected_bytes: int | None = None
) -> Rows:
    # Asked for first: its schema is the one that the store knows now.
    collection.state()
    envelope.check(frame.schema, collection)
    return rows_of(frame, envelope, collection, expected_bytes=expected_bytes)


def _work(collection: Collection, envelope: Envelope, rows: Rows, half: Half | None = None) -> ArrowMap:
    """What a task does: rows with times of their own become parts."""
    work = envelope.work(collection, rows.names, open_upper(collection))
    if (
        not isinstance(work, StoreRows)
        or work.stamp is not None
        or getattr(envelope, "late", "refuse") != "refuse"
    ):
        named_ = ", ".join(collection.domain.columns)
        raise UsageError(
            "rows are staged at times of their own, whatever is there: use the envelope 'updates' with "
            f"{named_}, or 'append' with time='column', and no late='advance'"
        )
    return replace(work, half=half)


def _least(upper: Frontier) -> int:
    (least,) = upper.elements
    if isinstance(least, tuple):
        raise UsageError("a stream is staged by its watermark at times that are single numbers, not tuples")
    return least

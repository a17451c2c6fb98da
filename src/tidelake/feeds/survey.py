"""The times of the transactions of a micro-batch of lines: what all lines say together.

Owns the first of the two passes over the lines, which finds at which positions transactions begin; the second
reads the events. What is held back comes again with the next micro-batch, as if it were a part of it.
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Self

import numpy as np
import pyarrow as pa

from tidelake.cdc.core.lineerrors import as_bytes
from tidelake.cdc.core.topicpartition import TopicPartition
from tidelake.cdc.debezium.connectors import connector_of
from tidelake.cdc.debezium.decoded import Decoded, decode
from tidelake.cdc.debezium.exact import REPEATS
from tidelake.cdc.times.heldevents import Held, kept_survey
from tidelake.cdc.times.partitions import PLACED, partitions, placed_survey, without_ends
from tidelake.cdc.times.positions import NONE, ROWS, Positions, positions
from tidelake.cdc.times.surveys import EDGE, SURVEY, merged_surveys, survey
from tidelake.cdc.times.timeline import Progress, Timeline, copies_again, timeline
from tidelake.errors import InvalidUpdates, UsageError
from tidelake.feeds.debezium import Debezium
from tidelake.feeds.heldrows import HeldRows
from tidelake.feeds.reading import DECODED
from tidelake.lake.api.collection import Collection as LakeCollection

_NOWHERE = (2**63 - 1, 2**63 - 1)
_CLOCKS = {"ms": "ts_ms", "us": "ts_us"}


@dataclass(frozen=True)
class TimedLines:
    """A micro-batch of the events of one collection, surveyed.

    Attributes:
        timeline: the times of its transactions.
        progress: how far the stream is after it.
        copied: a first copy was going on before.
        repeated: messages that were seen before, by their offsets; they are not among the lines.
        survey: what stands for the lines that are held back, as `kept_survey` makes it.
        held: events that stay held back unread.
        due: lines that were held back before, and are not all any more.
    """

    timeline: Timeline
    progress: Progress
    copied: bool = False
    repeated: int = 0
    survey: bytes = field(default=b"", repr=False)
    held: int = 0
    due: HeldRows | None = field(default=None, repr=False)

    def stages(self, rebases: bool) -> bool:
        """Whether the rows are staged, as pieces of a first copy.

        The last piece is appended if what is appended does not depend on the contents (`rebases`).
        """
        return self.timeline.copying or (self.copied and not rebases)


@dataclass(frozen=True)
class Surveyed:
    """Finds the positions of lines, as `found`.

    Attributes:
        clock: the field of `source` whose values are times; None: times are positions.
        placed: the lines are messages of Kafka, with the columns of `PLACES`.
        timed: the events have the times of their transactions; else they may be of several connectors.
    """

    clock: str | None
    placed: bool = False
    timed: bool = True

    @classmethod
    def of(cls, collection: LakeCollection, *, placed: bool = False, timed: bool = True) -> Self:
        """For times of the unit of a collection."""
        return cls(_CLOCKS.get(collection.domain.unit), placed, timed)

    @property
    def found(self) -> pa.Schema:
        """The schema of what is found."""
        return PLACED if self.placed else SURVEY

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """As `ArrowMap`."""
        for batch in batches:
            lines = as_bytes(batch.column("value"))
            known = DECODED in batch.schema.names
            found = Decoded.of_column(lines, batch.column(DECODED)) if known else decode(lines)
            yield self.batch(found, batch)

    def batch(self, lines: Decoded, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The survey of decoded lines, and of the messages that they are of."""
        places = None
        try:
            places = positions(lines, self.clock or "ts_ms", numbered=self.placed)
        except InvalidUpdates:
            if self.timed:
                raise
        if places is None or not (self.timed or places.connector):
            none = np.full(len(lines.fields), NONE, np.int64)
            places = Positions("", none, np.zeros(len(none), np.int8), none, none)
        return placed_survey(places, batch) if self.placed else survey(places)

    def packed(self, lines: Decoded, batch: pa.RecordBatch) -> bytes:
        """The same as bytes, which `unpacked` reads."""
        return bytes(self.batch(lines, batch).serialize())

    def unpacked(self, several: Iterable[bytes]) -> pa.Table:
        """The surveys of several batches of lines."""
        batches = [pa.ipc.read_record_batch(pa.py_buffer(one), self.found) for one in several]
        return pa.Table.from_batches(batches, schema=self.found)

    def timeline(
        self,
        found: pa.Table,
        before: Held | None,
        held: HeldRows | None,
        *,
        whole: bool = False,
        planned: Collection[TopicPartition] = (),
        closes: bool = True,
        idle_ms: int | None = None,
    ) -> TimedLines | None:
        """The times of the transactions of a micro-batch, and how far the stream is after it.

        Args:
            found: of the lines, without those that were held back before.
            before: what the micro-batch before left.
            held: the rows that it held back.
            whole: the lines end with whole transactions: none is held back.
            planned: as for `partitions`, like `idle_ms`.
            closes: a first copy is closed before what follows it, which is looked up in it.
            idle_ms: see `planned`.

        Errors as for `timeline` and `partitions`.
        """
        seen, done = None, 0 if before is None else before.progress.held
        if held is not None:
            seen = held.fingerprints(_least(found, done))
            found = pa.concat_tables([found, self._of_held(held)])
        progress = None if before is None else before.progress
        known = Progress("") if progress is None else progress
        reach = -1 if closes and known.copying else None
        connectors = {known.connector, *found.column("connector").unique().to_pylist()} - {""}
        if self.placed and connectors and not any(connector_of(one).gives_before for one in connectors):
            found, reached = without_ends(found, known.partitions)
            known = known if known.connector else replace(known, partitions=reached)
        found = merged_surveys(found)
        several = None
        if self.placed:
            several = partitions(
                found, known.partitions, planned,
                done=known.held, copied_at=known.copied_at, idle_ms=idle_ms,
            )  # fmt: skip
        copied = None
        if several is not None:
            copied = several.copied
            reach = several.reach if reach is None else min(reach, several.reach)
        times = timeline(found, self.clock, progress, whole=whole, seen=seen, reach=reach, copied=copied)
        if times is None:
            return None
        after = times.progress
        if several is not None:
            after = replace(after, partitions=several.known, copied_at=several.copied_at)
        elif progress is not None:
            after = replace(after, partitions=progress.partitions, copied_at=progress.copied_at)
        due = None if held is None else held.before(times.held)
        stay = 0 if held is None or due is None else held.told.events - due.told.events
        return TimedLines(
            times, after, known.copying, survey=kept_survey(found, times.held), held=stay, due=due
        )

    def _of_held(self, held: HeldRows) -> pa.Table:
        """What stands for the rows that were held back."""
        if held.told.is_surveyed:
            return held.survey(self.found)
        return pa.Table.from_batches(self(iter(held)), schema=self.found)


def _least(found: pa.Table, done: int) -> tuple[int, int]:
    """The first place in the log of new events, from a position on."""
    roles, starts = found.column("roles").to_numpy(), found.column("start").to_numpy()
    rows = (roles & ROWS) > 0
    new = starts[rows & (starts >= done)]
    if not len(new):
        return _NOWHERE
    least = int(new.min())
    if (starts[rows] < done).any():
        return least, NONE
    # Each batch tells where the events of its first transaction begin.
    begins = found.column("clock").to_numpy()[((roles & EDGE) > 0) & (starts == least)]
    return least, int(begins.min())


def timed(
    work: Surveyed,
    feed: Debezium,
    found: pa.Table,
    before: Held | None,
    held: HeldRows | None,
    *,
    whole: bool,
    repeated: int = 0,
    planned: Collection[TopicPartition] = (),
) -> TimedLines | None:
    """The times of the lines of one collection.

    Args:
        work: what has surveyed them.
        feed: what they mean.
        found: what it has found, without lines that were held back before.
        before: what the micro-batch before left.
        held: the rows that it held back.
        whole: the lines end with whole transactions: none is held back.
        repeated: as in `TimedLines`.
        planned: as for `partitions`.
    """
    times = work.timeline(
        found, before, held, whole=whole, planned=planned, closes=feed.old_rows == "stored",
        idle_ms=feed.idle_ms,
    )  # fmt: skip
    if times is None:
        return None
    if feed.old_rows == "events" and before is not None and copies_again(found, before.progress):
        raise InvalidUpdates(
            "the tables are copied while the collection has rows of them, as by a snapshot that a signal "
            f"asked for: {REPEATS}"
        )
    return replace(times, repeated=repeated)


def check_none_held(before: Held | None) -> None:
    """Refuse to go on without the times of transactions while events are held back."""
    if before is not None and before.any:
        raise UsageError(
            "events of a transaction are held back by this writer until its commit is known, and the "
            "envelope now names a time or is another one: go on with 'debezium' and no time"
        )

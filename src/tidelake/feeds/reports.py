"""What writes tell of themselves, in numbers.

Owns the one list of these numbers, `Counts`, and how they are summed: over the tasks of a write, and over the
micro-batches of a run. Every report has them, and adds only what it alone knows.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from tidelake.model.counts import Removals
from tidelake.model.frontier import Frontier
from tidelake.state.write.write import Appended
from tidelake.tabletext import FieldsAsHtml


@dataclass(frozen=True, kw_only=True)
class Counts(Removals, FieldsAsHtml):
    """What was read and written.

    Attributes:
        events: change events read.
        updates: rows they made, before consolidation.
        heartbeats: heartbeats, messages and transaction markers.
        tombstones: lines ignored.
        late: events or rows moved to a later time, or staged in the collection for late rows.
        rejects: lines that could not be read, stored in the folder of rejects.
        files: files read.
        held: events that are held back: the commit, or the end, of their transaction is not known yet.
        repeated: events ignored, since their transactions are in the collection, or their offsets were seen.
        removed: as for `Removals`.
        absent: likewise.
        by_collection: of several tables: the number of change events of each collection, by name.
        created: likewise: collections that were created.
        evolved: likewise: collections whose columns changed.
        left_out: likewise: events of tables without a key, by table. They are in no collection.
    """

    events: int = 0
    updates: int = 0
    heartbeats: int = 0
    tombstones: int = 0
    late: int = 0
    rejects: int = 0
    files: int = 0
    held: int = 0
    repeated: int = 0
    by_collection: Mapping[str, int] = field(default_factory=dict)
    created: list[str] = field(default_factory=list)
    evolved: list[str] = field(default_factory=list)
    left_out: Mapping[str, int] = field(default_factory=dict)

    def counts(self) -> dict[str, Any]:
        """The numbers alone, by name."""
        return {one.name: getattr(self, one.name) for one in fields(Counts)}


@dataclass(frozen=True)
class WriteReport(Counts):
    """What a write did.

    Attributes:
        appended: the times written, and the new upper.
        uploads: number of uploads in the commit; 0 if it was committed before.
        seconds: wall clock.
        taken_bytes: size in memory of the rows, as a guess of the size of the next ones.
    """

    appended: Appended
    uploads: int = 0
    seconds: float = field(default=0.0, compare=False)
    taken_bytes: int | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True)
class WrittenBatch(Counts):
    """What one micro-batch did.

    Attributes:
        batch: its number in the checkpoint.
        already: it was committed before; nothing was read.
        upper: the upper after it: of the collection, or of the group of the tables.
        taken_bytes: as for `WriteReport`.
    """

    batch: int
    already: bool
    upper: Frontier
    taken_bytes: int | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True)
class IngestReport(Counts):
    """What a run did, added up over its micro-batches; `held` is what is held back after the last one.

    Attributes:
        batches: micro-batches that were committed.
        already: micro-batches that were committed before.
        upper: the upper after the last micro-batch or, without any, at the end of the run.
    """

    batches: int = 0
    already: int = 0
    upper: Frontier | None = None

    def then(self, batch: WrittenBatch) -> "IngestReport":
        """The report with one more micro-batch."""
        return replace(
            self.plus(batch),
            batches=self.batches + (not batch.already),
            already=self.already + batch.already,
            held=self.held if batch.already else batch.held,
            upper=batch.upper,
        )

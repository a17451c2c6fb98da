"""What an arrangement holds, merges and waits for: values for people and for metrics.

Owns the numbers and what follows from them; must not know where they come from.
"""

from dataclasses import dataclass, field

from tidelake.arrangement.cache import ReadCounts


@dataclass(frozen=True)
class MergeCounts:
    """Merges of a level that ended.

    Attributes:
        merges: how many.
        inputs: batches that they took.
        steps: in which they ran.
        seconds: that these took.
        rows_read: of the inputs.
        rows_written: what was left of them.
    """

    merges: int = 0
    inputs: int = 0
    steps: int = 0
    seconds: float = 0.0
    rows_read: int = 0
    rows_written: int = 0

    def plus(self, other: "MergeCounts") -> "MergeCounts":
        """The sum."""
        return MergeCounts(
            self.merges + other.merges,
            self.inputs + other.inputs,
            self.steps + other.steps,
            self.seconds + other.seconds,
            self.rows_read + other.rows_read,
            self.rows_written + other.rows_written,
        )

    @property
    def reduction(self) -> float:
        """Which share of the rows cancelled out, became equal or was filtered; 0 before the first merge."""
        return 1 - self.rows_written / self.rows_read if self.rows_read else 0.0


@dataclass(frozen=True)
class LevelReport:
    """One level.

    Attributes:
        level: its number.
        loose: batches that are in no merge.
        merging: batches that are inputs of the merge that runs.
        rows_in_memory: of all of them.
        rows_on_disk: likewise.
        negative_rows: those of all rows with a negative diff.
        merged: the merges that ended.
    """

    level: int
    loose: int = 0
    merging: int = 0
    rows_in_memory: int = 0
    rows_on_disk: int = 0
    negative_rows: int = 0
    merged: MergeCounts = field(default_factory=MergeCounts)


@dataclass(frozen=True)
class SpineReport:
    """A whole spine.

    Attributes:
        levels: each of them, the smallest batches first.
        bytes_in_memory: of rows of batches in memory.
        bytes_on_disk: of files.
        used_bytes: what counts in the memory budget: rows, filters, indexes, cache, buffers of merges.
        pressure: low, moderate, high or critical.
        waits: inserts that had to wait.
        waited_s: how long, together.
        sweeping: whether a compaction that was asked for is under way.
        paused: whether merging is paused.
        reads: what look-ups found in filters and the cache.
    """

    levels: tuple[LevelReport, ...]
    bytes_in_memory: int
    bytes_on_disk: int
    used_bytes: int
    pressure: str
    waits: int
    waited_s: float
    sweeping: bool
    paused: bool
    reads: ReadCounts

    @property
    def batches(self) -> int:
        """How many there are."""
        return sum(level.loose + level.merging for level in self.levels)

    @property
    def rows(self) -> int:
        """Updates in all batches."""
        return sum(level.rows_in_memory + level.rows_on_disk for level in self.levels)

    @property
    def negative_rows(self) -> int:
        """Updates with a negative diff."""
        return sum(level.negative_rows for level in self.levels)

    @property
    def merged(self) -> MergeCounts:
        """The merges of all levels."""
        total = MergeCounts()
        for level in self.levels:
            total = total.plus(level.merged)
        return total

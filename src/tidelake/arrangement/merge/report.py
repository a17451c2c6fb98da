"""Reports on an arrangement: its batches, merges, memory and waits, for people and for metrics.

Owns the numbers and what is derived from them; must not know where they come from.
"""

from dataclasses import dataclass, field

from tidelake.arrangement.batch.cache import ReadCounts


@dataclass(frozen=True)
class MergeCounts:
    """The finished merges of a level.

    Attributes:
        merges: number of merges.
        inputs: number of batches that were merged.
        steps: number of steps.
        seconds: time that the steps took.
        rows_read: rows of the inputs.
        rows_written: rows of the results.
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
        """The share of rows that cancelled out, became equal or were filtered; 0 before the first merge."""
        return 1 - self.rows_written / self.rows_read if self.rows_read else 0.0


@dataclass(frozen=True)
class LevelReport:
    """One level.

    Attributes:
        level: number of the level.
        loose: number of batches that are in no merge.
        merging: number of batches that are inputs of the running merge.
        rows_in_memory: rows of its batches in memory.
        rows_on_disk: rows of its batches on disk.
        negative_rows: rows with a negative diff.
        merged: the finished merges.
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
        levels: all levels, the smallest batches first.
        bytes_in_memory: bytes of rows of batches in memory.
        bytes_on_disk: bytes of batch files.
        used_bytes: bytes counted in the memory budget: rows, filters, indexes, cache, buffers of merges.
        pressure: low, moderate, high or critical.
        waits: number of appends that had to wait.
        waited_s: total time that they waited.
        sweeping: whether a requested merge of all batches is under way.
        paused: whether merging is paused.
        reads: counters of look-ups, filters and the cache.
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
        """The number of batches."""
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

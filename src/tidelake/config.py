"""Settings, with units and limits. Plain values: nothing here reads the environment or a file."""

from dataclasses import dataclass

from tidelake.errors import UsageError

MIB = 1024 * 1024


@dataclass(frozen=True)
class Config:
    """What can be set when a lake is opened.

    Attributes:
        part_target_bytes: encoded size at which a part is cut.
        row_group_rows: rows of a Parquet row group; small, so that a look-up reads little.
        merge_chunk_rows: rows, over all runs, that the merge kernel sorts at once. It bounds memory.
        merge_memory_bytes: what a merge or a sorted read of up to 16 runs may hold in memory. Chunks end at a
            twenty-fourth of it and merged parts at an eighth.
        fold_rows: the smallest runs, of together at most so many rows, are read whole and merged in memory.
        stats_budget_bytes: bytes of column statistics that a part may put into the state.
        bound_bytes: length to which key bounds and statistics of strings are truncated.
        rollup_bytes_min: bytes of deltas after which a rollup may be due; more when the state is larger.
        retry_deadline_s: how long an unavailable store is tried again.
        wait_timeout_s: how long a read waits for a time to be closed.
        poll_interval_s: longest pause between two looks at the log while waiting.
    """

    part_target_bytes: int = 128 * MIB
    row_group_rows: int = 16_384
    merge_chunk_rows: int = 262_144
    merge_memory_bytes: int = 256 * MIB
    fold_rows: int = 262_144
    stats_budget_bytes: int = 1_024
    bound_bytes: int = 64
    rollup_bytes_min: int = 64 * 1024
    retry_deadline_s: float = 30.0
    wait_timeout_s: float = 30.0
    poll_interval_s: float = 0.5

    def __post_init__(self) -> None:
        for name, least in (
            ("part_target_bytes", 1024),
            ("row_group_rows", 1),
            ("merge_chunk_rows", 16),
            ("merge_memory_bytes", 16 * MIB),
            ("fold_rows", 1),
            ("stats_budget_bytes", 0),
            ("bound_bytes", 9),
            ("rollup_bytes_min", 1024),
        ):
            value = getattr(self, name)
            if not isinstance(value, int) or value < least:
                raise UsageError(f"setting {name}={value!r} must be a whole number of at least {least}")
        for name in ("retry_deadline_s", "wait_timeout_s", "poll_interval_s"):
            value = getattr(self, name)
            if not isinstance(value, int | float) or not 0 <= value < float("inf"):
                raise UsageError(f"setting {name}={value!r} must be a number of seconds, not negative")
            # An int would read back from a task as another value than was written.
            object.__setattr__(self, name, float(value))

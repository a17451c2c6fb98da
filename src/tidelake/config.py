"""Settings, with units and limits. Plain values: nothing here reads the environment or a file."""

from dataclasses import dataclass

from tidelake.errors import UsageError

MIB = 1024 * 1024


@dataclass(frozen=True)
class Config:
    """What can be set when a lake is opened.

    Attributes:
        part_target_bytes: encoded size at which a part is cut. A batch builder cuts its buffer at this size
            in memory, so its parts are smaller.
        row_group_rows: rows of a Parquet row group; small, so that a look-up reads little.
        merge_chunk_rows: rows, over all runs, that the merge kernel sorts at once. It bounds memory.
        merge_memory_bytes: what a merge or a sorted read of up to 16 runs may hold in memory. Chunks end at a
            thirty-second of it and merged parts at a twelfth.
        fold_rows: the smallest runs, of together at most so many rows, are read whole and merged in memory.
        stats_budget_bytes: bytes of column statistics that a part may put into the state.
        bound_bytes: length to which key bounds and statistics of strings are truncated.
        stats_keep_names: columns of these names keep their statistics, whatever the budget is; in any case.
        stats_keep_prefixes: likewise columns whose names start so.
        stats_keep_suffixes: likewise columns whose names end so.
        inline_part_bytes: a part that is smaller lives in the state, and costs no blob; 0: none does.
        inline_total_bytes: an append that would bring all inline parts of a shard to this size first merges
            them into stored ones.
        lookup_cache_bytes: of local disk that each process may use for parts that its look-ups decode again
            and again, upserts' among them, of all lakes together; 0: none. Files have no name, are where
            temporary files are (`TMPDIR`), and leave a tenth of that disk free.
        upload_parts_max: parts that a batch builder has under way at once; then adding waits.
        builder_runs_max: runs that a batch builder lets a batch of unsorted rows have.
        merge_fan_in: runs that one merge reads side by side; more take several passes.
        merge_inputs_min: batches that are worth a merge at once, however few rows they have.
        merge_rows_min: rows that are worth a merge of two batches.
        merge_budget_s: time that an append may spend on merging afterwards; 0: none.
        merge_whole_rows: a collection at rest that stores at most so many rows is one run; of a larger one,
            one row in eight may be in others.
        merge_claim_rows: a merge of more rows is claimed first, so that no other process starts it too.
        merge_claim_s: how long a claim lasts without progress.
        runs_max: unmerged runs above which an append first does, or waits for, merging.
        lease_s: how long a reader's hold lasts without a sign of life from it. This and the next two are for
            a lake that is made: all processes go by those of the lake, see `tidelake.Lake.settings`. Another
            value than the usual one, and the lake's, is refused.
        garbage_age_s: how long a stored object stays after the collection no longer needs it; a read that
            takes longer holds what it reads by itself. Likewise.
        upload_age_s: an upload that was begun so long ago, and is in no collection, is given up and removed.
            Likewise.
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
    stats_keep_names: tuple[str, ...] = ("id", "ts")
    stats_keep_prefixes: tuple[str, ...] = ("last_",)
    stats_keep_suffixes: tuple[str, ...] = ("timestamp", "_time", "_at", "_ts", "_date")
    inline_part_bytes: int = 4 * 1024
    inline_total_bytes: int = MIB
    lookup_cache_bytes: int = 2048 * MIB
    upload_parts_max: int = 2
    builder_runs_max: int = 8
    merge_fan_in: int = 16
    merge_inputs_min: int = 4
    merge_rows_min: int = 16_384
    merge_budget_s: float = 0.25
    merge_whole_rows: int = 4_000_000
    merge_claim_rows: int = 262_144
    merge_claim_s: float = 120.0
    runs_max: int = 64
    lease_s: float = 900.0
    garbage_age_s: float = 600.0
    upload_age_s: float = 86_400.0
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
            ("inline_part_bytes", 0),
            ("inline_total_bytes", 0),
            ("lookup_cache_bytes", 0),
            ("upload_parts_max", 1),
            ("builder_runs_max", 1),
            ("merge_fan_in", 2),
            ("merge_inputs_min", 2),
            ("merge_rows_min", 0),
            ("merge_whole_rows", 0),
            ("merge_claim_rows", 0),
            ("runs_max", 4),
            ("rollup_bytes_min", 1024),
        ):
            value = getattr(self, name)
            if not isinstance(value, int) or value < least:
                raise UsageError(f"setting {name}={value!r} must be a whole number of at least {least}")
        for name in ("stats_keep_names", "stats_keep_prefixes", "stats_keep_suffixes"):
            listed = getattr(self, name)
            if not isinstance(listed, tuple) or not all(isinstance(text, str) and text for text in listed):
                raise UsageError(
                    f"setting {name}={listed!r} must be a tuple of column names or parts of them"
                )
        for name in (
            "merge_budget_s",
            "merge_claim_s",
            "lease_s",
            "garbage_age_s",
            "upload_age_s",
            "retry_deadline_s",
            "wait_timeout_s",
            "poll_interval_s",
        ):
            value = getattr(self, name)
            if not isinstance(value, int | float) or not 0 <= value < float("inf"):
                raise UsageError(f"setting {name}={value!r} must be a number of seconds, not negative")
            # An int would read back from a task as another value than was written.
            object.__setattr__(self, name, float(value))

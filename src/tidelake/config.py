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
        stats_keep_names: columns with these names keep their statistics, whatever the budget is. Upper and
            lower case are equal.
        stats_keep_prefixes: columns whose names start with one of these likewise.
        stats_keep_suffixes: columns whose names end with one of these likewise.
        inline_part_bytes: a smaller part is kept inside the state, and costs no blob; 0: no part is.
        inline_total_bytes: an append that would bring all inline parts of a shard to this size first merges
            them into stored ones.
        lookup_cache_bytes: local disk that each process may use, for all lakes together, to cache decoded
            parts for look-ups and upserts; 0: none. The files have no name, lie where temporary files are
            (`TMPDIR`), and leave a tenth of that disk free. Of a store that is far, a quarter of it is for
            stored bytes of small parts, footers and look-ups, and a thirty-second more is held in memory.
        upload_parts_max: the most parts that a builder, an append or a merge puts at once into a far store;
            near, they put one part after the other.
        builder_runs_max: the most runs in a batch of unsorted rows from a batch builder.
        merge_fan_in: the most runs that one merge reads at once; more runs take several passes.
        merge_inputs_min: so many batches are merged at once, however few rows they have. Twice so many with
            rows in the state count as one.
        merge_rows_min: two batches are merged when they have so many rows.
        merge_budget_s: time that an append may spend on merging afterwards; 0: none.
        merge_whole_rows: of a collection at rest, what is newer than its slices is one run if it has at most
            so many rows; else one row in eight may be in other runs.
        slice_rows: history is stored in slices of time, each of at least so many updates, or a sixteenth of
            the contents, whichever is more. Fewer make reads of few times cheaper, and add runs to others.
        merge_claim_rows: a merge of more rows is claimed first, so that no other process starts it too.
        merge_claim_s: how long a claim lasts without progress.
        runs_max: unmerged runs above which an append first does, or waits for, merging.
        lease_s: a reader's hold expires if the reader does not renew it for so long. This and the next two
            are settings of the lake: they are stored when the lake is made, and all processes use the stored
            values (see `tidelake.Lake.settings`). Any value but the default or the lake's is refused.
        garbage_age_s: how long a stored object stays after the collection no longer needs it. A longer read
            writes a hold by itself. A setting of the lake.
        upload_age_s: an upload that is older than this, and in no collection, is given up and removed. A
            setting of the lake.
        rollup_bytes_min: bytes of deltas after which a rollup may be due; more if the state is larger. The
            log, and so `commits`, goes back by one or two times as much.
        retry_deadline_s: how long calls of an unavailable store are retried, and a write waits for a lock.
        wait_timeout_s: how long a read without `timeout_s` waits for a time to be closed; 0: not at all.
        poll_interval_s: longest pause between two reads of the log while waiting.
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
    slice_rows: int = 16_384
    merge_claim_rows: int = 262_144
    merge_claim_s: float = 120.0
    runs_max: int = 64
    lease_s: float = 900.0
    garbage_age_s: float = 600.0
    upload_age_s: float = 86_400.0
    rollup_bytes_min: int = 64 * 1024
    retry_deadline_s: float = 30.0
    wait_timeout_s: float = 0.0
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
            ("slice_rows", 1),
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
            # As float: a task would decode an int as a float, and the values would differ.
            object.__setattr__(self, name, float(value))

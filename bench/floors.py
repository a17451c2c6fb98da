"""What some measurements are to reach, and whether they did."""

from collections.abc import Iterator, Mapping
from typing import Any

# How much faster look-ups are to be than those of other engines.
_READS = {
    "1 key in memory, 64 batches": 20.0,
    "100 keys in memory, 64 batches": 5.0,
    "1 key on disk, compacted": 5.0,
    "100 keys on disk, compacted": 1.0,
}
_WORKLOADS = ("upserts, zipfian", "upserts, uniform", "inserts", "growth, mass delete")
_HISTORIES = [f"{workload}, {rows} rows" for workload in _WORKLOADS for rows in ("1,000", "1,000,000")]
_HISTORY_READS = (
    "latest",
    "then",
    "last_changes",
    "random_changes",
    "lookup_now",
    "lookup_then",
    "listener",
)
# module, row, number: at least so much.
FLOORS = {
    **{
        ("bulk", f"append, {shape}, {order}", "zstd_to_ours"): bound
        for shape in ("two integers and a text", "rows of the peers")
        for order, bound in (("in order", 0.85), ("in no order", 0.6))
    },
    **{
        ("bulk", f"read, {way}", "defaults_to_ours"): 0.9
        for way in ("as a stream", "as a table", "polars, all rows", "DuckDB, all rows")
    },
    ("staging", "processes", "to_limit"): 0.5,
    ("staging", "threads", "to_limit"): 0.5,
    ("staging", "processes, slow flush", "to_limit"): 0.5,
    ("staging", "threads, slow flush", "to_limit"): 0.5,
    **{
        ("arrangement_reads", row, f"{engine}_to_lookup"): bound
        for row, bound in _READS.items()
        for engine in ("duckdb", "polars")
    },
    ("arrangement_spine", "throughput", "merging_to_paused"): 0.5,
    ("spark", "compacted", "helper_to_plain"): 0.8,
    ("spark", "compacted", "format_to_plain"): 0.5,
    ("spark", "R=16", "snapshot_to_plain"): 0.25,
    ("spark", "R=16", "snapshot_to_group_by"): 2.0,
    ("spark", "R=16", "merge_to_rewrite"): 3.0,
    ("spark_writes", "append", "append_to_plain"): 0.5,
    ("spark_writes", "upsert, keys anywhere", "upsert_to_rewrite"): 10.0,
    ("spark_writes", "upsert, keys together", "upsert_to_rewrite"): 10.0,
    ("spark_views", "refresh, 0.1 % changed", "recompute_to_refresh_ms"): 8.0,
    ("spark_views", "refresh, 1.0 % changed", "recompute_to_refresh_ms"): 3.0,
}
# Likewise, at most.
CEILINGS = {
    **{
        ("bulk", f"memory of an append, {rows} rows {order}, {chunks}", "mib_beside_table"): 300.0
        for rows in ("5,000,000", "10,000,000")
        for order in ("in order", "in no order")
        for chunks in ("one chunk", "chunks of 100,000")
    },
    ("staging", "calls", "log_compare_and_set_each_alone"): 1.0,
    ("staging", "calls", "blob_put_each_alone"): 1.0,
    ("staging", "calls", "blob_put_each_together"): 1.0,
    ("arrangement_spine", "latency", "p99_to_quiet_median"): 10.0,
    ("arrangement_spine", "budget", "peak_to_budget"): 1.2,
    **{
        ("history", f"{row}, growth {how}", f"{read}_ratio"): 2.0
        for row in _HISTORIES
        for how in ("as appended", "at rest")
        for read in _HISTORY_READS
    },
    **{("history", f"{row}, 30,000,000 updates", "stored_to_plain"): 2.2 for row in _HISTORIES},
    **{
        ("history", f"{row}, 30,000,000 updates, 90 % let go", "written_to_base_and_slice"): 1.0
        for row in _HISTORIES
    },
    **{("history", f"{row}, sliced to unsliced", "rows_written_ratio"): 1.2 for row in _HISTORIES},
    **{("history", f"{row}, sliced to unsliced", "append_s_ratio"): 1 / 0.95 for row in _HISTORIES},
    **{
        ("growth", f"100,000 commits, {place}", "append_to_new"): 1.2
        for place in ("directory", "object store")
    },
    ("spark_writes", "micro-batch", "helper_over_empty_ms"): 100.0,
    ("spark_writes", "micro-batch", "format_over_noop_ms"): 100.0,
    ("spark_views", "100 views, all inputs changed", "ms"): 1_000.0,
}


def judged(found: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Each bound on what was measured: its name, the number, the bound and whether it was kept."""
    bounds = [(key, bound, 1) for key, bound in FLOORS.items()]
    bounds += [(key, bound, -1) for key, bound in CEILINGS.items()]
    for (module, row, name), bound, sign in bounds:
        value = found.get(module, {}).get(row, {}).get(name)
        if value is not None:
            yield {
                "name": f"{module}: {row}: {name}",
                "value": value,
                "bound": bound,
                "kept": sign * value >= sign * bound,
            }

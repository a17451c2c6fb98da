"""The catalogue of metrics: every counter, gauge and histogram that Tidelake tells a recorder.

Owns names, units and meanings. The site shows it as a table, and tests compare it with the code. Must not
know who counts.
"""

from dataclasses import dataclass
from typing import Literal

Kind = Literal["counter", "gauge", "histogram"]


@dataclass(frozen=True)
class Metric:
    """One metric.

    Attributes:
        name: as a recorder gets it, in words with points between.
        kind: a counter only grows while its process lives; a gauge is as it was last measured; a histogram
            counts values by how large they are.
        unit: of its values; empty: a plain number.
        meaning: for people.
        label: what its values are told apart by, such as `collection`; empty: there is one value.
    """

    name: str
    kind: Kind
    unit: str
    meaning: str
    label: str = ""

    @property
    def exported(self) -> str:
        """Its name in Prometheus and OpenTelemetry, without the `_total` of Prometheus' counters."""
        return "tidelake_" + self.name.replace(".", "_")


BOUNDS: dict[str, tuple[float, ...]] = {
    "seconds": (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0, 300.0),
}
"""Upper ends of the buckets of a histogram, by its unit."""


def _counters(unit: str, meanings: dict[str, str]) -> list[Metric]:
    return [Metric(name, "counter", unit, meaning) for name, meaning in meanings.items()]


def _gauges(unit: str, meanings: dict[str, str]) -> list[Metric]:
    return [
        Metric(f"collection.{name}", "gauge", unit, meaning, "collection")
        for name, meaning in meanings.items()
    ]


CATALOGUE: tuple[Metric, ...] = (
    # Writes.
    *_counters(
        "",
        {
            "commit": "commits of this process",
            "commit.commands": "commands in these commits: threads that ask at once share a commit",
            "commit.conflict": "commits that were decided again, because another process committed first",
            "commit.unknown": "looks into the log after a commit whose outcome the store did not tell",
            "create.unknown": "collections whose creation the store did not confirm",
            "append": "commands that closed times, with or without rows",
            "append.rows": "updates that came in",
            "append.again": "upserts that were computed again, because others wrote meanwhile",
            "append.single.again": "single writes in a group that were decided again",
            "append.backpressure": "appends that first had to merge, or wait for a merge",
            "builder.merges": "merges of a builder's loads before its batch was finished",
            "builder.stalled": "times that a builder waited, because uploads were slower than its caller",
            "discard.failed": "objects that were written in vain and stayed; collection deletes them",
            "staged.gathered": "drains that had to come before more was staged",
        },
    ),
    *_counters("bytes", {"append.bytes": "stored bytes of these updates, compressed"}),
    *_counters("milliseconds", {"append.backpressure.ms": "how long these appends were held up"}),
    Metric("commit.seconds", "histogram", "seconds", "time of one try to write a commit into the log"),
    # Reads.
    *_counters(
        "",
        {
            "read.waits": "reads that waited for their time to be closed",
            "lookup.cache.hits": "parts that look-ups found unpacked on local disk",
            "lookup.cache.misses": "parts that look-ups had to decode",
            "lookup.filter.hits": "parts that a filter in memory showed to be without the keys",
            "lookup.filter.misses": "parts that may have the keys, or whose filter was not in memory",
            "range.cache.hits": "ranges of far parts that were kept by this process",
            "range.cache.misses": "ranges that were fetched",
        },
    ),
    *_counters("milliseconds", {"read.waits.ms": "how long these reads waited"}),
    # Upkeep.
    *_counters(
        "",
        {
            "merge": "merges whose result took the place of its inputs; also bases and cuts",
            "merge.refused": "merges given up: the inputs had changed, or another process did the work",
            "merge.rows.read": "updates that merges read",
            "merge.rows.written": "updates that merges wrote; the difference was removed",
            "base.made": "bases that were kept",
            "base.unpaid": "bases that were made and not kept, since reads would not gain",
            "rollup.failed": "states that could not be stored whole, or their logs trimmed; they stay due",
            "tend.failed": "merges beside an append that failed; the append is in",
            "upkeep.failed": "looks of upkeep at a collection that ended with an error",
            "fork.origin.gone": "forks whose origin was gone when they let go of its parts",
            "erase": "erasures that were carried out",
            "erase.fork.gone": "forks that were not there, or not made, when rows were erased in them",
            "erase.group.left": "collections that did not come back into their group after an erasure",
        },
    ),
    *_counters(
        "bytes", {"merge.bytes.read": "bytes that merges read", "merge.bytes.written": "bytes they wrote"}
    ),
    Metric("merge.seconds", "histogram", "seconds", "time of a merge, from its first read to its commit"),
    # What a lake does beside.
    *_counters(
        "",
        {
            "catalog.tidy.failed": "failed tries to tidy the catalog; the next one goes on",
            "close.failed": "holds that could not be handed over when the lake was closed; they expire",
            "copy.collect.failed": "failed collections of garbage in a copy",
            "copy.discard.failed": "objects that a copy could not delete",
            "copy.part.there": "parts that a copy found in place",
            "group.left": "collections that left their group",
            "group.tidy.failed": "failed tries to tidy a group; the next one goes on",
            "held.discard.failed": "held-back events that could not be deleted; a later commit deletes them",
            "lease.close.failed": "holds that could not be ended; they expire",
            "lookup.unpack.failed": "maintenance that could not unpack what it made; look-ups read the store",
            "renewer.failed": "renewals of holds that failed; the next one tries again",
        },
    ),
    # Stores.
    *(
        Metric(name, "counter", "", f"requests: {meaning}")
        for name, meaning in {
            "blob.get": "a range of an object, or a read of an opened one",
            "blob.get_ranges": "several ranges of an object at once",
            "blob.put": "a new object",
            "blob.delete": "delete an object",
            "blob.delete_all": "delete many objects at once",
            "blob.prune": "remove empty folders",
            "blob.list": "list objects",
            "blob.open": "open an object",
            "log.head": "the newest entry of a log",
            "log.scan": "entries of a log from one on",
            "log.newer": "entries of a log after a known one",
            "log.compare_and_set": "append to a log",
            "log.truncate": "give up old entries",
            "log.delete": "delete a log",
            "log.mend": "repair a log",
            "log.keys": "list logs",
        }.items()
    ),
    *_counters(
        "",
        {
            "log.scan.entries": "entries that scans gave",
            "log.newer.entries": "entries that looks for newer ones gave",
            "store.failed": "requests that a store refused or did not answer",
            "store.retries": "requests that were made again after that",
        },
    ),
    *_counters(
        "bytes",
        {
            "blob.get.bytes": "bytes of objects that were read",
            "blob.put.bytes": "bytes of objects that were written",
            "log.scan.bytes": "bytes of entries that were scanned",
            "log.newer.bytes": "bytes of newer entries",
            "log.compare_and_set.bytes": "bytes of entries that were written",
        },
    ),
    # Arrangements: added by `Arrangement.report()`.
    *_counters(
        "",
        {
            "arrangement.merges": "merges of arrangements",
            "arrangement.merge_inputs": "batches that these merged",
            "arrangement.merge_rows_read": "updates that these read",
            "arrangement.merge_rows_written": "updates that these wrote",
            "arrangement.waits": "appends that waited for memory",
            "arrangement.cache_hits": "blocks that were found in memory",
            "arrangement.cache_misses": "blocks that were read from disk",
            "arrangement.range_misses": "batches that a look-up left out by their range of keys",
            "arrangement.filter_misses": "batches that a look-up left out by their filter",
            "arrangement.filter_hits": "batches that a filter let through, and that had the key",
            "arrangement.filter_errors": "batches that a filter let through, and that did not have the key",
            "arrangement.saved": "checkpoints that were written",
            "arrangement.unchanged": "checkpoints that had nothing new to write",
            "arrangement.forgotten.failed": "forgotten arrangements whose hold stayed; it expires",
            "arrangement.restore.erased": "checkpoints not used: rows were erased since",
            "arrangement.restore.outgrown": "checkpoints not used: too much was new",
            "arrangement.restore.too_late": "checkpoints that were not used: history had gone",
        },
    ),
    *_counters(
        "milliseconds",
        {
            "arrangement.merge_ms": "time of these merges",
            "arrangement.waited_ms": "how long these appends waited",
        },
    ),
    Metric(
        "arrangement.level.updates", "gauge", "", "updates of the arrangement that reported last", "level"
    ),
    Metric(
        "arrangement.level.batches", "gauge", "", "batches of the arrangement that reported last", "level"
    ),
    # Collections: measured by `Lake.measure`, and by upkeep whenever it looks at a changed collection.
    *_gauges(
        "",
        {
            "updates": "updates that are stored, of closed times",
            "batches": "batches of the spine",
            "runs": "runs of the spine",
            "levels": "spine batches that are not in a slice",
            "slices": "intervals of history that are merged within themselves",
            "bases": "stored contents between slices",
            "unmerged": "runs in excess of one for each spine batch; appends wait when it passes runs_max",
            "merges.due": "merges that maintenance would begin now",
            "merges.running": "merges that living processes have claimed",
            "compact": "1 if no merge is due or running, else 0",
            "staged.updates": "updates at times that are not in the spine yet",
            "holds": "holds of readers",
            "holds.critical": "holds that last until they are dropped",
            "writers": "named writers and tokens that are remembered",
            "garbage": "objects that nothing names and that are not deleted yet",
            "commits": "seqno of the newest commit",
            "appended.updates": "updates that appends wrote, in the whole life of the collection",
            "merged.updates": "updates that merges wrote again, in its whole life",
            "history.times": "from since to upper in units of time; 0 for tuples and without an end",
        },
    ),
    *_gauges(
        "bytes",
        {
            "bytes": "stored bytes of these updates",
            "appended.bytes": "bytes that appends wrote, in its whole life",
            "merged.bytes": "bytes that merges wrote again, in its whole life",
        },
    ),
    *_gauges(
        "seconds",
        {
            "behind.s": "how far upper is behind the clock; only where times are of the clock",
            "hold.age.s": "age of the oldest hold; 0: there is none",
            "commit.age.s": "time since the newest commit",
        },
    ),
    Metric(
        "gauges.refused", "counter", "", "values of gauges that were not kept, because there were too many"
    ),
)
"""All metrics, in the order of the documentation."""

BY_NAME = {metric.name: metric for metric in CATALOGUE}

"""What merges, collections of garbage and maintenance report."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from tidelake.model.batch import HollowBatch
from tidelake.tabletext import FieldsAsHtml


@dataclass(frozen=True)
class CollectReport(FieldsAsHtml):
    """What a garbage collection removed.

    Attributes:
        blobs: number of objects that a state had named; in an object store also those that another process
            deleted a moment before.
        leaked: number of objects that no state has named: abandoned uploads, and rollups that came too late.
        leaked_bytes: size of the leaked objects in bytes.
        entries: number of log entries.
    """

    blobs: int = 0
    leaked: int = 0
    leaked_bytes: int = 0
    entries: int = 0

    @property
    def objects(self) -> int:
        """Number of all objects that were removed."""
        return self.blobs + self.leaked

    @property
    def total(self) -> int:
        """Number of objects and log entries that were removed."""
        return self.objects + self.entries

    def plus(self, other: "CollectReport") -> "CollectReport":
        """The sum of both."""
        return CollectReport(
            self.blobs + other.blobs,
            self.leaked + other.leaked,
            self.leaked_bytes + other.leaked_bytes,
            self.entries + other.entries,
        )


@dataclass(frozen=True)
class MergeShape(FieldsAsHtml):
    """The size of one or several batches."""

    batches: int = 0
    runs: int = 0
    parts: int = 0
    rows: int = 0
    size_bytes: int = 0

    @classmethod
    def of(cls, batches: Sequence[HollowBatch]) -> "MergeShape":
        """The total size of some batches."""
        runs = [run for batch in batches for run in batch.runs]
        return cls(
            len(batches),
            len(runs),
            sum(len(run.parts) for run in runs),
            sum(run.rows for run in runs),
            sum(run.size_bytes for run in runs),
        )


@dataclass(frozen=True)
class MergeReport(FieldsAsHtml):
    """What a merge did.

    Attributes:
        applied: whether the result replaced its inputs.
        before: size of the inputs.
        after: size of the result; equal to `before` if nothing was merged.
        chunks: number of key ranges that this process merged.
        resumed: number of key ranges that had been recorded before.
        reason: why the result was not applied; empty if it was.
        unfinished: whether some chunks are recorded, and the others are left for later.
        unpaid: whether a base was made and not kept, since reads would not have become much cheaper.
    """

    applied: bool
    before: MergeShape
    after: MergeShape
    chunks: int = 0
    resumed: int = 0
    reason: str = ""
    unfinished: bool = False
    unpaid: bool = False


@dataclass(frozen=True)
class MaintenanceReport(FieldsAsHtml):
    """What maintenance did.

    Attributes:
        merges: number of merges whose results replaced their inputs, of slices that were cut by time, and of
            bases that were kept.
        bases: number of these bases.
        rows_read: updates in the inputs of these merges.
        rows_written: updates in their results.
        bytes_read: stored bytes of the inputs.
        bytes_written: stored bytes of the results.
        refused: merges whose inputs had changed, or that other processes were doing.
        seconds: wall clock time.
        complete: whether nothing is left to do.
        drained: updates that were read to move staged updates of closed times into the spine.
        collected: the garbage that was deleted.
    """

    merges: int = 0
    bases: int = 0
    rows_read: int = 0
    rows_written: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    refused: int = 0
    seconds: float = 0.0
    complete: bool = True
    drained: int = 0
    collected: CollectReport = field(default_factory=CollectReport)

    def plus(self, merge: MergeReport, *, base: bool = False) -> "MaintenanceReport":
        """This report with one more merge, or with one more base."""
        if merge.unpaid:
            return self
        if not merge.applied:
            return replace(self, refused=self.refused + 1)
        return replace(
            self,
            merges=self.merges + 1,
            bases=self.bases + base,
            rows_read=self.rows_read + merge.before.rows,
            rows_written=self.rows_written + merge.after.rows,
            bytes_read=self.bytes_read + merge.before.size_bytes,
            bytes_written=self.bytes_written + merge.after.size_bytes,
        )

"""Merging: many batches become one, with times advanced to `since`.

A merge is planned from a state, carried out by key ranges (here one after the other, or by a Spark
job), and applied by a command that checks that its inputs are still all there. Outputs that are not
applied are deleted when it is certain that no attempt was.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tidelake.errors import TidelakeError
from tidelake.model.batch import HollowBatch, Run
from tidelake.model.bounds import Bounds
from tidelake.model.query import Fold
from tidelake.shard.plan import cut, decode_run
from tidelake.shard.read import sources
from tidelake.shard.spec import ShardSpec
from tidelake.state.codec import encode_record
from tidelake.state.commands import MergeResult
from tidelake.state.state import ShardState
from tidelake.store.protocols import BlobStore


@dataclass(frozen=True)
class MergePlan:
    """A merge of the spine batches `[lo, hi)`, cut into tasks.

    Attributes:
        lo: first id of the batches.
        hi: end of their ids.
        bounds: of the result.
        inputs: names of the parts that go in.
        before: what goes in.
        tasks: encoded, in ascending order of their key ranges.
    """

    lo: int
    hi: int
    bounds: Bounds
    inputs: tuple[str, ...]
    before: "Shape"
    tasks: tuple[bytes, ...]


@dataclass(frozen=True)
class Shape:
    """How much a batch or several hold."""

    batches: int = 0
    runs: int = 0
    parts: int = 0
    rows: int = 0
    size_bytes: int = 0

    @classmethod
    def of(cls, batches: Sequence[HollowBatch]) -> "Shape":
        """Add up some batches."""
        runs = [run for batch in batches for run in batch.runs]
        return cls(
            len(batches),
            len(runs),
            sum(len(run.parts) for run in runs),
            sum(run.rows for run in runs),
            sum(run.size_bytes for run in runs),
        )


@dataclass(frozen=True)
class MergeReport:
    """What a merge did.

    Attributes:
        applied: whether the result took the place of its inputs.
        before: what went in.
        after: what came out; equal to `before` if there was nothing to merge.
    """

    applied: bool
    before: Shape
    after: Shape


def plan_merge(spec: ShardSpec, blobs: BlobStore, state: ShardState, parallelism: int) -> MergePlan | None:
    """Plan the merge of all batches that hold rows, and those between, into one.

    None if there is nothing to gain. Empty batches at the end stay out: they go on growing while the
    merge runs, and merging them would gain nothing.
    """
    items = list(state.spine)
    while items and not items[-1].batch.runs:
        items.pop()
    batches = [item.batch for item in items]
    full = [batch for batch in batches if batch.runs]
    runs = [run for batch in full for run in batch.runs]
    if not runs:
        return None
    if len(runs) == 1 and not runs[0].truncated and full[0].bounds.since == state.since:
        return None
    query = Fold(state.since)
    return MergePlan(
        items[0].lo,
        items[-1].hi,
        Bounds(batches[0].bounds.lower, batches[-1].bounds.upper, state.since),
        tuple(part.name for batch in batches for part in batch.parts()),
        Shape.of(batches),
        tuple(
            encode_record("task", task)
            for task in cut(spec, blobs, sources(batches, query), query, parallelism)
        ),
    )


def merge_result(plan: MergePlan, outputs: Sequence[bytes]) -> MergeResult:
    """The result of a plan from the outputs of all its tasks, in the order of the tasks.

    Raises:
        TidelakeError: an output is missing.
    """
    if len(outputs) != len(plan.tasks):
        raise TidelakeError(f"the merge has {len(plan.tasks)} tasks but {len(outputs)} outputs")
    parts = tuple(part for data in outputs if data for part in decode_run(data).parts)
    return MergeResult(
        plan.lo, plan.hi, plan.inputs, HollowBatch(plan.bounds, (Run(parts),) if parts else ())
    )

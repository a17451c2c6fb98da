"""Replaces contents in key ranges: any process compares the uploaded rows of a range with the stored ones.

Owns the plan and the work of one range. The new rows are in the store already, as sorted runs that no state
names, so no shuffle or sort is needed: both sides are cut at the same keys and merged.
"""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass

from tidelake.errors import BlobNotFound, UpdateBeforeLower, UsageError
from tidelake.model.frontier import Frontier
from tidelake.model.query import AsOf
from tidelake.model.time import Time
from tidelake.shard.engine.lease import explained_by
from tidelake.shard.engine.spec import ShardPlace, ShardSpec, decoded, env_here, stores_of
from tidelake.shard.engine.version import Version
from tidelake.shard.runs.difference import differences
from tidelake.shard.runs.plan import Task, between, cut_keys
from tidelake.shard.runs.read import sources_of
from tidelake.shard.runs.scope import Source
from tidelake.shard.writing.batch import decode_batch
from tidelake.shard.writing.builder import BatchBuilder
from tidelake.state.core.codec import encode_record
from tidelake.state.core.partnames import too_late
from tidelake.state.core.state import ShardState
from tidelake.store.protocols import BlobStore


@dataclass(frozen=True)
class Replacement:
    """One key range of a replacement.

    Attributes:
        old: the task that reads the present rows.
        new: the task that reads the rows that replace them.
        lower: the upper of the shard at which the differences are to be appended.
        at: the time of the differences.
    """

    old: Task
    new: Task
    lower: Frontier
    at: Time

    def to_bytes(self) -> bytes:
        """A form for another process; no credentials."""
        return encode_record("replacement", self)

    @classmethod
    def from_bytes(cls, data: bytes) -> "Replacement":
        """Read `to_bytes`."""
        return decoded("replacement", data, cls, "replacement")

    def upload(self) -> tuple[bytes, int]:
        """Store the differences.

        Returns:
            The bytes for `append_uploaded`, `b""` if there are no differences; and the number of differences.

        Raises:
            LeaseExpired: a part that is needed was collected meanwhile.
        """
        spec, upper = self.old.spec, Frontier()
        blobs = stores_of(spec).blobs
        new = self.new.rows(blobs)
        found = differences(spec, blobs, list(self.old.needed), new, at=self.at, keys=self.old.keys)
        builder = BatchBuilder(spec, blobs, env_here(), self.lower, sorted=True, upper=upper)
        try:
            with builder, closing(new), closing(found):
                for batch in found:
                    builder.add(batch)
                built = builder.finish(upper)
        except BlobNotFound as error:
            raise explained_by(spec, error.name) from error
        rows = built.rows
        return built.to_bytes() if built.runs else b"", rows


def plan_replacement(
    version: Version,
    blobs: BlobStore,
    uploads: Sequence[bytes],
    *,
    at: Time,
    parallelism: int,
) -> list[Replacement]:
    """Cut a replacement into at most `parallelism` key ranges. Reads the index of every part.

    Args:
        version: the version whose contents are replaced.
        blobs: the store that holds the parts.
        uploads: the new rows, uploaded by `Uploader` at times up to `at`.
        at: the time of the replacement.
        parallelism: the most key ranges.

    Raises:
        UpdateBeforeLower: the time is closed.
        UploadExpired: the rows were uploaded too long ago, or before rows were erased.
        UsageError: times are tuples.
    """
    state, spec = version.state, version.spec
    check_total(spec)
    check_open(state, at)
    everything = Frontier.of(spec.domain.minimum), Frontier()
    old, _ = sources_of(state, AsOf(at))
    runs = [run for data in uploads if data for run in decode_batch(spec, data).runs]
    late = too_late(state, (part for run in runs for part in run.parts))
    if late is not None:
        raise late
    new = [Source(run, *everything) for run in runs]
    cuts = cut_keys(spec, blobs, [*old, *new], parallelism)
    pairs = zip(between(spec, old, AsOf(at), cuts), between(spec, new, AsOf(at), cuts), strict=True)
    return [Replacement(before, after, state.upper, at) for before, after in pairs]


def check_total(spec: ShardSpec | ShardPlace) -> None:
    """Refuse a shard whose times have no total order.

    Raises:
        UsageError: times are tuples.
    """
    if not spec.domain.total_order:
        raise UsageError(
            "a change that is computed from contents (replace, restore, delete, SQL) needs times that follow "
            f"each other, and those of {spec.domain} do not: append updates"
        )


def check_open(state: ShardState, at: Time) -> None:
    """Refuse a time that is closed.

    Raises:
        UpdateBeforeLower: the time is closed.
    """
    if not state.upper.less_equal(at):
        raise UpdateBeforeLower(at, state.upper).of(state.domain.unit)

"""Uploads from other processes: takes updates, returns the bytes of a batch.

Owns what a worker is sent so that it can store rows of a shard. The bytes that it returns are appended by
`tidelake.shard.writing.batches.append_uploaded`.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa

from tidelake.model.frontier import Frontier
from tidelake.shard.engine.spec import ShardSpec, env_here, stores_of
from tidelake.shard.engine.taskrecords import decoded
from tidelake.shard.writing.builder import BatchBuilder
from tidelake.state.core.codec import encode_record


@dataclass(frozen=True)
class Uploader:
    """Uploads updates from any process. Goes there as bytes.

    Attributes:
        spec: the shard.
        lower: times that are not at or after it are refused; None: the append checks.
        upper: times at or after it are refused; None: the append checks.
    """

    spec: ShardSpec
    lower: Frontier | None = None
    upper: Frontier | None = None

    def to_bytes(self) -> bytes:
        """A form for another process: URL, ids, schema and settings; no credentials."""
        return encode_record("uploader", self)

    @classmethod
    def from_bytes(cls, data: bytes) -> "Uploader":
        """Read `to_bytes`."""
        return decoded("uploader", data, cls, "uploader")

    def upload(self, batches: Iterable[pa.RecordBatch]) -> bytes:
        """Store updates, in any order; the returned bytes go to `append_uploaded`.

        Batches have the shard's update columns (see `tidelake.data.kernel.types.update_schema`); they are
        checked and made canonical like those of an append. Returns `b""` if nothing is left after
        consolidation. If it fails, what was stored is deleted. One `put` for each part. Memory is bounded as
        for `BatchBuilder`.
        """
        lower = Frontier.of(self.spec.domain.minimum) if self.lower is None else self.lower
        upper = Frontier() if self.upper is None else self.upper
        with BatchBuilder(self.spec, stores_of(self.spec).blobs, env_here(), lower, upper=upper) as builder:
            for batch in batches:
                builder.add(batch)
            built = builder.finish(upper)
        return built.to_bytes() if built.runs else b""

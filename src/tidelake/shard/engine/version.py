"""A version: the state of a shard at one moment, as readers see it, with the schemas of that state.

Owns what a read starts from. State and schemas are always of the same moment, since the schemas come from the
state. A read takes one version, and asks the shard for nothing more.
"""

from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

import pyarrow as pa

from tidelake.model.frontier import Frontier
from tidelake.shard.engine.spec import ShardSpec
from tidelake.state.core.state import ShardState


class Pin(Protocol):
    """Keeps the parts of versions in the store."""

    @property
    def id(self) -> str:
        """Id of its hold; empty while it has none."""

    def watch(self, version: "Version", batches: Iterator[pa.RecordBatch]) -> Generator[pa.RecordBatch]:
        """The same batches, read from a version. Keeps the version until they end or are forgotten."""

    def close(self) -> None:
        """Stop keeping versions. At most one log write."""


@dataclass(frozen=True)
class Version:
    """A version of a shard; `Shard.version` returns the newest one.

    Attributes:
        state: the state, with everything that transactions had decided for the shard.
        spec: the spec of that state, with the schemas of all of its parts.
        pin: keeps its parts for a long read; None: they stay for at least `garbage_age_s`.
    """

    state: ShardState
    spec: ShardSpec
    pin: Pin | None = None

    @property
    def upper(self) -> Frontier:
        """Every time strictly before it is closed."""
        return self.state.upper

    def kept_by(self, pin: Pin) -> "Version":
        """This version, with its parts kept by `pin`."""
        return replace(self, pin=pin)

    def watch(self, batches: Generator[pa.RecordBatch]) -> Generator[pa.RecordBatch]:
        """The same batches, read from this version. Its pin, if any, keeps it until they end."""
        return batches if self.pin is None else self.pin.watch(self, batches)

    @property
    def hold_id(self) -> str:
        """Id of the hold that pins it; empty if there is none."""
        return "" if self.pin is None else self.pin.id

    def release(self) -> None:
        """End its hold, if it has one. May be repeated."""
        if self.pin is not None:
            self.pin.close()

"""A version: one moment of a shard, as its readers see it.

Owns what a read starts from. The state and the schemas cannot be of different moments, since the schemas are
those of the state. A read takes a version, and asks the shard for nothing more.
"""

from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

import pyarrow as pa

from tidelake.model.frontier import Frontier
from tidelake.shard.spec import ShardSpec
from tidelake.state.state import ShardState


class Pin(Protocol):
    """What keeps the parts of versions in the store."""

    @property
    def id(self) -> str:
        """Of its hold; empty while there is none."""

    def watch(self, version: "Version", batches: Iterator[pa.RecordBatch]) -> Generator[pa.RecordBatch]:
        """The same batches, read from a version, which is kept until they end or are forgotten."""

    def close(self) -> None:
        """Keep nothing any more. At most one log write."""


@dataclass(frozen=True)
class Version:
    """One moment of a shard; `Shard.version` gives the newest one.

    Attributes:
        state: with all that transactions had decided for the shard.
        spec: of that state: it knows the schemas of all of its parts.
        pin: what keeps these parts for a read that takes long; None: they stay for `garbage_age_s`.
    """

    state: ShardState
    spec: ShardSpec
    pin: Pin | None = None

    @property
    def upper(self) -> Frontier:
        """Every time strictly before it is closed."""
        return self.state.upper

    def kept_by(self, pin: Pin) -> "Version":
        """This version, of which `pin` keeps what is read."""
        return replace(self, pin=pin)

    def watch(self, batches: Generator[pa.RecordBatch]) -> Generator[pa.RecordBatch]:
        """The same batches, read from this version. It is kept until they end, if something pins it."""
        return batches if self.pin is None else self.pin.watch(self, batches)

    @property
    def hold_id(self) -> str:
        """Of the hold that pins it; empty if there is none."""
        return "" if self.pin is None else self.pin.id

    def release(self) -> None:
        """End its hold, if it has one. May be repeated."""
        if self.pin is not None:
            self.pin.close()

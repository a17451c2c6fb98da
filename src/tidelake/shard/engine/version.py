"""A version: the state of a shard at one moment, as readers see it, with the schemas of that state.

Owns what a read starts from, and what must hold between a state and the decisions of its group. State and
schemas are always of the same moment, since the schemas come from the state. A read takes one version, and
asks the shard for nothing more.
"""

from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

import pyarrow as pa

from tidelake.errors import CorruptionError
from tidelake.model.frontier import Frontier
from tidelake.shard.engine.spec import ShardSpec
from tidelake.state.core.decisions import GroupView
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


@dataclass(frozen=True)
class LogView:
    """A state of a shard, and the decisions of its group to read it with.

    Attributes:
        state: the state as it is in the log.
        view: what its group had decided for it before `state` was read; None: it is in no group.
        group: the state of the group that `view` was taken from; None: there is no group, or no longer one.
    """

    state: ShardState
    view: GroupView | None = None
    group: ShardState | None = None


def check_group(state: ShardState, group: ShardState) -> None:
    """Check that the state of a group is not older than what the collection's state says about the group.

    The group must have been read after the collection.
    """
    if state.group == group.shard_id and not group.dropped and state.joined > group.seqno:
        raise lost(state, group.seqno)


def lost(state: ShardState, seqno: int) -> CorruptionError:
    """The error if the log of a group ends before its member joined."""
    return CorruptionError(
        state.group,
        f"the log of the group ends at state {seqno}, but collection {state.shard_id} joined at state "
        f"{state.joined}: later decisions of the group are lost",
    )


def check_orphan(state: ShardState) -> None:
    """Check that no staged rows wait for a group that is gone.

    Before a group is deleted, all of its collections are taken out. Only a collection that joined too late
    still names it, and that has nothing staged.
    """
    if state.group and next(state.staged.awaiting(), None) is not None:
        raise CorruptionError(
            state.group, "the log of the group is gone, and transactions wait for its decision"
        )

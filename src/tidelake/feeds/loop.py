"""The one commit loop of micro-batches and of all writes through Spark: owns when a write is tried again."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from tidelake.errors import UpdateBeforeLower, UploadExpired, UpperMismatch
from tidelake.lake.api.collection import Collection as LakeCollection
from tidelake.lake.api.handle import shard_of
from tidelake.model.frontier import Frontier
from tidelake.state.core.state import ShardState

R = TypeVar("R")


@dataclass(frozen=True)
class CommitPoint:
    """What a write is tried on.

    Attributes:
        upper: the upper at which it is committed.
        seqno: of the newest state: of a collection, or of the group of several.
        state: that state, of a collection.
    """

    upper: Frontier
    seqno: int
    state: ShardState | None = field(default=None, compare=False, repr=False)


class TriedWrite(ABC, Generic[R]):
    """A write, as the commit loop tries it.

    Attributes:
        fixed: the caller said at which upper, so that a conflict is the caller's.
        remakes: whether all that was stored for the write can be made again.
        tries_max: give up after so many conflicts; None: never.
    """

    fixed = False
    remakes = True
    tries_max: int | None = None

    @abstractmethod
    def newest(self) -> CommitPoint:
        """What is there now."""

    @abstractmethod
    def once(self, at: CommitPoint) -> R:
        """Make what depends on it, and commit."""

    def forget(self) -> None:
        """Rows were erased meanwhile: what was stored is not taken in any more."""


def committed(attempt: TriedWrite[R]) -> R:
    """The commit loop: try on the newest contents, and again as long as other writers were faster."""
    at, tries = attempt.newest(), 0
    while True:
        tries += 1
        try:
            return attempt.once(at)
        except (UpperMismatch, UpdateBeforeLower):
            before, at = at, at if attempt.fixed else attempt.newest()
            if at == before or tries == attempt.tries_max:
                raise
        except UploadExpired as error:
            if not (error.erased and attempt.remakes):
                raise
            attempt.forget()
            at = attempt.newest()


def newest_of(collection: LakeCollection, *, to_read: bool) -> CommitPoint:
    """The newest of a collection, as readers see it; to be read, with what its group decided applied."""
    state = collection.distributed.newest_state() if to_read else shard_of(collection).version().state
    if state.upper.closed:
        raise UpperMismatch("any frontier", state.upper)
    return CommitPoint(state.upper, state.seqno, state)


def open_upper(collection: LakeCollection) -> Frontier:
    """The collection's upper. Errors as `newest_of`."""
    return newest_of(collection, to_read=False).upper

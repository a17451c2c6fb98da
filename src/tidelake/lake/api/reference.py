"""References to arrangements: picklable descriptions, each of which opens one arrangement per process.

Owns the arrangements of a process that equal references share; must not know what they are used for.

INVARIANT: a reference holds no handle and no credential. A forked child uses no arrangement of its parent.
"""

import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from tidelake.arrangement import arguments
from tidelake.arrangement.follow.follow import FollowedArrangement
from tidelake.arrangement.merge.settings import ArrangementConfig
from tidelake.errors import Closed, HistoryCompacted, IncompatibleSchema, RowsErased
from tidelake.handle import door
from tidelake.lake.api.collection import Collection
from tidelake.lake.api.lake import Lake, open_lake
from tidelake.lake.arguments.spans import DurationLike, duration_s
from tidelake.model.selection import ReadOptions
from tidelake.process import PerProcess


@dataclass(frozen=True)
class ArrangementReference:
    """Describes an arrangement of a collection. Picklable and small; equal descriptions compare equal.

    Attributes:
        lake_url: URL of the lake.
        collection_id: id of the collection; stays the same when it is renamed.
        name: the name that it had, for messages.
        columns: as for `Collection.arrange`.
        where: as for `Collection.arrange`.
        restore: a directory of checkpoints that all processes can read.
        directory: where batches on disk are kept.
        config: settings of the arrangement.
        hold_for_s: how long the hold of a process that sleeps or dies keeps history.
    """

    lake_url: str
    collection_id: str
    name: str = field(compare=False)
    columns: tuple[str, ...] | None = None
    where: str | None = None
    restore: str | None = None
    directory: str | None = None
    config: ArrangementConfig | None = None
    hold_for_s: float = 900.0

    def here(self, *, catch_up: bool = True) -> FollowedArrangement:
        """The arrangement in this process; every call returns the same one until the process ends.

        The first call loads it, or restores it from the checkpoint; other threads wait meanwhile.

        Args:
            catch_up: first take in all times that are closed now: one log scan, and reads of new updates.

        Errors as for `Collection.arrange`.
        """
        found = _SHARED.get().get(self)
        if catch_up:
            try:
                found.catch_up()
            except (Closed, HistoryCompacted, IncompatibleSchema, RowsErased):
                # This process slept for longer than its hold lasts, columns have changed, or rows were
                # erased: load again, unless another thread has done so.
                found = _SHARED.get().renew(self, found)
        return found

    def forget_here(self) -> None:
        """Close the arrangement of this process, if there is one; later calls on it raise `Closed`."""
        _SHARED.get().forget(self)


@door
def arrangement_reference(
    collection: Collection,
    *,
    columns: Sequence[str] | None = None,
    where: str | None = None,
    restore: str | os.PathLike[str] | None = None,
    directory: str | os.PathLike[str] | None = None,
    config: ArrangementConfig | None = None,
    hold_for: DurationLike = timedelta(minutes=15),
) -> ArrangementReference:
    """Describe an arrangement for other processes; each opens its own with `reference.here()`.

    Small and picklable: for functions that Spark runs in its workers. No store call. Arguments are those of
    `collection.arrange`.

    Args:
        collection: the collection to arrange.
        columns: value columns to keep.
        where: an SQL condition on the rows to keep.
        restore: a directory that all processes can read: start from its newest checkpoint.
        directory: where each process keeps its batches on disk.
        config: settings of the arrangement.
        hold_for: how long the hold of a process that sleeps or dies keeps history.
    """
    asked = ReadOptions(columns, where)
    return ArrangementReference(
        collection.distributed.lake_url,
        collection.id,
        collection.name,
        columns=None if asked.columns is None else tuple(asked.columns),
        where=asked.where,
        restore=arguments.directory_or_none(restore, "restore"),
        directory=arguments.directory_or_none(directory, "directory"),
        config=config,
        hold_for_s=duration_s(hold_for, "hold_for"),
    )


@dataclass
class _Opened:
    lake: Lake
    arrangement: FollowedArrangement

    def close(self) -> None:
        try:
            self.arrangement.close()
        finally:
            self.lake.close()


@dataclass
class _Shared:
    """The arrangements of one process."""

    opened: dict[ArrangementReference, _Opened] = field(default_factory=dict)
    turn: threading.Lock = field(default_factory=threading.Lock)

    def get(self, reference: ArrangementReference) -> FollowedArrangement:
        with self.turn:
            if reference not in self.opened:
                self.opened[reference] = _open(reference)
            return self.opened[reference].arrangement

    def renew(self, reference: ArrangementReference, old: FollowedArrangement) -> FollowedArrangement:
        with self.turn:
            found = self.opened.get(reference)
            # Another thread may have been quicker.
            if found is None or found.arrangement is old:
                if found is not None:
                    del self.opened[reference]
                    found.close()
                self.opened[reference] = _open(reference)
            return self.opened[reference].arrangement

    def forget(self, reference: ArrangementReference) -> None:
        with self.turn:
            found = self.opened.pop(reference, None)
        if found is not None:
            found.close()


# A forked child has none of its parent's threads, and the files belong to the parent.
_SHARED = PerProcess(_Shared)


def _open(reference: ArrangementReference) -> _Opened:
    lake = open_lake(reference.lake_url, create=False)
    try:
        collection = lake.same_collection(reference.collection_id, reference.name)
        arrangement = collection.arrange(
            columns=reference.columns,
            where=reference.where,
            restore=reference.restore,
            directory=reference.directory,
            config=reference.config,
            follow=False,
            hold_for=reference.hold_for_s,
        )
    except BaseException:
        lake.close()
        raise
    return _Opened(lake, arrangement)

"""The parts that a write has put into the store: owns whether a failed write may delete them.

A part that a state names must never be deleted. So parts go only if it is certain that none does: the write
was not tried, its error is one of `NOT_IN`, or the data was in before. After any other error the parts stay;
garbage collection finds those that stay for nothing. A prepared batch is given back to its owner instead
(`Handles`), whose `discard` deletes it.
"""

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TypeVar

import pyarrow as pa

from tidelake.errors import (
    AlreadyTaken,
    Closed,
    CollectionDropped,
    CollectionInGroup,
    IncompatibleSchema,
    InvalidUpdates,
    LeftGroup,
    StoreUnavailable,
    TransactionExpired,
    UpdateBeforeLower,
    UpdateNotBeforeUpper,
    UploadExpired,
    UpperMismatch,
    UsageError,
    WriterFenced,
)
from tidelake.model.batch import Part, Run
from tidelake.shard.engine.shard import Shard
from tidelake.shard.engine.spec import ShardSpec
from tidelake.shard.runs.upload import discard, stored, write_table
from tidelake.shard.upkeep.tending import make_room
from tidelake.shard.writing.batch import Batch, decode_batch

NOT_IN = (
    CollectionInGroup,
    LeftGroup,
    UpperMismatch,
    WriterFenced,
    UpdateBeforeLower,
    UpdateNotBeforeUpper,
    UploadExpired,
    CollectionDropped,
    IncompatibleSchema,
)
"""Errors that only a state's refusal raises: the write is certainly not in, and its parts may be deleted.

`UsageError` is not among them, since it may come from anywhere.
"""

REFUSED = (*NOT_IN, TransactionExpired, UsageError)
"""Errors after which a write in just one step, or a transaction, is certainly not in. Its parts may stay."""

# The most uploads of one write: an upload that expired before its commit is made again.
UPLOADS_MAX = 4

R = TypeVar("R")


class Uploads:
    """The uploaded runs of one write; as a context manager, it deletes after an error what is surely not in.

    Args:
        shard: the shard.
        runs: the runs.
        owned: whether this write has uploaded them, so that nothing else may offer them.

    Attributes:
        runs: the runs; inline parts may have been moved to stored ones.
        tried: whether they were offered to a state.
    """

    def __init__(self, shard: Shard, runs: tuple[Run, ...], *, owned: bool = True) -> None:
        self._shard, self.runs = shard, runs
        self._owned: tuple[Run, ...] = runs if owned else ()
        self._refusals, self.tried = 0, False

    @classmethod
    def of(cls, shard: Shard, spec: ShardSpec, table: pa.Table) -> "Uploads":
        """Upload a table."""
        return cls(shard, write_table(spec, shard.stores.blobs, shard.env, table))

    def __enter__(self) -> "Uploads":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and (not self.tried or isinstance(error, NOT_IN)):
            self._discard()

    def offer(self) -> tuple[Run, ...]:
        """The runs, which a state may name from now on."""
        self.tried = True
        return self.runs

    def fit(self) -> bool:
        """Make the runs fit into a state that had no room for inline parts; False: this was done in vain.

        First merge those in the state into stored parts; then store the inline parts of these runs.
        """
        self._refusals += 1
        if self._refusals == 1:
            make_room(self._shard)
        elif self._refusals == 2:
            self._store_inline()
        return self._refusals <= 2

    def answered(self, *, needed: bool) -> None:
        """After the answer: delete the runs unless they are `needed`; then they are the state's."""
        if not needed:
            self._discard()
        self._owned = ()

    def _store_inline(self) -> None:
        shard, before = self._shard, {part.name for run in self.runs for part in run.parts}
        spec = shard.version_of(shard.known()).spec
        self.runs = stored(spec, shard.stores.blobs, shard.env, self.runs)
        fresh = (Run((part,)) for run in self.runs for part in run.parts if part.name not in before)
        self._owned += tuple(fresh)

    def _discard(self) -> None:
        discard(self._shard.stores.blobs, self._shard.env, self._owned)


class Handles:
    """The batches of one append: used by it, and their owners' again if it is certainly not in.

    Args:
        shard: the shard.
        batches: the batches.
    """

    def __init__(self, shard: Shard, batches: Sequence[Batch]) -> None:
        self.batches = batches
        self._shard = shard
        self._taken: list[Batch] = []
        self.uploads: Uploads | None = None

    def __enter__(self) -> "Handles":
        try:
            for batch in self.batches:
                batch.take("appended")
                self._taken.append(batch)
        except BaseException:
            self._give_back(offered=False)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # SUBTLE: also if the lake was closed: it refuses a command before it begins, never in the middle.
        tried = self.uploads is not None and self.uploads.tried
        if error is not None and (not tried or isinstance(error, (*NOT_IN, Closed))):
            # In a group the runs stay staged for another attempt, until that comes or they are too old.
            self._give_back(offered=tried and bool(self._shard.known().group))
        elif isinstance(error, StoreUnavailable | AlreadyTaken):
            self._give_back(offered=True)

    def _give_back(self, *, offered: bool) -> None:
        for batch in self._taken:
            batch.give_back(offered=offered)

    def drop(self, batch: Batch, parts: tuple[Part, ...]) -> None:
        """Delete parts that an append left out.

        Parts of a sent batch stay: a copy of it may be appended for just these parts.
        """
        if parts and not batch.sent:
            discard(self._shard.stores.blobs, self._shard.env, [Run(parts)])


def discard_uploaded(shard: Shard, uploads: Sequence[bytes]) -> None:
    """Delete the parts of uploads that were never offered to an append."""
    runs = [run for data in uploads if data for run in decode_batch(shard.spec, data).runs]
    discard(shard.stores.blobs, shard.env, runs)


def remade(shard: Shard, make: Callable[[], R], *, depends: bool = False) -> R:
    """Make a write and commit it; make it again if it was refused for what its maker did not know.

    That is a newer schema; a state which is so new that the upload has expired; and for a write that depends
    on contents, that others wrote: without limit then, as each time another write succeeded.

    SUBTLE: the command must be refused if a column that it writes has another name by then (`as_now`). The
    errors caught here mean that nothing was written: the table did not fit, or the state refused.

    Args:
        shard: the shard.
        make: makes the write, on a state that is known before it is called, or on a later one.
        depends: whether it depends on contents.
    """
    expired = 0
    while True:
        before = shard.known()
        try:
            return make()
        except (InvalidUpdates, IncompatibleSchema):
            if shard.state().schema_id == before.schema_id:
                raise
        except UploadExpired:
            # The refusal was made on the newest state, which the next upload names.
            expired += 1
            if expired == UPLOADS_MAX:
                raise
        except UpperMismatch:
            if not depends or shard.version().upper.closed:
                raise
        shard.env.recorder.count("append.again")

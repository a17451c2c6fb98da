"""Named writers: numbered appends, each committed exactly once.

A writer has a name, an epoch and a sequence number. The shard stores the last number in the same commit that
adds the data. A process that opens the name again reads that number, and fences the earlier holder.
"""

from collections.abc import Sequence
from functools import partial

from tidelake.data.ingest.events import EventColumns
from tidelake.errors import UsageError
from tidelake.lake.arguments.keys import deletion
from tidelake.lake.arguments.numbers import NumberedHandle
from tidelake.lake.arguments.times import FrontierLike, Times, times_for
from tidelake.lake.arguments.tokens import Commit, noted
from tidelake.model.instants import TimeLike
from tidelake.shard.engine.shard import Shard
from tidelake.shard.writing import append, batches, stage
from tidelake.shard.writing.batch import Batch
from tidelake.shard.writing.derived import ContentChange, RowChanges, commit_change
from tidelake.state.write.heldback import StreamContent
from tidelake.state.write.staging import Seen
from tidelake.state.write.write import Appended, Exactly, UpTo


def appending(
    shard: Shard,
    updates: object,
    *,
    lower: FrontierLike | None = None,
    upper: FrontierLike | None = None,
    time: TimeLike | None = None,
) -> Commit:
    """The append of rows, or of a batch; arguments and errors as for `Collection.append`."""
    times = times_for(shard)
    at = times.given(time)
    if isinstance(updates, Batch):
        if lower is not None or upper is not None or at is not None:
            raise UsageError("a batch has its own bounds and times: append it without, or by append_batches")
        return partial(batches.append_batch, shard, updates)
    end = None if upper is None else times.bound(upper, "upper")
    if lower is None:
        return partial(append.append_rows, shard, updates, end, at)
    if at is not None:
        raise UsageError("lower is for rows with times of their own: leave time or lower out")
    if end is None:
        raise UsageError(f"lower={lower} needs an upper: give upper=...")
    return partial(append.append_within, shard, updates, UpTo(times.bound(lower, "lower"), end))


def exactly(shard: Shard, updates: object, lower: FrontierLike, upper: FrontierLike) -> Commit:
    """The append of `Collection.compare_and_append`."""
    when = Exactly(*times_for(shard).interval(lower, upper))
    return partial(append.append_within, shard, updates, when)


class Writer(NumberedHandle):
    """One epoch of a named writer. Threads may share it: its calls are carried out one after the other."""

    def __init__(
        self, shard: Shard, name: str, owner: str = "", take_over: bool = False, resume: bool = False
    ) -> None:
        self._shard = shard
        super().__init__(lambda: shard, name, owner, take_over=take_over, resume=resume)

    def append(
        self,
        updates: object,
        *,
        upper: FrontierLike | None = None,
        time: TimeLike | None = None,
        sequence: int | None = None,
        author: str = "",
        message: str = "",
    ) -> Appended:
        """Append as number `sequence` (default: the next). If it is committed already, nothing is written.

        `updates` (also a batch), `upper`, `time`, `author` and `message` as for `Collection.append`.

        Raises:
            WriterFenced: a later epoch of this name is open.
            UsageError: no number is given, and the outcome of an earlier one is unknown, or another handle of
                this epoch has taken the next one. Or other rows were written under the number: rows of a
                table are compared by a short digest, those of batches and uploads by `content` only.
        """
        rows = appending(self._shard, updates, upper=upper, time=time)
        return self._committed(rows, sequence, author, message)

    def compare_and_append(
        self, updates: object, lower: FrontierLike, upper: FrontierLike, *, sequence: int | None = None
    ) -> Appended:
        """Append all updates of `[lower, upper)` as number `sequence`, iff the upper equals `lower`.

        If the number is committed already, nothing is written, whatever the upper is. Errors as for `append`,
        and `UpperMismatch`.
        """
        return self._committed(exactly(self._shard, updates, lower, upper), sequence)

    def stage(self, updates: object, *, sequence: int | None = None) -> bool:
        """`Collection.stage` as number `sequence`; False if nothing was stored. Errors as for `append`."""
        return self._numbered(sequence, partial(stage.stage, self._shard, updates))

    def stage_uploaded(
        self,
        uploads: Sequence[bytes],
        *,
        seal: FrontierLike | None = None,
        sequence: int | None = None,
        content: str | StreamContent = "",
    ) -> bool:
        """Stage uploads of workers as number `sequence`; `content` as for `append_uploaded`.

        With `seal`, the same commit closes all times before that frontier, if it is later than the upper.
        """
        end = None if seal is None else self._times.bound(seal, "seal")
        staged = partial(stage.stage_uploaded, self._shard, uploads, seal_to=end)
        return self._numbered(sequence, staged, content)

    def seal(self, upper: FrontierLike, *, sequence: int | None = None) -> Appended:
        """`Collection.seal` as number `sequence`. If it is committed already, nothing is written."""
        end = self._times.bound(upper, "upper")
        return self._committed(partial(stage.seal, self._shard, end), sequence)

    def upsert(
        self,
        table: object,
        *,
        time: TimeLike | None = None,
        order_by: str | None = None,
        delete_column: str | None = None,
        sequence: int | None = None,
        author: str = "",
        message: str = "",
    ) -> Appended:
        """`Collection.upsert` as number `sequence`. If it is committed already, nothing is written."""
        columns = EventColumns(order_by, delete_column)
        return self._changed(RowChanges(table, columns, self._times.given(time)), sequence, author, message)

    def replace(
        self, table: object, *, time: TimeLike | None = None, sequence: int | None = None
    ) -> Appended:
        """`Collection.replace` as number `sequence`. If it is committed already, nothing is written."""
        return self._changed(RowChanges(table, None, self._times.given(time)), sequence)

    def delete(
        self,
        keys: object = None,
        *,
        where: str | None = None,
        time: TimeLike | None = None,
        sequence: int | None = None,
        author: str = "",
        message: str = "",
    ) -> Appended:
        """`Collection.delete` as number `sequence`. If it is committed already, nothing is written."""
        change = deletion(keys, where, self._times.given(time), lambda: self._shard.alive().schema)
        return self._changed(change, sequence, author, message)

    def append_batches(
        self,
        offered: Sequence[Batch],
        *,
        lower: FrontierLike,
        upper: FrontierLike,
        sequence: int | None = None,
        content: str | StreamContent = "",
    ) -> Appended:
        """Append batches as number `sequence`; see `Distributed.append_batches`.

        If the number is committed already, the batches count as used. Their parts stay, since they may be the
        committed ones.
        """
        found = partial(batches.append_batches, self._shard, offered, *self._times.interval(lower, upper))
        return self._committed(found, sequence, content=content)

    def append_uploaded(
        self,
        uploads: Sequence[bytes],
        *,
        lower: FrontierLike,
        upper: FrontierLike,
        sequence: int | None = None,
        content: str | StreamContent = "",
        advance: bool = False,
        read_at: int | None = None,
    ) -> Appended:
        """Append uploads of workers as number `sequence`; see `Distributed.append_uploaded`.

        `content` describes the input of the data. The same number with another content is refused.
        """
        seen = None if read_at is None else Seen(read_at)
        within = self._times.interval(lower, upper)
        found = partial(batches.append_uploaded, self._shard, uploads, *within, advance=advance, seen=seen)
        return self._committed(found, sequence, content=content)

    def _changed(
        self, wanted: ContentChange, sequence: int | None, author: str = "", message: str = ""
    ) -> Appended:
        return self._committed(partial(commit_change, self._shard, wanted), sequence, author, message)

    def _committed(
        self,
        commit: Commit,
        sequence: int | None,
        author: str = "",
        message: str = "",
        content: str | StreamContent = "",
    ) -> Appended:
        with noted(author, message):
            return self._numbered(sequence, commit, content).of_unit(self._shard.spec.domain.unit)

    @property
    def _times(self) -> Times:
        return times_for(self._shard)

"""Named writers: numbered appends, each committed exactly once.

A writer has a name, an epoch and a sequence number. The shard stores the last number in the same commit that
adds the data. A process that opens the name again reads that number, and fences the earlier holder.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from tidelake.data.ingest.events import OF_KEYS, EventColumns, removals
from tidelake.errors import UsageError
from tidelake.lake.arguments.deletions import deletion
from tidelake.lake.arguments.frontiers import FrontierLike
from tidelake.lake.arguments.notes import noted
from tidelake.lake.arguments.numbers import NumberedHandle
from tidelake.lake.arguments.times import Times
from tidelake.model.frontier import Frontier
from tidelake.model.instants import TimeLike
from tidelake.model.time import Time
from tidelake.shard.engine.shard import Shard
from tidelake.shard.writing import append, batches, derived, stage
from tidelake.shard.writing.batch import Batch
from tidelake.state.write.idempotency import IdempotencyKey
from tidelake.state.write.staging import Seen
from tidelake.state.write.write import Appended

R = TypeVar("R")


class Writer(NumberedHandle):
    """One epoch of a named writer. Threads may share it: its calls are carried out one after the other.

    Attributes:
        name: name of the writer.
        owner: the owner of the sequence numbers, such as a streaming query's id; may be empty.
        epoch: epoch of this handle; a later `Writer` of the same name has a higher one, unless it resumes.
    """

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
        with noted(author, message):
            if isinstance(updates, Batch):
                if upper is not None or time is not None:
                    raise UsageError(
                        "a batch has its own upper and times: append it without, or by append_batches"
                    )
                return self._numbered(
                    sequence, lambda idempotency: batches.append_batch(self._shard, updates, idempotency)
                )
            end = None if upper is None else self._frontier(upper, "upper")
            at = self._time(time)
            return self._numbered(
                sequence, lambda idempotency: append.append_rows(self._shard, updates, end, idempotency, at)
            )

    def compare_and_append(
        self, updates: object, lower: FrontierLike, upper: FrontierLike, *, sequence: int | None = None
    ) -> Appended:
        """Append all updates of `[lower, upper)` as number `sequence`, iff the upper equals `lower`.

        If the number is committed already, nothing is written, whatever the upper is. Errors as for `append`,
        and `UpperMismatch`.
        """
        start, end = self._frontier(lower, "lower"), self._frontier(upper, "upper")
        return self._numbered(
            sequence,
            lambda idempotency: append.compare_and_append(self._shard, updates, start, end, idempotency),
        )

    def stage(self, updates: object, *, sequence: int | None = None) -> bool:
        """`Collection.stage` as number `sequence`; False if nothing was stored. Errors as for `append`."""
        return self._numbered(sequence, lambda idempotency: stage.stage(self._shard, updates, idempotency))

    def stage_uploaded(
        self,
        uploads: Sequence[bytes],
        *,
        seal: FrontierLike | None = None,
        sequence: int | None = None,
        content: str = "",
    ) -> bool:
        """Stage uploads of workers as number `sequence`; `content` as for `append_uploaded`.

        With `seal`, the same commit closes all times before that frontier, if it is later than the upper.
        """
        end = None if seal is None else self._frontier(seal, "seal")
        return self._numbered(
            sequence,
            lambda idempotency: stage.stage_uploaded(self._shard, uploads, idempotency, end),
            content,
        )

    def seal(self, upper: FrontierLike, *, sequence: int | None = None) -> Appended:
        """`Collection.seal` as number `sequence`. If it is committed already, nothing is written."""
        end = self._frontier(upper, "upper")
        return self._numbered(sequence, lambda idempotency: stage.seal(self._shard, end, idempotency))

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
        at, columns = self._time(time), EventColumns(order_by, delete_column)
        with noted(author, message):
            return self._numbered(
                sequence, lambda idempotency: derived.upsert(self._shard, table, columns, at, idempotency)
            )

    def replace(
        self, table: object, *, time: TimeLike | None = None, sequence: int | None = None
    ) -> Appended:
        """`Collection.replace` as number `sequence`. If it is committed already, nothing is written."""
        at = self._time(time)
        return self._numbered(
            sequence, lambda idempotency: derived.replace(self._shard, table, at, idempotency)
        )

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
        found, at = deletion(keys, where), self._time(time)
        with noted(author, message):
            if isinstance(found, str):
                return self._numbered(sequence, lambda key: derived.delete(self._shard, found, at, key))
            events = removals(found)
            return self._numbered(sequence, lambda key: derived.upsert(self._shard, events, OF_KEYS, at, key))

    def append_batches(
        self,
        offered: Sequence[Batch],
        *,
        lower: FrontierLike,
        upper: FrontierLike,
        sequence: int | None = None,
        content: str = "",
    ) -> Appended:
        """Append batches as number `sequence`; see `Distributed.append_batches`.

        If the number is committed already, the batches count as used. Their parts stay, since they may be the
        committed ones.
        """
        start, end = self._frontier(lower, "lower"), self._frontier(upper, "upper")
        return self._numbered(
            sequence,
            lambda idempotency: batches.append_batches(self._shard, offered, start, end, idempotency),
            content,
        )

    def append_uploaded(
        self,
        uploads: Sequence[bytes],
        *,
        lower: FrontierLike,
        upper: FrontierLike,
        sequence: int | None = None,
        content: str = "",
        advance: bool = False,
        read_at: int | None = None,
    ) -> Appended:
        """Append uploads of workers as number `sequence`; see `Distributed.append_uploaded`.

        `content` describes the input of the data. The same number with another content is refused.
        """
        start, end = self._frontier(lower, "lower"), self._frontier(upper, "upper")
        seen = None if read_at is None else Seen(read_at)
        return self._numbered(
            sequence,
            lambda idempotency: batches.append_uploaded(
                self._shard, uploads, start, end, idempotency, advance=advance, seen=seen
            ),
            content,
        )

    def _numbered(self, sequence: int | None, attempt: Callable[[IdempotencyKey], R], content: str = "") -> R:
        done = super()._numbered(sequence, attempt, content)
        told: Any = done.of_unit(self._shard.spec.domain.unit) if isinstance(done, Appended) else done
        answer: R = told
        return answer

    @property
    def _times(self) -> Times:
        return Times(self._shard.spec.domain, self._shard.env.clock.now_ms)

    def _time(self, value: TimeLike | None) -> Time | None:
        return None if value is None else self._times.at(value, "time")

    def _frontier(self, value: FrontierLike, name: str) -> Frontier:
        return self._times.bound(value, name)
